// How a command ends: its exit status, and a line on standard error if it failed.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

// Prints "train_gpt2: message" to standard error.
void print_error(const std::string& message);

// How a command fails: its exit status and what it prints.
struct Failure {
    int status;
    std::string message;
};
// Of the exception that is being handled.
Failure current_failure();

// A rank of several has failed. All ranks end with this status; the message is "" on those that leave it to another.
struct RankFailed : std::runtime_error {
    RankFailed(int exit_status, const std::string& message) : std::runtime_error(message), status(exit_status) {}
    int status;
};

// Runs a command and returns the exit status: 0 for success, 1 if a check or the device failed, 2 for bad input. An
// exception is printed and turned into one of these, and so is a failed write to standard output. --help and --version
// print their texts.
int exit_status(const std::function<int()>& command);
