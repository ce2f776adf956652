// Bad input: the program ends with status 2 and one line that says where and what is wrong, and what to do. It leaves
// nothing half-written behind, and changes no existing file.
#ifdef __linux__
#include <sched.h>
#include <sys/mount.h>
#endif

#include <cstring>

#include "dev/test/program/program.h"
#include "io/file/file.h"
#include "device/cpu/gemm/gemm.h"

namespace fs = std::filesystem;

namespace {

using Parts = std::vector<std::string>;

// An llm.c file: its header and the rest.
std::string headed(std::vector<int32_t> header, const std::string& rest = "") {
    header.resize(256);
    return std::string(reinterpret_cast<const char*>(header.data()), 1024) + rest;
}

class Refusals : public Program {
protected:
    void refuse_data(const std::string& data, const Parts& parts, const Args& more = {}) const {
        Args args = more;
        args["data"] = data;
        expect_refused(training("out", args), parts);
    }
    // Every command that reads a model must refuse this file or directory.
    void refuse_model(const std::string& path, const Parts& parts) const {
        expect_refused({"generate", "--from", path}, parts);
        expect_refused({"eval", "--from", path, "--data", text}, parts);
        expect_refused({"convert", path, at(path.ends_with(".bin") ? "converted" : "converted.bin")}, parts);
        expect_refused({"train", "--data", text, "--init", path, "--out", at("out"), "--seq", "16"}, parts);
    }
    void change(const std::string& name, const std::string& from, const std::string& to) const {
        std::string bytes = read_bytes(at(name));
        ASSERT_NE(bytes.find(from), std::string::npos) << name << " has no " << from;
        bytes.replace(bytes.find(from), from.size(), to);
        write_bytes(at(name), bytes);
    }
};

}  // namespace

TEST_F(Refusals, Data) {
    refuse_data(at("missing.txt"), {"missing.txt", "open failed: No such file", ";"});
    refuse_data(at("missing.bin"), {"missing.bin", "open failed: No such file", ";"});
    refuse_data(at("*.nothing"), {"*.nothing", "no file matches"});
    refuse_data(text, {"missing.txt", "No such file"}, {{"val", at("missing.txt")}});

    write_bytes(at("empty.txt"), "");
    refuse_data(at("empty.txt"), {"empty.txt", "found 0", "at least 17", "--seq"});
    write_bytes(at("short.txt"), "fifteen letters");
    refuse_data(at("short.txt"), {"short.txt", "at least 17", "smaller --seq"});
    refuse_data(text, {"empty.txt", "tokens", "found 0"}, {{"val", at("empty.txt")}});

    const std::pair<std::string, Parts> shards[] = {
        {"", {"size: found 0 bytes", "expected at least the 1024"}},
        {"cut", {"size: found 3 bytes", "expected at least the 1024"}},
        {headed({20240326, 1, 1}, "ab"), {"magic number: found 20240326", "expected 20240520"}},
        {headed({20240520, 7, 1}, "ab"), {"version: found 7", "expected 1"}},
        {headed({20240520, 1, 100}, "ab"), {"size: found 1026 bytes", "expected 1224 bytes"}},
        {headed({20240520, 1, 0}, "ab"), {"size: found 1026 bytes", "expected 1024 bytes"}},
        {headed({20240520, 1, -1}, "ab"), {"size: found 1026 bytes", "expected", "4294967295 tokens"}},
        {headed({20240520, 1, 20}, std::string("a\0\xe8\x03", 4) + std::string(36, '\0')),
         {"token 1: id 1000", "outside", "256", "--tokenizer"}},
    };
    for (const auto& [bytes, parts] : shards) {
        write_bytes(at("shard.bin"), bytes);
        Parts all = parts;
        all.insert(all.end(), {"shard.bin", ";"});
        refuse_data(at("shard.bin"), all);
        refuse_data(text, all, {{"val", at("shard.bin")}});
    }
}

// Before the first training run, with a misspelt path, and with a run that has no checkpoint yet.
TEST_F(Refusals, WithoutATrainedModelTheySayHowToComeByOne) {
    const std::string trains = "train a model first (" + program_name() + " --data FILE --out ";
    for (const std::string& path : {at("none"), at("none.bin"), at("no/such")}) {
        expect_refused({"generate", "--from", path}, {path + ": ", trains, path, "--from"});
        expect_refused({"eval", "--from", path, "--data", text}, {path + ": ", trains, path, "--from"});
        expect_refused({"train", "--resume", "--out", path}, {path + ": ", "leave out --resume to start a run there"});
    }
    std::filesystem::create_directory(at("begun"));
    write_bytes(at("begun/options.json"), "{}");
    const Parts parts = {at("begun") + ": this run has saved no checkpoint yet", "--resume --out", "--from"};
    expect_refused({"generate", "--from", at("begun")}, parts);
    expect_refused({"eval", "--from", at("begun"), "--data", text}, parts);
}

