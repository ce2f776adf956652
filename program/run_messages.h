// The messages of a training run, except its progress line.
#pragma once

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <omp.h>

#include "program/device_model.h"
#include "io/data/batch_sampler.h"
#include "io/data/dataset.h"
#include "io/file/error.h"
#include "io/text/tokenizer.h"
#include "device/platform.h"
#include "device/update.h"
#include "device/parallel/ranks.h"
#include "program/launcher.h"
#include "program/outliers.h"
#include "program/schedule.h"

inline void print_run(const Options& options, const Model& model, int64_t train_tokens, int64_t val_tokens,
                      int64_t step, const std::string& checkpoint) {
    const GPT2Config& c = model.config;
    std::printf("model: %" PRId64 " layers, %" PRId64 " heads, %" PRId64 " channels, context %" PRId64
                ", vocabulary %" PRId64 ": %.2f M parameters\n",
                c.layers, c.heads, c.channels, c.context, c.vocab, static_cast<double>(model.table.size) / 1e6);
    std::printf("data: %s: %" PRId64 " tokens to train on, %" PRId64 " to validate\n",
                options.data_names().text().c_str(), train_tokens, val_tokens);
    std::printf("training: %" PRId64 " steps of %" PRId64 " tokens, %s\n", options.steps, options.total_batch,
                device_name(options).c_str());
    if (!checkpoint.empty()) std::printf("resuming after step %" PRId64 " from %s\n", step, checkpoint.c_str());
    if (options.resume && checkpoint.empty()) std::printf("no checkpoint yet: starting again\n");
}

// "4 ranks on 2 machines, 2 threads each", and a hint if that leaves cores idle.
inline void print_ranks(Ranks& ranks) {
    if (ranks.count() == 1) return;
    const std::vector<int> threads = all_gather(ranks, omp_get_max_threads());
    const std::vector<int64_t> cores = all_gather(ranks, platform::cores());
    const std::set<std::string> hosts(ranks.hosts().begin(), ranks.hosts().end());
    const auto [fewest, most] = std::ranges::minmax(threads);
    std::printf("ranks: %" PRId64 " on %zu machine%s, %d%s%s %s each\n", ranks.count(), hosts.size(),
                hosts.size() == 1 ? "" : "s", fewest, fewest == most ? "" : " to ",
                fewest == most ? "" : std::to_string(most).c_str(), most == 1 ? "thread" : "threads");
    const char* const more_cores =
        Launcher().is_srun() ? "srun --cpus-per-task=N" : "mpirun --bind-to none, or --map-by socket:PE=N,";
    for (const std::string& host : hosts) {
        int64_t used = 0, all = 0;
        for (size_t r = 0; r < threads.size(); ++r)
            if (ranks.hosts()[r] == host) used += threads[r], all = cores[r];
        if (used < all)
            std::printf("ranks: %" PRId64 " of the %" PRId64
                        " cores of %s are idle; %s gives a rank more than one core\n",
                        all - used, all, host.c_str(), more_cores);
    }
}

// What the ranks have sent for the steps, and how that compares with what the sums and the slices take.
inline void print_sent(const Options& options, const std::vector<double>& sent_bytes, int64_t parameters,
                       int64_t steps) {
    if (sent_bytes.size() == 1 || steps == 0) return;
    const double ranks = static_cast<double>(sent_bytes.size()), mib = 1 << 20,
                 sent = std::accumulate(sent_bytes.begin(), sent_bytes.end(), 0.0) / ranks / static_cast<double>(steps),
                 of_parameter = options.on_gpu && options.dtype == "bf16" ? 2 : 4,
                 formula = (4 + of_parameter) * (ranks - 1) / ranks * static_cast<double>(parameters);
    std::printf(
        "sent per step by each rank: %.1f MiB; gradients and parameters are (4 + %.0f) bytes * (R-1)/R each, "
        "%.1f MiB\n",
        sent / mib, of_parameter, formula / mib);
}

inline Schedule schedule_of(const Options& o) {
    return {o.schedule, o.lr, o.final_lr_frac, o.warmup, o.steps, o.decay_frac, *parse_replanned(o.replanned, o.steps)};
}

