// convert and info: conversion between the formats loses and overwrites nothing, and every kind of file is described.
#include "program/convert.h"
#include "program/info.h"

#include <cmath>
#include <cstring>

#include "dev/test/io/model_files.h"
#include "io/model/checkpoint.h"
#include "io/data/dataset.h"
#include "device/float_formats.h"
#include "io/model/llmc_files.h"
#include "io/model/safetensors.h"

namespace {

const GPT2Config config{.context = 8, .vocab = 300, .layers = 2, .heads = 2, .channels = 12};

class Convert : public ModelFiles {
protected:
    Convert() {
        std::filesystem::create_directory(at("hf"));
        write_model_directory(at("hf"), config, parameters.data(), nullptr);
    }
    std::string info(const std::string& path) {
        std::ostringstream out;
        print_info(path, out);
        return out.str();
    }
    void expect_info(const std::string& path, const std::vector<std::string>& parts) {
        const std::string text = info(path);
        for (const std::string& part : parts)
            EXPECT_NE(text.find(part), std::string::npos) << text << "lacks: " << part;
    }
    const std::vector<float> parameters = random_parameters(config);
};

TEST_F(Convert, ThereAndBackIsTheSameFile) {
    convert_model(at("hf"), at("v3.bin"), false);
    EXPECT_EQ(read_llmc_model_version(at("v3.bin")), 3);
    convert_model(at("v3.bin"), at("back"), false);
    EXPECT_EQ(read_bytes(at("back/model.safetensors")), read_bytes(at("hf/model.safetensors")));
    EXPECT_EQ(read_bytes(at("back/config.json")), read_bytes(at("hf/config.json")));
    convert_model(at("back"), at("again.bin"), false);
    EXPECT_EQ(read_bytes(at("again.bin")), read_bytes(at("v3.bin")));
    convert_model(at("hf"), at("copy") + "/", false);  // a directory's name may end in a slash
    EXPECT_EQ(read_bytes(at("copy/model.safetensors")), read_bytes(at("hf/model.safetensors")));
    EXPECT_EQ(listing(root), (std::vector<std::string>{"again.bin", "back", "copy", "hf", "v3.bin"}));
}

TEST_F(Convert, Bf16IsRoundedOnce) {
    convert_model(at("hf"), at("v5.bin"), true);
    EXPECT_EQ(read_llmc_model_version(at("v5.bin")), 5);
    convert_model(at("v5.bin"), at("rounded"), false);
    std::vector<float> back(parameters.size());
    read_model(at("rounded"), config, back.data());
    for (size_t i = 0; i < back.size(); i++) ASSERT_EQ(back[i], float_from_bf16(bf16_from_float(parameters[i])));
    convert_model(at("rounded"), at("again.bin"), true);
    EXPECT_EQ(read_bytes(at("again.bin")), read_bytes(at("v5.bin")));
}

TEST_F(Convert, TokenizerComesAlong) {
    const auto tokenizer = load_tokenizer("byte");
    const GPT2Config bytes{.context = 8, .vocab = 256, .layers = 1, .heads = 1, .channels = 4};
    const std::string checkpoint =
        save_checkpoint(at("out"), bytes, random_parameters(bytes).data(), *tokenizer, {}, {}, 0);
    convert_model(at("out"), at("copy"), false);
    ASSERT_TRUE(read_model_tokenizer(at("copy")));
    EXPECT_EQ(read_model_tokenizer(at("copy"))->vocab(), 256);
    convert_model(checkpoint, at("bytes.bin"), false);
    EXPECT_EQ(read_model_tokenizer(at("bytes.bin"))->name(), "byte");
}

TEST_F(Convert, GgufThereAndBackIsTheSameModel) {
    const auto tokenizer = load_tokenizer("byte");
    std::filesystem::create_directory(at("bytes"));
    write_model_directory(at("bytes"), config, parameters.data(), tokenizer.get());
    convert_model(at("bytes"), at("m.gguf"), false);
    convert_model(at("m.gguf"), at("back"), false);
    for (const std::string& name : listing(at("bytes")))
        EXPECT_EQ(read_bytes(at("back/") + name), read_bytes(at("bytes/") + name)) << name;
    convert_model(at("m.gguf"), at("m.bin"), false);
    EXPECT_EQ(read_llmc_model_version(at("m.bin")), 3);
    convert_model(at("bytes"), at("h.gguf"), false, "f16");
    expect_info(at("h.gguf"), {"a GPT-2 model in GGUF, f16", "tokenizer byte, 256 tokens, end of text none",
                               "layers 2, heads 2, channels 12, context 8, vocabulary 300 (padded to 384)", "fcprojw"});

    expect_refused([&] { convert_model(at("bytes"), at("m.gguf"), false); }, {at("m.gguf"), "exists already"});
    expect_refused([&] { convert_model(at("bytes"), at("n.gguf"), true); }, {at("n.gguf"), "--bf16", "--type bf16"});
    expect_refused([&] { convert_model(at("bytes"), at("n.gguf"), false, "q4"); }, {"--type", "q4", "choose f32"});
    expect_refused([&] { convert_model(at("bytes"), at("n.gguf"), false, "q8_0"); }, {at("n.gguf"), "blocks of 32"});
    expect_refused([&] { convert_model(at("bytes"), at("n.bin"), false, "f16"); }, {at("n.bin"), "--type"});
    expect_refused([&] { convert_model(at("bytes"), at("n"), false, "f16"); }, {at("n"), "--type"});
    expect_refused([&] { convert_model(at("hf"), at("n.gguf"), false); }, {at("n.gguf"), "needs a tokenizer"});
    EXPECT_EQ(listing(root), (std::vector<std::string>{"back", "bytes", "h.gguf", "hf", "m.bin", "m.gguf"}));
}

TEST_F(Convert, OverwritesNothing) {
    for (const char* name : {"taken.bin", "taken"}) {
        write_bytes(at(name), "mine");
        expect_refused([&] { convert_model(at("hf"), at(name), false); }, {at(name), "OUT", "choose another"});
        EXPECT_EQ(read_bytes(at(name)), "mine");
    }
    expect_refused([&] { convert_model(at("hf"), at("hf") + "/", false); }, {at("hf"), "OUT"});
    expect_refused([&] { convert_model(at("hf"), at("new"), true); }, {at("new"), "--bf16"});
    expect_refused([&] { convert_model(at("absent"), at("new"), false); }, {at("absent")});
    expect_refused([&] { convert_model(at("hf"), at("no/such/new"), false); }, {at("no/such/new")});
    expect_refused([&] { convert_model(at("hf"), "", false); }, {"OUT"});
}

TEST_F(Convert, FullDiskLeavesNothing) {
    const FullDisk full(2000);
    expect_refused([&] { convert_model(at("hf"), at("x.bin"), false); }, {"x.bin", "write failed"});
    expect_refused([&] { convert_model(at("hf"), at("x"), false); }, {"write failed"});
    EXPECT_EQ(listing(root), std::vector<std::string>{"hf"});
}

TEST_F(Convert, InfoOnModels) {
    const std::vector<std::string> shape = {"layers 2, heads 2, channels 12, context 8, vocabulary 300 (padded to 384)",
                                            "parameters 7,488 (8,496 with the padding)",
                                            "(300,12)",
                                            "qkvw",
                                            "(2,36,12)",
                                            "min",
                                            "std"};
    expect_info(at("hf"), shape);
    expect_info(at("hf"), {"a Hugging Face GPT-2 model"});
    convert_model(at("hf"), at("m.bin"), false), convert_model(at("hf"), at("h.bin"), true);
    expect_info(at("m.bin"), shape);
    expect_info(at("m.bin"), {"an llm.c model, version 3 (fp32)"});
    expect_info(at("h.bin"), {"version 5 (bf16)"});
    expect_info(at("hf/model.safetensors"),
                {"safetensors, 28 tensors", "transformer.h.1.mlp.c_fc.weight", "F32(12,48)"});

    LlmcState state;
    state.B = 1, state.T = 2, state.x = {1, 2}, state.y = {2, 3}, state.loss = 5.25f;
    state.logits.resize(600), state.gradients = parameters;
    state.gradients[0] = NAN;
    write_llmc_state(at("m_debug_state.bin"), config, state);
    expect_info(at("m_debug_state.bin"),
                {"an llm.c debug state", "B 1, T 2", "loss 5.25", "lnfb", "1 NaN or infinite"});
    write_llmc_state(at("alone.bin"), config, state);
    expect_info(at("alone.bin"), {"B 1, T 2"});
}

TEST_F(Convert, InfoOnRuns) {
    const GPT2Config bytes{.context = 8, .vocab = 256, .layers = 1, .heads = 1, .channels = 4};
    TrainerState state;
    state.step = 70, state.seconds = 12, state.best_val_loss = 1.5, state.options = R"({"lr":0.003})";
    const std::string checkpoint =
        save_checkpoint(at("out"), bytes, random_parameters(bytes).data(), *load_tokenizer("byte"), {}, state, 0);
    for (const std::string& path : {at("out"), checkpoint})
        expect_info(path, {"a checkpoint", "step 70, 12.0 s", "best validation loss 1.5", "option \"lr\" = 0.003",
                           "tokenizer", "256 tokens", "layers 1"});
    expect_info(at("out"), {"a run"});
    expect_info(checkpoint + "/trainer_state.json", {"step 70"});
    write_bytes(at("log.jsonl"),
                "{\"step\":1,\"split\":\"val\",\"loss\":5.5,\"seconds\":0}\n{\"step\":9,\"split\":\"val\",\"loss\":2.5,"
                "\"seconds\":3}\n"
                "{\"step\":10,\"split\":\"val\",\"loss\":3.5,\"seconds\":4}\n");
    expect_info(at("log.jsonl"), {"a training log, 3 lines", "val loss: last 3.5", "best 2.5", "step 9"});
}

TEST_F(Convert, InfoOnOtherFiles) {
    write_shard(at("s.bin"), {5, 1000, 7});
    expect_info(at("s.bin"), {"an llm.c token shard, 3 tokens, largest id 1000", "first ids 5 1000 7"});
    save_llmc_tokenizer(*load_tokenizer("byte"), at("t.bin"));
    expect_info(at("t.bin"), {"an llm.c tokenizer", "256 tokens"});
    std::string hellaswag(1024, '\0');
    const int32_t words[] = {20240522, 1, 10042, 900};
    std::memcpy(hellaswag.data(), words, sizeof(words));
    write_bytes(at("h.bin"), hellaswag);
    expect_info(at("h.bin"), {"HellaSwag", "10042 examples"});
    write_bytes(at("a.txt"), "one\ntwo\n");
    expect_info(at("a.txt"), {"text, 8 bytes, 2 lines"});
    write_bytes(at("zeros"), std::string(2000, '\0'));
    expect_info(at("zeros"), {"no format that is known here, 2,000 bytes"});
    write_bytes(at("p.bin"), "PK\x03\x04 and so on");
    expect_info(at("p.bin"), {"zip archive"});
    write_bytes(at("empty"), "");
    expect_info(at("empty"), {"0 bytes, 0 lines"});
}

// A file that is truncated anywhere is refused or described, without a crash.
TEST_F(Convert, InfoOnTruncatedFiles) {
    convert_model(at("hf"), at("m.bin"), false);
    write_shard(at("s.bin"), std::vector<uint16_t>(100, 3));
    save_llmc_tokenizer(*load_tokenizer("byte"), at("t.bin"));
    for (const char* name : {"m.bin", "s.bin", "t.bin", "hf/model.safetensors", "hf/config.json"}) {
        const std::string whole = read_bytes(at(name));
        for (size_t k = 1; k < 16; k++) {
            write_bytes(at(name), whole.substr(0, whole.size() * k / 16));
            if (std::string(name) != "hf/config.json") {
                EXPECT_THROW(info(at(name)), InputError) << name << k;
            }
            if (std::string(name).starts_with("hf/")) {
                EXPECT_THROW(info(at("hf")), InputError) << name << k;
            }
        }
        write_bytes(at(name), whole);
    }
    expect_refused([&] { info(at("absent")); }, {at("absent"), "No such file"});
    std::filesystem::create_directory(at("empty"));
    expect_refused([&] { info(at("empty")); }, {at("empty"), "config.json"});
}

}  // namespace
