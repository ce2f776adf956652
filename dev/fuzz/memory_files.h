// The functions of io/file/file.h on files in memory, linked in place of io/file/file.cpp. An execution makes no system
// call, and each file is an allocation of exactly its size, so that AddressSanitizer reports the first byte read beyond
// its end. With GUARD_PAGES it ends at a page that faults.
#pragma once

#include <string>
#include <string_view>

namespace memory_files {

void clear();
void put(const std::string& path, std::string_view bytes);
std::string get(const std::string& path);  // "" if there is no such file

}  // namespace memory_files
