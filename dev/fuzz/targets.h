// The fuzzed readers. Each target turns bytes into files in memory and reads them as the program would. Only InputError
// is allowed: any other exception, and any report of a sanitizer, ends the process.
#pragma once

#include <string>
#include <string_view>
#include <vector>

struct FuzzTarget {
    const char* name;
    void (*run)(std::string_view input);
    std::vector<std::string> (*seeds)();  // valid files, made by the program's own writers
};

extern const FuzzTarget fuzz_json, fuzz_safetensors, fuzz_llmc_model, fuzz_llmc_state, fuzz_llmc_tokenizer, fuzz_shard,
    fuzz_text, fuzz_merges, fuzz_tokenizer_json, fuzz_vocab_json, fuzz_config_json, fuzz_trainer_state, fuzz_log,
    fuzz_text_cache, fuzz_text_file, fuzz_documents, fuzz_choices, fuzz_checkpoint, fuzz_gguf, fuzz_info;

const std::vector<const FuzzTarget*>& fuzz_targets();

// Clears the files in memory and runs one target on one input. Aborts if an InputError's message is not one short line
// of printable text.
void run_target(const FuzzTarget& target, std::string_view input);

// Splits an input into at most `count` files, separated by lines of "%%%". The result may have fewer.
std::vector<std::string_view> split_files(std::string_view input, size_t count);
std::string join_files(const std::vector<std::string>& files);

// Ends the process with a message if a condition on a reader's result is false.
void require(bool condition, const char* what);
// Encodes and decodes a text with a vocabulary, without its pre-tokenizer, and checks the result.
struct Vocabulary;
void use_vocabulary(const Vocabulary& vocabulary);
// Bytes from a file must not reach a terminal as control characters.
void require_printable(std::string_view text, bool lines);
