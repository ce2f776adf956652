// Shared by the tests of model files: a tokenizer, parameters, a check of refusals, and a full disk.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "dev/test/test_directory.h"
#include "gpt2_tensors.h"
#include "io/file/error.h"
#include "io/file/file.h"
#include "io/text/tokenizer.h"

class ModelFiles : public TestDirectory {};

class FakeTokenizer : public Tokenizer {
public:
    explicit FakeTokenizer(int32_t end_of_text = -1) : end_of_text_(end_of_text) {}
    int64_t vocab() const override { return 300; }
    int32_t end_of_text() const override { return end_of_text_; }
    const std::string& name() const override { return name_; }
    std::vector<int32_t> encode(std::string_view) const override { return {}; }
    std::string_view token(int32_t) const override { return "?"; }
    std::vector<WrittenFile> save_hugging_face(const std::string& directory) const override {
        return {write_file_atomically(directory + "/tokenizer.json", "{}")};
    }

private:
    std::string name_ = "fake";
    int32_t end_of_text_;
};

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

// While it exists, no file can grow beyond `bytes`, as on a full disk.
class FullDisk {
public:
    explicit FullDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
        getrlimit(RLIMIT_FSIZE, &before_);
        const rlimit limit{bytes, before_.rlim_max};
        setrlimit(RLIMIT_FSIZE, &limit);
    }
    ~FullDisk() {
        setrlimit(RLIMIT_FSIZE, &before_);
        std::signal(SIGXFSZ, handler_);
    }
    FullDisk(const FullDisk&) = delete;

private:
    rlimit before_{};
    void (*handler_)(int);
};
