#include "program/training_run.h"

#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <new>
#include <numeric>
#include <utility>

#include "gpt2_init.h"
#include "io/file/error.h"
#include "io/file/file.h"
#include "io/text/bpe_trainer.h"
#include "program/choices.h"
#include "program/evaluation.h"
#include "program/exit_status.h"
#include "program/profile_table.h"
#include "program/run_messages.h"
#include "program/run_report.h"
#include "program/generation.h"
#include "program/learn_tokenizer.h"
#include "program/pair_embedding.h"
#include "program/stop_signals.h"
#include "program/text_progress.h"
#include "program/time_plan.h"
#include "program/token_shares.h"
#include "program/version.h"

namespace {

TokenizerSettings tokenizer_settings(const Options& options) { return {.special_as_text = options.no_special_tokens}; }

}  // namespace

TrainingRun::TrainingRun(Options o, Ranks& r) : options(std::move(o)), ranks(r) {
    stop_signals::catch_save();
    on_all(ranks, [&] {
        if (ranks.first()) directory.emplace(options.out, options.resume);
    });
    on_all(ranks, [&, holder = from_first(ranks, static_cast<int64_t>(getpid()))] {
        if (!ranks.first()) check_run_directory(options.out, holder);
    });
    if (options.resume) on_first_then_others(ranks, [&] { find_what_to_resume(); });
    connect_devices(options, ranks);
    const double seconds = seconds_to_train(options);
    GPT2Config config;
    const bool fresh = checkpoint.empty() && options.init.empty();
    const std::string start = checkpoint.empty() ? options.init : checkpoint;
    ActivationPolicy policy{};
    on_all(ranks, [&] {
        if (checkpoint.empty() && seconds > 0) choose_matmul(options, ranks);
        if (fresh && seconds > 0) choose_recipe(options, ranks);
        config = fresh ? new_model() : given_model(start);
        if (!fresh && checkpoint.empty() && seconds > 0) choose_text(options, config, ranks);
        policy = options.recompute == "block"  ? ActivationPolicy::recompute_block
                 : options.recompute == "ln"   ? ActivationPolicy::recompute_ln
                 : options.recompute == "gelu" ? ActivationPolicy::recompute_gelu
                                               : ActivationPolicy::training;
        const std::string plan = plan_memory(options, config, options.batch, options.seq, policy,
                                             "make --batch, --seq or the model smaller, or --recompute block", ranks);
        std::printf("memory%s: %s\n", ranks.count() > 1 ? " of rank 0" : "", plan.c_str());
        if (directory && !options.resume && seconds == 0) directory->write_options(options.to_json());
    });
    on_first_then_others(ranks, [&] {
        if (options.documents) end_of_documents(*tokenizer);  // before anything is tokenized
        TextProgress reading;
        data = open_datasets(options.data_names(), options.val_names(), *tokenizer, options.out + "/data", config.vocab,
                             reading.reader());
    });
    on_all(ranks, [&] { open_data(config.vocab); });
    if (seconds > 0) on_all(ranks, [&] { plan_steps(config, policy); });
    on_all(ranks, [&] {
        GPT2Config trained = config;
        trained.dropout = options.dropout;  // not that of --init's model, as in nanoGPT and llm.c
        model = make_model(options, trained, options.batch, options.seq, policy, ranks);
        const Model::HostState host = model->to_fill();
        if (fresh) {
            initialize_parameters(config, model->table, static_cast<uint64_t>(options.seed), host.parameters);
            if (options.embedding == "pairs")
                add_pair_embeddings(data.train, config.vocab, config.channels,
                                    host.parameters + model->table.wte.offset);
        } else {
            read_finite_model(start, config, host.parameters);
        }
        slices = update_slices(model->table, ranks.count(), sharing(options, ranks).muon);
        if (!checkpoint.empty()) read_optimizer(checkpoint, Moments(ranks, slices, host).slice());
        if (options.sampled_softmax > 0)
            model->sample_softmax(token_shares(data.train, config.vocab), options.sampled_softmax);
        model->rounding_seed = static_cast<uint64_t>(options.seed);
        model->last_applied = state.last_applied;
        model->upload(host);
        if (ranks.first()) open_logs();
    });
    compare_ranks();
    if (directory) directory->commit();
    set_schedules();
    if (!checkpoint.empty()) change_of_schedule = schedule_change(saved_options(), options, state.step);
    state.options = options.to_json();
}

