// Reads GGUF, llama.cpp's format: metadata (values by key), a table of tensors, and their data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/file/file.h"
#include "io/file/gguf_values.h"

// Whether a file is GGUF, by its name or by its first bytes (Ollama's files have no extension).
bool is_gguf(const std::string& path);

class GgufFile {
public:
    struct Tensor {
        std::string_view name;
        GgufType type = GgufType::F32;
        std::vector<int64_t> shape;    // the outermost dimension first; the file has the innermost first
        int64_t begin = 0, bytes = 0;  // in the file
        int64_t elements() const;
    };

    // Maps a file of version 3 and checks all of it but the tensors' values. Files of architectures other than
    // `architecture`, which may have tensors of unknown types, are refused by name. Throws InputError.
    GgufFile(const std::string& path, const std::string& architecture);

    const std::vector<Tensor>& tensors() const { return tensors_; }  // in the file's order
    const Tensor* find(std::string_view name) const;                 // null if absent
    // Copies a tensor, converted to float.
    void read(const Tensor& tensor, float* out) const;
    const uint8_t* data(const Tensor& tensor) const { return file_.data() + tensor.begin; }

    // Metadata, of any integer or floating-point type. Throws InputError if the key is missing, or its value is of
    // another kind or outside [low, high]. Text and lists point into the file.
    bool has(std::string_view key) const { return metadata_.contains(key); }
    int64_t integer(std::string_view key, int64_t low, int64_t high) const;
    double number(std::string_view key) const;
    std::string_view text(std::string_view key) const;
    std::vector<std::string_view> texts(std::string_view key) const;
    std::vector<int64_t> integers(std::string_view key) const;

    const std::string& path() const { return file_.path(); }

private:
    struct Value {
        uint32_t type = 0;  // of the value, or of each element
        bool is_list = false;
        uint64_t count = 1;
        const uint8_t* data = nullptr;
    };
    class Cursor;
    void read_metadata(Cursor& cursor, uint64_t count);
    void read_tensors(Cursor& cursor, uint64_t count);
    void place_tensors(int64_t table_end);
    const Value& require(std::string_view key, bool fits(const Value&), const char* expected) const;

    MappedFile file_;
    std::unordered_map<std::string_view, Value> metadata_;
    std::vector<Tensor> tensors_;
    std::vector<uint64_t> offsets_;  // of the tensors, as the file has them
    std::unordered_map<std::string_view, size_t> index_;
};
