// The `info` command: what a file is, and whether its bytes are those that were written.
#pragma once

#include <iosfwd>
#include <string>

// Says what `path` is (checkpoint, run, model, state, shard, tokenizer, safetensors, log, text), its shapes
// and numbers. Throws InputError.
void print_info(const std::string& path, std::ostream& out);

// Compares every file of a checkpoint, of each of a run's checkpoints, and of the tokens made from its text, with its
// checksum, and lists them. False if one is damaged. True for what keeps no checksums.
bool verify_files(const std::string& path, std::ostream& out);