void TrainingRun::set_schedules() {
    schedule = muon_schedule = schedule_of(options);
    muon_schedule.lr = options.muon_lr;
}

void TrainingRun::open_data(int64_t vocab) {
    for (const Dataset* part : {&data.train, &data.val})
        for (const std::string& note : part->notes) warn(note);
    check_data();
    if (!options.choices.empty()) {
        choices = read_examples(options.choices, *tokenizer, vocab, options.limit);
        if (const std::string note = long_examples_note(*choices, options.seq); !note.empty()) warn(note);
    }
    const int64_t of_step = options.total_batch / (options.batch * options.seq), own = of_step / ranks.count();
    batches.emplace(data.train, options.batch, options.seq, static_cast<uint64_t>(options.seed),
                    Turns{.first = ranks.rank() * own, .own = own, .all = of_step},
                    options.documents ? end_of_documents(*tokenizer) : -1);
    batches->seek(state.position);
    val.emplace(data.val, options.seq);
}

void TrainingRun::plan_steps(GPT2Config config, ActivationPolicy policy) {
    config.dropout = options.dropout;
    besides = choose_steps(options,
                           {.config = config,
                            .policy = policy,
                            .train_tokens = data.train.tokens(),
                            .val_tokens = data.val.tokens(),
                            .seconds_left = seconds_to_train(options) - (seconds_now() - opened)},
                           ranks);
    options.vocab = config.vocab;
    if (directory) directory->write_options(options.to_json());
    // A fifth of a run says more about its speed than the seconds of the measurement.
    correct_at = options.steps / 5;
}

// Corrects the number of steps of a run with --minutes by its speed since the last time, and again when half of the
// steps that are left are done, as other programs and heat change a machine's speed.
void TrainingRun::correct_steps() {
    const double done = static_cast<double>(state.step) / static_cast<double>(options.steps);
    const double left =
        0.99 * seconds_to_train(options) - (seconds_now() - opened) - (1 - done) * besides.spread - besides.at_end;
    const double steps_per_second = static_cast<double>(timed_steps) / timed_seconds;
    const auto more = std::max(static_cast<int64_t>(left * steps_per_second), int64_t{1});
    const int64_t before = options.steps, steps = from_first(ranks, state.step + more);
    const int64_t until_next = (steps - state.step) / 2;
    correct_at = until_next < steps / 50 ? -1 : state.step + until_next;
    timed_steps = 0, timed_seconds = 0;
    const double change = static_cast<double>(steps) / static_cast<double>(before) - 1;
    if (std::abs(change) < 0.02) return;
    options.steps = steps;
    options.replanned +=
        (options.replanned.empty() ? "" : ",") + std::to_string(state.step) + ":" + std::to_string(before);
    set_schedules();
    state.options = options.to_json();
    saved = false;
    if (directory) try {
            directory->write_options(state.options);
        } catch (const InputError& error) {
            warn(std::string(error.what()) + "; training continues");
        }
    if (progress) progress->change_steps(steps);
    clear_progress();
    std::printf("time: steps are %s than planned: now --steps %" PRId64 " --replanned %s\n",
                change > 0 ? "faster" : "slower", steps, options.replanned.c_str());
}