TEST_F(Refusals, ModelFiles) {
    refuse_model(at("missing"), {"missing", "No such file"});
    refuse_model(at("missing.bin"), {"missing.bin", "No such file"});
    const int32_t c = 8, V = 256;
    const std::pair<std::string, Parts> files[] = {
        {"", {"0 bytes"}},
        {headed({20240520, 3, 8, V, 1, 1, c, V}), {"magic number", "20240520", "20240326"}},
        {headed({20240326, 9, 8, V, 1, 1, c, V}), {"version", "9"}},
        {headed({20240326, 3, -8, V, 1, 1, c, V}), {"-8"}},
        {headed({20240326, 3, 8, V, 0, 1, c, V}), {"found 0"}},
        {headed({20240326, 3, 8, V, 1, 3, c, V}), {"8", "3"}},
        {headed({20240326, 3, 8, V, 2147483647, 1, 2147483647, V}), {"2147483647"}},
        {headed({20240326, 3, 8, V, 1, 1, c, 300}), {"300", "256"}},
        {headed({20240326, 3, 8, V, 1, 1, c, V}, "too short"), {"size", "1033 bytes"}},
    };
    for (const auto& [bytes, parts] : files) {
        write_bytes(at("model.bin"), bytes);
        Parts all = parts;
        all.insert(all.end(), {"model.bin", "found", "expected", ";"});
        refuse_model(at("model.bin"), all);
    }
}

TEST_F(Refusals, ModelDirectories) {
    train("run");
    const std::string model = "run/step_000006/model.safetensors", config = "run/step_000006/config.json";
    const auto with_changed = [&](const std::string& name, const std::function<void()>& damage, Parts parts) {
        const std::string bytes = read_bytes(at(name));
        damage();
        parts.push_back(fs::path(name).filename().string());
        refuse_model(at("run/step_000006"), parts);
        write_bytes(at(name), bytes);
    };
    with_changed(model, [&] { fs::resize_file(at(model), 1000); }, {"found", "expected", ";"});
    with_changed(model, [&] { write_bytes(at(model), ""); }, {"0 bytes"});
    with_changed(model, [&] { write_bytes(at(model), std::string(8, '\xff') + "{}"); }, {"header"});
    with_changed(model, [&] { change(model, "h.0.ln_1.bias", "h.0.ln_X.bias"); }, {"h.0.ln_1.bias", "is missing", ";"});
    with_changed(model, [&] { change(model, "\"shape\":[16]", "\"shape\":[61]"); }, {"found", "expected"});
    with_changed(config, [&] { write_bytes(at(config), "{"); }, {"invalid JSON", ";"});
    with_changed(config, [&] { change(config, "\"n_layer\": 1", "\"n_layer\": -1"); }, {"n_layer", "-1"});
    with_changed(config, [&] { change(config, "\"n_embd\": 16", "\"n_embd\": 32"); }, {"found", "expected"});
    with_changed(config, [&] { change(config, "gelu_new", "relu"); }, {"activation_function", "relu", "gelu_new"});
    fs::remove(at(model));
    refuse_model(at("run/step_000006"), {"model.safetensors", "No such file"});
}

TEST_F(Refusals, Tokenizers) {
    const auto refuse = [&](const std::string& tokenizer, const Parts& parts) {
        expect_refused(training("out", {{"tokenizer", tokenizer}}), parts);
        expect_refused({"tokenize", text, at("out.bin"), "--tokenizer", tokenizer}, parts);
    };
    refuse(at("missing"), {"missing: No such file", ";"});
    write_bytes(at("merges.txt"), "");
    refuse(at("merges.txt"), {"merges.txt", "contains no merges", ";"});
    write_bytes(at("merges.txt"), "#version: 0.2\nabc\n");
    refuse(at("merges.txt"), {"merges.txt", "abc"});
    write_bytes(at("tokenizer.bin"), headed({20240328, 2, 2000000000, 1}));
    refuse(at("tokenizer.bin"), {"tokenizer.bin", "number of tokens", "2000000000"});
    write_bytes(at("tokenizer.json"), "{\"model\": ");
    refuse(root, {"tokenizer.json", "invalid JSON", ";"});
}

