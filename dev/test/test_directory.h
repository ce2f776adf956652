// A directory for a test's files, and helpers for tests of files.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "io/file/error.h"

// A new directory, whose name has a space and a non-ASCII character. It is removed at the end of the test.
class TestDirectory : public ::testing::Test {
protected:
    TestDirectory() {
        std::string name = (std::filesystem::temp_directory_path() / "modèle 模型 XXXXXX").string();
        if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp");
        root = name;
    }
    ~TestDirectory() override { std::filesystem::remove_all(root); }
    std::string at(const std::string& name) const { return root + "/" + name; }
    std::vector<std::string> listing(const std::string& directory) const {
        std::vector<std::string> names;
        for (const auto& item : std::filesystem::directory_iterator(directory))
            names.push_back(item.path().filename().string());
        std::sort(names.begin(), names.end());
        return names;
    }
    std::string root;
};

inline std::string read_bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream bytes;
    bytes << file.rdbuf();
    return bytes.str();
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
}

// The message of the InputError that `action` throws.
template <class Action>
std::string error_of(const Action& action) {
    try {
        action();
    } catch (const InputError& error) {
        return error.what();
    }
    return "no error";
}
