// A checkpoint's bytes are checked: --resume and `info --verify` find a flipped bit in any file, and names of other
// files in a file cannot leave their directory.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "dev/test/io/checkpoint_files.h"
#include "program/info.h"
#include "io/model/hugging_face.h"
#include "program/options.h"
#include "program/run_directory.h"
#include "io/data/text_cache.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

class CheckpointBytes : public CheckpointFiles {
protected:
    std::string resumed() {
        std::vector<std::string> passed_over;
        const auto found = checkpoint_to_resume(out, passed_over);
        for (const std::string& line : passed_over) ADD_FAILURE() << "passed over: " << line;
        return found.value_or("none");
    }
    std::string verified(bool intact) {
        std::ostringstream text;
        EXPECT_EQ(verify_files(out, text), intact) << text.str();
        return text.str();
    }
};

// Flips a bit of every byte of the small files, and of every kind of byte of the large ones: header length, header,
// padding, data.
TEST_F(CheckpointBytes, AFlippedBitAnywhereIsFoundAndTheOneBeforeOffered) {
    const std::string before = save(100), newest = save(200);
    ASSERT_EQ(resumed(), newest);
    std::mt19937 random(3);
    int64_t flips = 0;
    for (const std::string& name : listing(newest)) {
        const std::string file = newest + "/" + name, good = read_bytes(file);
        std::vector<size_t> places;
        if (good.size() <= 2048)
            for (size_t byte = 0; byte < good.size(); byte++) places.push_back(8 * byte + random() % 8);
        else
            for (size_t i = 0; i < 200; i++) places.push_back(i < 64 ? i : random() % (8 * good.size()));
        for (const size_t bit : places) {
            std::string bad = good;
            bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
            write_bytes(file, bad);
            expect_refused([&] { resumed(); }, {file, "move " + newest + " away", "continues from " + before});
            if (HasFailure()) FAIL() << name << ": byte " << bit / 8 << " of " << good.size() << ", bit " << bit % 8;
            flips++;
        }
        EXPECT_NE(verified(false).find("DAMAGED"), std::string::npos);
        write_bytes(file, good);
    }
    EXPECT_GT(flips, 1500);
    EXPECT_EQ(resumed(), newest);
    // The message's advice works: after moving it away, the checkpoint before it is used.
    fs::rename(newest, at("damaged"));
    EXPECT_EQ(resumed(), before);
}

// A run without a checkpoint has only options.json.
TEST_F(CheckpointBytes, AFlippedBitInOptionsIsFound) {
    const char *begin[] = {"train_gpt2"}, *resume[] = {"train_gpt2", "--resume"};
    const std::string path = out + "/options.json", options = parse_options(1, begin).to_json();
    const RunDirectory directory(out, false);
    const Options fresh = parse_options(2, resume);
    const auto read = [&] {
        Options run = fresh;
        run.fill_from_json(read_options(out).value());
        return run.to_json();
    };
    directory.write_options(options);
    EXPECT_EQ(read(), options);
    const std::string good = read_bytes(path);
    std::mt19937 random(5);
    for (size_t byte = 0; byte + 1 < good.size(); byte++) {  // the last one is a line break
        const size_t bit = 8 * byte + random() % 8;
        std::string bad = good;
        bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
        write_bytes(path, bad);
        EXPECT_NE(error_of(read), "no error") << "byte " << bit / 8 << ", bit " << bit % 8 << ":\n" << bad;
    }
    EXPECT_NE(verified(false).find("options.json\"           DAMAGED"), std::string::npos);
    write_bytes(path, options);  // as it was without a checksum
    EXPECT_EQ(read(), options);
    EXPECT_NE(verified(true).find("no checksums"), std::string::npos);
}

