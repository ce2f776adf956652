// Runs on data as people have them: JSON lines, compressed texts, directories, several of them; documents.
#include <zlib.h>
#include <zstd.h>

#include "dev/test/program/program.h"
#include "io/data/dataset.h"

namespace fs = std::filesystem;

namespace {

class Data : public Program {
protected:
    Data() {
        fs::create_directories(at("books"));
        for (int i = 0; i < 30; ++i) {
            std::string document = "document " + std::to_string(i) + ": ";
            for (int j = 0; j < (i % 3 == 0 ? 1 : i); ++j) document += "all that it says ";
            write_bytes(at("books/" + std::string(i < 10 ? "0" : "") + std::to_string(i) + ".txt"), document);
            lines += nlohmann::json{{"id", i}, {"body", document}}.dump() + "\n";
        }
        write_bytes(at("books.jsonl"), lines);
        std::string packed(ZSTD_compressBound(lines.size()), '\0');
        packed.resize(ZSTD_compress(packed.data(), packed.size(), lines.data(), lines.size(), 3));
        write_bytes(at("books.jsonl.zst"), packed);
    }
    std::string lines;
};

const Args documents = {{"tokenizer", "bpe:300"}, {"documents", ""}, {"eval-every", "3"}, {"save-every", "3"}};

Args with(Args args, const Args& more) {
    for (const auto& [name, value] : more) args[name] = value;
    return args;
}

}  // namespace

// A run on a part of a text is resumed on the same part, and not on another one.
TEST_F(Data, APartOfATextIsThatOfTheRun) {
    std::string more;
    for (int i = 0; i < 300'000; ++i) more += "line " + std::to_string(i) + "\n";
    write_bytes(at("long.txt"), more);
    const Args part = {{"data", at("long.txt")}, {"text-mb", "1"}, {"save-every", "3"}};
    const std::string said = train("part", with(part, {{"steps", "6"}}));
    const size_t tokens = said.find(": ", said.find("\ndata: ") + 7) + 2;
    EXPECT_NEAR(std::stod(said.substr(tokens)), 900'000, 40'000) << said;
    train("half", with(part, {{"steps", "3"}}));
    expect_done({"train", "--resume", "--out", at("half"), "--steps", "6"});
    EXPECT_EQ(read_bytes(at("half/data/train.bin")), read_bytes(at("part/data/train.bin")));
    expect_refused(words("train", {{"resume", ""}, {"out", at("half")}, {"text-mb", "2"}}),
                   {"--text-mb: 2 differs from 1 in the run to resume"});
}

TEST_F(Data, ARunIsTheSameInWhateverFilesItsDocumentsAre) {
    const std::string said = train("files", with(documents, {{"data", at("books")}}));
    const std::string used = "documents: 17 of 29 hold a sequence of 16 tokens, the others are left out; ";
    EXPECT_NE(said.find(used + "an epoch has 81.3 % of the tokens"), std::string::npos) << said;
    EXPECT_EQ(said.find("<|endoftext|>"), std::string::npos) << "it is not in the text by name: " << said;
    train("lines", with(documents, {{"data", at("books.jsonl.zst")}, {"field", "body"}}));
    const std::string model = "/latest/model.safetensors";
    EXPECT_TRUE(read_bytes(at("files" + model)) == read_bytes(at("lines" + model)));
    EXPECT_TRUE(timeless_log("files") == timeless_log("lines"));

    std::vector<std::string> several = training("several", with(documents, {{"data", at("books/[01]*.txt")}}));
    several.insert(several.end(), {"--data", at("books/2*.txt")});
    expect_done(several);
    EXPECT_TRUE(read_bytes(at("files" + model)) == read_bytes(at("several" + model)));
    // A resumed run has the names and draws the same batches.
    fs::remove_all(at("several/step_000006"));
    fs::remove(at("several/latest"));
    fs::create_directory_symlink("step_000003", at("several/latest"));
    expect_done({"train", "--resume", "--out", at("several")});
    EXPECT_TRUE(read_bytes(at("files" + model)) == read_bytes(at("several" + model)));
    expect_refused(training("several", {{"resume", ""}, {"documents", ""}, {"tokenizer", "byte"}}), {"--tokenizer"});
}

TEST_F(Data, TokenizeAndEvalReadTheSame) {
    const std::string shards[] = {at("files.bin"), at("lines.bin")};
    EXPECT_NE(expect_done({"tokenize", at("books"), shards[0]}).find("tokens (--tokenizer byte)"), std::string::npos);
    expect_done({"tokenize", at("books.jsonl.zst"), shards[1], "--field", "body"});
    EXPECT_TRUE(read_bytes(shards[0]) == read_bytes(shards[1]));
    train("run");
    const std::string loss = expect_done({"eval", "--from", at("run"), "--data", shards[0]});
    EXPECT_EQ(expect_done({"eval", "--from", at("run"), "--data", at("books")}), loss);
    EXPECT_EQ(expect_done({"eval", "--from", at("run"), "--data", at("books.jsonl"), "--field", "body"}), loss);
    expect_done({"tokenize", "--train", at("books"), at("own.json"), "--vocab", "300"});
    expect_done({"tokenize", "--train", at("books.jsonl"), at("own2.json"), "--vocab", "300", "--field", "body"});
    EXPECT_TRUE(read_bytes(at("own.json")) == read_bytes(at("own2.json")));
}

TEST_F(Data, BadInputIsOneLineWithARemedy) {
    const auto refused = [&](const Args& args, const std::vector<std::string>& parts) {
        expect_refused(training("out", args), parts);
    };
    refused({{"data", at("books.jsonl")}}, {"books.jsonl: line 1, byte 0: \"text\" is missing, among \"body\", \"id\"",
                                            "; name the member with the text by --field"});
    refused({{"data", at("books")}, {"documents", ""}},
            {"--documents: the tokenizer byte has no end-of-text", "choose --tokenizer gpt2 or bpe:4096"});
    refused(with(documents, {{"data", at("books")}, {"seq", "1000"}, {"context", "1000"}}),
            {"--documents: none of its", "documents holds a sequence of --seq 1000; the longest has ", "leave out"});
    fs::create_directories(at("empty"));
    refused({{"data", at("empty")}}, {"empty: no .txt or .jsonl in it"});
    write_bytes(at("books/a.bin"), "");
    refused({{"data", at("books")}}, {"has 1 token shards in it", "books/*.bin'"});
    expect_refused({"tokenize", at("books/a.bin"), at("b.bin")}, {"a.bin: these are token ids already; give a text"});
    expect_refused({"tokenize", at("books.jsonl"), at("b.bin")}, {"line 1, byte 0: \"text\" is missing"});
}
