// Files made to be expensive. A reader's memory and time must stay a small multiple of the file's size, whatever
// counts, nestings and repetitions the file contains. Mutations of small files (dev/fuzz) cannot show that.
#include <dlfcn.h>
#include <gtest/gtest.h>
#ifdef __APPLE__
#include <malloc/malloc.h>
#define malloc_usable_size malloc_size
#else
#include <malloc.h>
#endif

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <new>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "dev/test/test_directory.h"
#include "program/info.h"
#include "io/data/choices.h"
#include "io/model/hugging_face.h"
#include "io/file/gguf_file.h"
#include "io/file/json.h"
#include "program/log.h"
#include "io/model/safetensors.h"
#include "io/text/tokenizer_files.h"

namespace {

bool with_sanitizers() { return dlsym(RTLD_DEFAULT, "__asan_init") != nullptr; }

std::atomic<int64_t> in_use{0}, most{0};

void count(int64_t bytes) {
    const int64_t now = in_use += bytes;
    if (now > most) most = now;
}

}  // namespace

// Counts every allocation of the readers.
void* operator new(size_t size) {
    void* p = std::malloc(size);
    if (!p) throw std::bad_alloc();
    count(static_cast<int64_t>(malloc_usable_size(p)));
    return p;
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {  // of std::stable_sort
    void* p = std::malloc(size);
    if (p) count(static_cast<int64_t>(malloc_usable_size(p)));
    return p;
}
void operator delete(void* p) noexcept {
    if (p) count(-static_cast<int64_t>(malloc_usable_size(p)));
    std::free(p);
}
void operator delete(void* p, size_t) noexcept { operator delete(p); }

namespace {

std::string repeated(const std::string& piece, int64_t bytes) {
    std::string text;
    while (std::ssize(text) < bytes) text += piece;
    return text;
}

std::string numbered(int64_t bytes, const std::function<std::string(int64_t)>& piece) {
    std::string text;
    for (int64_t i = 0; std::ssize(text) < bytes; i++) text += piece(i);
    return text;
}

std::string quoted(int64_t i) { return "\"" + std::to_string(i) + "\""; }

std::string with_length(const std::string& header) {
    const uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + header;
}

std::string llmc_header(std::vector<int32_t> words) {
    words.resize(256);
    return {reinterpret_cast<const char*>(words.data()), 1024};
}

class HostileFiles : public TestDirectory {
protected:
    // The most that reading allocated, per byte of the file.
    double cost(const std::string& name, const std::string& bytes,
                const std::function<void(const std::string&)>& read) {
        write_bytes(at(name), bytes);
        const int64_t before = most = in_use.load();
        const std::clock_t start = std::clock();  // of this process, so that other programs do not count
        try {
            read(at(name));
        } catch (const InputError& error) {
            EXPECT_LT(std::strlen(error.what()), 4000) << "a message is one short line";
        }
        const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
        const double factor = static_cast<double>(most - before) / static_cast<double>(bytes.size());
        std::printf("%-40s %8zu bytes, %5.1f times as much allocated, %.3f s\n", name.c_str(), bytes.size(), factor,
                    seconds);
        EXPECT_LE(seconds, limit_seconds) << name;
        EXPECT_LE(factor, 64) << name;
        return factor;
    }
    // A second of the processor for 2 MB; sanitizers and a busy machine's caches take ten times as long.
    static constexpr double limit_seconds = 10;
    const int size = with_sanitizers() ? 1 << 18 : 2 << 20;  // they look for other faults than the time
};

TEST_F(HostileFiles, Json) {
    const auto read = [](const std::string& path) { read_json_file(path); };
    cost("brackets.json", repeated("[", size), read);
    cost("objects.json", repeated("{\"a\":", size), read);
    cost("empty arrays.json", "{\"a\":[" + repeated("[],", size) + "0]}", read);
    cost("empty objects.json", "{\"a\":[" + repeated("{},", size) + "0]}", read);
    cost("zeros.json", "{\"a\":[" + repeated("0,", size) + "0]}", read);
    cost("keys.json", "{" + numbered(size, [](int64_t i) { return quoted(i) + ":0,"; }) + "\"a\":0}", read);
    cost("one key.json", "{" + repeated("\"a\":0,", size) + "\"a\":0}", read);
    cost("a long string.json", "{\"a\":\"" + std::string(size, 'x') + "\"}", read);
    cost("a long number.json", "{\"a\":" + std::string(size, '9') + "}", read);
}

TEST_F(HostileFiles, Safetensors) {
    const auto read = [](const std::string& path) {
        std::ostringstream out;
        print_info(path, out);
    };
    const auto tensor = [](int64_t i) { return quoted(i) + R"(:{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"; };
    const auto closed = [](std::string text) { return with_length(text.substr(0, text.size() - 1) + "}"); };
    cost("tensors.safetensors", closed("{" + numbered(size, tensor)), read);
    cost("dimensions.safetensors",
         with_length(R"({"a":{"dtype":"F32","data_offsets":[0,0],"shape":[)" + repeated("0,", size) + "0]}}"), read);
    cost("nested.safetensors", with_length(repeated("{\"a\":", size)), read);
    cost("length.safetensors", std::string(8, '\x7F') + std::string(100, ' '), read);
}

TEST_F(HostileFiles, Tokenizers) {
    const auto llmc = [](const std::string& path) { read_llmc_tokenizer(path); };
    const int32_t huge = 2'000'000'000;
    cost("count.bin", llmc_header({20240328, 2, huge, -1}) + std::string(1 << 16, '\1'), llmc);
    cost("tokens.bin", llmc_header({20240328, 2, size / 2, -1}) + repeated("\1a", size), llmc);
    std::string tokens;
    for (int b = 0; b < 256; b++) tokens += std::string("\1") + static_cast<char>(b);
    int32_t count = 256;
    for (; std::ssize(tokens) < size; count++)
        tokens += std::string("\3") + static_cast<char>(count) + static_cast<char>(count >> 8) +
                  static_cast<char>(count >> 16);
    cost("three bytes each.bin", llmc_header({20240328, 2, count, -1}) + tokens, llmc);

    const auto merges = [](const std::string& path) { read_merges_file(path); };
    cost("one merge.bpe", repeated("a b\n", size), merges);
    cost("empty lines.bpe", repeated("\n", size), merges);
    cost("one line.bpe", repeated("a ", size), merges);
    std::string doubling, symbol = "a";
    while (std::ssize(doubling) < size) doubling += symbol + " " + symbol + "\n", symbol += symbol;
    cost("doubling.bpe", doubling, merges);

    const auto hugging_face = [](const std::string& path) { read_hugging_face_tokenizer(path); };
    const std::string cut = R"({"pre_tokenizer":{"type":"ByteLevel"},)";
    cost("vocab.json",
         "{" + numbered(size, [](int64_t i) { return quoted(i) + ":" + std::to_string(i) + ","; }) + "\"\":0}",
         hugging_face);
    // As many added tokens as words: looking each up in a list of the others would take the square.
    const auto word = [](int64_t i) { return quoted(i) + ":" + std::to_string(i) + ","; };
    const auto added = [](int64_t i) {
        return R"({"content":")" + std::to_string(i) + R"(","id":)" + std::to_string(i) + "},";
    };
    std::string words = numbered(size / 3, word), adds = numbered(size / 3 * 2, added);
    words.pop_back(), adds.pop_back();
    cost("added.json", cut + R"("added_tokens":[)" + adds + R"(],"model":{"merges":[],"vocab":{)" + words + "}}}",
         hugging_face);
}

TEST_F(HostileFiles, Gguf) {
    const auto info = [](const std::string& path) {
        std::ostringstream out;
        print_info(path, out);
    };
    const auto number = [](auto n) { return std::string(reinterpret_cast<const char*>(&n), sizeof n); };
    const auto text = [&](const std::string& s) { return number(uint64_t{s.size()}) + s; };
    const auto file = [&](int64_t tensors, int64_t keys, const std::string& rest) {
        return "GGUF" + number(uint32_t{3}) + number(tensors) + number(keys + 1) + text("general.architecture") +
               number(uint32_t{8}) + text("gpt2") + rest;
    };
    const int64_t n = size / 32;
    const auto key = [&](int64_t i) { return text(std::to_string(i)) + number(uint32_t{7}) + "\1"; };
    std::string keys;
    for (int64_t i = 0; i < n; i++) keys += key(i);
    cost("keys.gguf", file(0, n, keys), info);
    const auto tensor = [&](int64_t i) {
        return text(std::to_string(i)) + number(uint32_t{1}) + number(int64_t{1}) + number(uint32_t{0}) +
               number(32 * i);
    };
    std::string tensors;
    for (int64_t i = 0; i < n; i++) tensors += tensor(i);
    cost("tensors.gguf", file(n, 0, tensors), info);
    cost("tensors with data.gguf", file(n, 0, tensors) + std::string(static_cast<size_t>(32 * n), '\0'), info);
    cost("empty texts.gguf",
         file(0, 1,
              text("a") + number(uint32_t{9}) + number(uint32_t{8}) + number(int64_t{size / 8}) +
                  std::string(size, '\0')),
         info);

    // A tokenizer alone: tokens that are all normal, all the same, or all added.
    const auto tokenizer = [&](int32_t type, const std::function<std::string(int64_t)>& token) {
        const int64_t count = 1 << 16;
        std::string tokens = text("tokenizer.ggml.tokens") + number(uint32_t{9}) + number(uint32_t{8}) + number(count),
                    types =
                        text("tokenizer.ggml.token_type") + number(uint32_t{9}) + number(uint32_t{5}) + number(count);
        for (int64_t i = 0; i < count; i++) tokens += text(token(i)), types += number(type);
        return file(0, 5,
                    tokens + types + text("tokenizer.ggml.model") + number(uint32_t{8}) + text("gpt2") +
                        text("tokenizer.ggml.pre") + number(uint32_t{8}) + text("gpt-2") +
                        text("tokenizer.ggml.merges") + number(uint32_t{9}) + number(uint32_t{8}) +
                        number(uint64_t{0}));
    };
    const auto read = [](const std::string& path) { read_gguf_tokenizer(GgufFile(path, "gpt2")); };
    cost("tokens.gguf", tokenizer(1, [](int64_t i) { return std::to_string(i); }), read);
    cost("same tokens.gguf", tokenizer(1, [](int64_t) { return "a"; }), read);
    cost("added tokens.gguf", tokenizer(4, [](int64_t i) { return std::to_string(i); }), read);
    cost("same added tokens.gguf", tokenizer(4, [](int64_t) { return "a"; }), read);
}

TEST_F(HostileFiles, Logs) {
    const auto read = [](const std::string& path) { read_log(path); };
    cost("nested.jsonl", repeated("[", size) + "\n", read);
    cost("short.jsonl",
         repeated(R"({"step":1,"split":"val","loss":0,"seconds":0})"
                  "\n",
                  size),
         read);
    cost("long name.jsonl", R"({"step":1,"loss":0,"seconds":0,"split":")" + std::string(size, 'x') + "\"}\n", read);
}

TEST_F(HostileFiles, Examples) {
    const auto bytes = load_tokenizer("byte");
    const auto read = [&](const std::string& path) { read_examples(path, *bytes, 256); };
    const std::string line = R"({"ctx":"a","label":0,"endings":[)", text = R"({"text":"a b"})";
    cost("short.jsonl", repeated(line + "\"\",\"\"]}\n", size), read);
    cost("endings.jsonl", repeated(line + repeated("\"\",", 63 * 3) + "\"\"]}\n", size), read);
    cost("more endings.jsonl", line + repeated("\"\",", size) + "\"\"]}\n", read);
    cost("words.jsonl", repeated(text + "\n", size), read);
    cost("a long context.jsonl", R"({"ctx":")" + std::string(size, 'x') + R"(","label":0,"endings":["a","b"]})", read);
    cost("empty lines.jsonl", repeated("\n", size), read);
    cost("nested.jsonl", repeated("[", size), read);
    const std::string smallest("\xff\xff\x16\0\0\0\0\0\2\0\1\0a\0\1\0b\0\1\0c\0", 22);
    cost("examples.bin", llmc_header({20240522, 1, size / 22 + 1, 22}) + repeated(smallest, size), read);
    cost("count.bin", llmc_header({20240522, 1, INT32_MAX, INT32_MAX}) + std::string(1 << 16, '\xff'), read);
}

TEST_F(HostileFiles, Models) {
    std::filesystem::create_directory(at("model"));
    const auto read = [&](const std::string&) { read_hugging_face_config(at("model")); };
    write_bytes(at("model/model.safetensors"), with_length("{}"));
    cost("model/config.json",
         R"({"model_type":"gpt2","n_positions":1048576,"vocab_size":65536,"n_layer":1024,"n_embd":65536,"n_head":1})" +
             std::string(1 << 16, ' '),
         read);
    const auto info = [](const std::string& path) {
        std::ostringstream out;
        print_info(path, out);
    };
    cost("model.bin",
         llmc_header({20240326, 3, 1 << 20, 1 << 16, 1 << 10, 1, 1 << 16, 1 << 16}) + std::string(1 << 16, 'x'), info);
    cost("shard.bin", llmc_header({20240520, 1, -1}) + std::string(1 << 16, 'x'), info);
}

}  // namespace
