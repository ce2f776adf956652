#include "dev/bench_table.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <exception>

#include <omp.h>

namespace {

std::string format(const char* pattern, double value) {
    char text[64];
    std::snprintf(text, sizeof text, pattern, value);
    return text;
}

std::string time_text(double seconds) {
    if (std::isnan(seconds)) return "-";
    return seconds < 1 ? format("%.3f ms", seconds * 1e3) : format("%.3f s", seconds);
}

std::string mebibytes_text(double bytes) { return bytes > 0 ? format("%.0f", bytes / (1 << 20)) : ""; }

}  // namespace

BenchTable::BenchTable(std::string only, bool pytorch, std::FILE* csv)
    : only_(std::move(only)), pytorch_(pytorch), csv_(csv) {
    if (pytorch_) for_layers_ = PyTorch(omp_get_max_threads());
    std::printf("%-44s %12s %6s %9s %-7s %14s%s %8s\n", "work", "time", "spread", "rate", "", "of peak then",
                pytorch_ ? "  PyTorch eager      compile  ours/best" : "", "MiB");
    if (csv_)
        std::fputs(
            "work,seconds,spread,rate,unit,peak,share of peak,MiB,PyTorch eager seconds,PyTorch eager MiB,"
            "PyTorch compile seconds,PyTorch compile MiB,ours/PyTorch\n",
            csv_);
}

void BenchTable::group(const std::string& name, const std::vector<std::string>& suffixes,
                       const std::function<void()>& body) {
    bool any = false;
    for (const std::string& suffix : suffixes) any |= wanted(name + suffix);
    if (!any) return;
    ++groups_;
    std::fflush(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
        int status = 0;
        try {
            body();
        } catch (const std::exception& e) {
            std::fprintf(stderr, "%s: %s\n", name.c_str(), e.what());
            status = 1;
        }
        std::fflush(nullptr);
        _exit(status);
    }
    int status = -1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
        std::fprintf(stderr, "%s: failed%s\n", name.c_str(), WIFSIGNALED(status) ? ", killed (out of memory?)" : "");
        failed_ = true;
    }
}

void BenchTable::layer(const BenchRow& r, const std::string& work) {
    if (!wanted(r.name)) return;
    std::vector<Rival> rivals;
    for (const char* mode : {"eager", "compile"})
        if (for_layers_.prepare(mode, work)) rivals.push_back({&for_layers_, mode});
    row(r, rivals);
}

void BenchTable::row(const BenchRow& row, const std::vector<Rival>& rivals) {
    std::vector<std::function<double()>> measures = {[&] {
        const double seconds = seconds_a_call(row.work);
        rest();
        return seconds;
    }};
    for (const Rival& rival : rivals) measures.emplace_back([&rival] { return rival.process->run(rival.mode); });
    measures.push_back(peak_of(row.unit, row.matmul_kind));
    const std::vector<Samples> samples = in_turn(measures, row.rounds);

    const double seconds = samples[0].median(), rate = row.amount / seconds, peak = samples.back().median();
    const double spread = samples[0].spread(), share = rate / peak;
    struct {
        double seconds = NAN, memory = 0;
    } eager, compile;
    for (size_t i = 0; i < rivals.size(); ++i) {
        auto& rival = rivals[i].mode == "eager" ? eager : compile;
        rival.seconds = samples[i + 1].median();
        if (rivals[i].alone) rival.memory = rivals[i].process->memory();
    }
    const double ratio = seconds / std::fmin(eager.seconds, compile.seconds);  // fmin ignores NaN
    const bool flops = row.unit == Unit::flops;

    std::printf("%-44s %12s %5.0f%% %9.1f %-7s %4.0f %% of %6.1f", row.name.c_str(), time_text(seconds).c_str(),
                100 * spread, rate / 1e9, flops ? "GFLOP/s" : "GB/s", 100 * share, peak / 1e9);
    if (pytorch_)
        std::printf(" %13s %12s %10s", time_text(eager.seconds).c_str(), time_text(compile.seconds).c_str(),
                    std::isnan(ratio) ? "-" : format("%.2f", ratio).c_str());
    std::printf(" %8s", mebibytes_text(row.memory).c_str());
    if (eager.memory > 0 || compile.memory > 0)
        std::printf("  (PyTorch's %s, %s)", mebibytes_text(eager.memory).c_str(),
                    mebibytes_text(compile.memory).c_str());
    std::printf("\n");
    std::fflush(stdout);
    if (!csv_) return;
    const auto seconds_text = [](double s) { return std::isnan(s) ? "" : format("%.6g", s); };
    std::fprintf(csv_, "\"%s\",%.6g,%.3f,%.4g,%s,%.4g,%.3f,%s,%s,%s,%s,%s,%s\n", row.name.c_str(), seconds, spread,
                 rate / 1e9, flops ? "GFLOP/s" : "GB/s", peak / 1e9, share, mebibytes_text(row.memory).c_str(),
                 seconds_text(eager.seconds).c_str(), mebibytes_text(eager.memory).c_str(),
                 seconds_text(compile.seconds).c_str(), mebibytes_text(compile.memory).c_str(),
                 std::isnan(ratio) ? "" : format("%.3f", ratio).c_str());
}
