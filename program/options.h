// The command line: what each option is called, means, defaults to and may be stands in one row of a table in
// options.cpp.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpt2_tensors.h"

struct Options {
    std::string command;  // train, generate, eval, convert, tokenize or info
    bool on_gpu = false;  // of which program

    // train; for paths "" means none
    std::string data, val, tokenizer;  // tokenizer "": the model's own, if any (with --init, --from)
    bool no_special_tokens = false;
    std::string model, init;
    int64_t layers = 0, heads = 0, channels = 0, context = 0;
    int64_t vocab = 0;                            // 0: as many as the tokenizer has
    int64_t batch = 0, seq = 0, total_batch = 0;  // total_batch: tokens an update
    int64_t steps = 0, warmup = 0;
    std::string schedule;  // cosine, linear, constant, wsd
    double lr = 0, muon_lr = 0, final_lr_frac = 0, weight_decay = 0, beta1 = 0, beta2 = 0;
    double clip = 0;           // 0: none
    double skip_outliers = 0;  // standard deviations; 0: never
    std::string optimizer, matmul, recompute;
    int64_t eval_every = 0, sample_every = 0, save_every = 0;  // 0: at the end only
    int64_t eval_batches = 0, sample_tokens = 0;
    int64_t keep = 0;  // newest checkpoints kept; 0: all
    std::string out;
    bool resume = false, profile = false;
    int64_t seed = 0;
    int64_t threads = 0;  // 0: all cores
    int64_t device = 0;   // on_gpu
    std::string dtype;    // on_gpu

    // generate, eval
    std::string from, prompt, prompt_ids;
    int64_t tokens = 0, top_k = 0;  // top_k 0: off
    double temperature = 0;         // 0: always the likeliest token

    // convert, tokenize: IN, OUT; info: IN
    std::string in_path, out_path;
    bool bf16 = false, verify = false;

    // Was "lr" (long name, no dashes) on the command line?
    bool given(const std::string& name) const { return given_.contains(name); }

    // The options that define a training run, as a JSON object of long names: what a checkpoint saves.
    std::string to_json() const;
    // With --resume: takes from such an object what was not given again. Throws InputError where the two cannot be
    // one run (another model shape, tokenizer, …).
    void fill_from_json(const std::string& json);
    // With --init: the shape and tokenizer that were read, after which the defaults that depend on them are known.
    void use_model(const GPT2Config& config, const std::string& tokenizer_name);

    // Every option of the command, by long name, as text: the report's configuration.
    std::vector<std::pair<std::string, std::string>> list() const;

private:
    friend Options parse_options(int argc, const char* const* argv, bool on_gpu);
    void fill_defaults();
    void name_shape();
    void check() const;

    std::set<std::string> given_, saved_;  // on the command line; from fill_from_json
};

// What --help asks for: main prints it and exits with 0.
struct HelpRequest {
    std::string text;
};

// What --version asks for: main prints it and exits with 0.
struct VersionRequest {};

// As help and messages have it.
std::string program_name(bool on_gpu);

// Of train_gpt2, or with on_gpu of train_gpt2cu. Throws InputError ("--batch: found -3, expected 1 … 65536; …")
// HelpRequest and VersionRequest.
Options parse_options(int argc, const char* const* argv, bool on_gpu = false);
