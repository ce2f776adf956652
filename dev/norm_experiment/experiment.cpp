// Trains the same small GPT with its norm before, after or nowhere, over learning rates and seeds, for equal steps:
//   norm_experiment --csv FILE [--data TEXT] [--layers N] [--steps N] [--seeds N] [--norm NAME] [--lr X] [--warmup N]
// --warmup: linear warm-up of the learning rate over this many steps (default 0: none).
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>

#include "dev/norm_experiment/model.h"
#include "io/file/error.h"

using namespace norm_experiment;

namespace {

constexpr const char* learning_rates[] = {"0.001", "0.003", "0.01", "0.03"};
constexpr int64_t evaluations = 6;  // during a run

std::string read_text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream bytes;
    if (!(bytes << file.rdbuf()))
        bad_input(path, "text", "no readable file", "one", "scripts/get_data.sh tinyshakespeare fetches the default");
    return bytes.str();
}

// Windows of bytes: the first nine tenths are for training, the rest for validation.
struct Windows {
    std::string text;
    Shape shape;
    std::vector<int32_t> tokens, targets;

    void take(size_t begin, size_t end, uint64_t seed, uint64_t step) {
        const size_t T = static_cast<size_t>(shape.seq);
        tokens.clear(), targets.clear();
        for (uint64_t b = 0; b < static_cast<uint64_t>(shape.batch); ++b) {
            const double u = uniform(seed, step * static_cast<uint64_t>(shape.batch) + b);
            const size_t at = begin + static_cast<size_t>(u * static_cast<double>(end - begin - T - 1));
            for (size_t t = 0; t < T; ++t) {
                tokens.push_back(static_cast<unsigned char>(text[at + t]));
                targets.push_back(static_cast<unsigned char>(text[at + t + 1]));
            }
        }
    }
    void train(uint64_t seed, int64_t step) { take(0, text.size() / 10 * 9, 1000 + seed, static_cast<uint64_t>(step)); }
    void validation(int64_t i) { take(text.size() / 10 * 9, text.size(), 1, static_cast<uint64_t>(i)); }
};

double validate(Model& model, Windows& windows) {
    constexpr int64_t batches = 16;
    double total = 0;
    for (int64_t i = 0; i < batches; ++i) {
        windows.validation(i);
        total += model.evaluate(windows.tokens.data(), windows.targets.data()) / batches;
    }
    return total;
}

int64_t number(const std::string& option, const std::string& text, int64_t most, int64_t least = 1) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most)
        throw InputError(option + ": found '" + text + "', expected " + std::to_string(least) + " to " +
                         std::to_string(most));
    return value;
}

// All of `known`, or the one with this name.
template <class Names>
std::vector<std::string> chosen(const std::string& option, const std::string& name, const Names& known) {
    std::string words;
    std::vector<std::string> wanted;
    for (const char* const each : known) {
        words += each + std::string(", ");
        if (name == "all" || name == each) wanted.push_back(each);
    }
    if (wanted.empty()) throw InputError(option + ": found '" + name + "', expected " + words + "or all");
    return wanted;
}

void run(std::map<std::string, std::string> options) {
    Windows windows{read_text(options["--data"]), {}, {}, {}};
    windows.shape.layers = number("--layers", options["--layers"], 100);
    const int64_t steps = number("--steps", options["--steps"], 1'000'000'000);
    const int64_t seeds = number("--seeds", options["--seeds"], 1'000'000);
    const int64_t warmup = number("--warmup", options["--warmup"], steps, 0);
    const auto norms = chosen("--norm", options["--norm"], norm_names);
    const auto rates = chosen("--lr", options["--lr"], learning_rates);
    if (windows.text.size() < 10'000)
        bad_input(options["--data"], "size", std::to_string(windows.text.size()) + " bytes", "10000 or more",
                  "take a longer text");
    std::ofstream csv(options["--csv"]);
    if (!(csv << "norm,lr,seed,step,validation\n").flush())  // fails now, not after an hour
        bad_input(options["--csv"], "file", "cannot be written", "a writable path", "choose another");
    for (const std::string& name : norms)
        for (const std::string& rate : rates)
            for (int64_t seed = 1; seed <= seeds; ++seed) {
                const auto norm = static_cast<Norm>(std::ranges::find(norm_names, name) - std::begin(norm_names));
                const double lr = std::stod(rate);
                Model model(norm, windows.shape, static_cast<uint64_t>(seed));
                double loss = 0;
                for (int64_t step = 1; step <= steps; ++step) {
                    windows.train(static_cast<uint64_t>(seed), step);
                    model.forward_backward(windows.tokens.data(), windows.targets.data());
                    model.update(step < warmup ? lr * static_cast<double>(step) / static_cast<double>(warmup) : lr,
                                 step);
                    if (step * evaluations / steps == (step - 1) * evaluations / steps) continue;
                    loss = validate(model, windows);
                    csv << name << ',' << rate << ',' << seed << ',' << step << ',' << (std::isnan(loss) ? NAN : loss)
                        << '\n';
                }
                std::printf("%-4s  learning rate %-5s  seed %lld  validation loss %.4f\n", name.c_str(), rate.c_str(),
                            static_cast<long long>(seed), loss);
                std::fflush(stdout);
            }
    if (!csv.flush()) bad_input(options["--csv"], "file", "cannot be written", "a writable path", "choose another");
}

}  // namespace

int main(int argc, char** argv) {
    std::map<std::string, std::string> options{{"--csv", ""},     {"--data", "data/tinyshakespeare.txt"},
                                               {"--layers", "4"}, {"--steps", "300"},
                                               {"--seeds", "3"},  {"--norm", "all"},
                                               {"--lr", "all"},   {"--warmup", "0"}};
    try {
        for (int i = 1; i < argc; i += 2) {
            if (i + 1 == argc || !options.contains(argv[i]))
                throw InputError(std::string(argv[i]) +
                                 ": expected --csv, --data, --layers, --steps, --seeds, --norm, --lr or --warmup, each "
                                 "with its value");
            options[argv[i]] = argv[i + 1];
        }
        if (options["--csv"].empty()) throw InputError("--csv: found none, expected the file for the results");
        run(options);
    } catch (const InputError& e) {
        std::fprintf(stderr, "norm_experiment: %s\n", e.what());
        return 2;
    }
    return 0;
}