// Every rank must have the same data, and should have the same program and CPU.
void TrainingRun::compare_ranks() {
    if (ranks.count() == 1) return;
    const std::vector<int64_t> of_data = all_gather(ranks, state.data);
    on_all(ranks, [&] {
        if (state.data != of_data[0])
            throw InputError(without_controls(options.data_names().text()) +
                             ": the tokens on this machine are not those of rank 0; give every machine the same files");
    });
    const std::vector<int64_t> of_choices = all_gather(ranks, choices ? int64_t{fingerprint(*choices)} : -1);
    on_all(ranks, [&] {
        if (of_choices[static_cast<size_t>(ranks.rank())] != of_choices[0])
            throw InputError(
                without_controls(options.choices) +
                ": the examples on this machine are not those of rank 0; give every machine the same file");
    });
    const std::vector<std::string> builds =
        all_gather(ranks, build_text() + (options.on_gpu ? ", " + device_name(options) : ""));
    for (size_t r = 1; r < builds.size(); ++r)
        if (builds[r] != builds[0])
            warn(ranks.name(static_cast<int64_t>(r)) + ": " + builds[r] + ", rank 0: " + builds[0] +
                 "; the last bits of results may differ from those of one process");
}

bool TrainingRun::print_start() {
    print_run(options, *model, data.train.tokens(), data.val.tokens(), state.step, checkpoint);
    print_ranks(ranks);
    for (const Dataset* part : {&data.train, &data.val}) print_special_tokens(*part, *tokenizer);
    if (options.documents) print_documents(batches->sampler().share(), options.seq);
    if (state.step > options.steps || (state.step == options.steps && !owes_evaluation() && !owes_sample())) {
        std::printf("all %" PRId64 " steps are done; pass a larger --steps to train longer\n", options.steps);
        return false;
    }
    if (out_of_patience()) {
        print_out_of_patience();
        return false;
    }
    if (!change_of_schedule.empty()) std::printf("%s\n", change_of_schedule.c_str());
    return true;
}

void TrainingRun::print_out_of_patience() const {
    std::printf("stopped after step %" PRId64 ": no lower validation loss than %.4f, of step %" PRId64 ", in %" PRId64
                " evaluations; a larger --patience trains longer\n",
                state.step, state.best_val_loss, state.best_step, state.evaluations_since_best);
}

void TrainingRun::start() {
    if (ranks.count() == 1)
        stop_signals::catch_stop(program_name());
    else
        stop_signals::catch_stop_of_rank(program_name(), ranks.first());
    // mpirun passes output on, but not that this is a terminal, or how wide it is.
    const bool live = ranks.count() == 1 && isatty(STDOUT_FILENO);
    if (ranks.first())
        progress.emplace(
            state.step, options.steps, options.total_batch, model->flops_per_token(options.seq),
            [this] { return peak_flops(options) * static_cast<double>(ranks.count()); }, live);
    started = seconds_now() - state.seconds;
    started_after = profiled_after = state.step;
    finish_step();
    if (options.profile) model->set_profile(&profile);
}

bool TrainingRun::goes_on() const { return state.step < options.steps && !stop_asked() && !out_of_patience(); }

UpdateParams TrainingRun::update_params() const {
    const int64_t step = next_step();
    UpdateParams params = at_step({.lr = schedule.at(step),
                                   .beta1 = options.beta1,
                                   .beta2 = options.beta2,
                                   .weight_decay = options.weight_decay,
                                   .optimizer = optimizer_of(options),
                                   .muon_lr = muon_schedule.at(step),
                                   .clip = options.clip},
                                  step);
    if (options.skip_outliers > 0) outliers.set_limits(params, options.skip_outliers);
    return params;
}

void TrainingRun::log_step(const StepResult& result, const UpdateParams& params, double seconds) {
    const int64_t step = next_step();
    LogEntry entry{.step = step, .split = "train", .loss = result.loss, .lr = schedule.at(step)};
    entry.grad_norm = result.grad_norm;
    entry.tokens_per_second = static_cast<double>(options.total_batch) / seconds;
    entry.seconds = seconds_now() - started;
    entry.skipped = is_finite(result) && !result.applied;
    add_to_log(entry);
    step_seconds += seconds;
    ++timed_steps, timed_seconds += seconds;
    sent_in_steps += ranks.sent_bytes - sent_before;
    if (!is_finite(result)) return;
    state.step = step;
    state.position += options.total_batch / options.seq;
    state.seconds = entry.seconds;
    saved = false;
    if (options.skip_outliers > 0) outliers.add(result.loss, result.grad_norm);
    if (entry.skipped) {
        clear_progress();
        print_skipped(step, result, params, options.skip_outliers);
    }
    if (progress) progress->step(step, entry.loss, seconds);
    // The first step also loads kernels and touches its memory for the first time. --profile leaves it out, unless
    // there is no other.
    if (options.profile && step == started_after + 1 && step < options.steps)
        profile = {}, step_seconds = 0, sent_in_steps = 0, profiled_after = step;
}

