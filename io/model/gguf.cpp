#include "io/model/gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "io/file/error.h"
#include "io/file/gguf_file.h"
#include "io/file/gguf_writer.h"
#include "io/file/json.h"
#include "io/model/llmc_files.h"
#include "io/model/safetensors.h"
#include "io/text/tokenizer_files.h"

namespace {

constexpr char architecture[] = "gpt2";
constexpr char other_model[] = "use a model of GPT-2's own architecture";

// llama.cpp's name of each parameter; '#' stands for the block's number.
struct Name {
    const char* parameter;
    const char* gguf;
};
constexpr Name names[] = {{"wte", "token_embd.weight"},
                          {"wpe", "position_embd.weight"},
                          {"ln1w", "blk.#.attn_norm.weight"},
                          {"ln1b", "blk.#.attn_norm.bias"},
                          {"qkvw", "blk.#.attn_qkv.weight"},
                          {"qkvb", "blk.#.attn_qkv.bias"},
                          {"attprojw", "blk.#.attn_output.weight"},
                          {"attprojb", "blk.#.attn_output.bias"},
                          {"ln2w", "blk.#.ffn_norm.weight"},
                          {"ln2b", "blk.#.ffn_norm.bias"},
                          {"fcw", "blk.#.ffn_up.weight"},
                          {"fcb", "blk.#.ffn_up.bias"},
                          {"fcprojw", "blk.#.ffn_down.weight"},
                          {"fcprojb", "blk.#.ffn_down.bias"},
                          {"lnfw", "output_norm.weight"},
                          {"lnfb", "output_norm.bias"}};

std::string gguf_name(const Parameter& p, int64_t layer) {
    std::string name = std::ranges::find(names, p.name, &Name::parameter)->gguf;
    if (p.per_layer) name.replace(name.find('#'), 1, std::to_string(layer));
    return name;
}

// The shape in the file, where wte has no padding rows.
std::vector<int64_t> stored_shape(const Parameter& p, const GPT2Config& c) {
    return p.name == "wte" ? std::vector{c.vocab, c.channels} : p.shape;
}

GPT2Config parse_config(const GgufFile& file) {
    GPT2Config c;
    c.context = file.integer("gpt2.context_length", 1, GPT2Limits::context);
    c.layers = file.integer("gpt2.block_count", 1, GPT2Limits::layers);
    c.channels = file.integer("gpt2.embedding_length", 1, GPT2Limits::channels);
    c.heads = file.integer("gpt2.attention.head_count", 1, c.channels);
    if (c.channels % c.heads != 0)
        bad_input(file.path(), "gpt2.embedding_length", std::to_string(c.channels),
                  "a multiple of gpt2.attention.head_count, " + std::to_string(c.heads), "correct the file");
    file.integer("gpt2.feed_forward_length", 4 * c.channels, 4 * c.channels);
    if (file.has("gpt2.attention.head_count_kv")) file.integer("gpt2.attention.head_count_kv", c.heads, c.heads);
    const double epsilon = file.number("gpt2.attention.layer_norm_epsilon");
    if (!(std::abs(epsilon - 1e-5) < 1e-10))
        bad_input(file.path(), "gpt2.attention.layer_norm_epsilon", json_text(epsilon), "1e-05", other_model);
    const GgufFile::Tensor* const embedding = file.find("token_embd.weight");
    if (!embedding) throw InputError(file.path() + ": tensor token_embd.weight is missing; fetch the model again");
    c.vocab = embedding->shape.front();
    if (embedding->shape.size() != 2 || c.vocab > GPT2Limits::vocab)
        bad_input(file.path(), "tensor token_embd.weight", "shape " + shape_text(embedding->shape),
                  "a matrix of at most " + std::to_string(GPT2Limits::vocab) + " rows", other_model);
    return c;
}

bool same_values(const GgufFile& file, const GgufFile::Tensor& a, const GgufFile::Tensor& b) {
    return a.type == b.type && a.shape == b.shape &&
           std::memcmp(file.data(a), file.data(b), static_cast<size_t>(a.bytes)) == 0;
}

void check_tensors(const GgufFile& file, const GPT2Config& config, const ParameterTable& table) {
    std::set<std::string, std::less<>> known;
    for (const Parameter& p : table.rows)
        for (int64_t l = 0; l < p.copies; l++) {
            const std::string name = gguf_name(p, l), shape = shape_text(stored_shape(p, config));
            known.insert(name);
            const GgufFile::Tensor* const tensor = file.find(name);
            if (!tensor)
                throw InputError(file.path() + ": tensor " + name + ", of shape " + shape +
                                 ", is missing; fetch or write the model again");
            if (tensor->shape != stored_shape(p, config))
                bad_input(file.path(), "tensor " + name, "shape " + shape_text(tensor->shape),
                          shape + " (from the file's metadata)", "fetch or write the model again");
        }
    for (const GgufFile::Tensor& tensor : file.tensors()) {
        if (known.contains(tensor.name)) continue;
        const std::string field = "tensor " + one_line(tensor.name);
        if (tensor.name != "output.weight")
            throw InputError(file.path() + ": " + field + " is not part of GPT-2; " + other_model);
        if (!same_values(file, tensor, *file.find("token_embd.weight")))
            throw InputError(file.path() + ": " + field +
                             " differs from token_embd.weight; use a model with tied embeddings: this program has no "
                             "separate output layer");
    }
}

// Refuses values that would become infinite, and what llama.cpp could not open.
void check_values(const std::string& path, const std::string& name, GgufType type, int64_t channels,
                  const float* values, int64_t count) {
    const GgufTypeInfo& info = gguf_type_info(type);
    if (channels % info.values != 0)
        throw InputError(path + ": --type " + info.name + " stores rows in blocks of " + std::to_string(info.values) +
                         " values, and the model's have " + std::to_string(channels) + "; choose f32, f16 or bf16");
    if (!holds_values(type, values, count))
        throw InputError(path + ": tensor " + name + " has values that are not finite in --type " + info.name +
                         "; choose f32");
}

}  // namespace

