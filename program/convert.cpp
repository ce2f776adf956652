#include "program/convert.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "io/model/checkpoint.h"
#include "io/file/error.h"
#include "io/file/file.h"
#include "io/model/llmc_files.h"

namespace fs = std::filesystem;

namespace {

// The model is worth having without its tokenizer, say where data/vocab.bpe was not fetched.
std::shared_ptr<const Tokenizer> tokenizer_if_there(const std::string& in) {
    try {
        const auto tokenizer = tokenizer_for_model("", in);
        if (!tokenizer->reads_text()) std::fprintf(stderr, "no tokenizer written: %s has none\n", in.c_str());
        return tokenizer;
    } catch (const InputError& e) {
        std::fprintf(stderr, "no tokenizer written: %s\n", e.what());
        return nullptr;
    }
}

// Written beside and renamed, so that it is there whole or not at all.
void write_new_directory(const std::string& out, const GPT2Config& config, const float* parameters,
                         const Tokenizer* tokenizer) {
    const std::string temporary = out + "." + std::to_string(getpid()) + ".tmp";
    try {
        fs::create_directory(temporary);
        write_model_directory(temporary, config, parameters, tokenizer);
        fs::rename(temporary, out);
        sync_directory(fs::absolute(out).parent_path().string());
    } catch (...) {
        std::error_code ignored;
        fs::remove_all(temporary, ignored);
        throw;
    }
}

}  // namespace

void convert_model(const std::string& in, const std::string& out, bool bf16) {
    const bool llmc = out.ends_with(".bin");
    std::string target = out;
    while (target.size() > 1 && target.ends_with("/")) target.pop_back();
    if (target.empty()) bad_input(out, "OUT", "an empty name", "a new file or directory", "choose a name");
    if (path_exists(target))
        bad_input(target, "OUT", "something of this name", "no such file or directory", "choose another or remove it");
    if (bf16 && !llmc)
        bad_input(target, "--bf16", "a directory as OUT", "a name ending in .bin",
                  "leave --bf16 out: directories are written in fp32");

    const GPT2Config config = read_model_config(in);
    const auto parameters = std::make_unique_for_overwrite<float[]>(ParameterTable(config).size);
    read_model(in, config, parameters.get());
    if (const std::string found = nonfinite_values(config, parameters.get()); !found.empty())
        std::fprintf(stderr, "%s: %s; they are written as they are\n", without_controls(in).c_str(), found.c_str());
    if (llmc) {
        write_llmc_model(target, config, parameters.get(), bf16 ? 5 : 3);
        return;
    }
    try {
        write_new_directory(target, config, parameters.get(), tokenizer_if_there(in).get());
    } catch (const fs::filesystem_error& e) {
        bad_input(target, "writing", e.code().message(), "a directory that can be written",
                  "check the path, its permissions and the disk");
    }
}
