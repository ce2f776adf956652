// Checks of single accesses; see access.cpp. They do nothing where kernels were not compiled for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace emulator {

struct Byte;
std::shared_ptr<Byte[]> new_bytes(size_t count);
// The host has written device memory.
void set_written(const void* p, size_t bytes);

}  // namespace emulator
