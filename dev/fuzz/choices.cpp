// Multiple-choice examples. An input that begins with 'B' is llm.c's file without the 1008 bytes of its header that are
// not used; any other is JSON lines.
#include "io/data/choices.h"

#include <algorithm>

#include "dev/fuzz/memory_files.h"
#include "dev/fuzz/targets.h"

namespace {

constexpr size_t used = 16, header = 1024;
constexpr int64_t vocab = 300;

void run(std::string_view input) {
    static const auto bytes = load_tokenizer("byte");
    const bool llmc = input.starts_with('B');
    std::string file(input);
    if (llmc) {
        file = input.substr(1, used);
        if (input.size() > 1 + used) file.append(header - used, '\0').append(input.substr(1 + used));
    }
    const std::string path = llmc ? "e.bin" : "e.jsonl";
    memory_files::put(path, file);
    const ExampleSet set = read_examples(path, *bytes, vocab);
    require(!set.examples.empty() && set.examples.size() <= file.size(), "no more examples than bytes");
    const auto is_good = [](const std::vector<int32_t>& ids) {
        return !ids.empty() && std::ranges::all_of(ids, [](int32_t id) { return 0 <= id && id < vocab; });
    };
    for (const Example& example : set.examples) {
        require(is_good(example.context) && std::ranges::all_of(example.endings, is_good), "ids of the model");
        require(0 <= example.label && example.label < std::ssize(example.endings), "the label is one of the endings");
        require(set.last_word == (example.endings.size() == 1), "a last word is the only ending");
    }
    require(read_examples(path, *bytes, vocab, 1).examples.size() == 1, "the first example can be read alone");
}

std::string llmc_file(const std::vector<int32_t>& head, const std::vector<uint16_t>& values) {
    std::string file = "B";
    file.append(reinterpret_cast<const char*>(head.data()), used);
    return file.append(reinterpret_cast<const char*>(values.data()), 2 * values.size());
}

std::vector<std::string> seeds() {
    return {R"({"ind":24,"ctx":"A man. He","label":3,"endings":["is.","has \u00e9","rips","starts"]})"
            "\n\n"
            R"({"ctx":"a","endings":["b","c"],"label":"1"})",
            R"({"text":"a small ivory statue"})"
            "\r\n"
            R"({"text":"one\ntwo three\n "})",
            llmc_file({20240522, 1, 2, 32}, {65535, 32, 0, 1, 4, 1, 7, 1, 8, 2, 9,  10, 1, 11, 1, 12,  //
                                             65535, 22, 1, 0, 2, 1, 7, 1, 8, 1, 299}),
            llmc_file({20240522, 1, 1, 36}, {65535, 36, 9, 2, 4, 3, 10, 11, 12, 1, 20, 2, 21, 22, 1, 23, 1, 24})};
}

}  // namespace

const FuzzTarget fuzz_choices{"choices", run, seeds};
