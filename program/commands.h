// The commands that do not train (convert and info: io/convert.h, io/info.cpp). They throw InputError.
#pragma once

#include "io/options.h"

void run_generate(const Options& options);
void run_eval(const Options& options);
void run_tokenize(const Options& options);
