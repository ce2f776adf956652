// The program: trains a GPT-2, samples from it, evaluates and converts it. ./train_gpt2 --help
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>

#include <omp.h>

#include "device_model.h"
#include "gpt2_init.h"
#include "io/checkpoint.h"
#include "io/convert.h"
#include "io/dataset.h"
#include "io/error.h"
#include "io/log.h"
#include "io/new_directory.h"
#include "io/options.h"
#include "io/report.h"
#include "io/text_cache.h"
#include "io/tokenizer.h"
#include "profile_table.h"
#include "progress.h"
#include "sampler.h"
#include "schedule.h"

namespace {

// The mean loss over some windows of a stream, `batch` windows of equal length at a time.
double mean_loss(Model& model, const WindowReader& reader, const std::vector<int64_t>& windows, int64_t batch,
                 int64_t seq) {
    std::vector<int32_t> x(static_cast<size_t>(batch * seq)), y(x.size());
    double total = 0;
    int64_t tokens = 0;
    for (size_t i = 0; i < windows.size();) {
        const int64_t length = reader.length(windows[i]);
        int64_t rows = 0;
        for (; rows < batch && i < windows.size() && reader.length(windows[i]) == length; ++rows, ++i)
            reader.read(windows[i], x.data() + rows * length, y.data() + rows * length);
        total += model.evaluate(x.data(), y.data(), rows, length);
        tokens += rows * length;
    }
    return total / static_cast<double>(tokens);
}

// `count` windows, evenly spread over all of them.
std::vector<int64_t> spread(int64_t all, int64_t count) {
    std::vector<int64_t> windows(static_cast<size_t>(std::min(all, count)));
    for (size_t i = 0; i < windows.size(); ++i)
        windows[i] = static_cast<int64_t>(i) * all / static_cast<int64_t>(windows.size());
    return windows;
}

std::string sample_text(Model& model, const Tokenizer& tokenizer, int64_t tokens, uint64_t seed) {
    std::string text;
    std::vector<int32_t> prompt = tokenizer.encode("\n");
    if (tokenizer.end_of_text() >= 0) prompt = {tokenizer.end_of_text()};
    generate(model, prompt, tokens, Sampling{}, seed, [&](int32_t id) { text += tokenizer.token(id); });
    return text;
}

// One training run: all that the loop below needs, set up in the order in which it can fail.
class Training {
public:
    explicit Training(Options o) : options(std::move(o)) {
        std::optional<NewDirectory> made;
        if (options.resume) {
            checkpoint = newest_checkpoint();
            state = read_trainer_state(checkpoint);
            options.fill_from_json(state.options);
        } else {
            made.emplace(options.out);
        }
        const std::string start = options.resume ? checkpoint : options.init;
        tokenizer = open_tokenizer(start);
        GPT2Config config{.context = options.context,
                          .vocab = tokenizer->vocab(),
                          .layers = options.layers,
                          .heads = options.heads,
                          .channels = options.channels};
        if (!start.empty()) {
            config = read_model_config(start);
            if (config.vocab != tokenizer->vocab())
                bad_input(start, "vocabulary", std::to_string(config.vocab) + " tokens",
                          std::to_string(tokenizer->vocab()) + " as in the tokenizer " + tokenizer->name(),
                          "pass the --tokenizer that the model was trained with");
            if (!options.resume) options.use_model(config, tokenizer->name());
        }
        const Keep keep = options.recompute == "block"  ? Keep::recompute_block
                          : options.recompute == "ln"   ? Keep::recompute_ln
                          : options.recompute == "gelu" ? Keep::recompute_gelu
                                                        : Keep::training;
        const std::string plan = plan_memory(options, config, options.batch, options.seq, keep,
                                             "make --batch, --seq or the model smaller, or --recompute block");
        std::printf("memory: %s\n", plan.c_str());
        data = open_datasets(options.data, options.val, *tokenizer, options.out + "/data");
        sampler.emplace(data.train, options.batch, options.seq, static_cast<uint64_t>(options.seed));
        val.emplace(data.val, options.seq);
        model = make_model(options, config, options.batch, options.seq, keep);
        const Model::HostState host = model->download();
        optimizer_state = {{"adam_m", host.m, model->table.size}, {"adam_v", host.v, model->table.size}};
        if (start.empty())
            initialize_parameters(config, model->table, static_cast<uint64_t>(options.seed), host.parameters);
        else
            read_model(start, config, host.parameters);
        if (options.resume) {
            read_optimizer(checkpoint, optimizer_state);
            sampler->seek(state.position);
        }
        model->upload();
        log.emplace(options.out, options.resume ? state.step : -1);
        if (made) made->keep();
        schedule = {options.schedule, options.lr, options.final_lr_frac, options.warmup, options.steps};
        muon_schedule = schedule;
        muon_schedule.lr = options.muon_lr;
        state.options = options.to_json();
    }

