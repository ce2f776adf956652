// The command line. Each option (name, member, range, default, unit, help) is one row of the table in options_table.h.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpt2_tensors.h"
#include "device/update.h"
#include "io/data/data_files.h"

struct Options {
    std::string command;  // train, generate, eval, convert, tokenize, report or info
    bool on_gpu = false;  // train_gpt2cu's options, not train_gpt2's
    int64_t ranks = 1;    // processes that train together

    // train; a path is "" if none is given
    std::vector<std::string> data, val;  // each a file, a directory of texts, or a glob
    int64_t text_mb = 0;                 // of the texts of data; 0: all
    std::string field;                   // of JSON lines: the member that is the text
    bool documents = false;              // no sequence crosses the border of a document
    std::string tokenizer;               // "": the one of the model that --init or --from names
    bool no_special_tokens = false;
    std::string model, init, embedding;
    int64_t layers = 0, heads = 0, channels = 0, context = 0;
    int64_t vocab = 0;                            // 0: that of the tokenizer
    int64_t batch = 0, seq = 0, total_batch = 0;  // total_batch: tokens per optimizer step
    int64_t shards = 1;
    double minutes = 0, hours = 0;  // 0: as long as the steps take
    int64_t steps = 0, warmup = 0;
    std::string schedule;   // cosine, linear, constant, wsd
    std::string replanned;  // STEP:STEPS,...; "": never
    double lr = 0, muon_lr = 0, final_lr_frac = 0, decay_frac = 0, weight_decay = 0, beta1 = 0, beta2 = 0;
    double clip = 0;              // 0: off
    double dropout = 0;           // 0: off
    int64_t sampled_softmax = 0;  // 0: off
    double skip_outliers = 0;     // standard deviations; 0: off
    std::string optimizer, matmul, recompute;
    int64_t eval_every = 0, sample_every = 0, save_every = 0, patience = 0;  // 0: never
    int64_t eval_batches = 0, sample_tokens = 0;
    int64_t keep = 0;  // number of checkpoints; 0: all
    std::string out;
    bool resume = false, profile = false;
    bool tensorboard = false;
    int64_t seed = 0;
    int64_t threads = 0;  // 0: chosen by threads.h
    int64_t device = 0;   // on_gpu
    std::string dtype;    // on_gpu

    // generate, eval
    std::string from, prompt, prompt_file, prompt_ids;
    int64_t samples = 0, tokens = 0, top_k = 0;           // top_k 0: off
    double temperature = 0;                               // 0: greedy
    double top_p = 0, min_p = 0, repetition_penalty = 0;  // 1, 0, 1: off
    std::vector<std::string> stop;
    bool ignore_end = false, interactive = false;
    std::string weights;  // fp32, bf16, int8
    int64_t stride = 0;   // 0: --seq

    // train, eval
    std::string choices;  // "": none
    int64_t limit = 0;    // 0: all

    // convert, tokenize: IN, OUT; report: RUN..., OUT; info: IN
    std::string in_path, out_path;
    std::vector<std::string> runs;
    bool train_tokenizer = false;  // tokenize
    bool superwords = false;       // of the tokenizer that it trains
    bool bf16 = false, verify = false;
    std::string type;  // of a GGUF file's matrices

    DataNames data_names() const { return {data, field, text_mb * 1'000'000}; }
    DataNames val_names() const { return {val, field}; }

    // Whether the option with this name ("lr", without dashes) was on the command line.
    bool given(const std::string& name) const { return given_.contains(name); }

    // The options that define a training run, as a JSON object by name. Checkpoints save it.
    std::string to_json() const;
    // For --resume: takes the options that were not given again from such an object. Throws InputError if a given
    // option contradicts it (another model shape, another tokenizer, …).
    void fill_from_json(const std::string& json);
    // For --init: sets the shape and tokenizer of the model that was read, and the defaults that depend on them.
    void use_model(const GPT2Config& config, const std::string& tokenizer_name);

    // Sets those of these options, by name and text, that were not given by hand, and the defaults that depend on them.
    // Throws InputError if they contradict those that were.
    void choose(const std::vector<std::pair<std::string, std::string>>& values);

    // What choose() has set, as on a command line: " --layers 4 --channels 128".
    std::string chosen() const;

    // Every option of the command by name, as text, for the report.
    std::vector<std::pair<std::string, std::string>> list() const;

private:
    friend Options parse_options(int argc, const char* const* argv, bool on_gpu, int64_t ranks);
    void fill_defaults();
    void name_shape();
    void check() const;

    std::string preset_ = "tiny";          // --model as given; name_shape changes model
    std::set<std::string> given_, saved_;  // names on the command line; names that fill_from_json has set
};

// What --optimizer names.
inline Optimizer optimizer_of(const Options& options) {
    return options.optimizer == "muon"      ? Optimizer::muon
           : options.optimizer == "normuon" ? Optimizer::normuon
                                            : Optimizer::adamw;
}

// Thrown for --help; main prints the text and exits with 0.
struct HelpRequest {
    std::string text;
};

// Thrown for --version; main prints it and exits with 0.
struct VersionRequest {};

std::string program_name(bool on_gpu);

// Throws InputError ("--batch: invalid value -3; give a whole number from 1 to 65536"), HelpRequest, VersionRequest.
Options parse_options(int argc, const char* const* argv, bool on_gpu = false, int64_t ranks = 1);
