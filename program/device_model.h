// The interface between the program and its device. program/device_cpu.cpp implements it for the CPU, train_gpt2.cu for
// a GPU; the training loop and the other commands use nothing else of the device.
#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "gpt2_model.h"
#include "gpt2_slices.h"
#include "program/options.h"

// How the run of these options is shared among `ranks`.
inline Sharing sharing(const Options& options, Ranks& ranks) {
    return {
        .shards = options.shards / ranks.count(), .ranks = &ranks, .muon = optimizer_of(options) != Optimizer::adamw};
}

// Lets the devices of a training run's ranks exchange what lies in their own memory. All ranks call it together, before
// the other functions; what it throws on one rank alone ends all of them.
void connect_devices(const Options& options, Ranks& ranks);

// Returns one line about the memory that a model for batches of at most B x T tokens takes. Throws InputError if that
// is more than is available (with `remedy` in the message), or if the device does not support the options.
std::string plan_memory(const Options& options, const GPT2Config& config, int64_t B, int64_t T, ActivationPolicy policy,
                        const std::string& remedy, Ranks& ranks = alone());

// The room for keys, values and logits that the command needs. A sample begins with a few tokens; --choices needs the
// logits of one token.
inline CacheSize cache_size(const Options& options, const GPT2Config& config) {
    if (options.command == "generate") return {options.samples, config.context};
    if (options.command != "train" || options.sample_every == 0 || options.sample_tokens == 0)
        return options.choices.empty() ? CacheSize{} : CacheSize{1, 1};
    return {1, std::min(config.context, options.sample_tokens + 16)};
}

std::unique_ptr<Model> make_model(const Options& options, const GPT2Config& config, int64_t B, int64_t T,
                                  ActivationPolicy policy, Ranks& ranks = alone());

// Runs a batch of x, y (B,T) as Model::forward_backward does, and finds where NaN or infinity first appears: "fch of
// layer 3", "the gradient of wte". "" if all values are finite.
std::string find_nonfinite(Model& model, const int32_t* x, const int32_t* y, int64_t B, int64_t T, double scale);

// The device's peak, to compare speed with. FLOP/s are in the options' precision, from the data sheet if it is known,
// otherwise measured now; bytes/s are of a copy, measured now.
double peak_flops(const Options& options);
double measured_peak_flops(const Options& options);
double peak_bytes();

// Whether there is --matmul bf16, which trains faster than fp32.
bool has_bf16_matmuls();

// Whether this is train_gpt2cu, which decides its options and its name.
bool on_gpu();
inline std::string program_name() { return program_name(on_gpu()); }

// The kind of device and its precisions, for --version.
std::string device_features();

// "2 threads", or the GPU's name.
std::string device_name(const Options& options);
