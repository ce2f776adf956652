#include "program/convert.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "io/model/checkpoint.h"
#include "io/file/error.h"
#include "io/file/file.h"
#include "io/model/gguf.h"
#include "io/model/llmc_files.h"

namespace fs = std::filesystem;

namespace {

// The model's tokenizer. The model is converted without one too, for example if data/vocab.bpe was not fetched.
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

// Writes to a temporary directory beside `out` and renames it, so that `out` never exists half-written.
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

void convert_model(const std::string& in, const std::string& out, bool bf16, const std::string& type) {
    const bool llmc = out.ends_with(".bin"), gguf = out.ends_with(".gguf");
    std::string target = out;
    while (target.size() > 1 && target.ends_with("/")) target.pop_back();
    if (target.empty()) throw InputError("OUT: empty; give the name of a new file or directory");
    if (path_exists(target)) throw InputError(target + ": exists already; choose another OUT or remove it");
    if (bf16 && gguf) throw InputError("--bf16: OUT is " + target + ", which has --type bf16; give that instead");
    if (!type.empty() && !gguf)
        throw InputError("--type: OUT is " + target + "; leave out --type, or give a NAME.gguf");
    if (bf16 && !llmc)
        throw InputError("--bf16: OUT is the directory " + target + "; leave out --bf16, or give a NAME.bin");

    const GPT2Config config = read_model_config(in);
    const auto parameters = std::make_unique_for_overwrite<float[]>(ParameterTable(config).size);
    read_model(in, config, parameters.get());
    if (const std::string found = nonfinite_values(config, parameters.get()); !found.empty())
        std::fprintf(stderr, "%s: %s; they are written as they are\n", without_controls(in).c_str(), found.c_str());
    if (llmc) {
        write_llmc_model(target, config, parameters.get(), bf16 ? 5 : 3);
        return;
    }
    if (gguf) {
        const GgufTypeInfo* const values = find_gguf_type(type.empty() ? "f32" : type);
        if (!values) throw InputError("--type: invalid value " + type + "; choose f32, f16, bf16 or q8_0");
        write_gguf_model(target, config, parameters.get(), *tokenizer_for_model("", in), values->type);
        return;
    }
    try {
        write_new_directory(target, config, parameters.get(), tokenizer_if_there(in).get());
    } catch (const fs::filesystem_error& e) {
        throw InputError(target + ": write failed: " + e.code().message() +
                         "; check the path, its permissions and the disk");
    }
}
