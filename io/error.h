// Bad input: a file or an option that cannot be used. main() prints the message as one line and exits with 2.
#pragma once

#include <stdexcept>
#include <string>

struct InputError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// "data.bin: magic number: found 7, expected 20240520 (a llm.c token shard); pass a shard or a text file"
[[noreturn]] inline void bad_input(const std::string& file, const std::string& field, const std::string& found,
                                   const std::string& expected, const std::string& remedy) {
    throw InputError(file + ": " + field + ": found " + found + ", expected " + expected + "; " + remedy);
}
