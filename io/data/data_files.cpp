#include "io/data/data_files.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "io/file/error.h"
#include "io/file/file.h"

namespace fs = std::filesystem;

namespace {

// The texts of a directory, in order of name.
std::vector<std::string> list_directory(const std::string& directory, std::vector<std::string>& notes) {
    std::vector<std::string> texts, others;
    int64_t shards = 0;
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
        const std::string name = entry.path().filename().string();
        std::error_code ignored;
        if (name.starts_with('.')) continue;
        if (is_shard_name(name)) shards++;
        (is_text_name(name) && !entry.is_directory(ignored) ? texts : others).push_back(name);
    }
    if (error) throw InputError(directory + ": cannot be listed: " + error.message() + "; check the path");
    const std::string all = directory.ends_with('/') ? directory + "*" : directory + "/*";
    if (shards > 0)
        throw InputError(directory + ": has " + std::to_string(shards) +
                         " token shards in it; name them by a pattern in quotes: '" + all + ".bin'");
    if (texts.empty())
        throw InputError(directory + ": no .txt or .jsonl in it, plain or .gz or .zst; check the path, or name " +
                         "files of other names by a pattern in quotes: '" + all + "'");
    std::ranges::sort(texts);
    std::ranges::sort(others);
    if (!others.empty())
        notes.push_back(without_controls(
            directory + ": left out " + others[0] +
            (others.size() > 1 ? " and " + std::to_string(others.size() - 1) + " more" : "") +
            ": only .txt and .jsonl, plain or .gz or .zst, are read from a directory; a pattern names others: '" + all +
            "'"));
    for (std::string& name : texts) name = (fs::path(directory) / name).string();
    return texts;
}

// The files that one name means. The name of an existing file is never read as a glob.
std::vector<std::string> expand(const std::string& name, std::vector<std::string>& notes) {
    if (is_directory(name)) return list_directory(name, notes);
    if (name.find_first_of("*?[") == std::string::npos || path_exists(name)) return {name};
    glob_t found{};
    std::vector<std::string> matches, paths;
    if (glob(name.c_str(), 0, nullptr, &found) == 0) matches.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    globfree(&found);
    std::ranges::sort(matches);
    std::ranges::copy_if(matches, std::back_inserter(paths),
                         [](const std::string& path) { return !is_directory(path); });
    if (paths.empty())
        throw InputError(name + (matches.empty() ? ": no file matches this pattern; check the path, and put the "
                                                   "pattern in quotes"
                                                 : ": this pattern matches directories only; end it with '/*'"));
    return paths;
}

}  // namespace

std::string DataNames::text() const {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
    return text;
}

bool is_shard_name(const std::string& path) { return path.ends_with(".bin"); }

DataFiles find_files(const DataNames& names) {
    DataFiles found;
    found.files = {.paths = {}, .field = names.field, .source = names.text(), .wanted_bytes = names.wanted_bytes};
    std::vector<std::string>& paths = found.files.paths;
    for (const std::string& name : names.names) {
        const std::vector<std::string> more = expand(name, found.notes);
        paths.insert(paths.end(), more.begin(), more.end());
    }
    const int64_t shards = std::ranges::count_if(paths, is_shard_name);
    if (shards != 0 && shards != std::ssize(paths))
        throw InputError(names.text() + ": these are " + std::to_string(paths.size()) + " files, of which " +
                         std::to_string(shards) + " end in .bin; name token shards (.bin) alone, or texts alone");
    found.shards = shards > 0;
    if (found.shards && names.wanted_bytes > 0)
        throw InputError("--text-mb: " + names.text() +
                         ": these are token shards, which are used whole; leave the option out, or name fewer shards");
    return found;
}

Texts find_texts(const DataNames& names) {
    const DataFiles found = find_files(names);
    if (found.shards)
        throw InputError(names.text() +
                         ": these are token ids, and a tokenizer is learned from text; give a text, or the --tokenizer "
                         "that made them");
    return found.files;
}