    void run() {
        describe();
        if (state.step >= options.steps) {
            std::printf("all %" PRId64 " steps are done; a larger --steps goes on\n", options.steps);
            return;
        }
        Progress progress(state.step, options.steps, options.total_batch, model->flops_per_token(options.seq),
                          peak_flops(options));
        const double start = seconds_now() - state.seconds;
        if (state.step == 0 && options.eval_every > 0) evaluate(seconds_now() - start);
        Profile profile;
        if (options.profile) model->set_profile(&profile);
        const int64_t first_step = state.step;
        double step_seconds = 0;
        while (state.step < options.steps) {
            profile.start();
            const double step_start = seconds_now();
            LogEntry entry = train_step(state.step + 1);
            const double now = seconds_now();
            profile.stop();
            step_seconds += now - step_start;
            entry.tokens_per_second = static_cast<double>(options.total_batch) / (now - step_start);
            entry.seconds = state.seconds = now - start;
            log->write(entry);
            progress.step(state.step, entry.loss, now - step_start);
            if (due(options.eval_every)) {
                progress.clear();
                evaluate(seconds_now() - start);
            }
            if (due(options.sample_every)) {
                progress.clear();
                sample();
            }
            if (due(options.save_every)) {
                progress.clear();
                save();
            }
        }
        report();
        if (options.profile)
            print_profile(profile, state.step - first_step, step_seconds, peak_flops(options), peak_bytes());
        std::printf("done: %s/report.html%s\n", options.out.c_str(),
                    options.save_every > 0 ? (", model in " + options.out + "/latest").c_str() : "");
    }

private:
    // Every so many steps, and after the last; 0: never.
    bool due(int64_t every) const { return every > 0 && (state.step % every == 0 || state.step == options.steps); }

    // Update `step`, on the mean loss over options.total_batch tokens, however many batches that takes.
    LogEntry train_step(int64_t step) {
        const int64_t B = options.batch, T = options.seq;
        std::vector<int32_t> x(static_cast<size_t>(B * T)), y(x.size());
        const double scale = 1.0 / static_cast<double>(options.total_batch);
        for (int64_t tokens = 0; tokens < options.total_batch; tokens += B * T) {
            sampler->next(x.data(), y.data());
            model->forward_backward(x.data(), y.data(), B, T, scale);
        }
        Optimizer optimizer{.adamw = {.lr = schedule.at(step),
                                      .beta1 = options.beta1,
                                      .beta2 = options.beta2,
                                      .weight_decay = options.weight_decay}};
        if (options.optimizer == "muon")
            optimizer.muon = Muon{.lr = muon_schedule.at(step), .weight_decay = options.weight_decay};
        const StepResult result = model->update(optimizer, {.clip = options.clip}, step);
        state.step = step;
        state.position = sampler->position();
        return {.step = step,
                .split = "train",
                .loss = result.loss,
                .lr = schedule.at(step),
                .grad_norm = result.grad_norm};
    }

    // To resume from; whole, or the reason why not is thrown.
    std::string newest_checkpoint() const {
        const std::string latest = options.out + "/latest",
                          found = find_latest_checkpoint(options.out).value_or(path_exists(latest) ? latest : "");
        if (found.empty())
            throw InputError(options.out +
                             ": no checkpoint to resume from; leave out --resume, or name the run's "
                             "directory with --out");
        verify_checkpoint(found);
        return found;
    }

    std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& start) const {
        if (start.empty() || (options.given("tokenizer") && !options.resume)) return load_tokenizer(options.tokenizer);
        const auto own = read_model_tokenizer(start);
        if (!own)
            throw InputError(start + ": tokenizer: found none that fits, expected the model's own; pass --tokenizer");
        return own;
    }

