// GGUF: models and tokenizers are written and read back, and damaged files are refused. Needs data/vocab.bpe.
#include "io/model/gguf.h"

#include <cmath>
#include <cstring>

#include "dev/test/io/model_files.h"
#include "device/float_formats.h"
#include "io/file/gguf_file.h"
#include "io/file/gguf_writer.h"
#include "io/model/checkpoint.h"
#include "io/text/byte_symbols.h"
#include "io/text/tokenizer_files.h"

namespace {

const GPT2Config small{.context = 3, .vocab = 256, .layers = 1, .heads = 1, .channels = 2};
const GPT2Config wide{.context = 5, .vocab = 300, .layers = 2, .heads = 2, .channels = 64};

class Gguf : public ModelFiles {
protected:
    void write(const GPT2Config& config, const Tokenizer& tokenizer, GgufType type = GgufType::F32) {
        std::filesystem::remove(path);
        write_gguf_model(path, config, random_parameters(config).data(), tokenizer, type);
    }
    std::vector<float> read(const GPT2Config& config) {
        EXPECT_EQ(read_model_config(path), config);
        std::vector<float> parameters(ParameterTable(config).size, NAN);
        read_model(path, config, parameters.data());
        return parameters;
    }
    // A tokenizer in files of its own, which are read back.
    std::shared_ptr<const Tokenizer> saved(const Vocabulary& vocabulary, const std::string& name) {
        std::filesystem::create_directory(at(name));
        write_hugging_face_tokenizer(vocabulary, at(name));
        return load_tokenizer(at(name));
    }
    // A small BPE: bytes in GPT-2's order, then "th", "the", " the", and no end of text.
    static Vocabulary small_bpe() {
        std::vector<std::string> tokens = gpt2_byte_tokens();
        tokens.insert(tokens.end(), {"th", "the", " the"});
        return assemble_vocabulary("test", tokens, {{"t", "h"}, {"th", "e"}, {" ", "the"}});
    }
    static void add_token(Vocabulary& vocabulary, const std::string& content, bool special) {
        const auto id = static_cast<int32_t>(vocabulary.tokens.size());
        vocabulary.tokens.push_back(content);
        vocabulary.added.push_back({.id = id, .content = content, .special = special, .normalized = !special});
    }
    // Checks that a file's tokenizer gives the same ids, texts and special tokens, directly and from the Hugging Face
    // files that are made of it.
    void expect_same_tokenizer(const Tokenizer& tokenizer, int64_t rows) {
        GPT2Config config = small;
        config.vocab = rows;
        write(config, tokenizer);
        const auto direct = read_model_tokenizer(path);
        ASSERT_TRUE(direct);
        std::filesystem::remove_all(at("again"));
        std::filesystem::create_directory(at("again"));
        direct->save_hugging_face(at("again"));
        const std::string text =
            "In the theatre: 1234 caf\xC3\xA9s\n\n it's <|endoftext|>the<s>  my word\xF0\x9F\x98\x80";
        for (const auto& back : {direct, load_tokenizer(at("again"))}) {
            EXPECT_EQ(back->encode(text), tokenizer.encode(text));
            EXPECT_EQ(back->end_of_text(), tokenizer.end_of_text());
            ASSERT_EQ(back->vocab(), tokenizer.vocab());
            for (int32_t id = 0; id < back->vocab(); id++) ASSERT_EQ(back->token(id), tokenizer.token(id)) << id;
            ASSERT_EQ(back->added().list().size(), tokenizer.added().list().size());
            for (size_t i = 0; i < back->added().list().size(); i++) {
                const AddedToken &a = back->added().list()[i], &b = tokenizer.added().list()[i];
                EXPECT_EQ(std::tuple(a.id, a.content, a.special), std::tuple(b.id, b.content, b.special));
            }
        }
    }
    // The file with `value` at the place `offset` bytes after the first occurrence of a name.
    template <class T>
    std::string patched(const std::string& name, size_t offset, T value) {
        std::string bytes = read_bytes(path);
        const size_t found = bytes.find(name);
        EXPECT_NE(found, std::string::npos) << name;
        std::memcpy(bytes.data() + found + name.size() + offset, &value, sizeof value);
        return bytes;
    }
    std::string renamed(const std::string& name, const std::string& other) {
        std::string bytes = read_bytes(path);
        return bytes.replace(bytes.find(name), other.size(), other);
    }
    void expect_refused_file(const std::string& bytes, const std::vector<std::string>& parts) {
        write_bytes(at("bad.gguf"), bytes);
        std::vector<std::string> all = parts;
        all.push_back(at("bad.gguf"));
        expect_refused(
            [&] {
                read_model_config(at("bad.gguf"));
                read_model_tokenizer(at("bad.gguf"));
            },
            all);
    }
    const std::string path = at("model.gguf");
    const std::shared_ptr<const Tokenizer> byte_values = load_tokenizer("byte");
};

TEST_F(Gguf, F32IsExact) {
    for (GPT2Config config :
         {small, wide, GPT2Config{.context = 4, .vocab = 257, .layers = 3, .heads = 3, .channels = 9}}) {
        write(config, *byte_values);
        EXPECT_EQ(read(config), random_parameters(config));
        EXPECT_EQ(read_gguf_type(path), "f32");
    }
    const std::string name = at("without extension");  // as Ollama keeps them
    std::filesystem::copy_file(path, name);
    EXPECT_EQ(read_model_config(name).channels, 9);
}

// Matrices are rounded; vectors and the position embedding are not.
TEST_F(Gguf, F16AndBf16RoundToNearest) {
    const std::vector<float> parameters = random_parameters(wide);
    for (const GgufType type : {GgufType::F16, GgufType::BF16}) {
        write(wide, *byte_values, type);
        const std::vector<float> back = read(wide);
        for (const Parameter& p : ParameterTable(wide).rows)
            for (int64_t i = p.at(), end = p.at() + p.copies * p.piece(); i < end; i++) {
                const float x = parameters[i];
                const float rounded =
                    type == GgufType::F16 ? float_from_f16(f16_from_float(x)) : float_from_bf16(bf16_from_float(x));
                ASSERT_EQ(back[i], p.shape.size() == 2 && p.name != "wpe" ? rounded : x) << p.name << ' ' << i;
            }
    }
}

TEST_F(Gguf, Q8IsWithinHalfAStep) {
    const std::vector<float> parameters = random_parameters(wide);
    write(wide, *byte_values, GgufType::Q8_0);
    EXPECT_EQ(read_gguf_type(path), "q8_0");
    const std::vector<float> back = read(wide);
    for (const Parameter& p : ParameterTable(wide).rows)
        for (int64_t i = p.at(), end = p.at() + p.copies * p.piece(); i < end; i += 32) {
            if (p.shape.size() == 1 || p.name == "wpe") {
                ASSERT_EQ(back[i], parameters[i]) << p.name;
                continue;
            }
            float largest = 0;
            for (int64_t k = i; k < i + 32; k++) largest = std::max(largest, std::abs(parameters[k]));
            const float step = largest / 127;
            for (int64_t k = i; k < i + 32; k++)  // half a step, and the rounding of the scale to 11 bits
                ASSERT_LE(std::abs(back[k] - parameters[k]), step * 0.5f + largest * 0x1p-11f) << p.name << ' ' << k;
        }
    // The rounded values are those of the next file.
    write_gguf_model(at("again.gguf"), wide, back.data(), *byte_values, GgufType::Q8_0);
    EXPECT_EQ(read_bytes(at("again.gguf")), read_bytes(path));
}

// The blocks are those of llama.cpp and of its Python package, bit for bit (scripts/check_gguf.py compares them too).
TEST_F(Gguf, Q8BlockByHand) {
    float values[32] = {127, -127, 0.5f, -0.5f, 1.5f, 63.49f};
    uint8_t block[34];
    encode_values(GgufType::Q8_0, values, 32, block);
    EXPECT_EQ(block[0] | block[1] << 8, 0x3C00);  // the scale: 1
    const int8_t expected[] = {127, -127, 1, -1, 2, 63, 0};
    EXPECT_EQ(std::memcmp(block + 2, expected, sizeof expected), 0);
    const float zeros[32] = {};
    encode_values(GgufType::Q8_0, zeros, 32, block);
    for (const uint8_t byte : block) EXPECT_EQ(byte, 0);
}

TEST_F(Gguf, ValuesThatATypeCannotHoldAreRefused) {
    std::vector<float> parameters = random_parameters(wide);
    const auto refused = [&](GgufType type, std::vector<std::string> parts) {
        parts.push_back(path);
        expect_refused([&] { write_gguf_model(path, wide, parameters.data(), *byte_values, type); }, parts);
        EXPECT_FALSE(path_exists(path));
    };
    const int64_t at = ParameterTable(wide).fcw.at(1) + 7;
    parameters[at] = 70000;
    refused(GgufType::F16, {"blk.1.ffn_up.weight", "--type f16", "choose"});
    parameters[at] = -9e6f;
    refused(GgufType::Q8_0, {"blk.1.ffn_up.weight", "--type q8_0"});
    parameters[at] = NAN;
    refused(GgufType::Q8_0, {"blk.1.ffn_up.weight", "--type q8_0"});
    const GPT2Config odd{.context = 2, .vocab = 256, .layers = 1, .heads = 1, .channels = 48};
    expect_refused([&] { write_gguf_model(path, odd, random_parameters(odd).data(), *byte_values, GgufType::Q8_0); },
                   {path, "blocks of 32", "48", "choose f32, f16 or bf16"});
    const FullDisk full(4096);
    expect_refused([&] { write_gguf_model(path, small, random_parameters(small).data(), *byte_values, GgufType::F32); },
                   {path, "write failed"});
    EXPECT_TRUE(listing(root).empty());
}

TEST_F(Gguf, TokenizersComeBack) {
    expect_same_tokenizer(*byte_values, 256);
    EXPECT_EQ(read_model_tokenizer(path)->name(), "byte");
    expect_same_tokenizer(*byte_values, 300);  // a padded vocabulary
    EXPECT_EQ(read_model_tokenizer(path)->name(), "byte");
    expect_same_tokenizer(*load_tokenizer("gpt2"), 50257);
    EXPECT_EQ(read_model_tokenizer(path)->name(), "gpt2");
    EXPECT_EQ(load_tokenizer(path)->name(), "gpt2");
    expect_same_tokenizer(*load_tokenizer("gpt2"), 50304);
    EXPECT_EQ(read_model_tokenizer(path)->name(), "gpt2");

    Vocabulary own = small_bpe();
    expect_same_tokenizer(*saved(own, "no end"), 259);
    own.tokens.push_back("<|endoftext|>");
    own.end_of_text = 259;
    recognise_end_of_text(own);
    expect_same_tokenizer(*saved(own, "end"), 260);
    add_token(own, "my word", false);
    add_token(own, "<s>", true);
    expect_same_tokenizer(*saved(own, "added"), 262);
    expect_same_tokenizer(*saved(own, "added"), 384);
    write_bytes(at("own.bpe"), "t h\nth e\n");
    expect_same_tokenizer(*load_tokenizer(at("own.bpe")), 259);
}

TEST_F(Gguf, MetadataIsLlamaCpps) {
    Vocabulary own = small_bpe();
    own.tokens.push_back("<|endoftext|>");
    own.end_of_text = 259;
    recognise_end_of_text(own);
    add_token(own, "my word", false);
    GPT2Config config = wide;
    config.vocab = 263;
    write(config, *saved(own, "own"), GgufType::F16);
    const GgufFile file(path, "gpt2");
    EXPECT_EQ(file.integer("general.file_type", 0, 99), 1);
    EXPECT_EQ(file.integer("gpt2.block_count", 0, 99), 2);
    EXPECT_EQ(file.integer("gpt2.feed_forward_length", 0, 999), 256);
    EXPECT_FLOAT_EQ(static_cast<float>(file.number("gpt2.attention.layer_norm_epsilon")), 1e-5f);
    EXPECT_EQ(file.text("tokenizer.ggml.pre"), "gpt-2");
    const auto tokens = file.texts("tokenizer.ggml.tokens");
    ASSERT_EQ(tokens.size(), 263);
    EXPECT_EQ(tokens[258], "\xC4\xA0the");
    EXPECT_EQ(tokens[259], "<|endoftext|>");
    EXPECT_EQ(tokens[260], "my word");
    EXPECT_EQ(tokens[262], "[PAD262]");
    const auto types = file.integers("tokenizer.ggml.token_type");
    EXPECT_EQ((std::vector<int64_t>{types.begin() + 258, types.end()}), (std::vector<int64_t>{1, 3, 4, 5, 5}));
    EXPECT_EQ(file.texts("tokenizer.ggml.merges"), (std::vector<std::string_view>{"t h", "th e", "\xC4\xA0 the"}));
    EXPECT_EQ(file.integer("tokenizer.ggml.eos_token_id", 0, 999), 259);
    EXPECT_EQ(file.integer("tokenizer.ggml.bos_token_id", 0, 999), 259);
    EXPECT_EQ(file.integers("tokenizer.ggml.suppress_tokens"), (std::vector<int64_t>{261, 262}));
    ASSERT_TRUE(file.find("blk.1.ffn_down.weight"));
    EXPECT_EQ(file.find("blk.1.ffn_down.weight")->shape, (std::vector<int64_t>{64, 256}));
    EXPECT_EQ(file.find("position_embd.weight")->type, GgufType::F32);
    for (const auto& tensor : file.tensors()) EXPECT_EQ(tensor.begin % 32, 0);
}

TEST_F(Gguf, VocabulariesThatLlamaCppCannotHoldAreRefused) {
    const auto refused = [&](const Tokenizer& tokenizer, int64_t rows, std::vector<std::string> parts) {
        GPT2Config config = small;
        config.vocab = rows;
        parts.push_back(path);
        expect_refused([&] { write(config, tokenizer); }, parts);
        EXPECT_FALSE(path_exists(path));
    };
    refused(*no_tokenizer(), 256, {"needs a tokenizer", "choose"});
    refused(*byte_values, 255, {"256 tokens", "255 rows"});
    Vocabulary spaces = small_bpe();
    add_token(spaces, "<mask>", true);
    spaces.added.back().lstrip = true;
    refused(*saved(spaces, "lstrip"), 260, {"<mask>", "lstrip", "set it to false"});
    Vocabulary twice = small_bpe();
    add_token(twice, "[PAD261]", false);
    refused(*saved(twice, "twice"), 262, {"[PAD261]", "two tokens"});
}

TEST_F(Gguf, HeadsOfOneChannelAreRefused) {
    const GPT2Config narrow{.context = 3, .vocab = 256, .layers = 1, .heads = 2, .channels = 2};
    expect_refused([&] { write(narrow, *byte_values); }, {path, "heads of one channel"});
}

TEST_F(Gguf, EveryPrefixIsRefused) {
    write(small, *byte_values);
    const std::string whole = read_bytes(path);
    const GPT2Config expected = read_model_config(path);
    EXPECT_EQ(expected, small);
    write_bytes(at("cut.gguf"), whole);
    for (size_t size = whole.size(); size-- > 0;) {
        std::filesystem::resize_file(at("cut.gguf"), size);
        // The last tensor's padding, which holds nothing, may be missing.
        const bool all = size + 32 > whole.size() && whole.find_first_not_of('\0', size) == std::string::npos;
        const std::string error = error_of([&] { read_model_config(at("cut.gguf")); });
        if (!all || error != "no error") {
            ASSERT_NE(error.find(at("cut.gguf") + ": "), std::string::npos) << size << ": " << error;
        }
    }
    expect_refused_file(whole + "x", {"size", "where the last tensor ends"});
}

TEST_F(Gguf, DamagedHeadersAreRefused) {
    write(small, *byte_values);
    std::string other = read_bytes(path);
    other[0] = 'X';
    expect_refused_file(other, {"does not begin with GGUF"});
    expect_refused_file(patched("GGUF", 0, 2), {"version", "found 2, expected 3"});
    expect_refused_file(patched("GGUF", 0, 0x03000000), {"version"});
    for (const uint64_t huge : {uint64_t{1} << 40, UINT64_MAX, uint64_t{1} << 63}) {
        expect_refused_file(patched("GGUF", 4, huge), {"number of tensors", "what the file can hold"});
        expect_refused_file(patched("GGUF", 12, huge), {"number of keys", "what the file can hold"});
        expect_refused_file(patched("GGUF", 20, huge), {"key 0, length", "what the file can hold"});
        expect_refused_file(patched("general.architecture", 4, huge), {"general.architecture", "length"});
        expect_refused_file(patched("tokenizer.ggml.tokens", 8, huge), {"tokenizer.ggml.tokens", "number of elements"});
        expect_refused_file(patched("tokenizer.ggml.tokens", 16, huge), {"tokenizer.ggml.tokens", "length"});
        expect_refused_file(patched("tokenizer.ggml.token_type", 8, huge), {"token_type", "number of elements"});
        expect_refused_file(patched("token_embd.weight", 4, huge), {"token_embd.weight", "dimension 0"});
        expect_refused_file(patched("token_embd.weight", 12, huge), {"token_embd.weight", "dimension 1"});
        expect_refused_file(patched("token_embd.weight", 24, huge), {"token_embd.weight", "offset"});
        expect_refused_file(patched("output_norm.bias", 16, huge), {"output_norm.bias", "offset"});
    }
    expect_refused_file(patched("general.architecture", 0, 99), {"general.architecture", "type 99"});
    expect_refused_file(patched("tokenizer.ggml.tokens", 4, 9), {"tokenizer.ggml.tokens", "no list of lists"});
    expect_refused_file(patched("token_embd.weight", 0, 0), {"token_embd.weight", "0 dimensions"});
    expect_refused_file(patched("token_embd.weight", 0, 5), {"token_embd.weight", "5 dimensions"});
    expect_refused_file(patched("token_embd.weight", 4, uint64_t{0}), {"token_embd.weight", "dimension 0", "found 0"});
    expect_refused_file(patched("token_embd.weight", 20, 12), {"token_embd.weight", "type 12", "llama-quantize"});
    expect_refused_file(patched("token_embd.weight", 20, 8), {"rows of 2 values", "multiple of 32"});
    expect_refused_file(patched("token_embd.weight", 24, uint64_t{32}),
                        {"token_embd.weight", "offset 32", "expected 0"});
    expect_refused_file(renamed("tokenizer.ggml.tokens", "tokenizer.ggml.merges"), {"tokenizer.ggml.merges", "twice"});
    expect_refused_file(renamed("blk.0.attn_norm.weight", "blk.0.attn_norm.weighX"),
                        {"blk.0.attn_norm.weight", "missing"});
    expect_refused_file(renamed("blk.0.ffn_norm.bias", "blk.0.attn_qkv.bias"), {"blk.0.attn_qkv.bias", "twice"});
    expect_refused_file(renamed("output_norm.weight", "output_norm.weighs"), {"output_norm.weight", "missing"});
}

TEST_F(Gguf, DamagedMetadataIsRefused) {
    write(small, *byte_values);
    EXPECT_EQ(read_model_config(path), small);
    for (const char* key :
         {"general.architecture", "gpt2.block_count", "gpt2.context_length", "gpt2.embedding_length",
          "gpt2.feed_forward_length", "gpt2.attention.head_count", "gpt2.attention.layer_norm_epsilon",
          "tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"}) {
        const std::string gone = std::string(key).replace(0, 1, "X");
        expect_refused_file(renamed(key, gone), {std::string(key) + ": found no value"});
    }
    for (const char* key : {"gpt2.block_count", "gpt2.context_length", "gpt2.embedding_length",
                            "gpt2.attention.head_count", "gpt2.feed_forward_length"})
        for (const uint32_t value : {0u, 1u << 31, UINT32_MAX})
            expect_refused_file(patched(key, 4, value), {key, "found " + std::to_string(value)});
    expect_refused_file(patched("gpt2.block_count", 0, 6), {"gpt2.block_count", "another type", "an integer"});
    expect_refused_file(patched("gpt2.attention.layer_norm_epsilon", 0, 4), {"layer_norm_epsilon", "a number"});
    expect_refused_file(patched("gpt2.attention.layer_norm_epsilon", 4, 1e-6f), {"layer_norm_epsilon", "expected"});
    expect_refused_file(patched("gpt2.attention.layer_norm_epsilon", 4, NAN), {"layer_norm_epsilon"});
    expect_refused_file(patched("gpt2.block_count", 4, 2), {"blk.1.attn_norm.weight", "missing"});
    expect_refused_file(patched("gpt2.context_length", 4, 4), {"position_embd.weight", "shape (3,2)", "(4,2)"});
    expect_refused_file(patched("general.architecture", 12, 'q'),
                        {"general.architecture", "qpt2", "use a GPT-2 model"});
}

TEST_F(Gguf, TokenizersOfAnotherKindAreRefused) {
    write(small, *byte_values);
    const std::string model("tokenizer.ggml.model");
    std::string other = read_bytes(path);
    other.replace(other.find(model) + model.size() + 12, 4, "bert");
    expect_refused_file(other, {"tokenizer.ggml.model", "bert", "--tokenizer"});
    expect_refused_file(renamed("gpt-2", "qwen2"), {"tokenizer.ggml.pre", "qwen2", "--tokenizer"});
    expect_refused_file(patched("tokenizer.ggml.eos_token_id", 4, 256), {"eos_token_id", "found 256", "0 to 255"});
    expect_refused_file(renamed("\xC3\xBF \xC3\xBF", "\xC3\xBF-\xC3\xBF"), {"merge 1"});
    expect_refused_file(renamed("\xC3\xBF \xC3\xBF", "\xC3\xBE \xC3\xBE"), {"merge 1", "not in the vocabulary"});
    // A model without a tokenizer opens; so does one whose tokenizer is named.
    write_bytes(at("none.gguf"), renamed(model, "Xokenizer.ggml.model"));
    EXPECT_EQ(read_model_config(at("none.gguf")), small);
    EXPECT_EQ(read_model_tokenizer(at("none.gguf")), nullptr);
    EXPECT_FALSE(tokenizer_for_model("", at("none.gguf"))->reads_text());
    EXPECT_TRUE(tokenizer_for_model("byte", at("none.gguf"))->reads_text());
}

// What other programs may add: keys of other types, and the output layer, if it is the embedding.
TEST_F(Gguf, FilesOfOtherWriters) {
    const std::vector<float> parameters = random_parameters(small);
    const ParameterTable table(small);
    const auto written = [&](const float* output, std::vector<int64_t> shape) {
        write(small, *byte_values);
        const GgufFile file(path, "gpt2");
        GgufWriter writer;
        for (const char* key : {"general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre"})
            writer.add(key, file.text(key));
        for (const char* key : {"gpt2.block_count", "gpt2.context_length", "gpt2.embedding_length",
                                "gpt2.feed_forward_length", "gpt2.attention.head_count"})
            writer.add(key, static_cast<uint32_t>(file.integer(key, 0, 99)));
        writer.add("gpt2.attention.layer_norm_epsilon", 1e-5f);
        writer.add("some.list", std::vector<int32_t>{1, 2});
        writer.add("some.texts", std::vector<std::string>{"a", ""});
        std::vector<std::vector<float>> values;
        for (const auto& tensor : file.tensors()) {
            values.emplace_back(tensor.elements());
            file.read(tensor, values.back().data());
            writer.add_tensor(tensor.name, tensor.type, tensor.shape, values.back().data());
        }
        if (output) writer.add_tensor("output.weight", GgufType::F32, shape, output);
        writer.write(at("other.gguf"));
        return at("other.gguf");
    };
    EXPECT_EQ(read_model_config(written(nullptr, {})), small);
    EXPECT_EQ(read_model_config(written(parameters.data(), {256, 2})), small);
    const std::vector<float> others(512, 1);
    expect_refused([&] { read_model_config(written(others.data(), {256, 2})); }, {"output.weight", "tied embeddings"});
    expect_refused([&] { read_model_config(written(others.data(), {2, 2})); }, {"output.weight", "tied embeddings"});
}

TEST(F16, EveryValueComesBackAndTheOthersAreRounded) {
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float x = float_from_f16(static_cast<uint16_t>(h));
        if (std::isnan(x)) {
            ASSERT_TRUE(std::isnan(float_from_f16(f16_from_float(x))));
            continue;
        }
        ASSERT_EQ(f16_from_float(x), h);
        if ((h & 0x7FFF) >= 0x7BFF) continue;  // the largest, and infinity
        const float next = float_from_f16(static_cast<uint16_t>(h + 1)), middle = x + (next - x) / 2;
        ASSERT_EQ(f16_from_float(middle), h + (h & 1)) << "half way: to the even one";
        ASSERT_EQ(f16_from_float(std::nextafter(middle, x)), h);
        ASSERT_EQ(f16_from_float(std::nextafter(middle, next)), h + 1);
    }
    EXPECT_EQ(f16_from_float(65519.996f), 0x7BFF);
    EXPECT_EQ(f16_from_float(65520.f), 0x7C00);
    EXPECT_EQ(f16_from_float(-1e30f), 0xFC00);
    EXPECT_EQ(f16_from_float(1e-30f), 0);
}

}  // namespace
