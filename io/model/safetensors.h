// The safetensors format: 8 bytes of header length, a JSON header (name -> dtype, shape, offsets), then raw data.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/file/file.h"

enum class DType { F64, F32, F16, BF16, I64, I32, U16, U8, BOOL, other };

class SafetensorsFile {
public:
    struct Entry {
        std::string name;
        DType dtype = DType::other;
        std::string dtype_name;  // as written: "F32"
        std::vector<int64_t> shape;
        int64_t begin = 0, end = 0;  // bytes, from the start of the data
        int64_t elements() const;
    };
    explicit SafetensorsFile(
        const std::string& path);  // maps the file, checks header and every offset; throws InputError

    const std::vector<Entry>& entries() const { return entries_; }  // in the data's order
    const Entry* find(const std::string& name) const;               // null if absent
    const std::map<std::string, std::string>& metadata() const { return metadata_; }
    const void* data(const Entry& entry) const;  // not aligned
    // Copies a tensor of F64, F32, F16 or BF16, converted to float or double. Throws InputError for other dtypes.
    void read(const Entry& entry, float* out) const { read_part(entry, 0, entry.elements(), out); }
    void read(const Entry& entry, double* out) const;
    // Its elements [begin, end) only.
    void read_part(const Entry& entry, int64_t begin, int64_t end, float* out) const;
    // Copies an (M,N) matrix as (N,M).
    void read_transposed(const Entry& entry, float* out) const;
    const std::string& path() const { return file_.path(); }

private:
    MappedFile file_;
    int64_t data_offset_ = 0;
    std::vector<Entry> entries_;
    std::map<std::string, std::string> metadata_;
    std::unordered_map<std::string, size_t> index_;
};

std::string shape_text(const std::vector<int64_t>& shape);  // "(50257,768)"

// A tensor to write: data of `dtype` in row-major order. With `transposed`, data is a (shape[1], shape[0]) matrix of
// floats, which is stored transposed (Hugging Face's (in,out) from this program's (out,in)).
struct TensorToWrite {
    std::string name;
    DType dtype = DType::F32;
    std::vector<int64_t> shape;
    const void* data = nullptr;
    bool transposed = false;  // F32 matrices only
    // If it is set it is called for one piece after the other, in place of `data`: it writes elements [begin, end) to
    // out.
    std::function<void(int64_t begin, int64_t end, float* out)> read{};  // F32 only
};

// Writes and fsyncs. Throws InputError with the system's reason (a full disk leaves no file behind).
WrittenFile write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                              const std::vector<std::pair<std::string, std::string>>& metadata = {{"format", "pt"}});
