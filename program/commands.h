// The commands that do not train (convert and info: program/convert.h, program/info.cpp). They throw InputError.
#pragma once

#include "program/options.h"

void run_generate(const Options& options);
void run_eval(const Options& options);
void run_tokenize(const Options& options);
