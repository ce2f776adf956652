// io/model/safetensors.h. An input's first byte decides whether its header length is corrected, so that mutations of
// the JSON get past that check.
#include "io/model/safetensors.h"

#include <algorithm>
#include <cstring>

#include "dev/fuzz/memory_files.h"
#include "dev/fuzz/targets.h"
#include "io/file/error.h"
#include "io/file/json.h"

namespace {

void read_all(const SafetensorsFile& file) {
    for (const auto& entry : file.entries()) {
        require(file.find(entry.name) == &entry, "an entry is found by its name");
        require_printable(one_line(entry.dtype_name) + shape_text(entry.shape), false);
        if (entry.dtype == DType::other) continue;
        require(entry.elements() <= entry.end - entry.begin, "a tensor's elements lie within its bytes");
        std::vector<float> values(static_cast<size_t>(entry.elements()));
        std::vector<double> wide(values.size());
        try {
            file.read(entry, values.data());
            file.read(entry, wide.data());
            file.read_transposed(entry, values.data());
        } catch (const InputError&) {  // a tensor of integers, or not a matrix
        }
    }
}

void run(std::string_view input) {
    if (input.empty()) return;
    std::string bytes(input.substr(1));
    if (input[0] == 'J') {  // header and data as two files
        const auto parts = split_files(input.substr(1), 2);
        const uint64_t length = parts[0].size();
        bytes.assign(reinterpret_cast<const char*>(&length), 8);
        for (const auto& part : parts) bytes += part;
    }
    memory_files::put("model.safetensors", bytes);
    read_all(SafetensorsFile("model.safetensors"));
}

std::vector<std::string> seeds() {
    const float values[6] = {1, 2, 3, 4, 5, 6};
    write_safetensors("a", {{"wte.weight", DType::F32, {2, 3}, values},
                            {"b", DType::F32, {3, 2}, values, true},
                            {"h.0.bias", DType::BF16, {4}, values},
                            {"f16", DType::F16, {1, 2, 1}, values},
                            {"f64", DType::F64, {}, values},
                            {"empty", DType::F32, {0, 5}, values}});
    const std::string file = memory_files::get("a");
    uint64_t length;
    std::memcpy(&length, file.data(), 8);
    write_safetensors("b", {{"i64", DType::I64, {2}, values}, {"u8", DType::U8, {3}, values}}, {});
    return {"B" + file, "B" + memory_files::get("b"),
            "J" + join_files({file.substr(8, length), file.substr(8 + length)}),
            "J" + join_files({R"({"q":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}})", "1234"})};
}

}  // namespace

const FuzzTarget fuzz_safetensors{"safetensors", run, seeds};