TEST_F(Refusals, Checkpoints) {
    const std::vector<std::string> resume = {"train", "--resume", "--out", at("run")};
    expect_refused(resume, {"run", "no such directory", "leave out --resume"});
    train("run");
    for (const char* name : {"model.safetensors", "optimizer.safetensors", "tokenizer.json", "trainer_state.json"}) {
        const std::string path = at(std::string("run/latest/") + name), bytes = read_bytes(path);
        std::string damaged = bytes;
        damaged[damaged.size() / 2] ^= 1;
        if (std::string(name) != "trainer_state.json") {
            write_bytes(path, damaged);
            expect_refused(resume, {name, "CRC-32", "found", "expected", ";"});
        }
        write_bytes(path, bytes.substr(0, bytes.size() / 2));
        expect_refused(resume, {name, std::string(name) == "trainer_state.json" ? "invalid JSON" : "size: found", ";"});
        fs::remove(path);
        expect_refused(resume, {name, "No such file", ";"});
        write_bytes(path, bytes);
    }
    for (const auto& [name, value] : Args{{"layers", "2"}, {"heads", "4"}, {"context", "32"}, {"tokenizer", "gpt2"}})
        expect_refused(words("train", {{"resume", ""}, {"out", at("run")}, {name, value}}),
                       {"--" + name + ": " + value + " differs from ", "in the run to resume; leave it out"});
    expect_done(resume);  // without damage it works
}

// For a run without a checkpoint. Other options are given with --resume, not edited in the file.
TEST_F(Refusals, OptionsThatWereEdited) {
    const std::vector<std::string> resume = {"train", "--resume", "--out", at("run")};
    train("run", {{"save-every", "0"}, {"steps", "2"}});
    const std::string good = read_bytes(at("run/options.json"));
    for (const auto& [from, to] : Args{{"\"lr\": 0.003", "\"lr\": 0.007"},
                                       {"\"seed\": 1337", "\"seed\": \"no\""},
                                       {"\"steps\": 2,", ""},
                                       {"{", ""},
                                       {"\n}", ""}}) {
        change("run/options.json", from, to);
        expect_refused(resume, {"options.json", to.empty() && from.size() < 3 ? "invalid JSON" : "CRC-32", ";"});
        write_bytes(at("run/options.json"), good);
    }
    expect_done(resume);
}

TEST_F(Refusals, WhatIsThereAlready) {
    train("run");
    expect_refused(training("run"), {"run", "--resume", "--out"});
    write_bytes(at("file"), "mine");
    write_bytes(at("nothing"), "");
    for (const char* out : {"file", "nothing", "file/below", "text.txt/be/low"})
        expect_refused(training(out), {out, "--out", ";"});
    write_bytes(at("taken.bin"), "mine");
    expect_refused({"tokenize", text, at("taken.bin")}, {"taken.bin", "exists", ";"});
    expect_refused({"convert", at("run"), at("taken.bin")}, {"taken.bin", ";"});
    expect_refused({"convert", at("run"), at("file")}, {"file", ";"});
    expect_refused({"convert", at("run"), at("run")}, {"run", ";"});
    expect_refused({"convert", at("run"), at("no/such/model.bin")}, {"model.bin", "No such file"});
    expect_refused({"convert", at("run"), at("file/model")}, {"file", "Not a directory"});
    expect_refused({"tokenize", text, at("no/such/text.bin")}, {"text.bin", "No such file"});
}

TEST_F(Refusals, TextsFromWhichNoTokenizerCanBeLearned) {
    const auto learn = [&](const std::string& from, const std::string& size, const std::string& out) {
        return std::vector<std::string>{"tokenize", "--train", from, "--vocab", size, at(out)};
    };
    expect_refused(learn(text, "5000", "t.json"),
                   {"text.txt", "--vocab 5000 is too many; give --vocab ", "longer text"});
    expect_refused(training("out", {{"tokenizer", "bpe:5000"}}), {"text.txt", "--tokenizer bpe:5000 is too many", ";"});
    write_bytes(at("empty"), "");
    expect_refused(learn(at("empty"), "300", "t.json"), {"empty", "no text", ";"});
    expect_refused(learn(at("missing"), "300", "t.json"), {"missing", "No such file"});
    write_bytes(at("long"), std::string(12'000'000, 'a'));  // tokens of up to 2^23 letters, three times in a file
    expect_refused(learn(at("long"), "280", "t.json"), {"long", "16 MiB", "spaces", "--vocab"});
    EXPECT_FALSE(std::filesystem::exists(at("t.json")));
    write_bytes(at("taken.json"), "mine");
    expect_refused(learn(text, "300", "taken.json"), {"taken.json", "exists", ";"});
    EXPECT_EQ(read_bytes(at("taken.json")), "mine");
    train("run");
    expect_refused(training("out", {{"tokenizer", "bpe:300"}, {"data", at("run/data/train.bin")}}),
                   {"train.bin", "token ids", "--tokenizer"});
    expect_refused({"tokenize", text, at("t.bin"), "--tokenizer", "bpe:300"}, {"bpe:300", "tokenize --train", ";"});
}

