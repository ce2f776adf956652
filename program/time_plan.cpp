#include "program/time_plan.h"

#include <omp.h>

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "device/profile.h"
#include "device/update.h"
#include "io/file/error.h"
#include "io/text/bpe_trainer.h"
#include "program/device_model.h"
#include "program/progress.h"
#include "program/recipes.h"
#include "program/text_use.h"
#include "program/token_shares.h"

namespace {

constexpr double unlimited = std::numeric_limits<double>::infinity();

using Choices = std::vector<std::pair<std::string, std::string>>;

std::string text(int64_t x) { return std::to_string(x); }
std::string text(double x) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.3g", x);
    return digits;
}

// Seconds of a training step, and of the losses of one batch.
struct StepTime {
    double step, forward, flops_per_token, flops_per_second;
};

// Numbers in ±0.02, which take a tenth of the time of random ones: a large vocabulary has millions.
void fill_without_meaning(float* x, int64_t n) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; ++i) x[i] = 0.04f * static_cast<float>(i * 40503 % 65536) / 65536 - 0.02f;
}

// Trains a model on tokens without meaning for about so many seconds, after a step that warms it up.
StepTime time_steps(const Options& options, const GPT2Config& config, ActivationPolicy policy, double seconds,
                    Ranks& ranks) {
    const int64_t B = options.batch, T = options.seq;
    const auto model = make_model(options, config, B, T, policy, ranks);
    const Model::HostState host = model->to_fill();
    fill_without_meaning(host.parameters, model->table.size);
    model->upload(host);
    if (options.sampled_softmax > 0) model->sample_softmax(zipf_shares(config.vocab), options.sampled_softmax);
    std::vector<int32_t> tokens(static_cast<size_t>(B * T) + 1);
    const Random random{.seed = 0, .purpose = Purpose::sampling};
    for (size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = static_cast<int32_t>(zipf_token(random.uniform(i), config.vocab));
    const int32_t *const x = tokens.data(), *const y = x + 1;
    const int64_t shards = options.shards / ranks.count(), batches = options.total_batch / (B * T * options.shards);
    const auto step = [&](int64_t number) {
        for (int64_t shard = 0; shard < shards; ++shard) {
            for (int64_t batch = 0; batch < batches; ++batch)
                model->forward_backward(x, y, B, T, 1.0 / static_cast<double>(options.total_batch));
            model->end_shard(shard);
        }
        model->update(at_step({.lr = options.lr,
                               .beta1 = options.beta1,
                               .beta2 = options.beta2,
                               .optimizer = optimizer_of(options),
                               .muon_lr = options.muon_lr,
                               .clip = options.clip},
                              number));
    };
    step(1);
    int64_t steps = 0;
    double start = seconds_now(), took = 0;
    do {
        step(2 + steps++);
        took = seconds_now() - start;
    } while (from_first(ranks, took < seconds ? 1 : 0) > 0);
    StepTime time{};
    time.step = from_first(ranks, took / static_cast<double>(steps));
    time.flops_per_token = model->flops_per_token(T);
    time.flops_per_second = time.flops_per_token * static_cast<double>(options.total_batch) / time.step;
    std::vector<float> losses(static_cast<size_t>(B * T));
    start = seconds_now();
    model->token_losses(losses.data(), x, y, B, T);
    time.forward = from_first(ranks, seconds_now() - start);
    return time;
}

GPT2Config config_of(const Options& options) {
    return {.context = options.context,
            .vocab = options.vocab,
            .layers = options.layers,
            .heads = options.heads,
            .channels = options.channels};
}

// Whether the run's softmax may be over a sample of the tokens, so that more tokens take little time. --model brings
// its own defaults.
bool samples_softmax(const Options& options) {
    if (options.on_gpu) return false;
    return options.given("sampled-softmax") ? options.sampled_softmax > 0 : !options.given("model");
}

// The tokens of a run: those of the tokenizer that is given, or as many as the recipe names and the text can teach. How
// many those of a file, of GPT-2 or of token shards (0 bytes) are is not looked up: they count as the recipe's.
int64_t vocabulary_of(const Options& options, const Recipe& recipe, int64_t text_bytes, bool sampled_softmax) {
    if (options.given("tokenizer")) {
        const int64_t trained = trained_vocabulary_size(options.tokenizer);
        return trained > 0 ? trained : options.tokenizer == "byte" ? bytes_alone : recipe.vocab;
    }
    if (text_bytes == 0) return recipe.vocab;
    const int64_t sampled = Recipe::sampled_tokens_for(text_bytes), full = Recipe::tokens_for(text_bytes);
    if (sampled_softmax && sampled >= Recipe::least_sampled_tokens) return sampled;
    return full < smallest_useful_vocabulary ? bytes_alone : std::min(recipe.vocab, full);
}

// Whether a run that comes to so many tokens should have superwords among them. They make more of a text fit into it,
// which gains as long as the text is new; where it is read again, what they repeat is learned by heart.
bool has_superwords(const Options& options, int64_t text_bytes, int64_t vocab, double tokens) {
    if (options.given("tokenizer")) return is_superword_spec(options.tokenizer);
    return samples_softmax(options) && vocab >= Recipe::least_sampled_tokens &&
           is_new_text(text_bytes, {vocab, true}, tokens);
}

// 0 for token shards. A compressed text is about three times as long as its file.
int64_t bytes_of_text(const Options& options) {
    const DataFiles data = find_files(options.data_names());
    int64_t bytes = 0;
    if (!data.shards)
        for (const std::string& path : data.files.paths) {
            std::error_code missing;  // which is reported when the data are opened
            const auto size = std::filesystem::file_size(path, missing);
            if (!missing) bytes += static_cast<int64_t>(size) * (unpacked_name(path) == path ? 1 : 3);
        }
    return bytes;
}

// Of a run of so many tokens, on rank 0's machine. All ranks call it.
TextUse use_on_first(const Options& options, int64_t all_bytes, const TokenKind& kind, double tokens, Ranks& ranks) {
    const TextUse use = use_of_text({.seconds = seconds_to_train(options),
                                     .tokens = tokens,
                                     .kind = kind,
                                     .threads = omp_get_max_threads(),
                                     .given_mb = options.text_mb},
                                    all_bytes);
    return {.mb = from_first(ranks, use.mb), .seconds = from_first(ranks, use.seconds)};
}

void print_use(const Options& options, const TextUse& use, int64_t all_bytes) {
    if (use.mb > 0 && !options.given("text-mb"))
        std::printf("time: the run reads parts of the text: %" PRId64 " of its %" PRId64 " MB are enough for it\n",
                    use.mb, all_bytes / 1'000'000);
}

// What the measured texts ended with at so many operations, if they were trained with about as many.
std::string expectation(double flops) {
    std::string losses;
    for (const MeasuredText& measured : measured_texts)
        if (const auto loss = loss_at(measured, flops)) {
            char one[64];
            std::snprintf(one, sizeof one, "%s%s %.2f", losses.empty() ? "" : ", ", measured.name, *loss);
            losses += one;
        }
    return losses;
}

// The model's shape, the batch and the optimizer that a recipe names for so many tokens. Sequences are as long as the
// context, unless one of the two is given.
Choices choices_of(const Recipe& recipe, const Options& options, int64_t vocab, bool sampled_softmax, bool new_text) {
    const Shape& shape = recipe.shape_for(vocab, new_text);
    const int64_t longest = options.given("seq") ? std::max(shape.context, options.seq) : shape.context;
    const int64_t context = options.given("context") ? options.context : longest;
    Choices choices = {{"layers", text(shape.layers)},
                       {"channels", text(shape.channels)},
                       {"heads", text(shape.heads())},
                       {"context", text(context)},
                       {"seq", text(std::min(context, shape.context))},
                       {"batch", text(shape.batch)},
                       {"optimizer", "normuon"}};
    if (vocab >= Recipe::many_tokens && sampled_softmax)
        choices.emplace_back("sampled-softmax", text(Recipe::drawn_tokens));
    return choices;
}

// What this machine does with a recipe's model.
struct Measured {
    double flops_per_second;
    double tokens;  // that the run comes to
    bool sampled_softmax;
    bool new_text;  // the run does not read the text often, and the recipe's shape is that for new text
    TokenKind kind;
    TextUse use;
};

bool has_own_shape(const Options& options) {
    return options.given("model") || options.given("layers") || options.given("channels");
}

// The run of the time that is given, by any recipe.
struct TimedRun {
    const Options& options;
    Ranks& ranks;
    double seconds = seconds_to_train(options);
    int64_t all_bytes = bytes_of_text(options);
    int64_t text_bytes = options.text_mb > 0 ? std::min(options.text_mb * 1'000'000, all_bytes) : all_bytes;

    int64_t vocab_of(const Recipe& recipe, bool sampled_softmax) const {
        return vocabulary_of(options, recipe, text_bytes, sampled_softmax);
    }

    // By the shape for new text, unless the run would read the text too often.
    Measured measure(const Recipe& recipe, bool sampled_softmax) const {
        const int64_t vocab = vocab_of(recipe, sampled_softmax);
        const Measured measured = measure(recipe, sampled_softmax, sampled_softmax);
        return measured.new_text || recipe.shape_for(vocab, true) == recipe.shape_for(vocab, false)
                   ? measured
                   : measure(recipe, sampled_softmax, false);
    }
    Measured measure(const Recipe& recipe, bool sampled_softmax, bool new_text) const {
        Options trial = options;
        const int64_t vocab = vocab_of(recipe, sampled_softmax);
        Choices choices = choices_of(recipe, options, vocab, sampled_softmax, new_text);
        choices.emplace_back("vocab", text(vocab));
        trial.choose(choices);
        const StepTime time =
            time_steps(trial, config_of(trial), ActivationPolicy::training, std::clamp(seconds / 120, 0.1, 0.5), ranks);
        const double tokens = seconds * time.flops_per_second / time.flops_per_token;
        const TokenKind kind = {vocab, has_superwords(options, text_bytes, vocab, tokens)};
        return {.flops_per_second = time.flops_per_second,
                .tokens = tokens,
                .sampled_softmax = sampled_softmax,
                .new_text = new_text && is_new_text(text_bytes, kind, tokens),
                .kind = kind,
                .use = use_on_first(options, all_bytes, kind, tokens, ranks)};
    }

    double flops_in_time(const Measured& measured) const {
        return std::max(seconds - measured.use.seconds, seconds / 10) * measured.flops_per_second;
    }
    // Whether the run would read the text too often for the many tokens of a sampled softmax.
    bool should_have_fewer_tokens(const Measured& measured) const {
        return measured.kind.vocab >= Recipe::least_sampled_tokens && !options.given("tokenizer") &&
               samples_softmax(options) && !options.given("sampled-softmax") &&
               is_read_too_often(text_bytes, measured.kind, measured.tokens);
    }
    // That the text is good for, unless what was measured does not hold for the run.
    double most_flops(const Recipe& recipe) const {
        const bool own = has_own_shape(options) || options.given("dropout") || options.given("weight-decay");
        return own ? unlimited : most_flops_for(text_tokens(text_bytes, {vocab_of(recipe, samples_softmax(options))}));
    }
};

// Everything that a recipe decides before the text is tokenized.
Choices all_choices_of(const Recipe& recipe, const Measured& measured, const Options& options, int64_t text_bytes) {
    const auto& [vocab, superwords] = measured.kind;
    Choices choices = {{"schedule", "linear"}, {"final-lr-frac", "0"}, {"decay-frac", "0.7"}};
    if (!options.given("model")) {
        const Rates rates = recipe.rates_for(vocab, measured.new_text);
        for (const auto& choice : choices_of(recipe, options, vocab, measured.sampled_softmax, measured.new_text))
            choices.push_back(choice);
        choices.emplace_back("lr", text(rates.lr));
        const bool has_muon = !options.given("optimizer") || options.optimizer != "adamw";
        if (has_muon && rates.muon_lr) choices.emplace_back("muon-lr", text(*rates.muon_lr));
        if (vocab >= Recipe::many_tokens) choices.emplace_back("embedding", "pairs");
    }
    if (text_bytes > 0 && vocab > bytes_alone)
        choices.emplace_back("tokenizer", (superwords ? "superbpe:" : "bpe:") + text(vocab));
    if (measured.use.mb > 0) choices.emplace_back("text-mb", text(measured.use.mb));
    return choices;
}

// With what such runs ended, unless another shape or tokenizer is given than theirs.
void print_choice(const Options& options, const Recipe& recipe, const Measured& measured, double flops,
                  double seconds) {
    const bool own_recipe = has_own_shape(options) || options.given("tokenizer");
    std::printf("time: %s at this machine's %.3g GFLOP/s%s are %.1e operations", duration(seconds).c_str(),
                measured.flops_per_second / 1e9,
                measured.use.seconds > 0.05 * seconds ? ", after the text is tokenized," : "", flops);
    if (!own_recipe)
        std::printf(", for which %" PRId64 " layers of %" PRId64 " channels and tokenizer %s %s", options.layers,
                    options.channels, options.tokenizer.c_str(),
                    recipe.compared ? "were best" : "continue what was best with fewer");
    std::printf("\n");
    if (const std::string losses = expectation(flops); !losses.empty() && !own_recipe)
        std::printf("time: such runs ended at, in nats per byte: %s\n", losses.c_str());
}

}  // namespace

