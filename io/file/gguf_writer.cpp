#include "io/file/gguf_writer.h"

#include <algorithm>

namespace {

constexpr int64_t alignment = 32;
enum ValueType : uint32_t { u32 = 4, i32 = 5, f32 = 6, string = 8, list = 9 };

template <class T>
void append(std::string& bytes, T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_text(std::string& bytes, std::string_view text) {
    append(bytes, static_cast<uint64_t>(text.size()));
    bytes += text;
}

int64_t round_up(int64_t n) { return (n + alignment - 1) / alignment * alignment; }

int64_t bytes_of(GgufType type, int64_t elements) {
    const GgufTypeInfo& info = gguf_type_info(type);
    return elements / info.values * info.bytes;
}

void write_padding(FileWriter& file, int64_t written) {
    const std::string zeros(static_cast<size_t>(round_up(written) - written), '\0');
    file.write(zeros.data(), static_cast<int64_t>(zeros.size()));
}

}  // namespace

void GgufWriter::add_key(std::string_view key, uint32_t type) {
    append_text(metadata_, key);
    append(metadata_, type);
    keys_++;
}

void GgufWriter::add(std::string_view key, uint32_t value) {
    add_key(key, u32);
    append(metadata_, value);
}

void GgufWriter::add(std::string_view key, float value) {
    add_key(key, f32);
    append(metadata_, value);
}

void GgufWriter::add(std::string_view key, std::string_view value) {
    add_key(key, string);
    append_text(metadata_, value);
}

void GgufWriter::add(std::string_view key, const std::vector<std::string>& values) {
    add_key(key, list);
    append<uint32_t>(metadata_, string);
    append(metadata_, static_cast<uint64_t>(values.size()));
    for (const std::string& value : values) append_text(metadata_, value);
}

void GgufWriter::add(std::string_view key, const std::vector<int32_t>& values) {
    add_key(key, list);
    append<uint32_t>(metadata_, i32);
    append(metadata_, static_cast<uint64_t>(values.size()));
    for (const int32_t value : values) append(metadata_, value);
}

void GgufWriter::add_tensor(std::string_view name, GgufType type, const std::vector<int64_t>& shape,
                            const float* data) {
    append_text(table_, name);
    append(table_, static_cast<uint32_t>(shape.size()));
    int64_t elements = 1;
    for (auto dimension = shape.rbegin(); dimension != shape.rend(); ++dimension) {
        append(table_, static_cast<uint64_t>(*dimension));
        elements *= *dimension;
    }
    append(table_, static_cast<uint32_t>(type));
    append(table_, static_cast<uint64_t>(data_bytes_));
    data_bytes_ += round_up(bytes_of(type, elements));
    tensors_.push_back({type, elements, data});
}

WrittenFile GgufWriter::write(const std::string& path) const {
    std::string head = "GGUF";
    append<uint32_t>(head, 3);
    append(head, static_cast<uint64_t>(tensors_.size()));
    append(head, keys_);
    head += metadata_ + table_;
    head.resize(static_cast<size_t>(round_up(static_cast<int64_t>(head.size()))), '\0');

    FileWriter file(path);
    file.write(head.data(), static_cast<int64_t>(head.size()));
    constexpr int64_t piece = 1 << 20;  // a whole number of blocks
    std::vector<uint8_t> buffer;
    for (const Tensor& tensor : tensors_) {
        buffer.resize(std::max(buffer.size(), std::min(piece, tensor.elements) * sizeof(float)));
        for (int64_t at = 0; at < tensor.elements; at += piece) {
            const int64_t count = std::min(piece, tensor.elements - at);
            encode_values(tensor.type, tensor.data + at, count, buffer.data());
            file.write(buffer.data(), bytes_of(tensor.type, count));
        }
        write_padding(file, bytes_of(tensor.type, tensor.elements));
    }
    return file.commit();
}
