#include "io/data/choices.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "io/file/error.h"
#include "io/file/json.h"
#include "io/text/text_file.h"

namespace {

constexpr int64_t most_endings = 64;

void check_example(const std::string& where, const Example& example, int64_t vocab, const std::string& remedy) {
    const auto check = [&](const std::string& what, const std::vector<int32_t>& ids) {
        if (ids.empty())
            throw InputError(where + ": " + what + " is empty, but needs at least one token; remove the example");
        const auto bad = std::ranges::find_if(ids, [&](int32_t id) { return id >= vocab; });
        if (bad != ids.end())
            throw InputError(where + ": token id " + std::to_string(*bad) + " of " + what +
                             " is outside the model's vocabulary of " + std::to_string(vocab) + "; " + remedy);
    };
    check("the context", example.context);
    for (size_t i = 0; i < example.endings.size(); ++i) check("ending " + std::to_string(i), example.endings[i]);
}

// ---- JSON lines

const std::string& string_of(const std::string& where, const std::string& field, const nlohmann::json& value) {
    if (!value.is_string()) bad_input(where, field, json_text(value), "a string", "correct the line");
    return value.get_ref<const std::string&>();
}

const nlohmann::json& member(const std::string& where, const nlohmann::json& line, const char* key) {
    if (line.contains(key)) return line[key];
    throw InputError(where + ": \"" + key +
                     "\" is missing; give HellaSwag's lines, with \"ctx\", \"endings\" and "
                     "\"label\", or LAMBADA's, with \"text\"");
}

// A number or, as some copies of HellaSwag have it, a number in quotes.
int64_t label_of(const std::string& where, const nlohmann::json& value, int64_t endings) {
    const std::string* const text = value.get_ptr<const std::string*>();
    if (text && text->empty())
        throw InputError(where + ": \"label\" is empty, as in a test set without answers; use the validation set");
    if (text && text->size() <= 2 && std::ranges::all_of(*text, [](char c) { return '0' <= c && c <= '9'; })) {
        const nlohmann::json number = std::stoul(*text);
        return json_integer(where, "label", &number, 0, endings - 1);
    }
    return json_integer(where, "label", &value, 0, endings - 1);
}

Example parse_hellaswag(const std::string& where, const nlohmann::json& line, const Tokenizer& tokenizer) {
    Example example;
    example.context = tokenizer.encode(string_of(where, "ctx", member(where, line, "ctx")));
    const nlohmann::json& endings = member(where, line, "endings");
    if (!endings.is_array() || endings.size() < 2 || std::ssize(endings) > most_endings)
        bad_input(where, "endings", json_text(endings), "an array of 2 to 64 strings", "correct the line");
    for (const nlohmann::json& ending : endings)
        example.endings.push_back(tokenizer.encode(" " + string_of(where, "an ending", ending)));
    example.label = label_of(where, member(where, line, "label"), std::ssize(endings));
    return example;
}

Example parse_lambada(const std::string& where, const nlohmann::json& line, const Tokenizer& tokenizer) {
    std::string_view text = string_of(where, "text", member(where, line, "text"));
    text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
    const size_t space = text.rfind(' ');
    if (space == text.npos) throw InputError(where + ": \"text\" has no space before its last word; remove the line");
    return {.context = tokenizer.encode(text.substr(0, space)), .endings = {tokenizer.encode(text.substr(space))}};
}

ExampleSet read_json_lines(const std::string& path, const Tokenizer& tokenizer, int64_t vocab, int64_t limit) {
    require_text(tokenizer, path, "pass --tokenizer, or llm.c's .bin file of token ids");
    const TextFile file(path);
    ExampleSet set{.source = path};
    std::string_view rest = file.text();
    for (int64_t number = 1; !rest.empty() && (limit == 0 || std::ssize(set.examples) < limit); ++number) {
        const std::string_view text = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(text.size() + 1, rest.size()));
        if (text.find_first_not_of(" \t\r") == text.npos) continue;
        const std::string where = path + ": line " + std::to_string(number);
        const nlohmann::json line = parse_json_object(where, text);
        if (set.examples.empty()) set.last_word = line.contains("text") && !line.contains("endings");
        set.examples.push_back(set.last_word ? parse_lambada(where, line, tokenizer)
                                             : parse_hellaswag(where, line, tokenizer));
        check_example(where, set.examples.back(), vocab, "pass the --tokenizer that the model was trained with");
    }
    return set;
}

// ---- llm.c's .bin

constexpr int32_t magic = 20240522, version = 1, first_of_example = 65535;
constexpr int64_t header_bytes = 1024;
constexpr const char* damaged = "the file is damaged or cut short; fetch or write it again";

