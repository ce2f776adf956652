// Splits the words of a command line into options and their values by CLI11. It is a file of its own because CLI11
// takes long to compile; this one is compiled once, also for the builds with sanitizers (Makefile).
#pragma once

#include <string>
#include <vector>

namespace command_line {

struct Option {
    std::string label;  // "--batch", or "TEXT" for an argument
    bool is_flag;       // takes a value only after "="
    bool is_list;       // takes all arguments
};

struct Parsed {
    bool help = false, version = false;
    std::string error;                             // what CLI11 found wrong; "": nothing
    std::vector<std::vector<std::string>> values;  // of each option, as often as it was given
    std::vector<std::string> rest;                 // words that belong to no option
};

Parsed parse(const std::vector<Option>& options, std::vector<std::string> words);

}  // namespace command_line
