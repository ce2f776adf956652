#include "program/interactive.h"

#include <editline/readline.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "io/file/error.h"
#include "program/device_model.h"
#include "program/stop_signals.h"
#include "program/text_stream.h"

namespace {

void print(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
}

// The next line without its line break; nothing at the end of the input.
std::optional<std::string> next_line() {
    std::string line;
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) {
        if (!std::getline(std::cin, line)) return std::nullopt;
        return line;
    }
    rl_catch_signals = 1;  // the library restores the terminal before a signal ends the program
    const std::unique_ptr<char, void (*)(void*)> typed(readline("> "), std::free);
    if (!typed) {
        print("\n");
        return std::nullopt;
    }
    line = typed.get();
    if (!line.empty()) add_history(typed.get());
    return line;
}

}  // namespace

int run_interactive(const Options& options, Generator& generator, const Tokenizer& tokenizer,
                    const std::function<std::vector<int32_t>(const std::string&)>& encode) {
    while (const std::optional<std::string> line = next_line()) {
        // A line break separates a line from the text before it, and begins a text whose first line is empty.
        const std::string text = generator.has_text() != line->empty() ? "\n" + *line : *line;
        try {
            if (!text.empty()) generator.append(encode(text));
        } catch (const InputError& e) {
            std::fprintf(stderr, "%s: %s\n", program_name().c_str(), e.what());
            continue;
        }
        stop_signals::catch_stop(program_name(), "token");
        TextStream stream(options.stop);
        generator.generate(options.tokens, [&](int64_t, int32_t id) {
            const bool ends = id == tokenizer.end_of_text() && !options.ignore_end;
            print(stream.add(ends ? "" : tokenizer.token(id)));
            return !ends && !stream.stopped() && !stop_signals::stop_asked;
        });
        print(stream.rest() + "\n");
        stop_signals::release();
    }
    return 0;
}
