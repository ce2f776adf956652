// llm.c's files: model, debug state, tokenizer, token shard. Their headers have 1024 bytes, of which 32 are used; an
// input is those 32, followed by the body.
#include <cstring>
#include <memory>

#include "dev/fuzz/memory_files.h"
#include "dev/fuzz/targets.h"
#include "io/data/batch_sampler.h"
#include "io/file/error.h"
#include "io/model/llmc_files.h"
#include "io/text/tokenizer.h"
#include "io/text/tokenizer_files.h"

namespace {

constexpr size_t used = 32, header = 1024;
const GPT2Config small{.context = 2, .vocab = 3, .layers = 1, .heads = 1, .channels = 1};

std::string expand(std::string_view input) {
    std::string file(input.substr(0, used));
    if (input.size() > used) file.append(header - used, '\0').append(input.substr(used));
    return file;
}

std::string shorten(const std::string& file) { return file.substr(0, used) + file.substr(header); }

void run_model(std::string_view input) {
    memory_files::put("model.bin", expand(input));
    const GPT2Config config = read_llmc_model_config("model.bin");
    const int64_t size = ParameterTable(config).size;
    require(size <= static_cast<int64_t>(input.size()), "no more parameters than bytes");
    const auto parameters = std::make_unique<float[]>(static_cast<size_t>(size));
    read_llmc_model("model.bin", parameters.get());
}

std::vector<std::string> seeds_model() {
    const std::vector<float> values(static_cast<size_t>(ParameterTable(small).size), 0.5f);
    std::vector<std::string> files;
    for (const int version : {3, 5}) {
        write_llmc_model("m", small, values.data(), version);
        files.push_back(shorten(memory_files::get("m")));
    }
    return files;
}

void run_state(std::string_view input) {
    memory_files::put("state.bin", expand(input));
    const LlmcState state = read_llmc_state("state.bin", small);
    require(static_cast<int64_t>(state.x.size()) == state.B * state.T, "x is (B,T)");
}

std::vector<std::string> seeds_state() {
    LlmcState state;
    state.B = state.T = 2;
    state.x = {0, 1, 2, 0}, state.y = {1, 2, 0, 1}, state.logits.assign(12, 1.5f);
    state.gradients.assign(static_cast<size_t>(ParameterTable(small).size), -1);
    write_llmc_state("s", small, state);
    return {shorten(memory_files::get("s"))};
}

// 'W' is followed by a whole file; otherwise a byte tokenizer's 256 tokens are inserted before the input's own.
void run_tokenizer(std::string_view input) {
    if (input.empty()) return;
    std::string file = expand(input.substr(1));
    if (input[0] != 'W' && file.size() > header) {
        std::string bytes;
        for (int b = 0; b < 256; b++) bytes.append({'\1', static_cast<char>(b)});
        file.insert(header, bytes);
    }
    memory_files::put("t.bin", file);
    const Vocabulary vocabulary = read_llmc_tokenizer("t.bin");
    require(vocabulary.tokens.size() <= file.size(), "no more tokens than bytes");
    require(vocabulary.merges.size() <= vocabulary.tokens.size(), "no more merges than tokens");
}

std::vector<std::string> seeds_tokenizer() {
    save_llmc_tokenizer(*load_tokenizer("byte"), "t");
    std::string whole = shorten(memory_files::get("t")), more = whole.substr(0, used);
    more[8] = 4;  // with the high byte, which is 1: 260 tokens
    more += std::string("\2ab") + "\3abc" + "\2de" + "\5abcde";
    std::string end = whole.substr(0, used);
    end[8] = 2;
    end[12] = 1, end[13] = 1, end[14] = end[15] = 0;  // end of text: 257
    end += std::string("\2th") + "\015<|endoftext|>";
    return {"W" + whole, "B" + more, "B" + end};
}

void run_shard(std::string_view input) {
    memory_files::put("tokens.bin", expand(input));
    static const auto bytes = load_tokenizer("byte");
    const Datasets both = open_datasets("tokens.bin", "", *bytes, "cache");
    BatchSampler sampler(both.train, 2, 3, 1);
    int32_t x[6], y[6];
    for (int i = 0; i < 8; i++) sampler.next(x, y);
    const WindowReader reader(both.val, 3);
    for (int64_t w = 0; w < std::min<int64_t>(reader.windows(), 8); w++) reader.read(w, x, y);
}

std::vector<std::string> seeds_shard() {
    std::vector<uint16_t> tokens;
    for (uint16_t i = 0; i < 60; i++) tokens.push_back(static_cast<uint16_t>(i * 4));
    write_shard("s", tokens);
    write_shard("one", {1});
    write_shard("none", {});
    return {shorten(memory_files::get("s")), shorten(memory_files::get("one")), shorten(memory_files::get("none"))};
}

}  // namespace

const FuzzTarget fuzz_llmc_model{"llmc_model", run_model, seeds_model};
const FuzzTarget fuzz_llmc_state{"llmc_state", run_state, seeds_state};
const FuzzTarget fuzz_llmc_tokenizer{"llmc_tokenizer", run_tokenizer, seeds_tokenizer};
const FuzzTarget fuzz_shard{"shard", run_shard, seeds_shard};
