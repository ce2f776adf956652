// Model directories: read as transformers writes them, and refused if transformers would compute something else than
// this program.
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "dev/test/io/model_files.h"
#include "io/model/checkpoint.h"
#include "device/float_formats.h"
#include "io/model/safetensors.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

const GPT2Config shapes[] = {
    {.context = 5, .vocab = 11, .layers = 1, .heads = 1, .channels = 3},
    {.context = 8, .vocab = 128, .layers = 2, .heads = 2, .channels = 4},
    {.context = 16, .vocab = 300, .layers = 12, .heads = 3, .channels = 24},
};
const GPT2Config small = shapes[1];

class ModelDirectory : public ModelFiles {
protected:
    ModelDirectory() {
        fs::create_directory(dir);
        write_model_directory(dir, small, parameters.data(), nullptr);
    }
    void edit_config(const std::string& key, const json& value) {
        json config = json::parse(read_bytes(dir + "/config.json"));
        if (value.is_discarded())
            config.erase(key);
        else
            config[key] = value;
        write_bytes(dir + "/config.json", config.dump());
    }
    // The tensors of the directory, to be written again with changes.
    std::map<std::string, std::vector<float>> tensors;
    std::vector<TensorToWrite> load() {
        const SafetensorsFile file(dir + "/model.safetensors");
        std::vector<TensorToWrite> list;
        for (const auto& entry : file.entries()) {
            tensors[entry.name].resize(entry.elements());
            file.read(entry, tensors[entry.name].data());
            list.push_back({entry.name, DType::F32, entry.shape, tensors[entry.name].data()});
        }
        return list;
    }
    void store(const std::vector<TensorToWrite>& list) { write_safetensors(dir + "/model.safetensors", list); }
    static TensorToWrite& pick(std::vector<TensorToWrite>& list, const std::string& name) {
        for (auto& t : list)
            if (t.name == name) return t;
        throw std::runtime_error(name);
    }
    std::vector<float> read(const GPT2Config& config = small) {
        std::vector<float> back(ParameterTable(config).size, NAN);
        read_model(dir, config, back.data());
        return back;
    }
    void expect_bad(const std::vector<std::string>& parts) {
        expect_refused([&] { read_model_config(dir); }, parts);
        expect_refused([&] { read(); }, parts);
    }
    const std::string dir = at("model");
    const std::vector<float> parameters = random_parameters(small);
};

TEST_F(ModelDirectory, RoundTrip) {
    for (const GPT2Config& config : shapes) {
        const std::vector<float> values = random_parameters(config);
        write_model_directory(dir, config, values.data(), nullptr);
        EXPECT_EQ(read_model_config(dir), config);
        EXPECT_EQ(read(config), values);
        EXPECT_EQ(read_model_config(dir + "/model.safetensors"), config);
    }
    EXPECT_EQ(read_model_tokenizer(dir), nullptr);
}

// transformers has three probabilities of dropout, this program one.
TEST_F(ModelDirectory, KeepsTheDropout) {
    GPT2Config config = small;
    config.dropout = 0.1;
    write_model_directory(dir, config, parameters.data(), nullptr);
    EXPECT_EQ(read_model_config(dir), config);
    const json written = json::parse(read_bytes(dir + "/config.json"));
    for (const char* name : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) {
        EXPECT_EQ(written[name], 0.1);
        for (const json& other : {json(0.2), json(1.5), json("0.1"), json()}) {
            json changed = written;
            changed[name] = other;
            write_bytes(dir + "/config.json", changed.dump());
            EXPECT_EQ(read_model_config(dir).dropout, 0) << name << " " << other;
        }
    }
}

