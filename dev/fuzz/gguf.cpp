// GGUF: models and tokenizers. A whole file with a tokenizer is longer than an input, so that an input is a part of
// one, which its first byte names; the other parts are those of a valid file.
#include <cstring>
#include <memory>

#include "dev/fuzz/memory_files.h"
#include "dev/fuzz/targets.h"
#include "io/file/gguf_file.h"
#include "io/file/gguf_writer.h"
#include "io/model/gguf.h"
#include "io/text/byte_symbols.h"
#include "io/text/tokenizer_files.h"

namespace {

const GPT2Config small{.context = 2, .vocab = 256, .layers = 1, .heads = 1, .channels = 2};

// A valid file, and where its parts begin.
struct Parts {
    std::string file;
    size_t metadata = 24, tokenizer, table, table_end;
    Parts() {
        const std::vector<float> values(static_cast<size_t>(ParameterTable(small).size), 0.5f);
        write_gguf_model("valid", small, values.data(), *load_tokenizer("byte"), GgufType::F32);
        file = memory_files::get("valid");
        const auto field = [&](const char* name) { return file.find(name) - 8; };  // where its length begins
        tokenizer = field("tokenizer.ggml.model");
        table = field("token_embd.weight");
        table_end = file.find("output_norm.bias") + 16 + 4 + 8 + 4 + 8;
    }
};

const Parts& valid() {
    static const Parts parts;
    return parts;
}

std::string with_counts(std::string file, uint64_t tensors, uint64_t keys) {
    std::memcpy(file.data() + 8, &tensors, 8);
    std::memcpy(file.data() + 16, &keys, 8);
    return file;
}

std::string padded(std::string bytes) {
    bytes.resize((bytes.size() + 31) / 32 * 32, '\0');
    return bytes;
}

// Byte n (two bytes of place, one of value) by byte: changes of the valid file anywhere.
std::string patched(std::string_view patches) {
    std::string file = valid().file;
    for (; patches.size() >= 3; patches.remove_prefix(3)) {
        const auto low = static_cast<unsigned char>(patches[0]), high = static_cast<unsigned char>(patches[1]);
        file[static_cast<size_t>(low | high << 8) % file.size()] = patches[2];
    }
    return file;
}

// Lines of a type and a text, which follow a byte tokenizer's tokens; and lines of merges.
std::string vocabulary(std::string_view input) {
    const auto each_line = [](std::string_view text, auto use) {
        while (!text.empty()) {
            const size_t end = std::min(text.find('\n'), text.size());
            use(text.substr(0, end));
            text.remove_prefix(std::min(end + 1, text.size()));
        }
    };
    const auto parts = split_files(input, 2);
    std::vector<std::string> tokens, merges;
    std::vector<int32_t> types(256, 1);
    for (const std::string& byte : gpt2_byte_tokens()) tokens.push_back(to_symbols(byte));
    each_line(parts[0], [&](std::string_view line) {
        types.push_back(line.empty() ? 0 : line[0] - '0');
        tokens.emplace_back(line.substr(line.empty() ? 0 : 1));
    });
    each_line(parts.size() > 1 ? parts[1] : "", [&](std::string_view line) { merges.emplace_back(line); });
    GgufWriter writer;
    writer.add("general.architecture", std::string_view("gpt2"));
    writer.add("tokenizer.ggml.model", std::string_view("gpt2"));
    writer.add("tokenizer.ggml.pre", std::string_view("gpt-2"));
    writer.add("tokenizer.ggml.tokens", tokens);
    writer.add("tokenizer.ggml.token_type", types);
    writer.add("tokenizer.ggml.merges", merges);
    writer.add("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(tokens.size() - 1));
    writer.write("vocabulary");
    return memory_files::get("vocabulary");
}

std::string expand(char part, std::string_view input) {
    const Parts& v = valid();
    const auto count = [&] { return static_cast<uint64_t>(static_cast<unsigned char>(input.empty() ? 0 : input[0])); };
    const std::string rest(input.substr(std::min<size_t>(input.size(), 1)));
    const std::string head = v.file.substr(0, v.metadata);
    switch (part) {
        case 'M':  // metadata, without a tokenizer
            return padded(with_counts(head, 16, count()) + rest + v.file.substr(v.table, v.table_end - v.table)) +
                   v.file.substr((v.table_end + 31) / 32 * 32);
        case 'T':  // the table of tensors
            return padded(with_counts(head, count(), 9) + v.file.substr(v.metadata, v.tokenizer - v.metadata) + rest) +
                   std::string(256, '\1');
        case 'P':
            return patched(input);
        case 'V':
            return vocabulary(input);
        default:
            return std::string(input);
    }
}

void run(std::string_view input) {
    if (input.empty()) return;
    memory_files::put("m.gguf", expand(input[0], input.substr(1)));
    const GgufFile file("m.gguf", "gpt2");
    for (const auto& tensor : file.tensors()) {
        require(file.find(tensor.name) == &tensor, "a tensor is found by its name");
        require(tensor.elements() <= tensor.bytes, "a tensor's elements lie within its bytes");
        std::vector<float> values(static_cast<size_t>(tensor.elements()));
        file.read(tensor, values.data());
    }
    if (file.has("tokenizer.ggml.model")) use_vocabulary(read_gguf_tokenizer(file));
    const GPT2Config config = read_gguf_config("m.gguf");
    const auto parameters = std::make_unique<float[]>(static_cast<size_t>(ParameterTable(config).size));
    read_gguf_model("m.gguf", config, parameters.get());
}

std::vector<std::string> seeds() {
    const Parts& v = valid();
    const auto piece = [&](size_t begin, size_t end) { return v.file.substr(begin, end - begin); };
    GgufWriter one;
    const float values[64] = {1, 2, 3};
    one.add("general.architecture", std::string_view("gpt2"));
    one.add("general.alignment", uint32_t{32});
    one.add("a", 1.5f);
    one.add("b", std::vector<int32_t>{1, 2, 3});
    one.add("c", std::vector<std::string>{"x", "", "yz"});
    one.add_tensor("q", GgufType::Q8_0, {2, 32}, values);
    one.add_tensor("h", GgufType::F16, {3}, values);
    one.add_tensor("b", GgufType::BF16, {1, 2, 3}, values);
    one.write("one");
    const size_t second = v.file.find("position_embd.weight") - 8, third = v.file.find("blk.0.attn_norm.weight") - 8;
    const std::string theta = "4my word\n3<|endoftext|>\n1th\n1the\n1\xC4\xA0the\n5[PAD261]";
    return {"W" + memory_files::get("one"),
            "M\x09" + piece(v.metadata, v.tokenizer),
            "T\x01" + piece(second, third),
            std::string("P") + '\x04' + '\0' + '\3',
            "V" + join_files({theta, "t h\nth e\n\xC4\xA0 the"}),
            "V" + join_files({"3<s>", "\xC3\xBF \xC3\xBF"})};
}

}  // namespace

const FuzzTarget fuzz_gguf{"gguf", run, seeds};
