#include "io/file/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "io/file/error.h"
#include "io/file/json.h"

namespace {

constexpr char remedy[] = "the file is damaged or cut short: fetch or write it again";

// The numbers by which the format names the types of metadata.
enum ValueType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, list, u64, i64, f64 };
constexpr uint64_t value_bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};  // 0: of any size

template <class T>
T load(const uint8_t* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

bool is_integer(uint32_t type) { return type <= i32 || type == u64 || type == i64; }

// The integer at `from`; unsigned ones above INT64_MAX become INT64_MAX, which is in no range that is asked for.
int64_t load_integer(uint32_t type, const uint8_t* from) {
    switch (type) {
        case u8:
            return *from;
        case i8:
            return load<int8_t>(from);
        case u16:
            return load<uint16_t>(from);
        case i16:
            return load<int16_t>(from);
        case u32:
            return load<uint32_t>(from);
        case i32:
            return load<int32_t>(from);
        case u64:
            return static_cast<int64_t>(std::min<uint64_t>(load<uint64_t>(from), INT64_MAX));
        default:
            return load<int64_t>(from);
    }
}

std::string_view load_text(const uint8_t* from) {
    return {reinterpret_cast<const char*>(from) + 8, static_cast<size_t>(load<uint64_t>(from))};
}

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

bool is_gguf(const std::string& path) {
    if (path.ends_with(".gguf")) return true;
    const MappedFile file(path);
    return file.size() >= 4 && std::memcmp(file.data(), "GGUF", 4) == 0;
}

// Reads one field after the other, never beyond the end of the file. `field` and `part` name the place in messages.
class GgufFile::Cursor {
public:
    explicit Cursor(const MappedFile& file) : file_(file) {}
    const uint8_t* take(std::string_view field, std::string_view part, uint64_t bytes) {
        if (bytes > remaining())
            bad_input(file_.path(), std::string(field) + std::string(part),
                      std::to_string(remaining()) + " bytes until the end of the file",
                      "at least " + std::to_string(bytes), remedy);
        const uint8_t* const from = file_.data() + at_;
        at_ += static_cast<int64_t>(bytes);
        return from;
    }
    template <class T>
    T number(std::string_view field, std::string_view part) {
        return load<T>(take(field, part, sizeof(T)));
    }
    // A count of things that take at least `bytes` each.
    uint64_t count(std::string_view field, std::string_view part, uint64_t bytes) {
        const auto n = number<uint64_t>(field, part);
        if (n > remaining() / bytes)
            bad_input(file_.path(), std::string(field) + std::string(part), std::to_string(n),
                      "at most " + std::to_string(remaining() / bytes) + " (what the file can hold)", remedy);
        return n;
    }
    std::string_view text(std::string_view field) {
        const auto size = count(field, ", length", 1);
        return {reinterpret_cast<const char*>(take(field, "", size)), static_cast<size_t>(size)};
    }
    int64_t at() const { return at_; }

private:
    uint64_t remaining() const { return static_cast<uint64_t>(file_.size() - at_); }
    const MappedFile& file_;
    int64_t at_ = 0;
};

int64_t GgufFile::Tensor::elements() const {
    int64_t product = 1;
    for (const int64_t n : shape) product *= n;
    return product;
}

GgufFile::GgufFile(const std::string& path, const std::string& architecture) : file_(path) {
    Cursor cursor(file_);
    if (std::memcmp(cursor.take("magic number", "", 4), "GGUF", 4) != 0)
        throw InputError(path + ": does not begin with GGUF; check which file this is");
    const auto version = cursor.number<uint32_t>("version", "");
    if (version != 3)
        bad_input(path, "version", std::to_string(version), "3", "write it again with a newer llama.cpp or `convert`");
    const uint64_t tensors = cursor.count("number of tensors", "", 24), keys = cursor.count("number of keys", "", 13);
    read_metadata(cursor, keys);
    if (const auto found = text("general.architecture"); found != architecture)
        bad_input(path, "general.architecture", one_line(found), one_line(architecture), "use a GPT-2 model");
    read_tensors(cursor, tensors);
    place_tensors(cursor.at());
}

void GgufFile::read_metadata(Cursor& cursor, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        const std::string_view key = cursor.text("key " + std::to_string(i));
        const std::string field = "key " + one_line(key);
        Value value{.type = cursor.number<uint32_t>(field, ", type")};
        if (value.type == list) {
            value.is_list = true;
            value.type = cursor.number<uint32_t>(field, ", type of the elements");
        }
        if (value.type > f64 || value.type == list)
            bad_input(path(), field, "type " + std::to_string(value.type), "a type of GGUF 3, and no list of lists",
                      remedy);
        const uint64_t bytes = value_bytes[value.type];
        if (value.is_list) value.count = cursor.count(field, ", number of elements", bytes > 0 ? bytes : 8);
        if (bytes > 0) {
            value.data = cursor.take(field, "", value.count * bytes);
        } else {
            value.data = cursor.take(field, "", 0);
            for (uint64_t n = 0; n < value.count; n++) cursor.text(field);
        }
        if (!metadata_.emplace(key, value).second)
            throw InputError(path() + ": " + field + " appears twice; write the file again");
    }
}