void TrainingRun::finish_step() {
    if (state.step == correct_at) correct_steps();
    try {
        if (owes_evaluation()) evaluate();
        if (owes_sample()) sample();
    } catch (const Interrupted&) {
    } catch (const CheckFailed& failure) {
        warn(std::string(failure.what()) + "; training continues");
        check_failed = true;
        saved = false;  // so that stop_at_nonfinite saves this state if the next step is not finite either
    }
    const int asked = largest(ranks, stop_signals::save_asked.exchange(false) ? 1 : 0);
    if ((due(options.save_every) && state.step > 0) || asked > 0) save();
    stop_signal = largest(ranks, stop_signals::stop_asked.load());
    sent_before = ranks.sent_bytes;
    warn_of_log();
}

int TrainingRun::finish() {
    clear_progress();
    const int signal = stop_asked();
    const std::vector<double> sent = all_gather(ranks, sent_in_steps);
    if ((signal || out_of_patience()) && !saved) save();
    if (log) log->sync();
    if (events) events->sync();
    warn_of_log();
    const bool reported = report(), whole = reported && !save_failed && !check_failed && warned.empty();
    if (options.profile && ranks.first()) {
        print_profile(profile, state.step - profiled_after, step_seconds, measured_peak_flops(options), peak_bytes());
        print_sent(options, sent, model->table.size, state.step - profiled_after);
    }
    if (signal) {
        print_stopped(stop_signals::name(signal), state.step, options.out);
        return whole ? 128 + signal : 1;
    }
    if (out_of_patience()) print_out_of_patience();
    const bool models = options.save_every > 0 && !save_failed, best = models && state.best_step > 0;
    std::printf(
        "done: %s/report.html%s%s\n", options.out.c_str(),
        models ? (", model in " + options.out + "/latest").c_str() : "",
        best && state.best_step < state.step
            ? (", the best, of step " + std::to_string(state.best_step) + ", in " + options.out + "/best").c_str()
            : "");
    return whole ? 0 : 1;
}

int TrainingRun::stop_at_nonfinite(const StepResult& result) {
    clear_progress();
    std::string where;
    int64_t position = state.position;
    batches->seek(state.position);
    each_batch([&](const int32_t* x, const int32_t* y, double scale) {
        position = batches->position();
        where = find_nonfinite(*model, x, y, options.batch, options.seq, scale);
        return where.empty();
    });
    if (ranks.count() > 1) {  // what the first of them has found is the first of the step
        const std::vector<std::string> found = all_gather(ranks, where);
        const std::vector<int64_t> positions = all_gather(ranks, position);
        const auto first = std::ranges::find_if(found, [](const std::string& text) { return !text.empty(); });
        if (first != found.end()) where = *first, position = positions[static_cast<size_t>(first - found.begin())];
    }
    if (!saved && !in_parameters(where)) save();
    report();
    warn(nonfinite_message(state.step + 1, result, where, position, options.seed, saved));
    return 1;
}

// True every `every` steps and after the last step; never if `every` is 0.
bool TrainingRun::due(int64_t every) const {
    return every > 0 && (state.step % every == 0 || state.step == options.steps);
}

