// The `info` command: describes a file, and verifies that it is intact.
#pragma once

#include <iosfwd>
#include <string>

// Prints what `path` is (checkpoint, run, model, state, shard, tokenizer, safetensors, log, text), its shapes and
// statistics. Throws InputError.
void print_info(const std::string& path, std::ostream& out);

// Compares files with their checksums and lists the results: the files of a checkpoint, of each checkpoint of a run,
// and the cached tokens of its text. Returns false if one is damaged. Files without checksums count as intact.
bool verify_files(const std::string& path, std::ostream& out);
