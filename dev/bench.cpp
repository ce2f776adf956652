// make bench: times every layer, forward and backward, and whole training steps, and compares each with the machine's
// peak and with PyTorch.
//   build/native/bench [--only TEXT] [--pytorch] [--csv FILE | --results DIR]
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <optional>

#include "dev/bench_rows.h"
#include "device/cpu/openmp_spin.h"
#include "program/threads.h"

namespace {

struct Options {
    std::string only, csv, results;
    bool pytorch = false;
};

std::optional<Options> parse(int argc, char** argv) {
    Options o;
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        std::string* const value = name == "--only"      ? &o.only
                                   : name == "--csv"     ? &o.csv
                                   : name == "--results" ? &o.results
                                                         : nullptr;
        if (name == "--pytorch")
            o.pytorch = true;
        else if (value && i + 1 < argc)
            *value = argv[++i];
        else
            return std::nullopt;
    }
    return o;
}

// "Intel Xeon Processor family 6", from /proc/cpuinfo, or "CPU" if that file has no name. The family is included
// because a virtual machine may give CPUs of two generations the same name.
std::string cpu_name() {
    std::ifstream cpuinfo("/proc/cpuinfo");
    std::string model = "CPU", family;
    for (std::string line; std::getline(cpuinfo, line) && !line.empty();) {
        const std::string value = line.substr(std::min(line.size(), line.find(':') + 2));
        if (line.starts_with("model name")) model = value;
        if (line.starts_with("cpu family")) family = " family " + value;
    }
    for (const char* noise : {"(R)", "(TM)", " CPU"})
        for (size_t at; (at = model.find(noise)) != std::string::npos;) model.erase(at, std::string(noise).size());
    return model + family;
}

std::string file_name(std::string name) {
    for (char& c : name)
        if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.') c = '-';
    return name;
}

std::string today() {
    const std::time_t now = std::time(nullptr);
    char text[16];
    std::strftime(text, sizeof text, "%Y-%m-%d", std::localtime(&now));
    return text;
}

// A file that appears only when it is complete: an interrupted run does not replace the previous result.
struct Output {
    explicit Output(const std::string& p) : path(p) {
        if (path.empty()) return;
        file = std::fopen(partial().c_str(), "w");
        if (!file) {
            std::fprintf(stderr, "bench: %s: cannot be written\n", partial().c_str());
            std::exit(2);
        }
    }
    std::string partial() const { return path + ".part"; }
    void keep() {
        if (!file) return;
        std::fclose(file);
        std::rename(partial().c_str(), path.c_str());
        std::printf("wrote %s\n", path.c_str());
    }

    const std::string path;
    std::FILE* file = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
    limit_spinning();               // as the program does
    std::signal(SIGPIPE, SIG_IGN);  // if the PyTorch process has ended, an error is reported
    const std::optional<Options> options = parse(argc, argv);
    if (!options) {
        std::fprintf(
            stderr,
            "bench: expected --only TEXT (rows whose name holds it), --pytorch (beside .venv's), --csv FILE or "
            "--results DIR (for a file named by the CPU)\n");
        return 2;
    }
    const std::string cpu = cpu_name();
    const std::string path = options->results.empty() ? options->csv : options->results + "/" + file_name(cpu) + ".csv";
    Output rows(path), threads(path.empty() ? path : path.substr(0, path.rfind('.')) + "-threads.csv");
    const std::string about = cpu + ", " + std::to_string(omp_get_max_threads()) + " threads, vectors of " +
                              std::to_string(simd::W) + " floats, g++ " __VERSION__ ", " + today();
    std::printf("%s\n\n", about.c_str());
    for (const Output* output : {&rows, &threads})
        if (output->file) std::fprintf(output->file, "# %s\n", about.c_str());
    BenchTable table(options->only, options->pytorch, rows.file);
    layer_rows(table);
    step_rows(table);
    token_rows(table);
    thread_rows(table, threads.file);
    if (table.groups() == 0) {
        std::fprintf(stderr, "bench: no row's name holds '%s'\n", options->only.c_str());
        return 2;
    }
    if (table.failed()) return 1;
    std::printf("\n");
    rows.keep(), threads.keep();
    return 0;
}
