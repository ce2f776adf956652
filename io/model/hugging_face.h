// A Hugging Face GPT-2 directory: config.json and model.safetensors (or its shards).
#pragma once

#include <string>
#include <vector>

#include "gpt2_tensors.h"
#include "io/file/file.h"

// Checks config.json, and every tensor's name, shape and dtype against it. Throws InputError.
GPT2Config read_hugging_face_config(const std::string& directory);
// config.json's bos_token_id if it equals eos_token_id, as in GPT-2, and is in the vocabulary; otherwise -1.
int32_t read_hugging_face_end_of_text(const std::string& directory);
void read_hugging_face_model(const std::string& directory, const GPT2Config& config, float* parameters);

// Writes config.json and model.safetensors. `end_of_text` is a token id, or -1 if there is none.
std::vector<WrittenFile> write_hugging_face_model(const std::string& directory, const GPT2Config& config,
                                                  const float* parameters, int64_t end_of_text);