// A warning if the options of a resumed run change the learning rate after `step`, as another number of steps stretches
// the cosine. "" if the rate is that of an uninterrupted run with these options.
inline std::string schedule_change(const Options& before, const Options& now, int64_t step) {
    const Schedule old_schedule = schedule_of(before), new_schedule = schedule_of(now);
    if (step == 0 || old_schedule.at(step) == new_schedule.at(step)) return "";
    const auto old_options = before.list();
    std::string changed;
    for (const auto& [name, value] : now.list())
        for (const char* of_schedule :
             {"steps", "schedule", "warmup", "lr", "final-lr-frac", "decay-frac", "replanned"})
            if (const std::pair<std::string, std::string> option{name, value};
                name == of_schedule && !std::ranges::count(old_options, option))
                changed += (changed.empty() ? "--" : ", --") + name + " " + value;
    char rates[128];
    std::snprintf(rates, sizeof rates, "from %g at step %" PRId64 " to %g at step %" PRId64, old_schedule.at(step),
                  step, new_schedule.at(step + 1), step + 1);
    return changed + ": changes the " + now.schedule + " schedule of the resumed run: the learning rate jumps " +
           rates + "; the result differs from an uninterrupted run with these options";
}

// Prints how many special tokens a text has, since their names may have been meant as text.
inline void print_special_tokens(const Dataset& data, const Tokenizer& tokenizer) {
    const std::string note = tokenizer.added().note(data.source, data.special);
    if (!note.empty()) std::printf("%s\n", note.c_str());
}

// The token that ends a document, for --documents. Throws InputError if the tokenizer has none.
inline int32_t end_of_documents(const Tokenizer& tokenizer) {
    if (tokenizer.end_of_text() < 0)
        throw InputError("--documents: the tokenizer " + tokenizer.name() +
                         " has no end-of-text token that tells documents apart; choose --tokenizer gpt2 or bpe:4096, "
                         "or leave out --documents");
    return tokenizer.end_of_text();
}

// Prints how much of the data --documents leaves.
inline void print_documents(const BatchSampler::DocumentShare& share, int64_t seq) {
    std::printf("documents: %" PRId64 " of %" PRId64 " hold a sequence of %" PRId64
                " tokens, the others are left out; an epoch has %.1f %% of the tokens\n",
                share.used, share.documents, seq,
                100 * static_cast<double>(share.used_tokens) / static_cast<double>(share.tokens));
}

// A warning if --tokenizer is probably not the model's, or "". Vocabularies are often padded, as nanoGPT's 50304 and
// Megatron-LM's, but by fewer than 1024 ids.
inline std::string tokenizer_doubt(const Options& options, const Tokenizer& tokenizer, const GPT2Config& config) {
    const int64_t unused = config.vocab - tokenizer.vocab();
    if (!options.given("tokenizer") || !tokenizer.reads_text() || (0 <= unused && unused < 1024)) return "";
    return "--tokenizer " + tokenizer.name() + " has " + std::to_string(tokenizer.vocab()) +
           " tokens and the model has " + std::to_string(config.vocab) +
           (unused < 0 ? " ids: a token beyond them is an error"
                       : " ids: those beyond the tokenizer are never sampled") +
           "; check that the model was trained with it";
}

inline void print_skipped(int64_t step, const StepResult& result, const UpdateParams& params, double z) {
    std::printf("step %" PRId64
                ": update skipped: loss %.4f, gradient norm %.4f; the limits, %g standard deviations above the mean of "
                "the last %zu, are %.4f and %.4f\n",
                step, result.loss, result.grad_norm, z, Outliers::window, params.max_loss, params.max_norm);
}

// Quotes a word for a POSIX shell.
inline std::string shell_word(const std::string& text) {
    std::string word = "'";
    for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return word + "'";
}

inline void print_stopped(const char* signal, int64_t step, const std::string& out) {
    std::printf("stopped by %s after step %" PRId64 "; to continue:\n  %s --resume --out %s\n", signal, step,
                program_name().c_str(), shell_word(out).c_str());
}

// `where` is the result of find_nonfinite (program/device_model.h).
inline bool in_parameters(const std::string& where) { return where.starts_with("parameter"); }

inline std::string nonfinite_message(int64_t step, const StepResult& result, const std::string& where, int64_t position,
                                     int64_t seed, bool saved) {
    char text[256];
    std::snprintf(text, sizeof text, "step %" PRId64 ": loss %g, gradient norm %g: ", step, result.loss,
                  result.grad_norm);
    std::string message = text;
    if (where.empty()) {
        message += "computed again, all values are finite; check the machine's memory";
    } else {
        std::snprintf(text, sizeof text, " (batch at position %" PRId64 ", seed %" PRId64 "); ", position, seed);
        message += "NaN or infinity first appears in " + where + text;
        message += in_parameters(where) ? "resume from an earlier checkpoint, or start from another model"
                                        : "lower --lr or --clip, or check that data, and continue with --resume";
    }
    return message + (saved ? "; the state after step " + std::to_string(step - 1) + " is saved" : "");
}
