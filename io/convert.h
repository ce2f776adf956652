// The subcommands that only read and write files.
#pragma once

#include <iosfwd>
#include <string>

// Hugging Face directory or checkpoint <-> llm.c .bin. OUT ending in .bin: a llm.c model, version 3 (fp32),
// or 5 (bf16) with `bf16`; otherwise a new directory. Refuses to overwrite. Throws InputError.
void convert_model(const std::string& in, const std::string& out, bool bf16);

// Says what `path` is (checkpoint, run, model, state, shard, tokenizer, safetensors, log, text), its shapes
// and numbers. Throws InputError.
void print_info(const std::string& path, std::ostream& out);

// Compares every file of a checkpoint, of each of a run's checkpoints, and of the tokens made from its text, with its
// checksum, and lists them. False if one is damaged. True for what keeps no checksums.
bool verify_files(const std::string& path, std::ostream& out);
