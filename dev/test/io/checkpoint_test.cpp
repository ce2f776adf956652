// Checkpoints: whole or not at all, whatever happens while one is saved.
#include "dev/test/io/checkpoint_files.h"

#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

class Checkpoints : public CheckpointFiles {};

TEST_F(Checkpoints, HoldEverything) {
    const std::string checkpoint = save(500);
    EXPECT_EQ(checkpoint, out + "/step_000500");
    EXPECT_EQ(listing(out), (std::vector<std::string>{"latest", "step_000500"}));
    EXPECT_EQ(fs::read_symlink(out + "/latest"), "step_000500");
    EXPECT_EQ(listing(checkpoint),
              (std::vector<std::string>{"config.json", "model.safetensors", "optimizer.safetensors", "tokenizer.json",
                                        "trainer_state.json"}));
    verify_checkpoint(checkpoint);
    const TrainerState back = read_trainer_state(checkpoint);
    EXPECT_EQ(back.step, 500);
    EXPECT_EQ(back.position, 7);
    EXPECT_EQ(back.data_order, 2);
    EXPECT_EQ(back.seconds, 0.1 + 0.2);  // to the last bit
    EXPECT_EQ(back.best_val_loss, 1.0 / 3);
    EXPECT_EQ(json::parse(back.options), json::parse(state.options));
    std::vector<float> m_back(3), v_back(4);
    read_optimizer(checkpoint, {{"adam_v", v_back.data(), 4}, {"adam_m", m_back.data(), 3}});
    EXPECT_EQ(m_back, m);
    EXPECT_EQ(std::memcmp(v_back.data(), v_.data(), 16), 0);
    std::vector<float> values(ParameterTable(small).size);
    read_model(out, small, values.data());  // a run's directory means its newest checkpoint
    EXPECT_EQ(values, random_parameters(small));
}

TEST_F(Checkpoints, OddNumbersInTheStateSurvive) {
    state.best_val_loss = NAN, state.seconds = 1e-300, state.position = INT64_MAX;
    state.losses = std::vector(128, 1.5), state.norms = std::vector(128, 2.5);  // as many as --skip-outliers keeps
    const TrainerState back = read_trainer_state(save(1234567));
    EXPECT_EQ(back.losses, state.losses);
    EXPECT_EQ(back.norms, state.norms);
    EXPECT_TRUE(std::isnan(back.best_val_loss));
    EXPECT_EQ(back.seconds, 1e-300);
    EXPECT_EQ(back.position, INT64_MAX);
    EXPECT_EQ(find_latest_checkpoint(out), out + "/step_1234567");
}

TEST_F(Checkpoints, KeepRemovesOnlyTheOldestOfOurOwn) {
    for (const int64_t step : {100, 200, 300}) save(step);
    const std::vector<std::string> foreign = {"step_000050", "step_60", "step_000070x", "my_step_000080"};
    for (const std::string& name : foreign) fs::create_directory(out + "/" + name);
    for (const char* name : {"step_60", "step_000070x", "my_step_000080"})
        write_bytes(out + "/" + name + "/trainer_state.json", "{}");
    save(400, 2);
    auto names = listing(out);
    for (const std::string& name : foreign) EXPECT_EQ(std::erase(names, name), 1) << name;
    EXPECT_EQ(names, (std::vector<std::string>{"latest", "step_000300", "step_000400"}));
    // When a run continues from an older checkpoint, the one just saved stays, although newer ones exist.
    save(350, 1);
    EXPECT_TRUE(fs::exists(out + "/step_000350"));
    EXPECT_EQ(find_latest_checkpoint(out), out + "/step_000350");
}

TEST_F(Checkpoints, FilesAndLinksOfSuchNamesAreNone) {
    save(100);
    fs::create_directory_symlink("step_000100", out + "/step_000200");
    std::ofstream(out + "/step_000300") << "x";
    EXPECT_EQ(list_checkpoints(out), std::vector{out + "/step_000100"});
}

