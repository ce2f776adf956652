// A whole checkpoint directory. An input is a list of changes to a valid one, separated as by split_files: a byte that
// chooses the file, a byte that chooses the kind of change, and its data. Checksums in trainer_state.json and the
// header length of a safetensors file are corrected afterwards, so that mutations get past these checks.
#include "io/model/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "dev/fuzz/memory_files.h"
#include "dev/fuzz/targets.h"
#include "io/file/checksum.h"
#include "io/file/error.h"
#include "io/model/hugging_face.h"
#include "io/file/json.h"
#include "io/model/safetensors.h"

namespace {

const std::string directory = "c/";
constexpr const char* names[] = {"config.json",        "model.safetensors", "optimizer.safetensors",
                                 "trainer_state.json", "tokenizer.json",    "model.safetensors.index.json",
                                 "part.safetensors",   "merges.txt"};
const GPT2Config small{.context = 2, .vocab = 3, .layers = 1, .heads = 1, .channels = 1};

std::string state_of(const std::map<std::string, std::string>& files) {
    nlohmann::json list = nlohmann::json::object();
    for (const auto& [name, bytes] : files)
        if (name != "trainer_state.json") list[name] = {{"bytes", bytes.size()}, {"crc32", checksum(bytes)}};
    const nlohmann::json root = {{"step", 3},          {"position", 4},          {"seconds", 0.5},
                                 {"best_val_loss", 1}, {"options", {{"lr", 1}}}, {"files", list}};
    return root.dump();
}

void write_model(const GPT2Config& config) {
    const std::vector<float> values(static_cast<size_t>(ParameterTable(config).size), 0.25f);
    write_hugging_face_model("c", config, values.data(), -1);
}

const std::map<std::string, std::string>& valid_checkpoint() {
    static const auto files = [] {
        memory_files::clear();
        write_model(small);
        const float moments[4] = {1, 2, 3, 4};
        write_safetensors("c/optimizer.safetensors",
                          {{"adam_m", DType::F32, {4}, moments}, {"adam_v", DType::F32, {4}, moments}});
        std::map<std::string, std::string> all;
        for (const char* name : {names[0], names[1], names[2]}) all[name] = memory_files::get(directory + name);
        all["trainer_state.json"] = state_of(all);
        memory_files::clear();
        return all;
    }();
    return files;
}

// Replaces the weights by those that the mutated config.json needs, if they are few.
void make_weights_fit(std::map<std::string, std::string>& files) {
    const auto root = parse_json_object("config.json", files["config.json"]);
    const auto count = [&](const char* key, int64_t most) { return json_integer("config.json", root, key, 1, most); };
    const GPT2Config config{.context = count("n_positions", 9),
                            .vocab = count("vocab_size", 300),
                            .layers = count("n_layer", 3),
                            .heads = 1,
                            .channels = count("n_embd", 4)};
    write_model(config);
    files["model.safetensors"] = memory_files::get("c/model.safetensors");
    memory_files::clear();
}

void change(std::map<std::string, std::string>& files, std::set<std::string>& changed, std::string_view record) {
    if (record.size() < 2) return;
    const std::string name = names[static_cast<unsigned char>(record[0]) % std::size(names)];
    const char what = record[1];
    const std::string_view rest = record.substr(2);
    changed.insert(what == 'S' ? "trainer_state.json" : what == 'M' ? "model.safetensors" : name);
    std::string& file = files[name];
    if (what == 'W') file = rest;
    if (what == 'D') files.erase(name);
    if (what == 'S') files["trainer_state.json"] = state_of(files);
    if (what == 'M') make_weights_fit(files);
    if (what == 'F')  // flips bits: two bytes for the place, one for the bits
        for (size_t i = 0; i + 2 < rest.size() && !file.empty(); i += 3) {
            const size_t place = static_cast<unsigned char>(rest[i]) + 256 * static_cast<unsigned char>(rest[i + 1]);
            file[place % file.size()] ^= rest[i + 2];
        }
    if (what == 'J') {  // replaces the header before the data
        uint64_t length = 0;
        if (file.size() >= 8) std::memcpy(&length, file.data(), 8);
        const std::string data = length <= file.size() && file.size() >= 8 + length ? file.substr(8 + length) : "";
        length = rest.size();
        file.assign(reinterpret_cast<const char*>(&length), 8).append(rest).append(data);
    }
}

void attempt(const std::function<void()>& read) {
    try {
        read();
    } catch (const InputError& error) {
        require_printable(error.what(), false);
    }
}

void run(std::string_view input) {
    auto files = valid_checkpoint();
    std::set<std::string> changed;
    for (const std::string_view record : split_files(input, 8)) attempt([&] { change(files, changed, record); });
    size_t bytes = 0;
    for (const auto& [name, text] : files) {
        memory_files::put(directory + name, text);
        bytes += text.size();
    }
    // Files that were not changed are read with the same result every time.
    const auto any_of = [&](const std::vector<std::string>& read) {
        return std::ranges::any_of(read, [&](const std::string& name) { return changed.contains(name); });
    };
    attempt([] { verify_checkpoint("c"); });
    if (any_of({"trainer_state.json"}))
        attempt([] { require(read_trainer_state("c").step >= 0, "steps count from 0"); });
    if (any_of({"config.json", "model.safetensors", "model.safetensors.index.json", "part.safetensors"}))
        attempt([&] {
            const GPT2Config config = read_model_config("c");
            const int64_t size = ParameterTable(config).size, padding = (config.padded_vocab() - config.vocab);
            require(size - padding * config.channels <= std::ssize(input) + static_cast<int64_t>(bytes),
                    "no more parameters than bytes");
            std::vector<float> parameters(static_cast<size_t>(size));
            read_model("c", config, parameters.data());
        });
    if (any_of({"optimizer.safetensors"}))
        attempt([] {
            std::vector<float> m(4), v(4);
            read_optimizer("c", {{"adam_m", m.data(), 4}, {"adam_v", v.data(), 4}});
        });
    if (any_of({"tokenizer.json", "merges.txt"})) attempt([] { read_model_tokenizer("c"); });
}

std::vector<std::string> seeds() {
    auto files = valid_checkpoint();
    const auto header = [&](const char* name) {
        uint64_t length;
        std::memcpy(&length, files.at(name).data(), 8);
        return files.at(name).substr(8, length);
    };
    const std::string sums = "\3S", config = files.at("config.json");
    return {"\1F\1\2\3",
            join_files({std::string("\0W", 2) + config, "\1M", sums}),
            join_files({"\1J" + header("model.safetensors"), sums}),
            join_files({"\2J" + header("optimizer.safetensors"), sums}),
            "\3W" + files.at("trainer_state.json"),
            join_files({"\6W" + files.at("model.safetensors"), "\1D",
                        R"(%W{"weight_map":{"transformer.wte.weight":"part.safetensors"}})", sums}),
            join_files({R"($W{"model":{"vocab":{"a":0},"merges":[]}})", sums})};
}

}  // namespace

const FuzzTarget fuzz_checkpoint{"checkpoint", run, seeds};
