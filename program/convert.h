// The `convert` command.
#pragma once

#include <string>

// Converts a model between Hugging Face directories (or checkpoints), llm.c files and GGUF files. If `out` ends in
// .bin, it becomes an llm.c model of version 3 (fp32) or, with `bf16`, of version 5 (bf16). If it ends in .gguf, it
// becomes a GGUF file whose matrices have the type that is named ("" is f32). Otherwise it becomes a new directory.
// Existing files are not overwritten. Throws InputError.
void convert_model(const std::string& in, const std::string& out, bool bf16, const std::string& type = "");
