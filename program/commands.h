// The commands generate, eval and tokenize. They throw InputError.
#pragma once

#include "program/options.h"

int run_generate(const Options& options);  // returns the exit status
void run_eval(const Options& options);
void run_tokenize(const Options& options);
