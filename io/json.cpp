#include "io/json.h"

#include <set>
#include <vector>

#include "io/error.h"
#include "io/file.h"

using nlohmann::json;

namespace {

constexpr size_t max_message = 120;

std::string shortened(std::string text) {
    if (text.size() <= max_message) return text;
    size_t end = max_message;
    while (end > 0 && (text[end] & 0xC0) == 0x80) end--;  // not within a UTF-8 character
    return text.substr(0, end) + "...";
}

}  // namespace

std::string one_line(std::string_view text) {
    return shortened(
        json(std::string(text.substr(0, 4 * max_message))).dump(-1, ' ', false, json::error_handler_t::replace));
}

std::string json_text(const json& value) {
    if (value.is_object()) return "an object";
    if (value.is_string()) return one_line(value.get_ref<const std::string&>());
    if (value.is_array() && value.size() > 16) return "an array of " + std::to_string(value.size());
    if (value.is_array())
        for (const json& item : value)
            if (item.is_structured()) return "a nested array";
    return shortened(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

json parse_json_object(const std::string& path, std::string_view text) {
    std::vector<std::set<std::string>> open_objects;  // the keys seen so far in each
    std::string duplicate;
    const auto watch = [&](int, json::parse_event_t event, json& value) {
        if (event == json::parse_event_t::object_start) open_objects.emplace_back();
        if (event == json::parse_event_t::object_end) open_objects.pop_back();
        if (event == json::parse_event_t::key && !open_objects.back().insert(value.get<std::string>()).second)
            duplicate = value.get<std::string>();
        return true;
    };
    json result;
    try {
        result = json::parse(text.begin(), text.end(), watch);
    } catch (const json::exception& e) {
        bad_input(path, "JSON", one_line(e.what()), "well-formed JSON", "the file is damaged: fetch or write it again");
    }
    if (!duplicate.empty())
        bad_input(path, "JSON", "the key " + one_line(duplicate) + " twice", "each key once", "write the file again");
    if (!result.is_object()) bad_input(path, "JSON", json_text(result), "an object", "check which file this is");
    return result;
}

json read_json_file(const std::string& path) {
    constexpr int64_t max_bytes = int64_t{64} << 20;
    const MappedFile file(path);
    if (file.size() > max_bytes)
        bad_input(path, "size", std::to_string(file.size()) + " bytes", "at most 64 MiB of JSON",
                  "check which file this is");
    return parse_json_object(path, {reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.size())});
}

int64_t json_integer(const std::string& path, const json& object, const std::string& key, int64_t low, int64_t high) {
    const auto it = object.find(key);
    const bool present = it != object.end();
    // Non-negative integers parse as unsigned; what does not fit into one parses as a float.
    if (present && it->is_number_integer() &&
        (!it->is_number_unsigned() || it->get<uint64_t>() <= uint64_t{INT64_MAX})) {
        const int64_t value = it->get<int64_t>();
        if (value >= low && value <= high) return value;
    }
    bad_input(path, key, present ? json_text(*it) : "nothing",
              "an integer from " + std::to_string(low) + " to " + std::to_string(high), "correct the file");
}