// transformers' layout: a block's matrices (in,out), wte without padding rows, no lm_head.
TEST_F(ModelDirectory, LayoutIsHuggingFaces) {
    const SafetensorsFile file(dir + "/model.safetensors");
    const ParameterTable table(small);
    ASSERT_EQ(file.entries().size(), 4 + 12 * 2);
    EXPECT_EQ(file.find("transformer.wte.weight")->shape, (std::vector<int64_t>{128, 4}));
    const auto* fc = file.find("transformer.h.1.mlp.c_fc.weight");
    ASSERT_TRUE(fc);
    EXPECT_EQ(fc->shape, (std::vector<int64_t>{4, 16}));
    std::vector<float> stored(64);
    file.read(*fc, stored.data());
    for (int in = 0; in < 4; in++)
        for (int o = 0; o < 16; o++) EXPECT_EQ(stored[in * 16 + o], parameters[table.fcw.at(1) + o * 4 + in]);
    const json config = json::parse(read_bytes(dir + "/config.json"));
    EXPECT_EQ(config["architectures"], json::array({"GPT2LMHeadModel"}));
    EXPECT_TRUE(config["eos_token_id"].is_null());
    write_model_directory(dir, small, parameters.data(), std::make_unique<FakeTokenizer>(127).get());
    EXPECT_EQ(json::parse(read_bytes(dir + "/config.json"))["eos_token_id"], 127);
}

TEST_F(ModelDirectory, ReadsPublishedNamesAndIgnoresMasksAndTheTiedHead) {
    auto list = load();
    for (auto& t : list) t.name = t.name.substr(std::strlen("transformer."));
    const std::vector<float> mask(64, 1);
    list.push_back({"h.0.attn.bias", DType::F32, {1, 1, 8, 8}, mask.data()});
    list.push_back({"h.1.attn.masked_bias", DType::F32, {}, mask.data()});
    list.push_back({"lm_head.weight", DType::F32, {128, 4}, tensors["transformer.wte.weight"].data()});
    store(list);
    EXPECT_EQ(read(), parameters);
}

TEST_F(ModelDirectory, ReadsEveryFloatingPointType) {
    const auto list = load();
    std::vector<std::vector<double>> wide;
    std::vector<std::vector<uint16_t>> half;
    auto f64 = list, bf16 = list;
    for (size_t i = 0; i < list.size(); i++) {
        const auto& values = tensors[list[i].name];
        wide.emplace_back(values.begin(), values.end());
        half.emplace_back();
        for (const float v : values) half.back().push_back(bf16_from_float(v));
        f64[i].dtype = DType::F64, f64[i].data = wide.back().data();
        bf16[i].dtype = DType::BF16, bf16[i].data = half.back().data();
    }
    store(f64);
    EXPECT_EQ(read(), parameters);
    store(bf16);
    std::vector<float> rounded = parameters;
    for (float& v : rounded) v = float_from_bf16(bf16_from_float(v));
    EXPECT_EQ(read(), rounded);
}

TEST_F(ModelDirectory, ReadsShardedModels) {
    const auto list = load();
    json map;
    for (size_t i = 0; i < list.size(); i++)
        map[list[i].name] = i % 2 ? "model-2-of-2.safetensors" : "model-1-of-2.safetensors";
    for (size_t k = 0; k < 2; k++) {
        std::vector<TensorToWrite> part;
        for (size_t i = k; i < list.size(); i += 2) part.push_back(list[i]);
        write_safetensors(dir + "/model-" + std::to_string(k + 1) + "-of-2.safetensors", part);
    }
    fs::remove(dir + "/model.safetensors");
    const std::string index = dir + "/model.safetensors.index.json";
    write_bytes(index, json{{"weight_map", map}}.dump());
    EXPECT_EQ(read(), parameters);

    write_bytes(index, json{{"weight_map", {{"a", "../../secret"}}}}.dump());
    expect_bad({index, "weight_map", "../../secret"});
    write_bytes(index, R"({"weight_map":7})");
    expect_bad({index, "weight_map", "7"});
    fs::remove(index);
    write_bytes(dir + "/pytorch_model.bin", "PK");
    expect_bad({dir, "pytorch_model.bin", "model.safetensors", "save_pretrained"});
}