void choose_matmul(Options& options, Ranks& ranks) {
    if (from_first(ranks, int64_t{has_bf16_matmuls()}) != 0) options.choose({{"matmul", "bf16"}});
}

void choose_recipe(Options& options, Ranks& ranks) {
    const TimedRun run{options, ranks};
    std::map<const Recipe*, Measured> machine;
    const auto flops_in_time = [&](const Recipe& recipe) {
        return run.flops_in_time(machine[&recipe] = run.measure(recipe, samples_softmax(options)));
    };
    auto [best, flops] = best_recipe(flops_in_time, [&](const Recipe& recipe) { return run.most_flops(recipe); });
    Measured measured = machine.at(best);
    if (run.should_have_fewer_tokens(measured)) {
        measured = run.measure(*best, false);
        flops = run.flops_in_time(measured);
    }
    options.choose(all_choices_of(*best, measured, options, run.text_bytes));

    double seconds = run.seconds;
    const double useful_flops = std::min(flops, run.most_flops(*best));
    if (useful_flops < flops) {
        seconds = measured.use.seconds + useful_flops / measured.flops_per_second;
        options.minutes = seconds / 60;
        options.hours = 0;
        std::printf("time: in %s this text would be learned by heart, so the run ends after %s\n",
                    duration(run.seconds).c_str(), duration(seconds).c_str());
    }
    print_use(options, measured.use, run.all_bytes);
    print_choice(options, *best, measured, useful_flops, seconds);
}

