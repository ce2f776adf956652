// Multiple-choice examples: of several endings of a text, which one does the model find likeliest?
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/text/tokenizer.h"

// A text and its possible endings, as tokens; none of them is empty.
struct Example {
    std::vector<int32_t> context;
    std::vector<std::vector<int32_t>> endings{};
    int64_t label = 0;  // which ending is the right one
};

struct ExampleSet {
    std::string source;      // the file, for messages
    bool last_word = false;  // LAMBADA: each example has one ending, its last word, which the model is to predict
    std::vector<Example> examples{};
};

// Reads examples from a file whose name ends in .bin as llm.c's (HellaSwag, MMLU), and from any other as JSON lines:
//   HellaSwag  {"ctx": "A man is", "endings": ["sitting", …], "label": 1}; a space goes before each ending
//   LAMBADA    {"text": "…"}; its ending is the space before the last word, and that word
// Only the first `limit` examples are read (0: all). Every id is checked against `vocab`, the number of ids of the
// model. Throws InputError.
ExampleSet read_examples(const std::string& path, const Tokenizer& tokenizer, int64_t vocab, int64_t limit = 0);
