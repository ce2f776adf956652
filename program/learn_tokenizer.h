// Learns a byte-level BPE from a user's text: for `tokenize --train`, and for a training run with --tokenizer bpe:N.
#pragma once

#include <memory>

#include "io/text/tokenizer.h"
#include "program/options.h"

// Learns from all of TEXT and writes OUT.json.
void run_learn_tokenizer(const Options& options);

// Learns from the training part of --data. If that has too few words for N tokens, throws InputError or, where
// --minutes has chosen N, chooses again: as many tokens as there are, or bytes instead of very few.
std::shared_ptr<const Tokenizer> learn_tokenizer(Options& options);
