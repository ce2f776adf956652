#include "io/model/hugging_face.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "io/file/error.h"
#include "io/file/file.h"
#include "io/file/json.h"
#include "io/model/llmc_files.h"
#include "io/model/safetensors.h"

using nlohmann::json;

namespace {

// A field of config.json that changes what the model computes. It must be absent or one of the accepted values.
struct Required {
    const char* key;
    std::vector<json> accepted;
};

GPT2Config parse_config(const std::string& directory) {
    const std::string path = directory + "/config.json";
    const json root = read_json_file(path);
    if (root.value("model_type", json()) != "gpt2")
        bad_input(path, "model_type", json_text(root.value("model_type", json())), "\"gpt2\"", "use a GPT-2 model");

    GPT2Config c;
    c.context = json_integer(path, root, "n_positions", 1, GPT2Limits::context);
    c.vocab = json_integer(path, root, "vocab_size", 1, GPT2Limits::vocab);
    c.layers = json_integer(path, root, "n_layer", 1, GPT2Limits::layers);
    c.channels = json_integer(path, root, "n_embd", 1, GPT2Limits::channels);
    c.heads = json_integer(path, root, "n_head", 1, c.channels);
    if (c.channels % c.heads != 0)
        bad_input(path, "n_embd", std::to_string(c.channels), "a multiple of n_head, " + std::to_string(c.heads),
                  "correct the file");

    const Required required[] = {
        // transformers' names for the tanh form of GELU; "gelu" is the form with erf.
        {"activation_function", {"gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh"}},
        {"n_inner", {nullptr, 4 * c.channels}},
        {"tie_word_embeddings", {true}},
        {"scale_attn_weights", {true}},
        {"scale_attn_by_inverse_layer_idx", {false}},
        {"reorder_and_upcast_attn", {false, true}},  // attention scores in fp32, which is always so in this program
        {"add_cross_attention", {false}},
    };
    for (const auto& [key, accepted] : required) {
        const auto it = root.find(key);
        if (it == root.end() || std::find(accepted.begin(), accepted.end(), *it) != accepted.end()) continue;
        std::string names;
        for (const json& value : accepted) names += (names.empty() ? "" : " or ") + json_text(value);
        bad_input(path, key, json_text(*it), names, "use a model of GPT-2's own architecture");
    }
    const json epsilon = root.value("layer_norm_epsilon", json(1e-5));
    if (!epsilon.is_number() || !(std::abs(epsilon.get<double>() - 1e-5) < 1e-12))
        bad_input(path, "layer_norm_epsilon", json_text(epsilon), "1e-05", "use a model of GPT-2's own architecture");
    // What a fine-tuning of the written model may use. This program has one probability for all three.
    const json dropout = root.value("resid_pdrop", json());
    const bool of_all = dropout == root.value("embd_pdrop", json()) && dropout == root.value("attn_pdrop", json());
    if (of_all && dropout.is_number() && dropout.get<double>() >= 0 && dropout.get<double>() < 1)
        c.dropout = dropout.get<double>();
    return c;
}

// The place of each tensor of the directory, by its name without "transformer."
struct Weights {
    struct Place {
        const SafetensorsFile* file;
        const SafetensorsFile::Entry* entry;
    };
    std::string path;  // the file to name in the message when a tensor is missing
    std::vector<std::unique_ptr<SafetensorsFile>> files;
    std::map<std::string, Place> tensors;
};

// The file names in the weight_map of model.safetensors.index.json.
std::set<std::string> shard_names(const std::string& index) {
    const json root = read_json_file(index);
    const json map = root.value("weight_map", json());
    if (!map.is_object() || map.empty())
        bad_input(index, "weight_map", json_text(map), "an object of tensor names", "fetch the model again");
    std::set<std::string> names;
    for (const json& name : map) {
        if (!name.is_string() || !is_file_name(name.get<std::string>()))
            bad_input(index, "weight_map", json_text(name), "names of files beside it", "fetch the model again");
        names.insert(name.get<std::string>());
    }
    return names;
}

// A tensor's name without "transformer.", a prefix that only some files use.
std::string short_name(const std::string& name) {
    const std::string prefix = "transformer.";
    return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

// Adds the other names of shared tensors. safetensors' save_model writes tensors that share memory only once, under any
// one of their names; the metadata maps each other name to the one that was written.
void add_aliases(Weights& weights) {
    for (const auto& file : weights.files)
        for (const auto& [name, written] : file->metadata())
            if (const auto it = weights.tensors.find(short_name(written)); it != weights.tensors.end())
                weights.tensors.emplace(short_name(name), it->second);
}

Weights open_weights(const std::string& directory) {
    Weights weights;
    const std::string single = directory + "/model.safetensors", index = single + ".index.json";
    if (path_exists(index) && !path_exists(single)) {
        weights.path = index;
        for (const std::string& name : shard_names(index))
            weights.files.push_back(std::make_unique<SafetensorsFile>(directory + "/" + name));
    } else {
        if (!path_exists(single) &&
            (path_exists(directory + "/pytorch_model.bin") || path_exists(directory + "/pytorch_model.bin.index.json")))
            throw InputError(directory +
                             ": pytorch_model.bin is not supported, only model.safetensors; save the model again with "
                             "GPT2LMHeadModel.from_pretrained(IN).save_pretrained(OUT)");
        weights.path = single;
        weights.files.push_back(std::make_unique<SafetensorsFile>(single));
    }
    for (const auto& file : weights.files)
        for (const SafetensorsFile::Entry& entry : file->entries()) {
            if (!weights.tensors.emplace(short_name(entry.name), Weights::Place{file.get(), &entry}).second)
                throw InputError(file->path() + ": tensor " + one_line(entry.name) +
                                 " appears twice; save the model again");
        }
    add_aliases(weights);
    // With tied embeddings the two are one tensor, which may have either name.
    if (const auto head = weights.tensors.find("lm_head.weight"); head != weights.tensors.end())
        weights.tensors.emplace("wte.weight", head->second);
    return weights;
}

// Whether this is the causal mask, which older versions of transformers saved with each block.
bool is_mask(const std::string& name) {
    return name.starts_with("h.") && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

// Hugging Face's shape of a tensor: wte has no padding rows, and a block's matrices are (in,out).
std::vector<int64_t> stored_shape(const Parameter& p, const GPT2Config& c) {
    if (p.name == "wte") return {c.vocab, c.channels};
    if (p.hf_transposed) return {p.shape[1], p.shape[0]};
    return p.shape;
}

std::string stored_name(const Parameter& p, int64_t layer) { return short_name(p.hf_name(layer)); }

bool same_values(const Weights::Place& a, const Weights::Place& b) {
    return a.entry->dtype_name == b.entry->dtype_name && a.entry->shape == b.entry->shape &&
           std::memcmp(a.file->data(*a.entry), b.file->data(*b.entry),
                       static_cast<size_t>(a.entry->end - a.entry->begin)) == 0;
}

void check_weights(const Weights& weights, const GPT2Config& config, const ParameterTable& table) {
    std::set<std::string> known;
    for (const Parameter& p : table.rows)
        for (int64_t l = 0; l < p.copies; l++) {
            const std::string name = stored_name(p, l), field = "tensor " + p.hf_name(l);
            known.insert(name);
            const auto it = weights.tensors.find(name);
            if (it == weights.tensors.end())
                throw InputError(weights.path + ": " + field + ", of shape " + shape_text(stored_shape(p, config)) +
                                 ", is missing; fetch or save the model again, with its config.json");
            const auto& [file, entry] = it->second;
            if (entry->shape != stored_shape(p, config))
                bad_input(file->path(), field, "shape " + shape_text(entry->shape),
                          shape_text(stored_shape(p, config)) + " (from config.json)",
                          "use the config.json that belongs to the model");
            if (entry->dtype != DType::F32 && entry->dtype != DType::F16 && entry->dtype != DType::BF16 &&
                entry->dtype != DType::F64)
                bad_input(file->path(), field, "dtype " + one_line(entry->dtype_name), "F32, F16, BF16 or F64",
                          "save the model in one of these");
        }
    for (const auto& [name, place] : weights.tensors) {
        if (known.contains(name) || is_mask(name)) continue;
        const std::string field = "tensor " + one_line(place.entry->name);
        if (name != "lm_head.weight")
            throw InputError(place.file->path() + ": " + field +
                             " is not part of GPT-2; use a GPT-2 language model with the config.json that belongs to "
                             "it");
        if (!same_values(place, weights.tensors.at("wte.weight")))
            throw InputError(place.file->path() + ": " + field +
                             " differs from wte.weight; use a model with tied embeddings: this program has no "
                             "separate output layer");
    }
}

}  // namespace

GPT2Config read_hugging_face_config(const std::string& directory) {
    const GPT2Config config = parse_config(directory);
    check_weights(open_weights(directory), config, ParameterTable(config));
    return config;
}

int32_t read_hugging_face_end_of_text(const std::string& directory) {
    const json root = read_json_file(directory + "/config.json");
    const json id = root.value("bos_token_id", json());
    const bool is_end_of_text = id.is_number_integer() && id == root.value("eos_token_id", json()) && id >= 0 &&
                                id < parse_config(directory).vocab;
    return is_end_of_text ? id.get<int32_t>() : -1;
}

void read_hugging_face_model(const std::string& directory, const GPT2Config& config, float* parameters) {
    const Weights weights = open_weights(directory);
    const ParameterTable table(config);
    check_weights(weights, config, table);
    std::fill_n(parameters + table.wte.at(), table.wte.piece(), 0.0f);  // for the padding rows
    for (const Parameter& p : table.rows)
        for (int64_t l = 0; l < p.copies; l++) {
            const auto& [file, entry] = weights.tensors.at(stored_name(p, l));
            if (p.hf_transposed)
                file->read_transposed(*entry, parameters + p.at(l));
            else
                file->read(*entry, parameters + p.at(l));
        }
}

std::vector<WrittenFile> write_hugging_face_model(const std::string& directory, const GPT2Config& config,
                                                  const float* parameters, int64_t end_of_text) {
    nlohmann::ordered_json root = {
        {"architectures", {"GPT2LMHeadModel"}},
        {"model_type", "gpt2"},
        {"n_layer", config.layers},
        {"n_head", config.heads},
        {"n_embd", config.channels},
        {"n_positions", config.context},
        {"n_ctx", config.context},
        {"n_inner", nullptr},
        {"vocab_size", config.vocab},
        {"activation_function", "gelu_new"},
        {"layer_norm_epsilon", 1e-5},
        {"initializer_range", 0.02},
        {"scale_attn_weights", true},
        {"scale_attn_by_inverse_layer_idx", false},
        {"reorder_and_upcast_attn", false},
        {"tie_word_embeddings", true},
        {"attn_pdrop", config.dropout},
        {"embd_pdrop", config.dropout},
        {"resid_pdrop", config.dropout},
        {"bos_token_id", nullptr},
        {"eos_token_id", nullptr},
        {"dtype", "float32"},
        {"torch_dtype", "float32"},
        {"use_cache", true},
    };
    if (end_of_text >= 0) root["bos_token_id"] = root["eos_token_id"] = end_of_text;
    std::vector<TensorToWrite> tensors;
    for (const Parameter& p : ParameterTable(config).rows)
        for (int64_t l = 0; l < p.copies; l++)
            tensors.push_back(
                {p.hf_name(l), DType::F32, stored_shape(p, config), parameters + p.at(l), p.hf_transposed});
    return {write_file_atomically(directory + "/config.json", root.dump(2) + "\n"),
            write_safetensors(directory + "/model.safetensors", tensors)};
}
