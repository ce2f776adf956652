#include "io/model/llmc_files.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "io/file/error.h"
#include "io/file/file.h"
#include "device/float_formats.h"

namespace {

constexpr int32_t model_magic = 20240326, state_magic = 20240327;
constexpr int64_t header_bytes = 1024;
using Header = std::array<int32_t, header_bytes / 4>;

std::string bytes_text(int64_t bytes) { return std::to_string(bytes) + " bytes"; }

Header read_header(const MappedFile& file, int32_t magic, const std::string& expected) {
    Header header;
    if (file.size() >= 4) {
        std::memcpy(header.data(), file.data(), 4);
        if (header[0] != magic) {
            const std::string kind = llmc_kind(header[0]);
            bad_input(file.path(), "magic number", std::to_string(header[0]) + (kind.empty() ? "" : " (" + kind + ")"),
                      std::to_string(magic) + " (" + expected + ")", "check which file this is");
        }
    }
    if (file.size() < header_bytes)
        bad_input(file.path(), "size", bytes_text(file.size()), "at least the header's " + bytes_text(header_bytes),
                  "the file is cut short: fetch or write it again");
    std::memcpy(header.data(), file.data(), header_bytes);
    return header;
}

void check_word(const MappedFile& file, const char* field, int64_t found, int64_t low, int64_t high) {
    if (found >= low && found <= high) return;
    bad_input(file.path(), field, std::to_string(found),
              low == high ? std::to_string(low) : std::to_string(low) + " to " + std::to_string(high),
              "the header is damaged: fetch or write the file again");
}

void check_size(const MappedFile& file, int64_t expected) {
    if (file.size() != expected)
        bad_input(file.path(), "size", bytes_text(file.size()), bytes_text(expected) + " (from the header's counts)",
                  "the file is damaged or cut short: fetch or write it again");
}

void check_version(const MappedFile& file, int32_t version) {
    if (version == 3 || version == 5) return;
    const std::string old = version == 1   ? " (old: fp32, vocabulary not padded)"
                            : version == 2 ? " (old: bf16, vocabulary not padded)"
                            : version == 4 ? " (old: bf16 with fp32 layernorms)"
                                           : "";
    bad_input(file.path(), "version", std::to_string(version) + old, "3 (fp32) or 5 (bf16)",
              "write it again with a newer train_gpt2.py of llm.c");
}

struct ModelHeader {
    GPT2Config config;
    int version;
};

// Checks everything that can be checked without reading a parameter.
ModelHeader check_model(const MappedFile& file) {
    const Header header = read_header(file, model_magic, "an llm.c model");
    check_version(file, header[1]);
    GPT2Config c{header[2], header[3], header[4], header[5], header[6]};
    check_word(file, "max sequence length", c.context, 1, GPT2Limits::context);
    check_word(file, "vocabulary size", c.vocab, 1, GPT2Limits::vocab);
    check_word(file, "layers", c.layers, 1, GPT2Limits::layers);
    check_word(file, "channels", c.channels, 1, GPT2Limits::channels);
    check_word(file, "heads", c.heads, 1, c.channels);
    if (c.channels % c.heads != 0)
        bad_input(file.path(), "channels", std::to_string(c.channels),
                  "a multiple of the " + std::to_string(c.heads) + " heads",
                  "the header is damaged: fetch or write the file again");
    check_word(file, "padded vocabulary size", header[7], c.padded_vocab(), c.padded_vocab());
    check_size(file, header_bytes + ParameterTable(c).size * (header[1] == 3 ? 4 : 2));
    return {c, header[1]};
}

// The number of 4-byte values after a state's header. B and T must have been checked, so that this cannot overflow.
int64_t state_values(const GPT2Config& c, int64_t B, int64_t T) {
    return 2 * B * T + B * T * c.vocab + 1 + ParameterTable(c).size;
}

template <class T>
const uint8_t* take(const uint8_t* from, T* to, int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return from + bytes;
}

}  // namespace

std::string llmc_kind(int32_t magic) {
    switch (magic) {
        case model_magic:
            return "an llm.c model";
        case state_magic:
            return "an llm.c debug state";
        case 20240328:
            return "an llm.c tokenizer";
        case 20240520:  // of uint16
        case 20240801:  // of uint32
            return "an llm.c token shard";
        case 20240522:
            return "an llm.c HellaSwag file";
        case 0x04034b50:
            return "a zip archive, such as a PyTorch checkpoint";
        default:
            return "";
    }
}