// Settings with which transformers would compute something else, and impossible counts.
TEST_F(ModelDirectory, RefusesOtherConfigurations) {
    const std::string path = dir + "/config.json", original = read_bytes(path);
    const auto bad = [&](const std::string& key, const json& value, std::vector<std::string> parts) {
        write_bytes(path, original);
        edit_config(key, value);
        parts.insert(parts.end(), {path, key});
        expect_bad(parts);
    };
    bad("model_type", "llama", {"\"llama\"", "\"gpt2\""});
    for (const char* other : {"relu", "gelu", "gelu_python", "quick_gelu", "gelu_10", "silu"})
        bad("activation_function", other, {'"' + std::string(other) + '"', "\"gelu_new\""});
    bad("layer_norm_epsilon", 1e-6, {"1e-06", "1e-05"});
    bad("layer_norm_epsilon", "1e-5", {"\"1e-5\"", "1e-05"});
    bad("tie_word_embeddings", false, {"found false, expected true"});
    bad("scale_attn_weights", false, {"found false, expected true"});
    bad("scale_attn_by_inverse_layer_idx", true, {"found true, expected false"});
    bad("add_cross_attention", true, {"found true, expected false"});
    bad("n_inner", 15, {"found 15, expected null or 16"});
    bad("n_head", 3, {"n_embd", "found 4", "multiple of n_head, 3"});
    bad("vocab_size", 1048577, {"1048577", "1 to 1048576"});
    for (const char* key : {"n_positions", "vocab_size", "n_layer", "n_embd", "n_head"}) {
        for (const json& value : {json(0), json(-1), json(1e18), json(1.5), json("12"), json(nullptr), json(INT64_MIN),
                                  json(UINT64_MAX), json::array({1})})
            bad(key, value, {"an integer from 1 to"});
        bad(key, json(json::value_t::discarded), {"found no value"});
    }
    write_bytes(path, original);
    edit_config("n_inner", 16);
    for (const char* key :
         {"tie_word_embeddings", "scale_attn_weights", "layer_norm_epsilon", "scale_attn_by_inverse_layer_idx"})
        edit_config(key, json(json::value_t::discarded));
    EXPECT_EQ(read_model_config(dir), small);
    write_bytes(path, original.substr(0, original.size() / 2));
    expect_bad({path, "JSON"});
    write_bytes(path, "{\"n_layer\":1,\"n_layer\":2}");
    expect_bad({path, "\"n_layer\" appears twice"});
    write_bytes(path, "");
    expect_bad({path, "JSON"});
    fs::remove(path);
    expect_refused([&] { read_model_config(dir); }, {dir, "config.json"});
}

// Other names for the computation of this program. Of transformers 5's activations these five are within 5e-7 of
// gelu_new in fp32 from -12 to 12; "gelu" differs by 5e-4. Attention scores are always fp32 here.
TEST_F(ModelDirectory, AcceptsOtherNamesForTheSameComputation) {
    for (const char* name : {"gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh"}) {
        edit_config("activation_function", name);
        EXPECT_EQ(read_model_config(dir), small) << name;
    }
    edit_config("reorder_and_upcast_attn", true);
    EXPECT_EQ(read(), parameters);
}

