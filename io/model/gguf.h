// GPT-2 models in GGUF, the format of llama.cpp, Ollama and LM Studio: one file with the model and its tokenizer.
#pragma once

#include <string>

#include "gpt2_tensors.h"
#include "io/file/gguf_values.h"
#include "io/text/tokenizer.h"

// Checks the metadata, and every tensor's name, shape and type against it. Throws InputError.
GPT2Config read_gguf_config(const std::string& path);
void read_gguf_model(const std::string& path, const GPT2Config& config, float* parameters);
bool has_gguf_tokenizer(const std::string& path);
// The type of the matrices' values, by which such files are known: "f16".
std::string read_gguf_type(const std::string& path);

// Writes matrices as `type`, and vectors and the position embedding as f32, as llama.cpp's own converter does. Throws
// InputError if llama.cpp could not hold the model or its tokenizer, or if `type` cannot hold a value.
void write_gguf_model(const std::string& path, const GPT2Config& config, const float* parameters,
                      const Tokenizer& tokenizer, GgufType type);