GPT2Config read_llmc_model_config(const std::string& path) { return check_model(MappedFile(path)).config; }
int read_llmc_model_version(const std::string& path) { return check_model(MappedFile(path)).version; }

void read_llmc_model(const std::string& path, float* parameters) {
    const MappedFile file(path);
    const auto [config, version] = check_model(file);
    const ParameterTable table(config);
    const int64_t width = version == 3 ? 4 : 2, piece = 1 << 20;
    for (int64_t begin = 0; begin < table.size; begin += piece) {
        const int64_t n = std::min(piece, table.size - begin);
        const uint8_t* const body = file.data() + header_bytes + begin * width;
        if (version == 3) {
            take(body, parameters + begin, n);
        } else {
            for (int64_t i = 0; i < n; i++) {
                uint16_t h;
                std::memcpy(&h, body + 2 * i, 2);
                parameters[begin + i] = float_from_bf16(h);
            }
        }
        file.forget(body, n * width);
    }
    std::fill(parameters + table.wte.at() + config.vocab * config.channels,
              parameters + table.wte.at() + table.wte.piece(), 0.0f);
}

void write_llmc_model(const std::string& path, const GPT2Config& config, const float* parameters, int version) {
    Header header{};
    const int64_t words[] = {model_magic,   version,      config.context,  config.vocab,
                             config.layers, config.heads, config.channels, config.padded_vocab()};
    std::transform(std::begin(words), std::end(words), header.begin(),
                   [](int64_t w) { return static_cast<int32_t>(w); });
    FileWriter file(path);
    file.write(header.data(), header_bytes);
    const int64_t size = ParameterTable(config).size;
    if (version == 3) {
        file.write(parameters, size * 4);
    } else {
        std::vector<uint16_t> chunk(1 << 20);
        for (int64_t i = 0; i < size;) {
            const int64_t n = std::min<int64_t>(size - i, static_cast<int64_t>(chunk.size()));
            std::transform(parameters + i, parameters + i + n, chunk.begin(), bf16_from_float);
            file.write(chunk.data(), n * 2);
            i += n;
        }
    }
    file.commit();
}

LlmcState read_llmc_state(const std::string& path, const GPT2Config& config) {
    const MappedFile file(path);
    const Header header = read_header(file, state_magic, "an llm.c debug state");
    check_word(file, "version", header[1], 2, 2);
    check_word(file, "T", header[3], 1, config.context);
    // B is bounded by the file's size, so that B·T·V cannot overflow.
    check_word(file, "B", header[2], 1, std::max<int64_t>(file.size() / 8 / header[3], 1));
    LlmcState state;
    state.B = header[2], state.T = header[3];
    check_size(file, header_bytes + 4 * state_values(config, state.B, state.T));

    const int64_t N = state.B * state.T;
    state.x.resize(N), state.y.resize(N), state.logits.resize(N * config.vocab);
    state.gradients.resize(ParameterTable(config).size);
    const uint8_t* body = file.data() + header_bytes;
    body = take(body, state.x.data(), N);
    body = take(body, state.y.data(), N);
    body = take(body, state.logits.data(), N * config.vocab);
    body = take(body, &state.loss, 1);
    take(body, state.gradients.data(), static_cast<int64_t>(state.gradients.size()));
    for (int64_t i = 0; i < N; i++) {
        check_word(file, "token id in x", state.x[i], 0, config.vocab - 1);
        check_word(file, "token id in y", state.y[i], 0, config.vocab - 1);
    }
    return state;
}

void write_llmc_state(const std::string& path, const GPT2Config& config, const LlmcState& state) {
    Header header{};
    header[0] = state_magic, header[1] = 2;
    header[2] = static_cast<int32_t>(state.B), header[3] = static_cast<int32_t>(state.T);
    const int64_t N = state.B * state.T;
    FileWriter file(path);
    file.write(header.data(), header_bytes);
    file.write(state.x.data(), 4 * N);
    file.write(state.y.data(), 4 * N);
    file.write(state.logits.data(), 4 * N * config.vocab);
    file.write(&state.loss, 4);
    file.write(state.gradients.data(), 4 * ParameterTable(config).size);
    file.commit();
}