// save_model of safetensors writes tensors that share memory under one of their names; the metadata has the others.
TEST_F(ModelDirectory, ReadsTiedTensorsUnderAnyOfTheirNames) {
    const auto rename = [](std::vector<TensorToWrite> list, const std::string& from, const std::string& to) {
        pick(list, from).name = to;
        return list;
    };
    const std::string wte = "transformer.wte.weight", head = "lm_head.weight";
    const auto original = load();
    const auto only_head = rename(original, wte, head);
    const std::string path = dir + "/model.safetensors";
    for (const char* prefix : {"transformer.", ""}) {
        write_safetensors(path, only_head, {{"format", "pt"}, {prefix + std::string("wte.weight"), head}});
        EXPECT_EQ(read(), parameters) << prefix;
    }
    write_safetensors(path, only_head, {});  // config.json says that they are tied
    EXPECT_EQ(read(), parameters);
    write_safetensors(path, original, {{head, wte}});
    EXPECT_EQ(read(), parameters);

    // Any other two tensors may share their memory as well.
    const std::string first = "transformer.h.0.ln_1.weight", second = "transformer.h.1.ln_1.weight";
    auto shared = original;
    std::erase_if(shared, [&](const TensorToWrite& t) { return t.name == second; });
    write_safetensors(path, shared, {{second, first}});
    std::vector<float> expected = parameters;
    const ParameterTable table(small);
    const Parameter& ln1w = table.rows[2];
    ASSERT_EQ(ln1w.hf_name(1), second);
    std::copy_n(parameters.begin() + ln1w.at(0), 4, expected.begin() + ln1w.at(1));
    EXPECT_EQ(read(), expected);

    store(shared);
    expect_bad({path, second, "is missing"});
    write_safetensors(path, shared, {{second, "transformer.h.2.ln_1.weight"}});  // an alias of nothing
    expect_bad({path, second, "is missing"});
    write_safetensors(path, only_head, {{wte, head}});
    edit_config("tie_word_embeddings", false);
    expect_bad({"config.json", "tie_word_embeddings", "found false, expected true"});
}

// config.json and the tensors contradict each other.
TEST_F(ModelDirectory, RefusesTensorsThatDoNotFit) {
    const std::string path = dir + "/model.safetensors", config = read_bytes(dir + "/config.json");
    edit_config("vocab_size", 100);
    expect_bad({path, "transformer.wte.weight", "(128,4)", "(100,4)"});
    write_bytes(dir + "/config.json", config);
    edit_config("n_layer", 3);
    expect_bad({path, "transformer.h.2.ln_1.weight", "is missing", "(4)"});
    edit_config("n_layer", 1);
    expect_bad({path, "transformer.h.1."});
    write_bytes(dir + "/config.json", config);
    edit_config("n_positions", 1024);
    expect_bad({path, "transformer.wpe.weight", "(8,4)", "(1024,4)"});
    write_bytes(dir + "/config.json", config);

    const auto original = load();
    const std::vector<float> zeros(4096, 0);
    auto list = original;
    pick(list, "transformer.h.0.attn.c_attn.weight").shape = {12, 4};  // torch.nn.Linear's layout, same size
    store(list);
    expect_bad({path, "transformer.h.0.attn.c_attn.weight", "(12,4)", "(4,12)"});

    list = original;
    list.push_back({"score.weight", DType::F32, {2}, zeros.data()});
    store(list);
    expect_bad({path, "score.weight"});

    list = original;
    list.push_back({"lm_head.weight", DType::F32, {128, 4}, zeros.data()});
    store(list);
    expect_bad({path, "lm_head.weight", "tied"});

    list = original;
    list.push_back({"wte.weight", DType::F32, {128, 4}, zeros.data()});
    store(list);
    expect_bad({path, "wte.weight", "appears twice"});

    list = original;
    pick(list, "transformer.ln_f.bias").dtype = DType::I32;
    store(list);
    expect_bad({path, "transformer.ln_f.bias", "I32", "F32, F16, BF16 or F64"});

    store(original);
    const std::string whole = read_bytes(path);
    for (size_t k = 0; k < 16; k++) {
        write_bytes(path, whole.substr(0, whole.size() * k / 16));
        expect_bad({path});
    }
}

TEST_F(ModelDirectory, RefusesOtherPaths) {
    expect_refused([&] { read_model_config(root); }, {root, "config.json", "a Hugging Face GPT-2 directory"});
    expect_refused([&] { read_model_config(at("absent")); }, {at("absent"), "No such file"});
    write_bytes(at("other.safetensors"), "");
    expect_refused([&] { read_model_config(at("other.safetensors")); }, {"other.safetensors", "model.safetensors"});
    std::vector<float> room(ParameterTable(small).size);
    expect_refused([&] { read_model(dir, shapes[0], room.data()); }, {dir, "the model changed"});
}

}  // namespace