TEST_F(Checkpoints, SavingAStepAgainReplacesIt) {
    save(100), save(100, 0, 2);
    EXPECT_EQ(listing(out), (std::vector<std::string>{"latest", "step_000100"}));
    verify_checkpoint(out + "/step_000100");
    std::vector<float> values(ParameterTable(small).size);
    read_model(out, small, values.data());
    EXPECT_EQ(values[0], 2 * random_parameters(small)[0]);
    fs::create_directory(out + "/step_000200");
    write_bytes(out + "/step_000200/thesis.txt", "");
    expect_refused([&] { save(200); }, {out + "/step_000200", "move it away"});
    EXPECT_TRUE(fs::exists(out + "/step_000200/thesis.txt"));
    EXPECT_EQ(find_latest_checkpoint(out), out + "/step_000100");
}

TEST_F(Checkpoints, WhatACrashLeavesIsPassedOverAndRemoved) {
    EXPECT_EQ(find_latest_checkpoint(at("absent")), std::nullopt);
    save(100), save(200);
    fs::copy(out + "/step_000200", out + "/.step_000300.tmp");
    fs::copy(out + "/step_000200", out + "/step_000300");
    fs::remove(out + "/step_000300/trainer_state.json");
    EXPECT_EQ(find_latest_checkpoint(out), out + "/step_000200");
    // `latest` points at one that is no longer whole
    fs::resize_file(out + "/step_000200/optimizer.safetensors", 100);
    EXPECT_EQ(find_latest_checkpoint(out), out + "/step_000100");
    fs::remove(out + "/latest");
    EXPECT_EQ(find_latest_checkpoint(out), out + "/step_000100");
    for (const char* name : {".step_300.tmp", ".step_000300.tmp2", "step_000300.tmp", ".tmp"})
        fs::create_directory(out + "/" + name);
    fs::remove_all(out + "/step_000300");
    save(300);
    EXPECT_FALSE(fs::exists(out + "/.step_000300.tmp"));
    for (const char* name : {".step_300.tmp", ".step_000300.tmp2", "step_000300.tmp", ".tmp"})
        EXPECT_TRUE(fs::exists(out + "/" + name)) << name;
}

TEST_F(Checkpoints, VerifyNamesTheDamagedFile) {
    const std::string checkpoint = save(100);
    for (const char* name : {"/model.safetensors", "/optimizer.safetensors", "/config.json", "/tokenizer.json"}) {
        const std::string good = read_bytes(checkpoint + name);
        std::string bad = good;
        bad.back() = static_cast<char>(bad.back() ^ 1);
        write_bytes(checkpoint + name, bad);
        expect_refused([&] { verify_checkpoint(checkpoint); }, {checkpoint + name, "CRC-32"});
        write_bytes(checkpoint + name, good + "x");
        expect_refused([&] { verify_checkpoint(checkpoint); }, {checkpoint + name, "size"});
        fs::remove(checkpoint + name);
        expect_refused([&] { verify_checkpoint(checkpoint); }, {checkpoint + name, "No such file"});
        write_bytes(checkpoint + name, good);
    }
    verify_checkpoint(checkpoint);
    const std::string file = checkpoint + "/trainer_state.json", good = read_bytes(file);
    const auto with = [&](const char* key, const json& value) {
        json edited = json::parse(good);
        for (const char* newer : {"crc32", "evaluated", "sampled"}) edited.erase(newer);  // as it was without checksum
        edited[key] = value;
        write_bytes(file, edited.dump());
    };
    with("step", -1);
    expect_refused([&] { read_trainer_state(checkpoint); }, {file, "step", "found -1"});
    with("seconds", "long");
    expect_refused([&] { read_trainer_state(checkpoint); }, {file, "seconds", "\"long\"", "a number"});
    with("options", 3);
    expect_refused([&] { read_trainer_state(checkpoint); }, {file, "options", "found 3"});
    // A file with a damaged field name must not be accepted as one from before there were checksums.
    for (const std::string left : {"crc32", "evaluated", "sampled"}) {
        json edited = json::parse(good);
        for (const std::string newer : {"crc32", "evaluated", "sampled"})
            if (newer != left) edited.erase(newer);
        write_bytes(file, edited.dump());
        expect_refused([&] { read_trainer_state(checkpoint); }, {file, "use another checkpoint"});
    }
    with("files", {{"../x", {{"bytes", 1}, {"crc32", 1}}}});
    expect_refused([&] { verify_checkpoint(checkpoint); }, {file, "files", "../x"});
    for (size_t k = 0; k < 16; k++) {
        write_bytes(file, good.substr(0, good.size() * k / 16));
        EXPECT_EQ(find_latest_checkpoint(out), std::nullopt) << k;
    }
}

