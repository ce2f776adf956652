// A training run: its options, data, model, log and checkpoints, and everything that happens between the steps of the
// loop in train_gpt2.cpp.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/data/batch_sampler.h"
#include "io/data/choices.h"
#include "io/model/checkpoint.h"
#include "program/batches.h"
#include "program/device_model.h"
#include "program/launch.h"
#include "program/log.h"
#include "program/moments.h"
#include "program/outliers.h"
#include "program/progress.h"
#include "program/run_directory.h"
#include "program/schedule.h"
#include "program/stop_signals.h"
#include "program/tensorboard.h"
#include "program/time_plan.h"

class TrainingRun {
public:
    // Opens everything, in the order in which it can fail. Throws InputError, or RankFailed on all of several ranks.
    TrainingRun(Options o, Ranks& r);

    // Prints the model, the data and the number of steps. Returns false if all steps are already done.
    bool print_start();
    // Catches signals, starts the clock, and does an evaluation or sample that the previous run has missed.
    void start();
    bool goes_on() const;

    int64_t next_step() const { return state.step + 1; }
    // Calls use(x, y, scale) for each of this rank's batches of one step, until it returns false. `scale` turns the sum
    // of all batches' losses into a mean. The gradients of each of the --shards are summed apart.
    template <class Use>
    void each_batch(const Use& use) {
        const double scale = 1.0 / static_cast<double>(options.total_batch);
        const int64_t batches_of_shard = options.total_batch / (options.batch * options.seq * options.shards);
        bool go_on = true;
        for (int64_t shard = 0; go_on && shard < options.shards / ranks.count(); ++shard) {
            batches->each(*model, batches_of_shard, [&](const int32_t* x, const int32_t* y) {
                model->batch_place = {.seed = static_cast<uint64_t>(options.seed),
                                      .step = next_step(),
                                      .first_sequence = batches->position() - state.position};
                return go_on = use(x, y, scale);
            });
            if (go_on) model->end_shard(shard);
        }
    }
    // The parameters of the next update: learning rate, gradient clipping, the thresholds of --skip-outliers and
    // others.
    UpdateParams update_params() const;

    // Logs a step that took `seconds`.
    void log_step(const StepResult& result, const UpdateParams& params, double seconds);
    // Evaluates, samples and saves if due after this step. A stop signal interrupts it; --resume does the rest.
    void finish_step();

    // Ends training after the last step or a stop signal. Returns the exit status.
    int finish();
    // Ends training after a step whose loss or gradient is NaN or infinite; its update was skipped. The step is
    // computed again, from the same parameters, to find where that begins. Returns the exit status.
    int stop_at_nonfinite(const StepResult& result);

    Options options;
    Ranks& ranks;
    std::unique_ptr<Model> model;
    Profile profile;

private:
    struct Interrupted {};  // a stop signal came during an evaluation or a sample

    struct Validation {
        double loss, per_byte;  // in nats
    };

    bool due(int64_t every) const;
    // The signal to stop, or 0. Several ranks agree on it after each step.
    int stop_asked() const { return ranks.count() == 1 ? stop_signals::stop_asked.load() : stop_signal; }
    // --patience: whether the validation loss has stopped falling.
    bool out_of_patience() const { return options.patience > 0 && state.evaluations_since_best >= options.patience; }
    bool owes_evaluation() const { return due(options.eval_every) && state.evaluated < state.step; }
    bool owes_sample() const {
        return due(options.sample_every) && state.step > 0 && options.sample_tokens > 0 && state.sampled < state.step;
    }
    void open_data(int64_t vocab);
    void find_what_to_resume();
    Options saved_options() const;
    GPT2Config new_model();
    GPT2Config given_model(const std::string& start);
    void plan_steps(GPT2Config config, ActivationPolicy policy);
    void correct_steps();
    void set_schedules();
    void check_data();
    void compare_ranks();
    void on_first_rank(const std::function<void()>& f);
    void print_out_of_patience() const;
    void open_logs();
    void add_to_log(const LogEntry& entry);
    Validation validate(int64_t windows);
    void evaluate();
    void keep_best(double loss);
    std::vector<int32_t> sample_start() const;
    void sample();
    void write_sample();
    bool pauses();
    void pause();
    void clear_progress();
    void write_model(const std::string& what, const std::function<void(const Model::HostState&)>& write);
    void save();
    bool report();
    void warn(const std::string& message);
    void warn_of_log();

    std::optional<RunDirectory> directory;  // of rank 0
    std::string checkpoint;                 // the checkpoint to resume from, or ""
    TrainerState state;
    std::shared_ptr<const Tokenizer> tokenizer;
    std::vector<Slice> slices;  // of the parameters that each rank updates
    Datasets data;
    std::optional<Batches> batches;
    std::optional<WindowReader> val;
    std::optional<ExampleSet> choices;  // of --choices
    std::optional<Log> log;             // on rank 0
    LogHistory history;
    std::optional<SampleLog> samples;  // on rank 0
    std::optional<EventFile> events;   // of --tensorboard, on rank 0
    Schedule schedule, muon_schedule;
    std::string change_of_schedule;  // a warning at --resume, or ""
    std::optional<Progress> progress;
    Outliers outliers;
    const double opened = seconds_now();
    TimeBesides besides;       // of a run with --minutes
    int64_t correct_at = -1;   // the step after which its number of steps is corrected
    int64_t timed_steps = 0;   // since the last correction,
    double timed_seconds = 0;  // and how long they took
    double started = 0;        // the time when training would have started if it had never been interrupted
    double step_seconds = 0;
    double sent_before = 0, sent_in_steps = 0;      // bytes to other ranks
    int64_t started_after = 0, profiled_after = 0;  // steps that were done before this run, before its --profile
    bool saved = true;                              // is `state` on disk?
    bool save_failed = false;                       // did the last save fail?
    bool check_failed = false;                      // did an evaluation or a sample find NaN or infinity?
    std::string warned;                             // the last warning about the log
    int stop_signal = 0;                            // that one of several ranks has received
};
