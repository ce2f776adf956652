// --minutes and --hours: which model to train, on which tokens and for how many steps, so that the run ends in time
// with the lowest loss. Options that were given by hand are kept.
#pragma once

#include <cstdint>
#include <string>

#include "gpt2_model.h"
#include "device/parallel/ranks.h"
#include "program/options.h"

// The seconds that --minutes or --hours gives, or 0.
inline double seconds_to_train(const Options& options) { return options.minutes * 60 + options.hours * 3600; }

// --minutes chooses bytes where a text could teach fewer tokens than this.
inline constexpr int64_t smallest_useful_vocabulary = 512;

// Sets --matmul to what is fastest on rank 0's machine. All ranks call it.
void choose_matmul(Options& options, Ranks& ranks);

// Sets the model's shape, the tokenizer and the rates by the operations that this machine can do in the time, and the
// size of the text. Measures the machine for about a second. All ranks call it.
void choose_recipe(Options& options, Ranks& ranks);

// Sets --text-mb for a model that exists already, by the most tokens that this machine could train it on in the time.
// All ranks call it.
void choose_text(Options& options, const GPT2Config& config, Ranks& ranks);

// What choose_steps() has to know of a run that is ready to begin.
struct ReadyRun {
    const GPT2Config& config;
    ActivationPolicy policy;
    int64_t train_tokens, val_tokens;
    double seconds_left;
};
// The seconds that all takes besides steps: what is spread over the run, and what comes after its last step.
struct TimeBesides {
    double spread = 0, at_end = 0;
};
// Sets the number of steps, and how often to evaluate, sample and save, by the time that steps of this model take, and
// the weight decay of a new model. Trains it for some seconds on tokens without meaning. Throws InputError if the time
// is too short for ten steps. All ranks call it.
TimeBesides choose_steps(Options& options, const ReadyRun& run, Ranks& ranks);