    void describe() const {
        const GPT2Config& c = model->config;
        std::printf("model: %" PRId64 " layers, %" PRId64 " heads, %" PRId64 " channels, context %" PRId64
                    ", vocabulary %" PRId64 ": %.2f M parameters\n",
                    c.layers, c.heads, c.channels, c.context, c.vocab, static_cast<double>(model->table.size) / 1e6);
        std::printf("data: %s: %" PRId64 " tokens to train on, %" PRId64 " to validate\n", options.data.c_str(),
                    data.train.tokens(), data.val.tokens());
        std::printf("training: %" PRId64 " steps of %" PRId64 " tokens, %s\n", options.steps, options.total_batch,
                    device_name().c_str());
        if (state.step > 0) std::printf("resuming after step %" PRId64 " from %s\n", state.step, checkpoint.c_str());
    }

    void evaluate(double seconds) {
        // The last word is on ten times as much, which is all of a small text.
        const int64_t batches = options.eval_batches * (state.step == options.steps ? 10 : 1);
        const double loss =
            mean_loss(*model, *val, spread(val->windows(), batches * options.batch), options.batch, options.seq);
        if (state.best_val_loss == 0 || loss < state.best_val_loss) state.best_val_loss = loss;
        log->write({.step = state.step, .split = "val", .loss = loss, .seconds = seconds});
        std::printf("step %" PRId64 ": validation loss %.4f\n", state.step, loss);
        std::fflush(stdout);
        report();
    }

    void sample() {
        if (options.sample_tokens == 0) return;
        samples.emplace_back(state.step, sample_text(*model, *tokenizer, options.sample_tokens,
                                                     static_cast<uint64_t>(options.seed + state.step)));
        std::printf("--- sample after step %" PRId64 "\n%s\n---\n", state.step, samples.back().second.c_str());
        std::fflush(stdout);
    }

    void save() {
        const Model::HostState host = model->download();
        const std::string path = save_checkpoint(options.out, model->config, host.parameters, *tokenizer,
                                                 optimizer_state, state, options.keep);
        std::printf("saved %s\n", path.c_str());
        std::fflush(stdout);
    }

    void report() const {
        Report page{.title = std::filesystem::path(options.out).filename().string() + " on " + options.data};
        page.loss_unit = tokenizer->name() == "byte" ? "nats per byte" : "nats per token";
        page.log = read_log(options.out + "/log.jsonl");
        page.samples = samples;
        page.configuration = options.list();
        char text[64];
        const auto fact = [&](const char* name, const char* format, double value) {
            std::snprintf(text, sizeof text, format, value);
            page.facts.emplace_back(name, text);
        };
        fact("parameters", "%.2f M", static_cast<double>(model->table.size) / 1e6);
        const auto val_entry = std::find_if(page.log.rbegin(), page.log.rend(),
                                            [](const LogEntry& entry) { return entry.split == "val"; });
        if (val_entry != page.log.rend()) fact("validation loss", "%.4f", val_entry->loss);
        fact("steps", "%.0f", static_cast<double>(state.step));
        fact("training time", "%.0f s", state.seconds);
        if (state.seconds > 0)
            fact("tokens/s", "%.0f", static_cast<double>(state.step * options.total_batch) / state.seconds);
        write_report(options.out + "/report.html", page);
    }

    Options options;
    std::string checkpoint;
    TrainerState state;
    std::shared_ptr<const Tokenizer> tokenizer;
    Datasets data;
    std::optional<BatchSampler> sampler;
    std::optional<WindowReader> val;
    std::unique_ptr<Model> model;
    std::vector<OptimizerBuffer> optimizer_state;
    std::optional<Log> log;
    Schedule schedule, muon_schedule;
    std::vector<std::pair<int64_t, std::string>> samples;
};

