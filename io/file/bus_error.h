// Files are read by mapping them into memory. If a file is truncated while it is mapped, or its disk fails, no call
// returns an error: the instruction that reads it raises SIGBUS.
#pragma once

#include <cstdint>
#include <string>

// From now on a SIGBUS in a mapped file prints the program's name and the file's, and ends the process with status 2.
void explain_bus_errors(const std::string& program);

// For MappedFile: these bytes are the file's, until they no longer are.
void note_mapping(const uint8_t* begin, int64_t bytes, const std::string& path);
void forget_mapping(const uint8_t* begin);
