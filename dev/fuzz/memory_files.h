// io/file/file.h's files kept in memory, linked in io/file/file.cpp's place: an execution costs no system call, and
// each file is an allocation of its own exact size, so that AddressSanitizer sees the first byte read beyond its end;
// with GUARD_PAGES it ends at a page that faults.
#pragma once

#include <string>
#include <string_view>

namespace memory_files {

void clear();
void put(const std::string& path, std::string_view bytes);
std::string get(const std::string& path);  // "" where there is none

}  // namespace memory_files