TEST_F(Checkpoints, AFlippedBitAnywhereIsFoundAndTheOneBeforeOffered) {
    const std::string before = save(100), checkpoint = save(200);
    std::vector<std::string> passed_over;
    EXPECT_EQ(checkpoint_to_resume(out, passed_over), checkpoint);
    int64_t flips = 0;
    for (const std::string& name : listing(checkpoint)) {
        const std::string file = checkpoint + "/" + name, good = read_bytes(file);
        const size_t stride = name == "trainer_state.json" ? 1 : std::max<size_t>(1, good.size() / 40);
        for (size_t i = 0; i < good.size(); i += stride, flips++) {
            std::string bad = good;
            bad[i] = static_cast<char>(bad[i] ^ (1 << i % 8));
            write_bytes(file, bad);
            expect_refused([&] { checkpoint_to_resume(out, passed_over); },
                           {"move " + checkpoint + " away", "continues from " + before});
        }
        write_bytes(file, good);
    }
    EXPECT_GT(flips, 500);
    EXPECT_TRUE(passed_over.empty());
    fs::remove_all(before);
    write_bytes(checkpoint + "/config.json", "{}{}");
    expect_refused([&] { checkpoint_to_resume(out, passed_over); }, {"config.json"});
}

TEST_F(Checkpoints, ResumePassesOverWhatIsNotWhole) {
    std::vector<std::string> passed_over;
    EXPECT_EQ(checkpoint_to_resume(out, passed_over), std::nullopt);
    const std::string before = save(100), checkpoint = save(200);
    fs::resize_file(checkpoint + "/model.safetensors", 10);
    EXPECT_EQ(checkpoint_to_resume(out, passed_over), before);
    ASSERT_EQ(passed_over.size(), 1u);
    EXPECT_NE(passed_over[0].find("size: found 10 bytes"), std::string::npos) << passed_over[0];
    fs::remove(checkpoint + "/trainer_state.json");
    EXPECT_EQ(checkpoint_to_resume(out, passed_over), before);
    ASSERT_EQ(passed_over.size(), 2u) << "it was passed over in silence";
    EXPECT_NE(passed_over[1].find("step_000200/trainer_state.json"), std::string::npos) << passed_over[1];
    fs::remove(before + "/config.json");
    expect_refused([&] { checkpoint_to_resume(out, passed_over); }, {"model.safetensors", "found 10 bytes"});
    fs::remove_all(before), fs::remove_all(checkpoint);  // `latest` still says that there was one
    expect_refused([&] { checkpoint_to_resume(out, passed_over); }, {"trainer_state.json", "No such file"});
}

// As after cp -rL, which follows symbolic links.
TEST_F(Checkpoints, LatestThatIsADirectoryIsRefusedByItsName) {
    const std::string checkpoint = save(100), latest = out + "/latest";
    fs::remove(latest);
    fs::copy(checkpoint, latest, fs::copy_options::recursive);
    expect_refused([&] { mend_latest(checkpoint); }, {latest, "a directory, not a symbolic link", "move it away"});
    EXPECT_EQ(listing(out), (std::vector<std::string>{"latest", "step_000100"}));
    fs::rename(latest, at("away"));
    mend_latest(checkpoint);
    EXPECT_EQ(fs::read_symlink(latest), "step_000100");
}