void GgufFile::read_tensors(Cursor& cursor, uint64_t count) {
    constexpr uint32_t max_dimensions = 4;
    for (uint64_t i = 0; i < count; i++) {
        Tensor tensor;
        tensor.name = cursor.text("tensor " + std::to_string(i));
        const std::string field = "tensor " + one_line(tensor.name);
        const auto dimensions = cursor.number<uint32_t>(field, ", number of dimensions");
        if (dimensions < 1 || dimensions > max_dimensions)
            bad_input(path(), field, std::to_string(dimensions) + " dimensions", "1 to 4", remedy);
        int64_t elements = 1;
        for (uint32_t d = 0; d < dimensions; d++) {
            const auto n = cursor.number<uint64_t>(field, ", shape");
            // No tensor can have more elements than the file has bytes, so that no product overflows.
            if (n < 1 || n > static_cast<uint64_t>(file_.size() / elements))
                bad_input(path(), field + ", dimension " + std::to_string(d), std::to_string(n),
                          "1 to " + std::to_string(file_.size() / elements) + " (what the file can hold)", remedy);
            elements *= static_cast<int64_t>(n);
            tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(n));
        }
        const auto type = cursor.number<uint32_t>(field, ", type");
        const GgufTypeInfo* const known = find_gguf_type(type);
        if (!known)
            bad_input(path(), field, "type " + std::to_string(type), "f32 (0), f16 (1), q8_0 (8) or bf16 (30)",
                      "convert it with llama.cpp: llama-quantize --allow-requantize IN.gguf OUT.gguf Q8_0");
        if (tensor.shape.back() % known->values != 0)
            bad_input(path(), field, "rows of " + std::to_string(tensor.shape.back()) + " values",
                      "a multiple of " + std::to_string(known->values) + ", the block of " + known->name, remedy);
        tensor.type = known->type;
        tensor.bytes = elements / known->values * known->bytes;
        offsets_.push_back(cursor.number<uint64_t>(field, ", offset"));
        if (!index_.emplace(tensor.name, tensors_.size()).second)
            throw InputError(path() + ": " + field + " appears twice; write the file again");
        tensors_.push_back(std::move(tensor));
    }
}

