// train_gpt2cu as a whole, in the emulator: compared with train_gpt2, resumed, and its options.
#include <nlohmann/json.hpp>
#include <set>

#include "dev/test/program/program.h"
#include "io/file/json.h"
#include "io/model/checkpoint.h"

namespace fs = std::filesystem;

namespace {

class CudaProgram : public Program {
protected:
    CudaProgram() : cpu(binary()) { on_gpu(); }
    ~CudaProgram() override { on_cpu(); }
    void on_cpu() const { setenv("TRAIN_GPT2", cpu.c_str(), 1); }
    void on_gpu() const { setenv("TRAIN_GPT2", (cpu + "cu_emulated").c_str(), 1); }
    const std::string cpu;
};

const Args few = {{"steps", "3"}, {"eval-every", "3"}, {"eval-batches", "1"}, {"schedule", "constant"}};
Args few_and(const Args& more) {
    Args all = more;
    all.insert(few.begin(), few.end());
    return all;
}

// A step has several batches, and evaluations and samples come between steps.
TEST_F(CudaProgram, TrainsInFP32AsTheCpuDoes) {
    const Args all = few_and({{"total-batch", "64"},
                              {"shards", "2"},
                              {"eval-every", "1"},
                              {"sample-every", "2"},
                              {"sample-tokens", "2"},
                              {"seq", "8"}});
    Args gpu = all;
    gpu["dtype"] = "fp32";
    train("gpu", gpu);
    on_cpu();
    train("cpu", all);
    const auto gpu_log = timeless_log("gpu"), cpu_log = timeless_log("cpu");
    ASSERT_EQ(gpu_log.size(), cpu_log.size());
    for (size_t i = 0; i < cpu_log.size(); ++i) {
        EXPECT_EQ(gpu_log[i]["step"], cpu_log[i]["step"]);
        EXPECT_EQ(gpu_log[i]["split"], cpu_log[i]["split"]);
        // sums in another order, and updates that divide by small roots: as test_gpt2's training allows
        EXPECT_NEAR(gpu_log[i]["loss"].get<double>(), cpu_log[i]["loss"].get<double>(), 2e-3);
    }
}

TEST_F(CudaProgram, ResumesInBF16ToTheBitAndTheCpuReadsIt) {
    train("whole", few_and({{"steps", "4"}, {"save-every", "2"}, {"eval-every", "4"}}));
    train("parts", few_and({{"steps", "2"}, {"save-every", "2"}, {"eval-every", "4"}}));
    expect_done({"train", "--resume", "--out", at("parts"), "--steps", "4"});
    for (const char* file : {"/latest/model.safetensors", "/latest/optimizer.safetensors"})
        EXPECT_TRUE(read_bytes(at("whole") + file) == read_bytes(at("parts") + file)) << file;
    const std::string little = at("little.txt");
    write_bytes(little, "the quick brown fox jumps over the lazy dog\n");
    const std::vector<std::string> eval = {"eval", "--from", at("whole"), "--data", little};
    const auto loss = [](const std::string& printed) { return std::stod(printed.substr(printed.find(' '))); };
    const double of_gpu = loss(expect_done(eval));
    on_cpu();
    EXPECT_NEAR(of_gpu, loss(expect_done(eval)), 0.01 * of_gpu);  // parameters and activations rounded to bf16
}

// The bf16 parameters are those that the last applied update rounded, also in the resumed run.
TEST_F(CudaProgram, ResumesAfterUpdatesThatWereLeftOutToTheBit) {
    train("whole", few_and({{"steps", "2"}, {"eval-every", "0"}, {"skip-outliers", "1.5"}}));
    // Earlier losses that are so small that all later ones are outliers.
    const std::string file = fs::canonical(at("whole/latest")).string() + "/trainer_state.json";
    auto state = nlohmann::ordered_json::parse(read_bytes(file));
    state.erase("crc32");
    state["losses"] = state["norms"] = nlohmann::json::array();
    for (int i = 0; i < 128; ++i) state["losses"].push_back(1 + i % 2), state["norms"].push_back(1);
    write_bytes(file, with_own_checksum(state.dump(2)));
    fs::copy(at("whole"), at("parts"), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    expect_done({"train", "--resume", "--out", at("whole"), "--steps", "5"});
    for (const char* steps : {"4", "5"}) expect_done({"train", "--resume", "--out", at("parts"), "--steps", steps});
    const auto log = timeless_log("whole");
    ASSERT_EQ(log.size(), 5u);
    for (size_t i = 0; i < log.size(); ++i) EXPECT_EQ(log[i].value("skipped", false), i >= 2) << log[i];
    EXPECT_EQ(log, timeless_log("parts"));
    EXPECT_EQ(nlohmann::json::parse(read_bytes(at("parts/latest/trainer_state.json")))["last_applied"], 2);
}

// On the second of the emulator's GPUs, where GELU is fused into matmuls.
TEST_F(CudaProgram, RecomputingBlocksChangesNoBit) {
    for (const char* recompute : {"none", "block"})
        train(recompute, few_and({{"device", "1"}, {"recompute", recompute}, {"dropout", "0.1"}}));
    EXPECT_TRUE(read_bytes(at("none/latest/model.safetensors")) == read_bytes(at("block/latest/model.safetensors")));
}

// On the first GPU, where GELU is a separate kernel.
TEST_F(CudaProgram, RecomputingGELUAndTheNormsChangesNoBit) {
    for (const char* recompute : {"none", "gelu", "ln"}) train(recompute, few_and({{"recompute", recompute}}));
    for (const char* recompute : {"gelu", "ln"})
        EXPECT_TRUE(read_bytes(at("none/latest/model.safetensors")) ==
                    read_bytes(at(recompute + std::string("/latest/model.safetensors"))))
            << recompute;
}

// The model writes a space at position 2, and "e" after it, whatever the text is.
TEST_F(CudaProgram, AnswersChoicesAsTheCpuDoes) {
    const GPT2Config config{.context = 16, .vocab = 256, .layers = 1, .heads = 2, .channels = 16};
    std::vector<float> parameters = random_parameters(config);
    const ParameterTable table(config);
    for (const auto& [byte, channel] : {std::pair{' ', 0}, {'e', 1}})
        parameters[static_cast<size_t>(table.wte.at() + byte * config.channels + channel)] = 5;
    for (int64_t position = 0; position < config.context; ++position)
        parameters[static_cast<size_t>(table.wpe.at() + position * config.channels + (position == 1 ? 0 : 1))] = 100;
    std::fill_n(parameters.begin() + table.lnfw.at(), config.channels, 1.0f);
    fs::create_directory(at("model"));
    write_model_directory(at("model"), config, parameters.data(), load_tokenizer("byte").get());
    write_bytes(at("words"), "{\"text\":\"ab eee\"}\n{\"text\":\"ab exe\"}\n{\"text\":\"cd ee\"}\n{\"text\":\"c x\"}");
    write_bytes(at("endings"),
                "{\"ctx\":\"ab\",\"endings\":[\"xyz\",\"eee\"],\"label\":1}\n"
                "{\"ctx\":\"a\",\"endings\":[\"ex\",\"xe\",\"ee\"],\"label\":0}");
    for (const char* dtype : {"fp32", "bf16", ""}) {
        if (*dtype == '\0') on_cpu();
        Args args = {{"from", at("model")}, {"batch", "2"}};
        if (*dtype != '\0') args["dtype"] = dtype;
        for (const auto& [file, accuracy] :
             {std::pair{"words", "last word: accuracy 0.5000 "},
              {"endings", "accuracy by summed log-likelihood 0.5000 +- 0.3536, by mean log-likelihood 0.5000 "}}) {
            args["choices"] = at(file);
            const std::string printed = expect_done(words("eval", args));
            EXPECT_TRUE(printed.starts_with(accuracy)) << dtype << ": " << printed;
        }
    }
}

TEST_F(CudaProgram, ProfileAddsUp) {
    std::istringstream printed(train("profiled", few_and({{"profile", ""}})));
    double layers = 0, rest = 0, step = 0;
    std::set<std::string> names;
    for (std::string line; std::getline(printed, line);) {
        const size_t unit = line.find(" ms/step");
        if (unit == std::string::npos) continue;
        const double milliseconds = std::stod(line.substr(28, unit - 28));
        const std::string name = line.substr(0, line.find("  "));
        EXPECT_GE(milliseconds, 0) << line;
        EXPECT_EQ(line.find("nan"), std::string::npos) << line;
        (name == "all else" ? rest : name == "step" ? step : layers) += milliseconds;
        names.insert(name);
    }
    EXPECT_NEAR(layers + rest, step, 0.001 * static_cast<double>(names.size()));  // each is rounded
    for (const char* name : {"matmul_forward", "attention_backward", "layernorm_backward", "global_norm",
                             "adamw_update", "round_stochastically", "all else", "step"})
        EXPECT_TRUE(names.contains(name)) << name;
}

TEST_F(CudaProgram, RefusesWhatIsNotThere) {
    expect_refused(training("none", {{"device", "7"}}),
                   {"--device: there is no GPU 7, only 0 … 1", "./train_gpt2", "trains on the CPU"});
    expect_refused(training("none", {{"heads", "2"}, {"channels", "520"}}),
                   {"attention: the head size 260", "limit of 256"});
    if (!is_sanitized())  // AddressSanitizer reserves terabytes of addresses
        expect_refused(training("none", {{"heads", "16"}, {"channels", "2560"}}),
                       {"host memory: ", "MiB available, ", "needed to read and save the model"},
                       {.memory = rlim_t{1} << 30});
    expect_refused(training("none", {{"threads", "2"}}), {"--threads: unknown option of train;"});
    expect_refused(training("none", {{"matmul", "tf32"}}), {"--dtype"});  // of fp32 only
    on_cpu();
    expect_refused(training("none", {{"dtype", "fp32"}}), {"--dtype: unknown option of train;"});
}

TEST_F(CudaProgram, VersionNamesTheGpuAndCuda) {
    const std::string printed = expect_done({"--version"});
    EXPECT_TRUE(printed.starts_with("train_gpt2cu ")) << printed;
    EXPECT_NE(printed.find("\ndevice: NVIDIA GPU; CUDA emulated on the CPU"), std::string::npos) << printed;
}

TEST_F(CudaProgram, SaysHowItGoesOnByItsOwnName) {
    const Child child = start(training("run", {{"steps", "1000000"}, {"warmup", "1"}, {"eval-every", "0"}}));
    wait_for_log(child, "run");
    kill(child.pid, SIGINT);
    const Result result = finish(child);
    EXPECT_EQ(result.status, 128 + SIGINT);
    EXPECT_EQ(result.err, "\ntrain_gpt2cu: stopping after this step; a second signal stops at once\n");
    EXPECT_NE(result.out.find("\n  train_gpt2cu --resume --out '" + at("run") + "'\n"), std::string::npos)
        << result.out;
}

}  // namespace
