// The commands generate, eval and tokenize. They throw InputError.
#pragma once

#include "program/options.h"

void run_generate(const Options& options);
void run_eval(const Options& options);
void run_tokenize(const Options& options);