TEST_F(CheckpointBytes, VerifyListsEachFileOfEachCheckpoint) {
    const std::string before = save(100), newest = save(200);
    const std::string good = verified(true);
    for (const std::string& part :
         {before, newest, std::string("model.safetensors"), std::string("trainer_state.json")})
        EXPECT_NE(good.find(part), std::string::npos) << good;
    EXPECT_EQ(good.find("DAMAGED"), std::string::npos);
    std::string bytes = read_bytes(before + "/optimizer.safetensors");
    bytes.back() ^= 1;
    write_bytes(before + "/optimizer.safetensors", bytes);
    fs::remove(newest + "/config.json");
    std::ostringstream text;
    EXPECT_FALSE(verify_files(out, text));
    std::istringstream lines(text.str());
    std::vector<std::string> damaged;
    for (std::string line; std::getline(lines, line);)
        if (line.find("DAMAGED") != std::string::npos) damaged.push_back(line);
    ASSERT_EQ(damaged.size(), 2) << text.str();
    EXPECT_NE(damaged[0].find("optimizer.safetensors"), std::string::npos) << damaged[0];
    EXPECT_NE(damaged[1].find("config.json"), std::string::npos) << damaged[1];
    std::ostringstream one;
    EXPECT_FALSE(verify_files(before, one));
    EXPECT_EQ(one.str().find(newest), std::string::npos) << "only the checkpoint that was named";
    fs::remove(newest + "/trainer_state.json");
    std::ostringstream gone;
    EXPECT_FALSE(verify_files(out, gone));
    EXPECT_NE(gone.str().find("DAMAGED: " + newest + "/trainer_state.json"), std::string::npos) << gone.str();
}

TEST_F(CheckpointBytes, VerifyKnowsAFileOfACheckpointByItself) {
    const std::string checkpoint = save(100);
    for (const std::string& name : listing(checkpoint)) {
        const std::string file = checkpoint + "/" + name, good = read_bytes(file);
        std::ostringstream sound, damaged;
        EXPECT_TRUE(verify_files(file, sound));
        EXPECT_NE(sound.str().find("\"" + name + "\""), std::string::npos) << sound.str();
        std::string bad = good;
        bad[bad.size() / 2] ^= 1;
        write_bytes(file, bad);
        EXPECT_FALSE(verify_files(file, damaged)) << name;
        EXPECT_EQ(std::ranges::count(damaged.str(), '\n'), 1) << "of this file only: " << damaged.str();
        write_bytes(file, good);
    }
    write_bytes(checkpoint + "/notes.txt", "mine");
    std::ostringstream mine;
    EXPECT_TRUE(verify_files(checkpoint + "/notes.txt", mine));
    EXPECT_NE(mine.str().find("no checksums"), std::string::npos) << mine.str();
}

const std::vector<std::string> bad_names = {"../secret", "/etc/passwd", "..",  ".",
                                            "",          "a/b",         "./a", std::string("a\0b", 3)};

TEST_F(CheckpointBytes, NamesInTrainerStateStayBesideIt) {
    const std::string checkpoint = save(100), file = checkpoint + "/trainer_state.json";
    for (const std::string& name : bad_names) {
        json trainer = {
            {"step", 1}, {"position", 0}, {"seconds", 0}, {"best_val_loss", 0}, {"options", json::object()}};
        trainer["files"] = {{name, {{"bytes", 1}, {"crc32", 1}}}};
        write_bytes(file, trainer.dump());
        expect_refused([&] { verify_checkpoint(checkpoint); }, {file, "files", "the name of a file beside it"});
    }
}

TEST_F(CheckpointBytes, NamesOfShardsStayBesideTheIndex) {
    const std::string directory = at("model"), index = directory + "/model.safetensors.index.json";
    fs::create_directory(directory);
    write_hugging_face_model(directory, small, random_parameters(small).data(), -1);
    fs::rename(directory + "/model.safetensors", at("secret"));
    for (const std::string& name : bad_names) {
        write_bytes(index, json{{"weight_map", {{"wte.weight", name}}}}.dump());
        expect_refused([&] { read_model_config(directory); }, {index, "weight_map", "names of files beside it"});
    }
}

// A forged record of the token cache can neither use files elsewhere as tokens, nor have them removed.
TEST_F(CheckpointBytes, NamesInTheTokenCacheStayInIt) {
    const std::string text = at("text.txt"), cache = at("cache"), record = cache + "/train.json";
    write_bytes(text, "some text to train on");
    const auto bytes = load_tokenizer("byte");
    const Texts texts{.paths = {text}, .source = text};
    std::optional<Survey> surveyed;
    const auto tokenise = [&] { return cached_tokens(texts, surveyed, TextPart::all, *bytes, cache, "train").shards; };
    const auto paths = tokenise();
    fs::copy(cache + "/train.bin", at("secret"));
    write_bytes(cache + "/thesis.txt", "years of work");
    for (const std::string name : {"../secret", "thesis.txt", ".."}) {
        json forged = json::parse(read_bytes(record));
        forged["shards"][0]["file"] = name;
        write_bytes(record, forged.dump());
        EXPECT_EQ(tokenise(), paths) << name;
        EXPECT_TRUE(fs::exists(at("secret")));
        EXPECT_TRUE(fs::exists(cache + "/thesis.txt"));
    }
}

}  // namespace
