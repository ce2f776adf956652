// What the program asks of the device that it is built for. program/device_cpu.cpp answers for the CPU, train_gpt2.cu
// for a GPU; the training loop and the other commands know no more of it than this.
#pragma once

#include <memory>
#include <string>

#include "gpt2_model.h"
#include "program/options.h"

// How much memory a model for batches of at most B x T tokens takes, in one line. Throws InputError, naming `remedy`,
// if that is more than there is, or where the device cannot do what the options ask for.
std::string plan_memory(const Options& options, const GPT2Config& config, int64_t B, int64_t T, ActivationPolicy policy,
                        const std::string& remedy);

std::unique_ptr<Model> make_model(const Options& options, const GPT2Config& config, int64_t B, int64_t T,
                                  ActivationPolicy policy);

// Runs a batch of x, y (B,T) as Model::forward_backward does, and finds where NaN or infinity first shows: "fch of
// layer 3", "the gradient of wte"; "" where nowhere.
std::string find_nonfinite(Model& model, const int32_t* x, const int32_t* y, int64_t B, int64_t T, double scale);

// What it can do at best, which speed is compared with: FLOP/s in the options' precision, by the data sheet where there
// is one for it, or measured now; bytes/s copied, measured now.
double peak_flops(const Options& options);
double measured_peak_flops(const Options& options);
double peak_bytes();

// Which program this is: its options and its name.
bool on_gpu();
inline std::string program_name() { return program_name(on_gpu()); }

// What kind it is and what this program can do with it, for --version.
std::string device_features();

// "2 threads", or the GPU's name
std::string device_name(const Options& options);