// Finds the newest checkpoint, or the options of a run that ended before its first checkpoint.
void TrainingRun::find_what_to_resume() {
    std::vector<std::string> passed_over;
    checkpoint = checkpoint_to_resume(options.out, passed_over).value_or("");
    for (const std::string& reason : passed_over) warn(reason + "; resuming from the one before");
    const auto begun = checkpoint.empty() ? read_options(options.out) : std::nullopt;
    if (checkpoint.empty() && !begun)
        throw InputError(options.out +
                         ": no checkpoint to resume from; leave out --resume to start a run there, or name the "
                         "directory of an earlier run with --out");
    if (!checkpoint.empty()) {
        if (ranks.first()) mend_latest(checkpoint);
        state = read_trainer_state(checkpoint);
    }
    outliers = {state.losses, state.norms};
    options.fill_from_json(begun ? *begun : state.options);
}

// The options with which the checkpoint was made.
Options TrainingRun::saved_options() const {
    Options before;
    before.command = options.command, before.on_gpu = options.on_gpu;
    before.fill_from_json(state.options);
    return before;
}

// Warns if a resumed run has other data than before, unless a changed text has been reported already, or has them in
// another order.
void TrainingRun::check_data() {
    const int64_t order_before = std::exchange(state.data_order, BatchSampler::order_version);
    if (!checkpoint.empty() && order_before != BatchSampler::order_version)
        warn(checkpoint +
             ": saved by another version of this program, which draws the training data in another order; the result "
             "differs from that of an uninterrupted run");
    const int64_t before = std::exchange(state.data, fingerprint(data));
    const bool reported = data.train.remade || data.val.remade;
    if (before < 0 || before == state.data || reported || options.given("data") || options.given("val")) return;
    warn(without_controls(options.data_names().text()) +
         ": the tokens, or their order, are not those that the run was trained on up to step " +
         std::to_string(state.step) + "; continuing with these");
}

void TrainingRun::open_logs() {
    if (options.resume && checkpoint.empty())  // the run starts again
        for (const char* name : {"/log.jsonl", "/samples.jsonl"}) std::filesystem::remove(options.out + name);
    const int64_t step = checkpoint.empty() ? -1 : state.step;
    log.emplace(options.out + "/log.jsonl", step);
    if (step >= 0) history.add_file(options.out + "/log.jsonl");
    if (options.sample_every > 0 && options.sample_tokens > 0) samples.emplace(options.out + "/samples.jsonl", step);
    if (options.tensorboard) events.emplace(options.out, step + 1);
    for (const std::string& damage : {log->damage(), samples ? samples->damage() : ""})
        if (!damage.empty()) warn(damage);
}

// The configuration of a new model. Also opens the tokenizer, as given_model() does.
GPT2Config TrainingRun::new_model() {
    tokenizer = trained_vocabulary_size(options.tokenizer) > 0
                    ? learn_tokenizer(options)
                    : load_tokenizer(options.tokenizer, tokenizer_settings(options));
    if (options.vocab == 0) options.vocab = tokenizer->vocab();
    if (options.vocab < tokenizer->vocab())
        throw InputError("--vocab: " + std::to_string(options.vocab) + " is less than the " +
                         std::to_string(tokenizer->vocab()) + " tokens of --tokenizer " + tokenizer->name() +
                         "; increase it or leave it out");
    return {.context = options.context,
            .vocab = options.vocab,
            .layers = options.layers,
            .heads = options.heads,
            .channels = options.channels};
}

// The configuration of a model that is read from `start`. A checkpoint has its own tokenizer.
GPT2Config TrainingRun::given_model(const std::string& start) {
    const GPT2Config config = read_model_config(start);
    tokenizer = tokenizer_for_model(checkpoint.empty() ? options.tokenizer : "", start, tokenizer_settings(options));
    if (options.resume)
        options.vocab = config.vocab;  // which older versions did not save
    else
        options.use_model(config, tokenizer->name());
    if (const std::string doubt = tokenizer_doubt(options, *tokenizer, config); !doubt.empty()) warn(doubt);
    return config;
}

void TrainingRun::add_to_log(const LogEntry& entry) {
    if (!log) return;
    log->write(entry);
    if (events) events->write(entry);
    history.add(entry);
}