// The uint16 values of a file, one after the other.
class Values {
public:
    Values(const uint8_t* data, int64_t bytes) : data_(data), left_(bytes / 2) {}
    int64_t left() const { return left_; }
    int32_t next(const std::string& where, const std::string& what) {
        if (left_ == 0) throw InputError(where + ": the data ends before " + what + "; " + damaged);
        uint16_t value;
        std::memcpy(&value, data_, sizeof value);
        data_ += 2, --left_;
        return value;
    }
    // Ids behind their number.
    std::vector<int32_t> ids(const std::string& where, const std::string& what) {
        const int64_t count = next(where, "the length of " + what);
        if (count > left_)
            throw InputError(where + ": " + what + " has " + std::to_string(count) + " tokens, but only " +
                             std::to_string(left_) + " are left; " + damaged);
        std::vector<int32_t> ids(static_cast<size_t>(count));
        for (int32_t& id : ids) id = next(where, what);
        return ids;
    }
    // The next `count` values, which the caller has checked to be there.
    Values part(int64_t count) {
        const Values values(data_, 2 * count);
        data_ += 2 * count, left_ -= count;
        return values;
    }

private:
    const uint8_t* data_;
    int64_t left_;
};

Example read_example(const std::string& where, Values& all, int64_t longest) {
    const auto wrong = [&](const char* field, int64_t found, const std::string& expected) {
        bad_input(where, field, std::to_string(found), expected, damaged);
    };
    const int32_t begin = all.next(where, "its begin"), bytes = all.next(where, "its size");
    if (begin != first_of_example) wrong("its begin", begin, std::to_string(first_of_example));
    const int64_t most = std::min(longest, 2 * (all.left() + 2));
    if (bytes < 4 || bytes % 2 != 0 || bytes > most)
        wrong("its size in bytes", bytes, "an even number up to " + std::to_string(most));
    Values values = all.part(bytes / 2 - 2);
    values.next(where, "its index");
    Example example;
    example.label = values.next(where, "its label");
    const int32_t endings = values.next(where, "the number of endings");
    if (endings < 2 || endings > most_endings) wrong("the number of endings", endings, "2 to 64");
    if (example.label >= endings) wrong("its label", example.label, "less than " + std::to_string(endings));
    example.context = values.ids(where, "the context");
    for (int32_t i = 0; i < endings; ++i) example.endings.push_back(values.ids(where, "ending " + std::to_string(i)));
    if (values.left() > 0)
        throw InputError(where + ": " + std::to_string(values.left()) + " values too many; " + damaged);
    return example;
}

ExampleSet read_llmc(const std::string& path, int64_t vocab, int64_t limit) {
    const MappedFile file(path);
    if (file.size() < header_bytes)
        bad_input(path, "size", std::to_string(file.size()) + " bytes", "a header of 1024 bytes", damaged);
    int32_t header[4];  // magic number, version, number of examples, bytes of the longest
    std::memcpy(header, file.data(), sizeof header);
    if (header[0] != magic)
        bad_input(path, "magic number", std::to_string(header[0]), std::to_string(magic) + " (llm.c's HellaSwag)",
                  "pass such a file, or JSON lines in a file whose name does not end in .bin");
    if (header[1] != version)
        bad_input(path, "version", std::to_string(header[1]), std::to_string(version), "write it with llm.c again");
    if (file.size() % 2 != 0)
        bad_input(path, "size", std::to_string(file.size()) + " bytes", "an even number", damaged);
    ExampleSet set{.source = path};
    const int64_t all = header[2];
    Values values(file.data() + header_bytes, file.size() - header_bytes);
    for (int64_t i = 0; i < (limit > 0 ? std::min(all, limit) : all); ++i) {
        const std::string where = path + ": example " + std::to_string(i);
        set.examples.push_back(read_example(where, values, header[3]));
        check_example(where, set.examples.back(), vocab,
                      "the file's tokens must be the model's; llm.c's files have GPT-2's, and JSON lines go with any "
                      "tokenizer");
    }
    if (std::ssize(set.examples) == all && values.left() > 0)
        throw InputError(path + ": " + std::to_string(2 * values.left()) + " bytes follow the " + std::to_string(all) +
                         " examples of the header; " + damaged);
    return set;
}

}  // namespace

ExampleSet read_examples(const std::string& path, const Tokenizer& tokenizer, int64_t vocab, int64_t limit) {
    ExampleSet set =
        path.ends_with(".bin") ? read_llmc(path, vocab, limit) : read_json_lines(path, tokenizer, vocab, limit);
    if (set.examples.empty()) throw InputError(path + ": no examples in it; check which file this is");
    return set;
}
