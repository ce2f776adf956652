// How a command ends: its exit status, and a line on standard error if it failed.
#pragma once

#include <functional>
#include <string>

// Prints "train_gpt2: message" to standard error.
void print_error(const std::string& message);

// Runs a command and returns the exit status: 0 for success, 1 if a check or the device failed, 2 for bad input. An
// exception is printed and turned into one of these, and so is a failed write to standard output. --help and --version
// print their texts.
int exit_status(const std::function<int()>& command);