// A model to look at, not to train, and its tokenizer.
struct Loaded {
    std::unique_ptr<Model> model;
    std::shared_ptr<const Tokenizer> tokenizer;
};
Loaded load(const Options& options, int64_t B, int64_t seq) {
    const std::string path = find_model(options.from);
    const GPT2Config config = read_model_config(path);
    const auto tokenizer = options.tokenizer.empty() ? read_model_tokenizer(path) : load_tokenizer(options.tokenizer);
    if (!tokenizer || tokenizer->vocab() != config.vocab)
        bad_input(path, "tokenizer", tokenizer ? std::to_string(tokenizer->vocab()) + " tokens" : "none",
                  std::to_string(config.vocab) + " tokens as in the model",
                  "pass the --tokenizer that the model was trained with");
    if (seq > config.context)
        bad_input("--seq", "tokens", std::to_string(seq),
                  "at most the model's context " + std::to_string(config.context), "make it smaller");
    const int64_t T = seq > 0 ? seq : config.context;
    plan_memory(options, config, B, T, Keep::inference, "make --batch or --seq smaller");
    auto model = make_model(options, config, B, T, Keep::inference);
    read_model(path, config, model->download().parameters);
    model->upload();
    return {std::move(model), tokenizer};
}

void run_generate(const Options& options) {
    const Loaded loaded = load(options, 1, 0);
    const std::vector<int32_t> prompt = loaded.tokenizer->encode(options.prompt);
    if (prompt.empty())
        throw InputError(
            "--prompt: found an empty text, expected at least one token; leave it out to begin with a line break");
    const Sampling sampling{.temperature = options.temperature, .top_k = options.top_k};
    std::fwrite(options.prompt.data(), 1, options.prompt.size(), stdout);
    generate(*loaded.model, prompt, options.tokens, sampling, static_cast<uint64_t>(options.seed), [&](int32_t id) {
        const std::string_view bytes = loaded.tokenizer->token(id);
        std::fwrite(bytes.data(), 1, bytes.size(), stdout);
        std::fflush(stdout);
    });
    std::printf("\n");
}

// Where eval's text lies tokenised while it runs.
struct TemporaryDirectory {
    std::string path = (std::filesystem::temp_directory_path() / "train_gpt2-XXXXXX").string();
    TemporaryDirectory() {
        if (!mkdtemp(path.data())) throw InputError(path + ": cannot be made; set TMPDIR to a directory with space");
    }
    ~TemporaryDirectory() {
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
    }
    TemporaryDirectory(const TemporaryDirectory&) = delete;
};

void run_eval(const Options& options) {
    const Loaded loaded = load(options, options.batch, options.seq);
    const int64_t seq = options.seq > 0 ? options.seq : loaded.model->config.context;
    const TemporaryDirectory cache;
    const Dataset data = open_dataset(options.data, *loaded.tokenizer, cache.path);
    const WindowReader reader(data, seq);
    std::printf("loss %.6f\n",
                mean_loss(*loaded.model, reader, spread(reader.windows(), reader.windows()), options.batch, seq));
}

void run_tokenize(const Options& options) {
    const auto tokenizer = load_tokenizer(options.tokenizer);
    if (std::filesystem::exists(options.out_path))
        throw InputError(options.out_path + ": exists already; choose another name");
    const MappedFile text(options.in_path);
    tokenize_to_shards({reinterpret_cast<const char*>(text.data()), static_cast<size_t>(text.size())}, *tokenizer,
                       options.out_path, {.shard_tokens = UINT32_MAX});
    std::printf("%s: %" PRId64 " tokens\n", options.out_path.c_str(), Shard(options.out_path).size());
}

void run(const Options& options) {
    if (options.threads > 0) omp_set_num_threads(static_cast<int>(options.threads));
    if (options.command == "generate") return run_generate(options);
    if (options.command == "eval") return run_eval(options);
    if (options.command == "convert") return convert_model(options.in_path, options.out_path, options.bf16);
    if (options.command == "tokenize") return run_tokenize(options);
    if (options.command == "info") return print_info(options.in_path, std::cout);
    Training(options).run();
}

}  // namespace

int main(int argc, char** argv) {
    try {
        try {
            run(parse_options(argc, argv));
        } catch (const HelpRequest& help) {
            std::fputs(help.text.c_str(), stdout);
        }
        if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return 0;
        throw InputError(
            "standard output: found that not all of it could be written, expected so; check the disc that it goes to");
    } catch (const InputError& error) {
        std::fprintf(stderr, "train_gpt2: %s\n", error.what());
    } catch (const std::filesystem::filesystem_error& error) {
        std::fprintf(stderr, "train_gpt2: %s: found %s, expected a path that can be used; check it and the disc\n",
                     error.path1().c_str(), error.code().message().c_str());
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "train_gpt2: out of memory; make the model, --batch or --seq smaller\n");
    }
    return 2;
}