GPT2Config read_gguf_config(const std::string& path) {
    const GgufFile file(path, architecture);
    const GPT2Config config = parse_config(file);
    check_tensors(file, config, ParameterTable(config));
    return config;
}

bool has_gguf_tokenizer(const std::string& path) { return GgufFile(path, architecture).has("tokenizer.ggml.model"); }

std::string read_gguf_type(const std::string& path) {
    const GgufFile file(path, architecture);
    const GgufFile::Tensor* const embedding = file.find("token_embd.weight");
    return embedding ? gguf_type_info(embedding->type).name : "";
}

void read_gguf_model(const std::string& path, const GPT2Config& config, float* parameters) {
    const GgufFile file(path, architecture);
    const ParameterTable table(config);
    check_tensors(file, config, table);
    std::fill_n(parameters + table.wte.at(), table.wte.piece(), 0.0f);  // for the padding rows
    for (const Parameter& p : table.rows)
        for (int64_t l = 0; l < p.copies; l++) file.read(*file.find(gguf_name(p, l)), parameters + p.at(l));
}

void write_gguf_model(const std::string& path, const GPT2Config& config, const float* parameters,
                      const Tokenizer& tokenizer, GgufType type) {
    if (config.head_size() == 1)
        throw InputError(path +
                         ": llama.cpp cannot run attention heads of one channel; choose NAME.bin or a directory");
    GgufWriter writer;
    writer.add("general.architecture", std::string_view(architecture));
    writer.add("general.file_type", gguf_type_info(type).file_type);
    writer.add("general.quantization_version", uint32_t{2});
    const auto add_integer = [&](const char* key, int64_t value) { writer.add(key, static_cast<uint32_t>(value)); };
    add_integer("gpt2.block_count", config.layers);
    add_integer("gpt2.context_length", config.context);
    add_integer("gpt2.embedding_length", config.channels);
    add_integer("gpt2.feed_forward_length", 4 * config.channels);
    add_integer("gpt2.attention.head_count", config.heads);
    writer.add("gpt2.attention.layer_norm_epsilon", 1e-5f);
    add_gguf_tokenizer(writer, path, tokenizer, config.vocab);
    for (const Parameter& p : ParameterTable(config).rows)
        for (int64_t l = 0; l < p.copies; l++) {
            const std::string name = gguf_name(p, l);
            const std::vector<int64_t> shape = stored_shape(p, config);
            const bool rounded = p.shape.size() == 2 && p.name != "wpe";
            if (rounded) check_values(path, name, type, shape[1], parameters + p.at(l), shape[0] * shape[1]);
            writer.add_tensor(name, rounded ? type : GgufType::F32, shape, parameters + p.at(l));
        }
    writer.write(path);
}
