#include "io/file/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "io/file/checksum.h"
#include "io/file/error.h"
#include "io/file/file.h"
#include "io/file/utf8.h"

using nlohmann::json;

namespace {

constexpr size_t max_message = 120;
// A limit, because copying, comparing and writing a value recurse into it. This program's own files need 6 levels.
constexpr int64_t max_depth = 64;

std::string shortened(std::string text) {
    if (text.size() <= max_message) return text;
    size_t end = max_message;
    while (end > 0 && (text[end] & 0xC0) == 0x80) end--;  // not within a UTF-8 character
    return text.substr(0, end) + "...";
}

std::string printable(const json& value) {
    return without_controls(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

// Checks the text before it is parsed into values. (json::parse has a callback for this, but with it parsing takes time
// quadratic in the number of objects in an array.)
class StructureCheck : public nlohmann::json_sax<json> {
public:
    explicit StructureCheck(const std::string& path) : path_(path) {}
    bool start_object(size_t) override { return open(); }
    bool start_array(size_t) override { return open(); }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }
    bool key(std::string& name) override {
        if (!open_.back().insert(name).second)
            throw InputError(path_ + ": the JSON key " + one_line(name) + " appears twice; write the file again");
        return true;
    }
    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(int64_t) override { return true; }
    bool number_unsigned(uint64_t) override { return true; }
    bool number_float(double, const std::string&) override { return true; }
    bool string(std::string&) override { return true; }
    bool binary(json::binary_t&) override { return true; }
    bool parse_error(size_t, const std::string&, const json::exception&) override { return false; }

private:
    bool open() {
        open_.emplace_back();
        if (std::ssize(open_) > max_depth)
            throw InputError(path_ + ": JSON nested deeper than " + std::to_string(max_depth) +
                             " levels; check which file this is");
        return true;
    }
    bool close() {
        open_.pop_back();
        return true;
    }
    const std::string& path_;
    std::vector<std::set<std::string>> open_;  // the keys seen so far of each object, none of an array
};

}  // namespace

json json_of_path(const std::string& path) {
    if (find_invalid_utf8(path) == path.size()) return path;
    return std::vector<uint8_t>(path.begin(), path.end());
}

std::optional<std::string> path_of_json(const json& value) {
    if (value.is_string()) return value.get<std::string>();
    const auto is_byte = [](const json& x) { return x.is_number_unsigned() && x <= UINT8_MAX; };
    if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_byte)) return std::nullopt;
    std::string path;
    for (const json& byte : value) path += static_cast<char>(byte.get<uint8_t>());
    return path;
}

std::string one_line(std::string_view text) {
    return shortened(printable(std::string(text.substr(0, 4 * max_message))));
}

std::string json_text(const json& value) {
    if (value.is_object()) return "an object";
    if (value.is_string()) return one_line(value.get_ref<const std::string&>());
    if (value.is_array() && value.size() > 16) return "an array of " + std::to_string(value.size());
    if (value.is_array())
        for (const json& item : value)
            if (item.is_structured()) return "a nested array";
    return shortened(printable(value));
}

json parse_json_object(const std::string& path, std::string_view text) {
    StructureCheck check(path);
    json::sax_parse(text.begin(), text.end(), &check);  // invalid JSON is reported by parse() below
    json result;
    try {
        result = json::parse(text.begin(), text.end());
    } catch (const json::exception& e) {
        throw InputError(path + ": invalid JSON: " + one_line(e.what()) +
                         "; the file is damaged: fetch or write it again");
    }
    if (!result.is_object()) bad_input(path, "JSON", json_text(result), "an object", "check which file this is");
    return result;
}

json read_json_file(const std::string& path) {
    const MappedFile file(path);
    if (file.size() > max_json_bytes)
        bad_input(path, "size", std::to_string(file.size()) + " bytes", "at most 16 MiB of JSON",
                  "check which file this is");
    return parse_json_object(path, {reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.size())});
}

std::string with_own_checksum(std::string object) {
    object.resize(object.size() - 2);  // "\n}"
    return object + ",\n  \"crc32\": " + std::to_string(checksum(object)) + "\n}\n";
}

void check_own_checksum(const std::string& path, const json& root, const std::string& remedy) {
    const MappedFile file(path);
    const std::string_view text(reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.size()));
    const uint32_t found = checksum(text.substr(0, text.rfind(",\n  \"crc32\": ")));
    if (!root.contains("crc32") || root["crc32"] != found)
        bad_input(path, "CRC-32", std::to_string(found),
                  json_text(root.value("crc32", json())) + ", the value in the file", remedy);
}

int64_t json_integer(const std::string& path, const std::string& field, const json* value, int64_t low, int64_t high) {
    // Non-negative integers parse as unsigned; what does not fit into one parses as a float.
    if (value && value->is_number_integer() &&
        (!value->is_number_unsigned() || value->get<uint64_t>() <= uint64_t{INT64_MAX})) {
        const int64_t number = value->get<int64_t>();
        if (number >= low && number <= high) return number;
    }
    bad_input(path, field, value ? json_text(*value) : "no value",
              "an integer from " + std::to_string(low) + " to " + std::to_string(high), "correct the file");
}

int64_t json_integer(const std::string& path, const json& object, const std::string& key, int64_t low, int64_t high) {
    const auto it = object.find(key);
    return json_integer(path, key, it == object.end() ? nullptr : &*it, low, high);
}