// The mean losses of that many windows.
TrainingRun::Validation TrainingRun::validate(int64_t windows) {
    int64_t own_bytes = 0;
    const auto evaluation = evaluate_windows(
        *model, *val, spread(val->windows(), windows), options.batch, options.seq,
        [&](const Evaluation&, std::span<const int32_t> targets) {
            own_bytes += bytes_of(targets, *tokenizer);
            return !pauses();
        },
        ranks);
    if (!evaluation) throw Interrupted{};
    const std::vector<int64_t> bytes = all_gather(ranks, own_bytes);
    return {evaluation->loss(), evaluation->nats / static_cast<double>(std::reduce(bytes.begin(), bytes.end()))};
}

void TrainingRun::evaluate() {
    clear_progress();
    const int64_t windows = options.batch * options.eval_batches;
    const Validation of_some = validate(windows);
    // The last validation uses ten times as many batches, which is all of a small text.
    const bool more = state.step == options.steps && windows < val->windows();
    const Validation found = more ? validate(windows * 10) : of_some;
    LogEntry entry{.step = state.step, .split = "val", .loss = found.loss};
    if (tokenizer->reads_text() && tokenizer->name() != "byte") entry.nats_per_byte = found.per_byte;
    if (choices) {
        const auto answers = evaluate_choices(
            *model, *choices, options.batch, options.seq, [&](int64_t) { return !pauses(); }, ranks);
        if (!answers) throw Interrupted{};
        entry.choices_accuracy = answers->accuracy();
    }
    entry.seconds = seconds_now() - started;
    add_to_log(entry);
    state.evaluated = state.step;
    saved = false;
    std::printf("step %" PRId64 ": validation loss %.4f", state.step, entry.loss);
    if (entry.nats_per_byte) std::printf(" per token, %.4f per byte", *entry.nats_per_byte);
    if (choices) std::printf(", accuracy %.4f", *entry.choices_accuracy);
    if (more && val->windows() >= 2 * windows) std::printf(" (of more text than before)");
    std::printf("\n");
    std::fflush(stdout);
    keep_best(of_some.loss);
    report();
}

// After an evaluation; all that it compares are over the same windows. The model is kept if it is the best so far.
void TrainingRun::keep_best(double loss) {
    if (state.best_val_loss != 0 && !(loss < state.best_val_loss)) {
        ++state.evaluations_since_best;
        return;
    }
    state.best_val_loss = loss, state.best_step = state.step, state.evaluations_since_best = 0;
    if (options.save_every == 0 || state.step == 0) return;
    write_model("the best model so far, of step " + std::to_string(state.step) + ",",
                [&](const Model::HostState& host) {
                    if (ranks.first()) save_best(options.out, model->config, host.parameters, *tokenizer);
                });
}

// A sample continues end-of-text or, where the tokenizer has none, a line break. Where the tokenizer or the model
// has neither, the sample continues the first token of the validation data.
std::vector<int32_t> TrainingRun::sample_start() const {
    std::vector<int32_t> start;
    if (tokenizer->end_of_text() >= 0)
        start = {tokenizer->end_of_text()};
    else if (tokenizer->reads_text())
        start = tokenizer->encode("\n");
    const bool known = std::ranges::all_of(start, [&](int32_t id) { return id < model->config.vocab; });
    if (known && !start.empty()) return start;
    std::vector<int32_t> x(static_cast<size_t>(options.seq)), y(x.size());
    val->read(0, x.data(), y.data());
    return {x[0]};
}

void TrainingRun::sample() {
    clear_progress();
    on_first_rank([&] { write_sample(); });
    state.sampled = state.step;
    saved = false;
}

void TrainingRun::write_sample() {
    std::string text;
    const Random random{static_cast<uint64_t>(options.seed), Purpose::sampling, state.step};
    Generator generator(*model, 1, Sampling{.ids = tokenizer->vocab()}, random);
    generator.append(sample_start());
    generator.generate(options.sample_tokens, [&](int64_t, int32_t id) {
        text += tokenizer->token(id);
        pause();
        return true;
    });
    samples->write({state.step, text});
    if (events) events->write(Sample{state.step, text});
    std::printf("--- sample after step %" PRId64 "\n%s\n---\n", state.step, text.c_str());
    std::fflush(stdout);
}

