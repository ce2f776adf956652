// The program: trains a GPT-2 model, and runs the other commands. See ./train_gpt2 --help.
#include <iostream>

#include "device/cpu/openmp_spin.h"
#include "io/file/bus_error.h"
#include "io/file/file.h"
#include "program/commands.h"
#include "program/comparison.h"
#include "program/convert.h"
#include "program/exit_status.h"
#include "program/info.h"
#include "program/launch.h"
#include "program/threads.h"
#include "program/training_run.h"

namespace {

// One optimizer step on the mean loss over --total-batch tokens, in as many batches as that takes.
StepResult train_step(TrainingRun& run, const UpdateParams& params) {
    const Options& options = run.options;
    run.each_batch([&](const int32_t* x, const int32_t* y, double scale) {
        run.model->forward_backward(x, y, options.batch, options.seq, scale);
        return true;
    });
    return run.model->update(params);
}

// Returns the exit status, as do the functions below.
int train(const Options& options, Ranks& ranks) {
    share_cores(ranks, options.threads);
    TrainingRun run(options, ranks);
    if (!run.print_start()) return 0;
    run.start();
    while (run.goes_on()) {
        run.profile.start();
        const double start = seconds_now();
        const UpdateParams params = run.update_params();
        const StepResult result = train_step(run, params);
        run.log_step(result, params, seconds_now() - start);
        run.profile.stop();
        if (!is_finite(result)) return run.stop_at_nonfinite(result);
        run.finish_step();
    }
    return run.finish();
}

int run_command(const Options& options, Ranks& ranks) {
    choose_threads(options.threads);
    if (options.command == "train") return train(options, ranks);
    if (options.command == "generate") return run_generate(options);
    if (options.command == "eval") run_eval(options);
    if (options.command == "convert")
        convert_model(options.in_path, options.out_path, options.bf16, options.given("type") ? options.type : "");
    if (options.command == "tokenize") run_tokenize(options);
    if (options.command == "report") compare_runs(options.runs, options.out_path);
    if (options.command == "info") {
        if (options.verify && !verify_files(options.in_path, std::cout)) return 1;
        print_info(options.in_path, std::cout);
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    limit_spinning();
    occupy_standard_streams();
    explain_bus_errors(program_name());
    return exit_status([&] {
        return on_ranks([&](Ranks& ranks) {
            Options options;
            on_all(ranks, [&] { options = parse_options(argc, argv, on_gpu(), ranks.count()); });
            return run_command(options, ranks);
        });
    });
}
