#include "io/model/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "io/file/error.h"
#include "device/float_formats.h"
#include "io/file/json.h"

using nlohmann::json;

namespace {

struct DTypeRow {
    DType dtype;
    const char* name;
    int64_t bytes;
};
constexpr DTypeRow dtypes[] = {{DType::F64, "F64", 8},   {DType::F32, "F32", 4}, {DType::F16, "F16", 2},
                               {DType::BF16, "BF16", 2}, {DType::I64, "I64", 8}, {DType::I32, "I32", 4},
                               {DType::U16, "U16", 2},   {DType::U8, "U8", 1},   {DType::BOOL, "BOOL", 1}};

// Returns null for DType::other, whose size is not known.
const DTypeRow* row_of(DType dtype) {
    for (const DTypeRow& row : dtypes)
        if (row.dtype == dtype) return &row;
    return nullptr;
}

// Reads a shape. Returns false if it is not one, or if its number of elements is more than `limit`.
bool parse_shape(const json& value, int64_t limit, std::vector<int64_t>& shape) {
    constexpr size_t max_dimensions = 64;
    if (!value.is_array() || value.size() > max_dimensions) return false;
    bool empty = false;
    int64_t product = 1;
    for (const json& item : value) {
        if (!item.is_number_unsigned() || item.get<uint64_t>() > uint64_t{INT64_MAX}) return false;
        const int64_t n = item.get<int64_t>();
        shape.push_back(n);
        if (n == 0)
            empty = true;
        else if (product > limit / n)
            product = limit + 1;  // stays there: too large, unless another count is 0
        else
            product *= n;
    }
    return empty || product <= limit;
}

bool parse_offsets(const json& value, int64_t data_bytes, SafetensorsFile::Entry& entry) {
    if (!value.is_array() || value.size() != 2) return false;
    for (const json& item : value)
        if (!item.is_number_unsigned() || item.get<uint64_t>() > static_cast<uint64_t>(data_bytes)) return false;
    entry.begin = value[0].get<int64_t>(), entry.end = value[1].get<int64_t>();
    return entry.begin <= entry.end;
}

template <class T>
T load(const uint8_t* data, int64_t i) {
    T value;
    std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
}

// Calls use(at), where at(i) is element i of `data` as a number.
template <class Use>
void with_numbers(const std::string& path, const SafetensorsFile::Entry& entry, const uint8_t* data, Use use) {
    switch (entry.dtype) {
        case DType::F64:
            return use([data](int64_t i) { return load<double>(data, i); });
        case DType::F32:
            return use([data](int64_t i) { return load<float>(data, i); });
        case DType::F16:
            return use([data](int64_t i) { return float_from_f16(load<uint16_t>(data, i)); });
        case DType::BF16:
            return use([data](int64_t i) { return float_from_bf16(load<uint16_t>(data, i)); });
        default:
            bad_input(path, "tensor " + one_line(entry.name), "dtype " + one_line(entry.dtype_name),
                      "F64, F32, F16 or BF16", "save the model in one of these");
    }
}

// out (N,M) = transpose of at(m,n). Works in squares of one cache line's width, so that on both sides all of a cache
// line is used.
template <class At>
void transpose(int64_t M, int64_t N, At at, float* out) {
    constexpr int64_t square = 16;
    for (int64_t m0 = 0; m0 < M; m0 += square) {
        const int64_t m1 = std::min(m0 + square, M);
        for (int64_t n0 = 0; n0 < N; n0 += square) {
            const int64_t n1 = std::min(n0 + square, N);
            for (int64_t n = n0; n < n1; n++)
                for (int64_t m = m0; m < m1; m++) out[n * M + m] = at(m, n);
        }
    }
}

}  // namespace

std::string shape_text(const std::vector<int64_t>& shape) {
    std::string text = "(";
    for (const int64_t n : shape) {
        if (text.size() > 1) text += ',';
        text += std::to_string(n);
    }
    return text + ")";
}

