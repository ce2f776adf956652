// `info` on any file: an input's first byte chooses the file's name, the rest is its contents.
#include <sstream>

#include "dev/fuzz/memory_files.h"
#include "dev/fuzz/targets.h"
#include "program/info.h"

namespace {

constexpr const char* names[] = {"a.safetensors", "a.jsonl", "d/trainer_state.json", "a.bin", "a.txt", "a.gguf"};

void run(std::string_view input) {
    if (input.empty()) return;
    const std::string name = names[static_cast<unsigned char>(input[0]) % std::size(names)];
    std::string file(input.substr(1));
    // The input does not contain the rest of an llm.c header, which is zeros.
    if (name == "a.bin" && file.size() > 32) file.insert(32, 1024 - 32, '\0');
    memory_files::put(name, file);
    std::ostringstream out;
    print_info(name, out);
    require_printable(out.str(), true);
}

std::vector<std::string> seeds() {
    std::vector<std::string> all;
    const auto take = [&](char number, const FuzzTarget& target, size_t skip) {
        for (const std::string& seed : target.seeds())
            if (seed.size() > skip) all.push_back(number + seed.substr(skip));
    };
    take('\0', fuzz_safetensors, 1);
    take('\1', fuzz_log, 0);
    take('\2', fuzz_trainer_state, 0);
    take('\3', fuzz_llmc_model, 0);
    take('\3', fuzz_llmc_state, 0);
    take('\3', fuzz_llmc_tokenizer, 1);
    take('\3', fuzz_shard, 0);
    take('\4', fuzz_text, 1);
    take('\5', fuzz_gguf, 1);
    return all;
}

}  // namespace

const FuzzTarget fuzz_info{"info", run, seeds};