TEST_F(Checkpoints, ChecksumIsZips) {
    const std::string checkpoint = save(1);
    // The fake tokenizer's file is "{}", and zlib.crc32(b"{}") is this.
    EXPECT_EQ(json::parse(read_bytes(checkpoint + "/trainer_state.json"))["files"]["tokenizer.json"],
              (json{{"bytes", 2}, {"crc32", 2745614147}}));
}

// The sizes of single writes do not matter, including empty ones and those that cross the pieces with own checksums.
TEST_F(Checkpoints, ChecksumsOfWritingAreThoseOfReading) {
    std::string bytes(2 * checksum_piece + 12345, '\0');
    std::mt19937 random(1);
    for (char& byte : bytes) byte = static_cast<char>(random());
    for (const int64_t size : {int64_t{0}, int64_t{1}, checksum_piece, std::ssize(bytes)}) {
        FileWriter writer(at("file"));
        for (int64_t begin = 0, step = 1; begin < size; begin += step, step *= 7) {
            writer.write(bytes.data() + begin, std::min(step, size - begin));
            writer.write(nullptr, 0);
        }
        const WrittenFile written = writer.commit();
        const MappedFile file(at("file"));
        EXPECT_EQ(written.path, at("file"));
        EXPECT_EQ(written.bytes, size);
        EXPECT_EQ(written.checksums, piece_checksums(file.data(), file.size()));
        EXPECT_EQ(combined_checksum(written.checksums, size), checksum(file));
        EXPECT_EQ(checksum(file), crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<size_t>(size)));
    }
    EXPECT_EQ(checksum(nullptr, 0, 7), 7u);
}

TEST_F(Checkpoints, OptimizerMustFit) {
    const std::string checkpoint = save(1), file = checkpoint + "/optimizer.safetensors";
    std::vector<float> room(10, 1);
    expect_refused([&] { read_optimizer(checkpoint, {{"adam_m", room.data(), 4}}); }, {file, "adam_m", "(3)", "(4)"});
    expect_refused(
        [&] {
            read_optimizer(checkpoint, {{"adam_m", room.data(), 3}, {"muon", room.data(), 3}});
        },
        {file, "muon", "no such tensor", "(3)"});
    EXPECT_EQ(room, std::vector<float>(10, 1)) << "nothing is filled unless all can be";
}

TEST_F(Checkpoints, FullDiskLeavesTheOlderOnes) {
    save(100);
    {
        const FullDisk full(2000);
        expect_refused([&] { save(200, 1); }, {out + "/.step_000200.tmp", "File too large"});
    }
    EXPECT_EQ(listing(out), (std::vector<std::string>{"latest", "step_000100"}));
    verify_checkpoint(*find_latest_checkpoint(out));
    write_bytes(at("file"), "");
    expect_refused([&] { save_checkpoint(at("file"), small, nullptr, FakeTokenizer(), {}, {}, 0); }, {at("file")});
}

// A process that saves one checkpoint after the other is killed at a random moment, again and again.
TEST_F(Checkpoints, SurviveBeingKilledAtAnyMoment) {
    const auto start = std::chrono::steady_clock::now();
    save(1);
    const std::chrono::duration<double, std::micro> one_save = std::chrono::steady_clock::now() - start;
    std::mt19937 random(5);
    double longest = 4 * one_save.count();
    int64_t newest = 1;
    for (int round = 0; round < 12 || (newest < 5 && round < 200); round++) {
        const pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0)
            for (int64_t step = newest + 1;; step++) save(step, 2);
        usleep(static_cast<useconds_t>(std::uniform_real_distribution<double>(0, longest)(random)));
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
        const auto latest = find_latest_checkpoint(out);
        ASSERT_TRUE(latest);
        verify_checkpoint(*latest);
        const int64_t step = read_trainer_state(*latest).step;
        ASSERT_GE(step, newest);
        if (step == newest) longest = std::min(1.2 * longest, 9e5);  // a busy machine: the child had no time to save
        newest = step;
    }
    EXPECT_GT(newest, 1);
    save(newest + 1, 1);
    EXPECT_EQ(listing(out).size(), 2) << ::testing::PrintToString(listing(out));
}

}  // namespace
