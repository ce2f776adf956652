// What the tests of model files share: a directory of their own, a tokenizer, parameters, and what a refusal must say.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "gpt2_tensors.h"
#include "io/error.h"
#include "io/tokenizer.h"

// A fresh directory, its name with a space and beyond ASCII, removed at the end of the test.
class ModelFiles : public ::testing::Test {
protected:
    ModelFiles() {
        std::string name = (std::filesystem::temp_directory_path() / "modèle 模型 XXXXXX").string();
        if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp");
        root = name;
    }
    ~ModelFiles() override { std::filesystem::remove_all(root); }
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

class FakeTokenizer : public Tokenizer {
public:
    explicit FakeTokenizer(int32_t end_of_text = -1) : end_of_text_(end_of_text) {}
    int64_t vocab() const override { return 300; }
    int32_t end_of_text() const override { return end_of_text_; }
    const std::string& name() const override { return name_; }
    std::vector<int32_t> encode(std::string_view) const override { return {}; }
    std::string_view token(int32_t) const override { return "?"; }
    void save_hugging_face(const std::string& directory) const override {
        std::ofstream(directory + "/tokenizer.json") << "{}";
    }

private:
    std::string name_ = "fake";
    int32_t end_of_text_;
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

// Padding rows of wte are zero.
inline std::vector<float> random_parameters(const GPT2Config& config, unsigned seed = 1) {
    const ParameterTable table(config);
    std::vector<float> values(table.size);
    std::mt19937 random(seed);
    for (float& v : values) v = std::normal_distribution<float>(0, 0.02f)(random);
    std::fill(values.begin() + config.vocab * config.channels, values.begin() + table.wte.piece(), 0.0f);
    return values;
}

// Runs `action`, which must throw InputError with one line that has every one of `parts`.
inline void expect_refused(const std::function<void()>& action, const std::vector<std::string>& parts) {
    try {
        action();
        ADD_FAILURE() << "accepted, not refused with " << ::testing::PrintToString(parts);
    } catch (const InputError& e) {
        const std::string message = e.what();
        for (const std::string& part : parts)
            EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
}

// While it lives, no file may grow beyond `bytes`, as on a full disc.
class FullDisc {
public:
    explicit FullDisc(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
        getrlimit(RLIMIT_FSIZE, &before_);
        const rlimit limit{bytes, before_.rlim_max};
        setrlimit(RLIMIT_FSIZE, &limit);
    }
    ~FullDisc() {
        setrlimit(RLIMIT_FSIZE, &before_);
        std::signal(SIGXFSZ, handler_);
    }
    FullDisc(const FullDisc&) = delete;

private:
    rlimit before_{};
    void (*handler_)(int);
};
