#include "io/text/json_lines.h"

#include <nlohmann/json.hpp>

#include "io/file/error.h"
#include "io/file/json.h"

namespace {

using nlohmann::json;

// Takes one member and leaves out the rest, which is checked, but not made into values.
class MemberReader : public nlohmann::json_sax<json> {
public:
    explicit MemberReader(const std::string& field) : field_(field) {}

    bool null() override { return other("null"); }
    bool boolean(bool value) override { return other(value ? "true" : "false"); }
    bool number_integer(int64_t) override { return other("a number"); }
    bool number_unsigned(uint64_t) override { return other("a number"); }
    bool number_float(double, const std::string&) override { return other("a number"); }
    bool binary(json::binary_t&) override { return other("bytes"); }
    bool start_object(size_t) override { return (depth == 0 || other("an object")) && ++depth; }
    bool start_array(size_t) override { return other(depth == 0 ? "" : "an array") && ++depth; }
    bool end_object() override { return --depth, true; }
    bool end_array() override { return --depth, true; }
    bool key(std::string& name) override {
        wanted_ = depth == 1 && name == field_;
        if (wanted_ && times++ > 0) return false;
        return true;
    }
    bool string(std::string& value) override {
        if (depth == 0) return other("a string");
        if (std::exchange(wanted_, false)) text.swap(value);
        return true;
    }
    bool parse_error(size_t position, const std::string&, const json::exception& error) override {
        error_at = position;
        what = error.what();
        if (const size_t prefix = what.find(": "); prefix != what.npos) what.erase(0, prefix + 2);
        return false;
    }

    std::string text;
    int times = 0;       // the field appears
    std::string found;   // instead of a string
    bool object = true;  // the line is one
    std::string what;    // is wrong with the JSON
    size_t error_at = 0;
    int64_t depth = 0;

private:
    // A value that is not a string: wrong as the field, or as the whole line.
    bool other(const char* kind) {
        if (depth == 0) return object = false;
        if (wanted_) found = kind;
        return !wanted_;
    }
    const std::string& field_;
    bool wanted_ = false;  // the next value
};

// ", among "id", "url"": the members that a line has.
std::string members(std::string_view line) {
    constexpr size_t most = 8;
    const json object = json::parse(line, nullptr, false);
    std::string names;
    size_t count = 0;
    if (object.is_object())
        for (const auto& [name, value] : object.items())
            if (count++ < most) names += (names.empty() ? ", among " : ", ") + one_line(name);
    return names + (count > most ? ", …" : "");
}

}  // namespace

std::string json_line_text(std::string_view line, const std::string& field, const LinePlace& place) {
    MemberReader reader(field);
    const bool whole = json::sax_parse(line.begin(), line.end(), &reader);
    const auto where = [&](size_t in_line) {
        return place.path + ": line " + std::to_string(place.line) + ", byte " +
               std::to_string(place.byte + static_cast<int64_t>(in_line)) + ": ";
    };
    const std::string quoted = one_line(field);
    if (!reader.what.empty())
        throw InputError(where(reader.error_at > 0 ? reader.error_at - 1 : 0) +
                         "invalid JSON: " + one_line(reader.what) + "; correct the line or remove it");
    if (!reader.object)
        throw InputError(where(0) + "not a JSON object; a .jsonl file has one object in each line, such as " +
                         "{\"text\": \"…\"}");
    if (reader.times > 1) throw InputError(where(0) + quoted + " appears twice; correct the line");
    if (!reader.found.empty())
        throw InputError(where(0) + quoted + " is " + reader.found +
                         ", not a string; correct the line, or name the member with the text by --field");
    if (!whole || reader.times == 0)
        throw InputError(where(0) + quoted + " is missing" + members(line) +
                         "; name the member with the text by --field");
    return std::move(reader.text);
}