TEST_F(Refusals, WhatIsRefusedAtFirstCanBeRepeatedRight) {
    expect_refused(training("out", {{"data", text}, {"seq", "16"}, {"val", at("missing.txt")}}), {"missing.txt"});
    expect_refused(training("out", {{"context", "100000"}, {"seq", "100000"}}), {"--seq", "at least 100001"});
    train("out");
}

TEST_F(Refusals, Options) {
    const std::pair<std::vector<std::string>, Parts> commands[] = {
        {{"train", "--btach", "4"}, {"--btach", "--batch"}},
        {{"fly"}, {"fly", "generate"}},
        {{"train", "--batch", "-3"}, {"--batch", "invalid value -3", "from 1 to 65536"}},
        {{"train", "--lr", "fast"}, {"--lr", "fast"}},
        {{"train", "--batch"}, {"--batch: invalid value --out", "from 1 to 65536"}},
        {{"train", "--channels", "10", "--heads", "3"}, {"--channels", "10", "--heads 3"}},
        {{"train", "--seq", "200", "--context", "100"}, {"--seq", "200", "100"}},
        {{"train", "--total-batch", "100"}, {"--total-batch", "100", "2048"}},
        {{"train", "--warmup", "9", "--steps", "5"}, {"--warmup", "9", "5"}},
        {{"train", "--schedule", "square"}, {"--schedule", "square", "cosine"}},
        {{"train", "--model", "d13"}, {"--model", "d13", "d12"}},
        {{"train", "--init", "x", "--layers", "3"}, {"--layers", "--init"}},
        {{"generate", "--top-k", "1.5"}, {"--top-k", "1.5"}},
        {{"generate", "--temperature", "-1"}, {"--temperature", "-1"}},
        {{"eval"}, {"--data"}},
        {{"convert", "one"}, {"OUT"}},
        {{"tokenize", "text", "shard"}, {"shard", ".bin"}},
        {{"info"}, {"PATH"}},
    };
    for (const auto& [arguments, parts] : commands) {
        auto all = arguments;
        if (arguments[0] == "train") all.insert(all.end(), {"--out", at("out")});  // should it be accepted after all
        expect_refused(all, parts);
    }
    train("run");
    expect_refused({"eval", "--from", at("run"), "--data", text, "--seq", "17"}, {"--seq", "17", "16"});
    expect_refused({"info", at("missing")}, {"missing", "No such file"});
}

// On other CPUs train_test.cpp shows that it trains.
TEST_F(Refusals, Bf16MatmulsWhereTheCpuHasNone) {
    if (!gemm::has_bf16)
        expect_refused(training("out", {{"matmul", "bf16"}}), {"--matmul", "bf16", "AVX512-BF16", "leave it out"});
}

TEST_F(Refusals, PlansOfMemoryThatDoNotFit) {
    const Parts parts = {"memory: ", " available, ", " needed (parameters", "activations", "GiB", "--batch"};
    expect_refused(
        words("train", {{"data", text}, {"out", at("out")}, {"model", "d48"}, {"batch", "65536"}, {"seq", "1024"}}),
        parts);
    expect_refused(training("out", {{"layers", "1000"}, {"channels", "100000"}, {"batch", "65536"}}), parts);
    expect_refused(training("out", {{"layers", "1000"},
                                    {"channels", "100000"},
                                    {"batch", "65536"},
                                    {"context", "1000000"},
                                    {"seq", "1000000"}}),
                   {"memory"});  // more bytes than an int64 counts
    if (is_sanitized()) return;  // AddressSanitizer reserves terabytes of addresses
    const Limits limits{.memory = rlim_t{1} << 30};
    expect_refused(training("out", {{"channels", "4096"}, {"heads", "1"}}), {"memory", "needed"}, limits);
    train("run", {{"context", "64"}});
    expect_refused({"generate", "--from", at("run"), "--samples", "65536", "--prompt", "a"},
                   {"memory", "needed (parameters", "make --samples smaller"}, {.memory = rlim_t{400} << 20});
    // Near the edge it runs or is refused; it is never killed.
    const auto near_edge = [&](int64_t mib, Args args) {
        const std::string out = "limit " + std::to_string(mib) + args["optimizer"] + args["threads"];
        args.insert({{"channels", "512"}, {"steps", "1"}});
        const Result result = run(training(out, args), {.memory = static_cast<rlim_t>(mib) << 20});
        EXPECT_TRUE(result.status == 0 || result.status == 2) << out << ": " << result.status << "\n" << result.err;
        EXPECT_EQ(path_exists(at(out)), result.status == 0) << out;
        return result.status;
    };
    for (const int64_t mib : {60, 200, 250, 300, 350, 600}) near_edge(mib, {{"optimizer", "adamw"}, {"threads", "2"}});
    for (const int64_t mib : {250, 300, 350, 400}) near_edge(mib, {{"optimizer", "muon"}, {"threads", "2"}});
    for (const int64_t mib : {700, 800, 900, 1000}) near_edge(mib, {{"optimizer", "muon"}, {"threads", "8"}});
    // Everything except the memory of Muon's four threads would fit.
    EXPECT_EQ(near_edge(1700, {{"optimizer", "muon"}, {"threads", "4"}, {"channels", "2048"}}), 2);
}

