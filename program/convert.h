// The `convert` command.
#pragma once

#include <string>

// Hugging Face directory or checkpoint <-> llm.c .bin. OUT ending in .bin: a llm.c model, version 3 (fp32),
// or 5 (bf16) with `bf16`; otherwise a new directory. Refuses to overwrite. Throws InputError.
void convert_model(const std::string& in, const std::string& out, bool bf16);