// Whether a signal to stop came, asked between the parts of long work, so that it takes effect soon. A signal to save
// takes effect here too, or, where all ranks have to take part, after the work.
bool TrainingRun::pauses() {
    if (ranks.count() == 1 && stop_signals::save_asked.exchange(false)) save();
    return stop_signals::stop_asked;
}
void TrainingRun::pause() {
    if (pauses()) throw Interrupted{};
}

// Runs f on rank 0 while the others wait: a sample, which is short, and whose tokens each need the one before them. If
// it throws Interrupted or CheckFailed, all throw it.
void TrainingRun::on_first_rank(const std::function<void()>& f) {
    if (ranks.count() == 1) return f();
    enum Outcome { done, interrupted, failed } outcome = done;
    std::string failure;
    try {
        if (ranks.first()) f();
    } catch (const Interrupted&) {
        outcome = interrupted;
    } catch (const CheckFailed& error) {
        outcome = failed, failure = error.what();
    }
    outcome = from_first(ranks, outcome);
    if (outcome == interrupted) throw Interrupted{};
    if (outcome == failed) throw CheckFailed(failure);
}

void TrainingRun::clear_progress() {
    if (progress) progress->clear();
}

// Calls write(the model in host memory) on all ranks. If that fails, prints that `what` is not saved; training
// continues.
void TrainingRun::write_model(const std::string& what, const std::function<void(const Model::HostState&)>& write) {
    try {
        Model::HostState host;
        on_all(ranks, [&] { host = model->download(); });
        write(host);
    } catch (const InputError& error) {
        warn(std::string(error.what()) + "; " + what + " is not saved");
    } catch (const std::bad_alloc&) {  // a GPU's memory is copied to the host
        warn("out of memory; " + what + " is not saved");
    } catch (const RankFailed& failure) {
        if (failure.status != 2) throw;
        warn("out of memory on a rank; " + what + " is not saved");
    }
}

// Saves a checkpoint. If that fails, the earlier checkpoints are still there.
void TrainingRun::save() {
    clear_progress();
    if (log) log->sync();
    if (samples) samples->sync();
    if (events) events->sync();
    state.losses = outliers.losses, state.norms = outliers.norms;
    state.last_applied = model->last_applied;
    save_failed = true;
    write_model("step " + std::to_string(state.step), [&](const Model::HostState& host) {
        const bool done = Moments(ranks, slices, host).save([&](const std::vector<OptimizerBuffer>& optimizer) {
            const std::string path = save_checkpoint(options.out, model->config, host.parameters, *tokenizer, optimizer,
                                                     state, options.keep);
            std::printf("saved %s\n", path.c_str());
            std::fflush(stdout);
        });
        if (done) saved = true, save_failed = false;
    });
}

// Writes the report. Returns false, after a warning, if that fails.
bool TrainingRun::report() {
    if (!ranks.first()) return true;
    try {
        write_report(options.out + "/report.html",
                     run_report(options, *model, *tokenizer, state, history.entries(),
                                samples ? read_samples(options.out + "/samples.jsonl", 20) : std::vector<Sample>{}));
        return true;
    } catch (const InputError& error) {
        warn(error.what());
        return false;
    }
}

void TrainingRun::warn(const std::string& message) {
    if (!ranks.first()) return;
    if (progress) progress->clear();
    std::fflush(stdout);
    print_error(message);
}

// Warns that the log or the event file cannot be written: once per problem, not once per line.
void TrainingRun::warn_of_log() {
    if (!log) return;
    const std::string& trouble = log->trouble().empty() && events ? events->trouble() : log->trouble();
    if (trouble != warned && !trouble.empty()) warn(trouble + "; training continues");
    warned = trouble;
}