int64_t SafetensorsFile::Entry::elements() const {
    int64_t product = 1;
    for (const int64_t n : shape) {
        if (n == 0) return 0;
        product *= n;
    }
    return product;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
    const auto bytes = [](int64_t n) { return std::to_string(n) + " bytes"; };
    const char* remedy = "the file is damaged or cut short: fetch or write it again";
    if (file_.size() < 8)
        throw InputError(path + ": " + bytes(file_.size()) + " are too few for a safetensors file; " + remedy);

    constexpr uint64_t max_header = 100'000'000;  // the format's own limit
    const uint64_t header = load<uint64_t>(file_.data(), 0);
    if (header > max_header || header > static_cast<uint64_t>(file_.size() - 8))
        bad_input(
            path, "header length", std::to_string(header),
            "at most " + std::to_string(std::min<int64_t>(file_.size() - 8, max_header)) + " (a safetensors file)",
            remedy);
    data_offset_ = 8 + static_cast<int64_t>(header);
    const int64_t data_bytes = file_.size() - data_offset_;

    const std::string_view text(reinterpret_cast<const char*>(file_.data()) + 8, header);
    const json root = parse_json_object(path, text);
    for (const auto& [name, value] : root.items()) {
        if (name == "__metadata__") {
            for (const auto& [key, text_value] : value.items())
                if (text_value.is_string()) metadata_[key] = text_value.get<std::string>();
            continue;
        }
        const std::string field = "tensor " + one_line(name);
        const auto member = [&, &item = value](const char* key) {
            return item.is_object() ? item.value(key, json()) : json();
        };
        Entry entry;
        entry.name = name;
        const json dtype = member("dtype"), shape = member("shape"), offsets = member("data_offsets");
        if (!dtype.is_string()) bad_input(path, field, "dtype " + json_text(dtype), "a name such as F32", remedy);
        entry.dtype_name = dtype.get<std::string>();
        for (const DTypeRow& row : dtypes)
            if (entry.dtype_name == row.name) entry.dtype = row.dtype;
        if (!parse_offsets(offsets, data_bytes, entry))
            bad_input(path, field, "data_offsets " + json_text(offsets),
                      "[begin, end] within the " + bytes(data_bytes) + " of data", remedy);
        const DTypeRow* known = row_of(entry.dtype);
        const int64_t size = entry.end - entry.begin;
        if (!parse_shape(shape, INT64_MAX / 8, entry.shape) || (known && entry.elements() * known->bytes != size))
            bad_input(path, field,
                      "shape " + json_text(shape) + " of " + (known ? entry.dtype_name : one_line(entry.dtype_name)),
                      "one that fills its " + bytes(size), remedy);
        entries_.push_back(std::move(entry));
    }

    // As in the format's own reader, the tensors must fill the data without gaps, overlaps or trailing bytes.
    std::sort(entries_.begin(), entries_.end(),
              [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
    int64_t end = 0;
    for (size_t i = 0; i < entries_.size(); i++) {
        const Entry& entry = entries_[i];
        if (entry.begin != end)
            bad_input(path, "tensor " + one_line(entry.name),
                      "data_offsets that begin at " + std::to_string(entry.begin),
                      std::to_string(end) + ", where the tensor before it ends", remedy);
        end = entry.end;
        index_.emplace(entry.name, i);
    }
    if (end != data_bytes) bad_input(path, "size of the data", bytes(data_bytes), bytes(end), remedy);
}

const SafetensorsFile::Entry* SafetensorsFile::find(const std::string& name) const {
    const auto it = index_.find(name);
    return it == index_.end() ? nullptr : &entries_[it->second];
}

const void* SafetensorsFile::data(const Entry& entry) const { return file_.data() + data_offset_ + entry.begin; }

void SafetensorsFile::read_part(const Entry& entry, int64_t first, int64_t last, float* out) const {
    const auto* const from = static_cast<const uint8_t*>(data(entry));
    with_numbers(path(), entry, from, [&](auto at) {
        const auto read_piece = [&](int64_t begin, int64_t end) {
            float* const place = out - first;
            // Memory that was never written reads as zeros and takes no space. Zeros of the tensor are not written, so
            // that it stays that way.
            const auto is_zero = [&](int64_t i) {
                return std::bit_cast<uint32_t>(static_cast<float>(at(i))) == 0 &&
                       std::bit_cast<uint32_t>(place[i]) == 0;
            };
            int64_t i = begin;
            while (i < end && is_zero(i)) i++;
            if (i == end) return;
            for (i = begin; i < end; i++) place[i] = static_cast<float>(at(i));
        };
        constexpr int64_t piece = 1 << 18;
        const int64_t n = entry.elements(), width = n > 0 ? (entry.end - entry.begin) / n : 0;
        for (int64_t begin = first; begin < last; begin += piece) {
            const int64_t end = std::min(last, begin + piece);
            read_piece(begin, end);
            file_.forget(from + begin * width, (end - begin) * width);
        }
    });
}

void SafetensorsFile::read(const Entry& entry, double* out) const {
    with_numbers(path(), entry, static_cast<const uint8_t*>(data(entry)), [&](auto at) {
        for (int64_t i = 0, n = entry.elements(); i < n; i++) out[i] = at(i);
    });
}

void SafetensorsFile::read_transposed(const Entry& entry, float* out) const {
    if (entry.shape.size() != 2)
        bad_input(path(), "tensor " + one_line(entry.name), "shape " + shape_text(entry.shape), "a matrix",
                  "check which model this is");
    const int64_t M = entry.shape[0], N = entry.shape[1];
    with_numbers(path(), entry, static_cast<const uint8_t*>(data(entry)), [&](auto at) {
        transpose(
            M, N, [=](int64_t m, int64_t n) { return static_cast<float>(at(m * N + n)); }, out);
    });
    file_.forget(static_cast<const uint8_t*>(data(entry)), entry.end - entry.begin);
}

namespace {

// Transposes and writes a slice of rows at a time, so that a large matrix needs no second copy.
void write_transposed(FileWriter& file, const TensorToWrite& tensor) {
    const int64_t rows = tensor.shape[0], columns = tensor.shape[1];
    const float* data = static_cast<const float*>(tensor.data);  // (columns, rows)
    const int64_t slice =
        std::clamp<int64_t>((int64_t{1} << 20) / std::max<int64_t>(columns, 1), 1, std::max<int64_t>(rows, 1));
    std::vector<float> buffer(static_cast<size_t>(slice * columns));
    for (int64_t row = 0; row < rows; row += slice) {
        const int64_t n = std::min(slice, rows - row);
        transpose(
            columns, n, [=](int64_t c, int64_t r) { return data[c * rows + row + r]; }, buffer.data());
        file.write(buffer.data(), n * columns * static_cast<int64_t>(sizeof(float)));
    }
}

void write_pieces(FileWriter& file, const TensorToWrite& tensor, int64_t elements) {
    constexpr int64_t piece = 1 << 20;
    std::vector<float> buffer(static_cast<size_t>(std::min(piece, elements)));
    for (int64_t begin = 0; begin < elements; begin += piece) {
        const int64_t end = std::min(elements, begin + piece);
        tensor.read(begin, end, buffer.data());
        file.write(buffer.data(), (end - begin) * static_cast<int64_t>(sizeof(float)));
    }
}

}  // namespace

WrittenFile write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                              const std::vector<std::pair<std::string, std::string>>& metadata) {
    nlohmann::ordered_json header;
    for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
    int64_t end = 0;
    std::vector<int64_t> sizes;
    for (const TensorToWrite& tensor : tensors) {
        const DTypeRow* row = row_of(tensor.dtype);
        SafetensorsFile::Entry entry;
        entry.shape = tensor.shape;
        const int64_t bytes = entry.elements() * row->bytes;
        header[tensor.name] = {{"dtype", row->name}, {"shape", tensor.shape}, {"data_offsets", {end, end + bytes}}};
        end += bytes;
        sizes.push_back(bytes);
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');  // keeps the data aligned
    const uint64_t length = text.size();

    FileWriter file(path);
    file.write(&length, sizeof(length));
    file.write(text.data(), static_cast<int64_t>(text.size()));
    for (size_t i = 0; i < tensors.size(); i++) {
        if (tensors[i].transposed)
            write_transposed(file, tensors[i]);
        else if (tensors[i].read)
            write_pieces(file, tensors[i], sizes[i] / static_cast<int64_t>(sizeof(float)));
        else
            file.write(tensors[i].data, sizes[i]);
    }
    return file.commit();
}
