// The files that --data, --val and TEXT name.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "io/text/documents.h"

// What the user names: each name is a file, a directory of texts, or a glob.
struct DataNames {
    DataNames(const char* name) : DataNames(std::string(name)) {}
    DataNames(const std::string& name) {  // "": none
        if (!name.empty()) names = {name};
    }
    DataNames(std::vector<std::string> all, std::string text_field, int64_t bytes = 0)
        : names(std::move(all)), field(std::move(text_field)), wanted_bytes(bytes) {}
    bool empty() const { return names.empty(); }
    std::string text() const;  // for messages: "a.txt, b.txt"

    std::vector<std::string> names;
    std::string field = "text";  // of JSON lines: --field
    int64_t wanted_bytes = 0;    // of texts: about so many of all are used (0: all)
};

// Whether a file is read as token ids: by its name, X.bin.
bool is_shard_name(const std::string& path);

struct DataFiles {
    bool shards = false;  // token shards, not texts
    Texts files;
    std::vector<std::string> notes{};  // what was left out of a directory, one line each
};
// Finds the files, in the order of the names given, and within a directory or glob in order of name. Throws InputError
// if there are none, or texts and token shards together.
DataFiles find_files(const DataNames& names);
// The same for a place where only texts are of use.
Texts find_texts(const DataNames& names);
