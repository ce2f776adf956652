// generate --interactive: lines that a person types, each followed by its continuation.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/text/tokenizer.h"
#include "program/generation.h"
#include "program/options.h"

// Reads lines from standard input until its end. A line is appended to the text so far, after a line break, and the
// model continues it by at most --tokens tokens; an empty line only continues the text. On a terminal lines can be
// edited and earlier ones recalled. Ctrl-C ends a continuation, and at the prompt the program. `encode` returns a
// text's ids; if it throws InputError, the message is printed and the line is left out. Returns the exit status.
int run_interactive(const Options& options, Generator& generator, const Tokenizer& tokenizer,
                    const std::function<std::vector<int32_t>(const std::string&)>& encode);
