// llm.c's model and debug-state files: their bytes, and files that are refused.
#include "io/model/llmc_files.h"

#include <cmath>
#include <cstring>

#include "dev/test/io/model_files.h"
#include "device/float_formats.h"

namespace {

const GPT2Config shapes[] = {
    {.context = 5, .vocab = 11, .layers = 1, .heads = 1, .channels = 3},
    {.context = 8, .vocab = 128, .layers = 2, .heads = 2, .channels = 4},
    {.context = 16, .vocab = 300, .layers = 3, .heads = 3, .channels = 24},
};

class LlmcFiles : public ModelFiles {
protected:
    void set_word(const std::string& file, size_t index, int32_t value) {
        std::string bytes = read_bytes(file);
        std::memcpy(bytes.data() + 4 * index, &value, 4);
        write_bytes(file, bytes);
    }
    int32_t word(const std::string& bytes, size_t index) {
        int32_t value;
        std::memcpy(&value, bytes.data() + 4 * index, 4);
        return value;
    }
    LlmcState random_state(const GPT2Config& c, int64_t B, int64_t T) {
        LlmcState state;
        state.B = B, state.T = T;
        std::mt19937 random(3);
        for (int64_t i = 0; i < B * T; i++) {
            state.x.push_back(static_cast<int32_t>(random() % c.vocab));
            state.y.push_back(static_cast<int32_t>(random() % c.vocab));
        }
        for (int64_t i = 0; i < B * T * c.vocab; i++) state.logits.push_back(static_cast<float>(random() % 1000) / 7);
        state.loss = 5.27f;
        state.gradients = random_parameters(c, 9);
        return state;
    }
    const std::string path = at("model.bin");
};

TEST_F(LlmcFiles, ModelRoundTrip) {
    for (const GPT2Config& config : shapes) {
        const std::vector<float> parameters = random_parameters(config);
        for (const int version : {3, 5}) {
            write_llmc_model(path, config, parameters.data(), version);
            EXPECT_EQ(read_llmc_model_config(path), config);
            EXPECT_EQ(read_llmc_model_version(path), version);
            std::vector<float> back(parameters.size(), NAN);
            read_llmc_model(path, back.data());
            for (size_t i = 0; i < back.size(); i++)
                ASSERT_EQ(back[i], version == 3 ? parameters[i] : float_from_bf16(bf16_from_float(parameters[i])));
        }
    }
}

// The layout is a promise to llm.c: header words, then the tensors in order.
TEST_F(LlmcFiles, ModelLayout) {
    const GPT2Config c = shapes[2];
    const std::vector<float> parameters = random_parameters(c);
    write_llmc_model(path, c, parameters.data(), 3);
    const std::string bytes = read_bytes(path);
    const int32_t expected[] = {20240326, 3, 16, 300, 3, 3, 24, 384, 0};
    for (size_t i = 0; i < std::size(expected); i++) EXPECT_EQ(word(bytes, i), expected[i]) << i;
    const int64_t C = 24, L = 3, T = 16;
    const int64_t count = 384 * C + T * C + L * (12 * C * C + 13 * C) + 2 * C;
    ASSERT_EQ(bytes.size(), 1024 + 4 * count);
    EXPECT_EQ(std::memcmp(bytes.data() + 1024, parameters.data(), 4 * count), 0);
}

// Other programs may leave something in the padding rows; it must not reach the softmax.
TEST_F(LlmcFiles, PaddingRowsAreZeroedOnRead) {
    const GPT2Config c = shapes[0];
    const ParameterTable table(c);
    const std::vector<float> ones(table.size, 1.0f);
    std::vector<float> back(table.size);
    write_llmc_model(path, c, ones.data(), 3);
    read_llmc_model(path, back.data());
    for (int64_t i = 0; i < table.size; i++)
        ASSERT_EQ(back[i], i >= c.vocab * c.channels && i < table.wte.piece() ? 0.0f : 1.0f) << i;
}

TEST_F(LlmcFiles, RefusesOldVersionsAndOtherMagic) {
    write_llmc_model(path, shapes[0], random_parameters(shapes[0]).data(), 3);
    const auto refused = [&](std::vector<std::string> parts) {
        parts.push_back(path);
        expect_refused([&] { read_llmc_model_config(path); }, parts);
        expect_refused([&] { read_llmc_model(path, nullptr); }, parts);
    };
    set_word(path, 1, 1), refused({"version", "found 1 (old: fp32, vocabulary not padded)", "3 (fp32) or 5 (bf16)"});
    set_word(path, 1, 2), refused({"version", "found 2 (old: bf16, vocabulary not padded)"});
    set_word(path, 1, 4), refused({"version", "found 4 (old: bf16 with fp32 layernorms)"});
    set_word(path, 1, 99), refused({"version", "found 99,"});
    set_word(path, 0, 20240520),
        refused({"magic number", "20240520 (an llm.c token shard)", "20240326 (an llm.c model)"});
    set_word(path, 0, 7), refused({"magic number", "found 7,", "20240326 (an llm.c model)"});
}

TEST_F(LlmcFiles, RefusesLyingCounts) {
    const GPT2Config c = shapes[1];
    const std::vector<float> parameters = random_parameters(c);
    const char* names[] = {"max sequence length",   "vocabulary size", "layers", "heads", "channels",
                           "padded vocabulary size"};
    for (size_t i = 0; i < std::size(names); i++)
        for (const int32_t value : {0, -1, INT32_MIN, INT32_MAX}) {
            write_llmc_model(path, c, parameters.data(), 3);
            set_word(path, 2 + i, value);
            expect_refused([&] { read_llmc_model_config(path); }, {path, names[i], "found " + std::to_string(value)});
        }
    write_llmc_model(path, c, parameters.data(), 3);
    set_word(path, 5, 3);
    expect_refused([&] { read_llmc_model_config(path); }, {path, "channels", "found 4", "multiple of the 3 heads"});
    set_word(path, 5, 2), set_word(path, 4, 3);
    expect_refused([&] { read_llmc_model_config(path); }, {path, "size", "header's counts"});
    set_word(path, 4, 2), set_word(path, 7, 256);
    expect_refused([&] { read_llmc_model_config(path); }, {path, "padded vocabulary size", "256", "128"});
}

TEST_F(LlmcFiles, RefusesWrongSizes) {
    write_llmc_model(path, shapes[0], random_parameters(shapes[0]).data(), 3);
    const std::string whole = read_bytes(path);
    for (size_t k = 0; k < 16; k++) {
        write_bytes(path, whole.substr(0, whole.size() * k / 16));
        expect_refused([&] { read_llmc_model(path, nullptr); }, {path, "size", "bytes"});
    }
    write_bytes(path, whole + "x");
    expect_refused([&] { read_llmc_model(path, nullptr); },
                   {path, std::to_string(whole.size() + 1) + " bytes", std::to_string(whole.size()) + " bytes"});
    expect_refused([&] { read_llmc_model_config(at("absent.bin")); }, {at("absent.bin"), "No such file"});
}

TEST_F(LlmcFiles, StateRoundTrip) {
    for (const GPT2Config& config : shapes) {
        const LlmcState state = random_state(config, 2, 5);
        write_llmc_state(path, config, state);
        const std::string bytes = read_bytes(path);
        EXPECT_EQ(word(bytes, 0), 20240327);
        EXPECT_EQ(word(bytes, 1), 2);
        EXPECT_EQ(word(bytes, 256), state.x[0]);
        const LlmcState back = read_llmc_state(path, config);
        EXPECT_EQ(back.B, 2);
        EXPECT_EQ(back.T, 5);
        EXPECT_EQ(back.x, state.x);
        EXPECT_EQ(back.y, state.y);
        EXPECT_EQ(back.logits, state.logits);
        EXPECT_EQ(back.loss, state.loss);
        EXPECT_EQ(back.gradients, state.gradients);
    }
}

TEST_F(LlmcFiles, StateRefusals) {
    const GPT2Config c = shapes[2];
    const LlmcState state = random_state(c, 2, 5);
    const auto refused = [&](std::vector<std::string> parts) {
        parts.push_back(path);
        expect_refused([&] { read_llmc_state(path, c); }, parts);
    };
    write_llmc_state(path, c, state);
    const std::string whole = read_bytes(path);
    const auto with = [&](size_t index, int32_t value, std::vector<std::string> parts) {
        write_bytes(path, whole);
        set_word(path, index, value);
        refused(parts);
    };
    with(0, 20240326, {"magic number", "an llm.c model", "an llm.c debug state"});
    with(1, 1, {"version", "found 1, expected 2"});
    for (const int32_t bad : {0, -1, INT32_MIN, INT32_MAX}) {
        with(2, bad, {"B", "found " + std::to_string(bad)});
        with(3, bad, {"T", "found " + std::to_string(bad), "1 to 16"});
    }
    with(2, 3, {"size"});
    with(256, 300, {"token id in x", "found 300", "0 to 299"});
    with(256 + 10, -1, {"token id in y", "found -1"});
    for (size_t k = 0; k < 16; k++) {
        write_bytes(path, whole.substr(0, whole.size() * k / 16));
        refused({"bytes"});
    }
    write_bytes(path, whole + "x");
    refused({"size"});
}

TEST_F(LlmcFiles, FullDiskLeavesNothing) {
    const FullDisk full(4096);
    expect_refused([&] { write_llmc_model(path, shapes[2], random_parameters(shapes[2]).data(), 5); },
                   {path, "write failed"});
    EXPECT_TRUE(listing(root).empty());
}

}  // namespace