void choose_text(Options& options, const GPT2Config& config, Ranks& ranks) {
    const double flops_per_token = 6 * static_cast<double>(ParameterTable(config).size);
    const double flops_per_second = static_cast<double>(ranks.count()) * peak_flops(options);
    const int64_t bytes = bytes_of_text(options);
    const TextUse use = use_on_first(options, bytes, {config.vocab},
                                     seconds_to_train(options) * flops_per_second / flops_per_token, ranks);
    if (use.mb > 0) options.choose({{"text-mb", text(use.mb)}});
    print_use(options, use, bytes);
}

TimeBesides choose_steps(Options& options, const ReadyRun& run, Ranks& ranks) {
    const double seconds = from_first(ranks, run.seconds_left);
    const StepTime time = time_steps(options, run.config, run.policy, std::clamp(seconds / 100, 0.5, 5.0), ranks);
    // Events that come every ten minutes, or, in shorter runs, as often as this.
    const auto events = [&](double at_least) { return std::max(at_least, std::ceil(seconds / 600)); };
    const double evaluations = events(5), samples = events(3), saves = events(3);
    // A hundredth is left for what is not counted: the report, and steps that become slower.
    const double usable = 0.99 * (seconds - 2 * time.step);
    const auto batches_in_all =
        static_cast<double>((run.val_tokens + options.batch * options.seq - 1) / (options.batch * options.seq));
    // One before the first step, and ten times as many batches after the last.
    const auto forwards = [&](double of_one) { return (evaluations + 1) * std::min(of_one, batches_in_all); };
    const auto last_forwards = [&](double of_one) { return std::min(10 * of_one, batches_in_all); };
    const double of_evaluation =
        std::clamp(std::floor(0.04 * usable / (forwards(1) + last_forwards(1)) / time.forward), 1.0, 20.0);
    const auto bytes = static_cast<double>(4 * ParameterTable(run.config).size);
    constexpr double disk = 3e8, memory = 5e9;  // bytes per second, of a slow machine
    TimeBesides other{.spread = forwards(of_evaluation) * time.forward,
                      .at_end = last_forwards(of_evaluation) * time.forward};
    other.spread +=
        bytes * (evaluations + 1 + 3 * saves) / disk;  // the best model each time, and moments with the others
    other.spread += bytes * samples * static_cast<double>(options.sample_tokens) / memory;  // a token reads all weights
    const auto steps = static_cast<int64_t>((usable - other.spread - other.at_end) / time.step);
    if (steps < 10)
        throw InputError((options.hours > 0 ? "--hours: " : "--minutes: ") + text(seconds_to_train(options)) +
                         " seconds are too few for ten steps, of " + text(time.step) +
                         " seconds each, and what comes before and after them; give more time, or a smaller model");
    const auto every = [&](double times) {
        return text(static_cast<int64_t>(std::ceil(static_cast<double>(steps) / times)));
    };
    options.choose({{"steps", text(steps)},
                    {"eval-every", every(evaluations)},
                    {"eval-batches", text(static_cast<int64_t>(of_evaluation))},
                    {"sample-every", every(samples)},
                    {"save-every", every(saves)}});
    options.choose({{"warmup", text(options.warmup)}});  // it would change with the number of steps
    const auto text_tokens = static_cast<double>(run.train_tokens);
    const double memorized = memorization(static_cast<double>(ParameterTable(run.config).size),
                                          static_cast<double>(steps * options.total_batch), text_tokens);
    if (options.init.empty()) options.choose({{"weight-decay", text(weight_decay_for(memorized))}});
    std::printf("time: the same run again, on any machine%s:%s\n", options.matmul == "bf16" ? " with bf16" : "",
                options.chosen().c_str());
    std::printf("time: a step takes %.3g s, which leaves time for %" PRId64 "\n", time.step, steps);
    if (memorized > most_memorization)
        std::printf(
            "time: the text is small for it: these steps read it %.0f times, and a model that has learned it by heart "
            "is worse at other text; %s/best is the best of the run\n",
            static_cast<double>(steps * options.total_batch) / text_tokens, options.out.c_str());
    return other;
}
