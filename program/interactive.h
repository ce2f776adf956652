// generate --interactive: lines that a person types, each followed by its continuation.
#pragma once

#include "io/text/tokenizer.h"
#include "program/generation.h"
#include "program/options.h"

// Reads lines from standard input until its end. A line is appended to the text so far, after a line break, and the
// model continues it by at most --tokens tokens; an empty line only continues the text. On a terminal lines can be
// edited and earlier ones recalled. Ctrl-C ends a continuation, and at the prompt the program. Returns the exit status.
int run_interactive(const Options& options, Generator& generator, const Tokenizer& tokenizer);
