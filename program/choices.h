// A model's answers to multiple-choice examples, as llm.c, nanoGPT and lm-eval count them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "gpt2_model.h"
#include "device/parallel/ranks.h"
#include "io/data/choices.h"

struct ChoicesResult {
    bool last_word = false;
    int64_t examples = 0;
    // The number of right answers: the chosen ending has the largest log-likelihood, as the sum or as the mean over its
    // tokens. Of last words, by_sum counts those that are the greedy prediction, token by token.
    int64_t by_sum = 0, by_mean = 0;
    double nats = 0;  // the sum of -log-likelihood of the right endings

    // The one number for a log: by the mean (HellaSwag's usual measure), or of last words.
    double accuracy() const;
    // "accuracy by summed log-likelihood 0.2859 +- 0.0045, …": with standard errors.
    std::string text() const;
};

// The number of tokens that are computed for all of the examples, for a progress line.
int64_t tokens_to_evaluate(const ExampleSet& set, int64_t seq);

// One line about the examples of which a model that sees `seq` tokens sees only the end, or "" if there are none.
std::string long_examples_note(const ExampleSet& set, int64_t seq);

// A number that differs, almost surely, between sets whose examples differ.
uint32_t fingerprint(const ExampleSet& set);

// Each forward pass computes up to batch * seq tokens, of rows of similar length. `between` is called before each with
// the number of tokens so far; if it returns false, the evaluation ends without a result. Ranks share the passes, and
// each gets the result, which has the same bits for any number of them. The model needs room for one sequence in its
// cache. Throws CheckFailed if a loss is NaN or infinite.
std::optional<ChoicesResult> evaluate_choices(Model& model, const ExampleSet& set, int64_t batch, int64_t seq,
                                              const std::function<bool(int64_t)>& between, Ranks& ranks = alone());
