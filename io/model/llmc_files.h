// llm.c's model and debug-state files: a header of 256 little-endian int32, then raw values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpt2_tensors.h"

// Model: magic 20240326, version 3 (fp32) or 5 (bf16). The readers check magic, version, every count and the file's
// size before they read a parameter, and throw InputError.
GPT2Config read_llmc_model_config(const std::string& path);
void read_llmc_model(const std::string& path, float* parameters);  // ParameterTable(config).size floats
void write_llmc_model(const std::string& path, const GPT2Config& config, const float* parameters, int version);
int read_llmc_model_version(const std::string& path);

// Debug state: magic 20240327, version 2: a batch, PyTorch's logits and loss on it, and every gradient.
struct LlmcState {
    int64_t B = 0, T = 0;
    std::vector<int32_t> x, y;  // (B,T)
    std::vector<float> logits;  // (B,T,V), unpadded
    float loss = 0;
    std::vector<float> gradients;  // ParameterTable(config).size, in its order
};
LlmcState read_llmc_state(const std::string& path, const GPT2Config& config);
void write_llmc_state(const std::string& path, const GPT2Config& config, const LlmcState& state);

// The kind of a file by its first word, such as "an llm.c token shard"; "" if it is not known here.
std::string llmc_kind(int32_t magic);

// The largest model sizes that this program accepts, from any kind of file.
struct GPT2Limits {
    static constexpr int64_t context = 1 << 20, vocab = 1 << 20, layers = 1 << 10, channels = 1 << 16;
};
