// How a command ends: its exit status, and a line on standard error where it failed.
#pragma once

#include <functional>
#include <string>

// "train_gpt2: message" on standard error.
void print_error(const std::string& message);

// Runs a command, which returns its exit status: 0 done, 1 a check or the device failed, 2 bad input. An exception of
// the command is printed and becomes such a status, as does a failure to write standard output. --help and --version
// print their texts.
int exit_status(const std::function<int()>& command);