TEST_F(Refusals, AFullDiskLeavesWholeFilesOnly) {
    train("run");
    const Parts parts = {"write failed: File too large", ";"};
#ifdef __clang__
    const std::vector<rlim_t> limits = {1024, 2000};  // LLVM's OpenMP makes a file of 1024 bytes in shared memory
#else
    const std::vector<rlim_t> limits = {0, 100, 2000};
#endif
    for (const rlim_t bytes : limits) expect_refused(training("out"), parts, {.file = bytes});
    expect_refused({"tokenize", text, at("text.bin")}, parts, {.file = 1500});
    expect_refused({"convert", at("run"), at("model.bin")}, parts, {.file = 4000});
    expect_refused({"convert", at("run"), at("model")}, parts, {.file = 4000});

    // There is no space for a checkpoint: the one before is whole, and training continues from it.
    fs::remove(at("run/report.html"));
    const std::string newest = fs::read_symlink(at("run/latest"));
    const Result full = run({"train", "--resume", "--out", at("run"), "--steps", "7"}, {.file = 20'000});
    EXPECT_EQ(full.status, 1);
    EXPECT_NE(full.err.find("File too large"), std::string::npos) << full.err;
    EXPECT_NE(full.err.find("step 7 is not saved"), std::string::npos) << full.err;
    EXPECT_EQ(fs::read_symlink(at("run/latest")), newest);
    EXPECT_FALSE(path_exists(at("run/step_000007")));
    expect_done({"train", "--resume", "--out", at("run"), "--steps", "7"});
    EXPECT_EQ(fs::read_symlink(at("run/latest")), "step_000007");
}

TEST_F(Refusals, AFullDiskItself) {
#ifdef __linux__
    fs::create_directory(at("disk"));
    // In a mount namespace of this process, so that the disk goes with it.
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("none", at("disk").c_str(), "tmpfs", 0, "size=100k") != 0)
        GTEST_SKIP() << "no disk to fill: mounting one is not permitted here (" << std::strerror(errno) << ")";
    const Result full = run(training("disk/run", {{"save-every", "1"}, {"keep", "0"}}));
    EXPECT_EQ(full.status, 1);  // it trained to the end and could not save
    EXPECT_NE(full.err.find("No space left on device"), std::string::npos) << full.err;
    for (const auto& [name, bytes] : snapshot()) EXPECT_EQ(name.find(".tmp"), std::string::npos) << name;
    mount("none", at("disk").c_str(), "tmpfs", MS_REMOUNT, "size=10m");
    if (path_exists(at("disk/run/latest"))) expect_done({"train", "--resume", "--out", at("disk/run")});
    umount2(at("disk").c_str(), MNT_DETACH);
#else
    GTEST_SKIP() << "no disk to fill: only Linux has mount namespaces";
#endif
}

TEST_F(Refusals, OutputThatCannotBeWritten) {
    train("run");
    const auto shell = [&](const std::string& arguments) {
        return WEXITSTATUS(system(("'" + binary() + "' " + arguments + " >/dev/full 2>'" + at("err") + "'").c_str()));
    };
    for (const std::string& command :
         {"generate --tokens 3 --from '" + at("run") + "'", "eval --from '" + at("run") + "' --data '" + text + "'",
          "info '" + at("run") + "'", std::string("--help")}) {
        EXPECT_EQ(shell(command), 2) << command;
        EXPECT_TRUE(read_bytes(at("err")).starts_with(program_name() + ": standard output: write failed"))
            << command << read_bytes(at("err"));
    }
}