// As llama.cpp requires it, the tensors must follow each other in the table's order, each one aligned, without gaps,
// overlaps or trailing bytes.
void GgufFile::place_tensors(int64_t table_end) {
    constexpr int64_t max_alignment = 1 << 20;
    const int64_t alignment = has("general.alignment") ? integer("general.alignment", 1, max_alignment) : 32;
    if (!std::has_single_bit(static_cast<uint64_t>(alignment)))
        bad_input(path(), "general.alignment", std::to_string(alignment), "a power of two", remedy);
    const int64_t data = round_up(table_end, alignment);
    int64_t end = data;
    for (size_t i = 0; i < tensors_.size(); i++) {
        Tensor& tensor = tensors_[i];
        tensor.begin = round_up(end, alignment);
        const std::string field = "tensor " + one_line(tensor.name);
        if (offsets_[i] != static_cast<uint64_t>(tensor.begin - data))
            bad_input(path(), field, "offset " + std::to_string(offsets_[i]), std::to_string(tensor.begin - data),
                      remedy);
        if (tensor.bytes > file_.size() - tensor.begin)
            bad_input(
                path(), field,
                std::to_string(std::max<int64_t>(file_.size() - tensor.begin, 0)) + " bytes until the end of the file",
                std::to_string(tensor.bytes), remedy);
        end = tensor.begin + tensor.bytes;
    }
    if (file_.size() > round_up(end, alignment))
        bad_input(path(), "size", std::to_string(file_.size()) + " bytes",
                  std::to_string(round_up(end, alignment)) + " (where the last tensor ends)", remedy);
}

const GgufFile::Tensor* GgufFile::find(std::string_view name) const {
    const auto it = index_.find(name);
    return it == index_.end() ? nullptr : &tensors_[it->second];
}

void GgufFile::read(const Tensor& tensor, float* out) const {
    constexpr int64_t piece = 1 << 18;  // a whole number of blocks
    const GgufTypeInfo& type = gguf_type_info(tensor.type);
    for (int64_t at = 0, n = tensor.elements(); at < n; at += piece) {
        const int64_t count = std::min(piece, n - at);
        const uint8_t* const from = data(tensor) + at / type.values * type.bytes;
        decode_values(tensor.type, from, count, out + at);
        file_.forget(from, count / type.values * type.bytes);
    }
}

const GgufFile::Value& GgufFile::require(std::string_view key, bool fits(const Value&), const char* expected) const {
    const auto it = metadata_.find(key);
    if (it == metadata_.end() || !fits(it->second))
        bad_input(path(), std::string(key), it == metadata_.end() ? "no value" : "a value of another type", expected,
                  "check which file this is");
    return it->second;
}

int64_t GgufFile::integer(std::string_view key, int64_t low, int64_t high) const {
    const Value& value = require(
        key, [](const Value& v) { return !v.is_list && is_integer(v.type); }, "an integer");
    const int64_t number = load_integer(value.type, value.data);
    if (number < low || number > high)
        bad_input(path(), std::string(key), std::to_string(number), std::to_string(low) + " to " + std::to_string(high),
                  "check which file this is");
    return number;
}

double GgufFile::number(std::string_view key) const {
    const Value& value = require(
        key, [](const Value& v) { return !v.is_list && (v.type == f32 || v.type == f64); }, "a number");
    return value.type == f32 ? load<float>(value.data) : load<double>(value.data);
}

std::string_view GgufFile::text(std::string_view key) const {
    return load_text(require(
                         key, [](const Value& v) { return !v.is_list && v.type == string; }, "a text")
                         .data);
}

std::vector<std::string_view> GgufFile::texts(std::string_view key) const {
    const Value& value = require(
        key, [](const Value& v) { return v.is_list && v.type == string; }, "a list of texts");
    std::vector<std::string_view> texts;
    const uint8_t* at = value.data;
    for (uint64_t i = 0; i < value.count; i++) {
        texts.push_back(load_text(at));
        at += 8 + texts.back().size();
    }
    return texts;
}

std::vector<int64_t> GgufFile::integers(std::string_view key) const {
    const Value& value = require(
        key, [](const Value& v) { return v.is_list && is_integer(v.type); }, "a list of integers");
    std::vector<int64_t> numbers;
    for (uint64_t i = 0; i < value.count; i++)
        numbers.push_back(load_integer(value.type, value.data + i * value_bytes[value.type]));
    return numbers;
}
