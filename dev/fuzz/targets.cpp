#include "dev/fuzz/targets.h"

#include <cstdio>
#include <cstdlib>

#include "dev/fuzz/memory_files.h"
#include "io/file/error.h"

const std::vector<const FuzzTarget*>& fuzz_targets() {
    static const std::vector<const FuzzTarget*> all = {
        &fuzz_json,        &fuzz_safetensors,   &fuzz_llmc_model, &fuzz_llmc_state,     &fuzz_llmc_tokenizer,
        &fuzz_shard,       &fuzz_text,          &fuzz_merges,     &fuzz_tokenizer_json, &fuzz_vocab_json,
        &fuzz_config_json, &fuzz_trainer_state, &fuzz_log,        &fuzz_text_cache,     &fuzz_text_file,
        &fuzz_documents,   &fuzz_choices,       &fuzz_checkpoint, &fuzz_gguf,           &fuzz_info};
    return all;
}

void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "fuzz: violated: %s\n", what);
    std::abort();
}

void require_printable(std::string_view text, bool lines) {
    for (const char c : text)
        require((static_cast<unsigned char>(c) >= ' ' && c != 0x7F) || (lines && c == '\n'),
                "no control characters in what is printed");
}

namespace {
constexpr std::string_view divider = "\n%%%\n";
}

std::vector<std::string_view> split_files(std::string_view input, size_t count) {
    std::vector<std::string_view> files;
    while (files.size() + 1 < count) {
        const size_t end = input.find(divider);
        files.push_back(input.substr(0, end));
        if (end == std::string_view::npos) return files;
        input.remove_prefix(end + divider.size());
    }
    files.push_back(input);
    return files;
}

std::string join_files(const std::vector<std::string>& files) {
    std::string input;
    for (size_t i = 0; i < files.size(); i++) input.append(i == 0 ? "" : divider).append(files[i]);
    return input;
}

void run_target(const FuzzTarget& target, std::string_view input) {
    memory_files::clear();
    try {
        target.run(input);
    } catch (const InputError& error) {
        const std::string_view message = error.what();
        require_printable(message, false);
        require(message.size() < 4000, "a short message");
    }
}
