// Writes GGUF, llama.cpp's format, as GgufFile reads it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/file/file.h"
#include "io/file/gguf_values.h"

class GgufWriter {
public:
    void add(std::string_view key, uint32_t value);
    void add(std::string_view key, float value);
    void add(std::string_view key, std::string_view value);
    void add(std::string_view key, const std::vector<std::string>& values);
    void add(std::string_view key, const std::vector<int32_t>& values);
    // A tensor with its outermost dimension first. Its last dimension must be a multiple of the type's block. `data`
    // must live until write().
    void add_tensor(std::string_view name, GgufType type, const std::vector<int64_t>& shape, const float* data);

    // Writes and fsyncs; the file appears whole or not at all. Throws InputError with the system's reason.
    WrittenFile write(const std::string& path) const;

private:
    struct Tensor {
        GgufType type;
        int64_t elements;
        const float* data;
    };
    void add_key(std::string_view key, uint32_t type);
    std::string metadata_, table_;
    uint64_t keys_ = 0;
    int64_t data_bytes_ = 0;  // of the tensors so far, each padded to the alignment
    std::vector<Tensor> tensors_;
};
