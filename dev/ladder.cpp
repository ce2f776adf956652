// The harness of the ladders: options, inputs, checks, timing, the table, and main() for all of them.
#include "dev/ladder.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>

#include "device/random.h"
#include "io/file/error.h"
#include "program/memory_plan.h"

namespace {

std::string joined(const std::vector<std::string>& words, const char* between = "x") {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
    return text;
}
std::string joined(const std::vector<int64_t>& sizes) {
    std::vector<std::string> words;
    for (const int64_t size : sizes) words.push_back(std::to_string(size));
    return joined(words);
}

std::string shape_names() {
    std::vector<std::string> words;
    for (const Dimension& d : kernel.shape) words.push_back(d.name);
    return joined(words);
}

std::vector<int64_t> default_shape() {
    std::vector<int64_t> sizes;
    for (const Dimension& d : kernel.shape) sizes.push_back(d.size);
    return sizes;
}

// The product of sizes in double, which does not overflow.
double elements(const std::vector<int64_t>& sizes) {
    double count = 1;
    for (const int64_t size : sizes) count *= static_cast<double>(size);
    return count;
}

std::optional<int64_t> positive(const std::string& text) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1) return std::nullopt;
    return value;
}

std::vector<int64_t> parse_shape(const std::string& text) {
    std::vector<int64_t> sizes;
    for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
        end = text.find('x', begin);
        const auto size = positive(text.substr(begin, end - begin));
        if (!size) break;
        sizes.push_back(*size);
        if (end == std::string::npos && sizes.size() == kernel.shape.size()) return sizes;
    }
    throw InputError("--shape: found '" + text + "', expected " + shape_names() + " as in " + joined(default_shape()));
}

void print_help() {
    std::printf("%s: %s\n", kernel.name, kernel.what);
    std::printf("  --shape %-12s sizes (%s):", shape_names().c_str(), joined(default_shape()).c_str());
    for (size_t i = 0; i < kernel.shape.size(); ++i)
        std::printf("%s %s %s", i ? "," : "", kernel.shape[i].name, kernel.shape[i].what);
    std::printf("\n  --rung  %-12s only this rung of each pass, by number or name\n", "WHICH");
    std::printf("  --csv   %-12s write the table to a file as well\n", "FILE");
    std::printf("  --check %-12s only check the rungs, without timing them\n", "");
    std::printf("  --source %-11s print the file and line of each rung\n", "");
    std::printf("Exit status: 0 all rungs are correct, 1 one is not, 2 bad input.\n");
}

// The error of a sum of n random terms is some 2^-24 sqrt(n) of its size, as rounding errors have both signs. 8 times
// that allows for other orders of summation and a few more roundings; a missing or wrong term has an error of about 1 /
// sqrt(n).
double tolerance(int64_t terms) { return 8 * 0x1p-24 * std::sqrt(static_cast<double>(terms)); }

}  // namespace

Ladder::Ladder(int argc, char** argv) : shape_(default_shape()), available_(available_memory()) {
    for (int i = 1; i < argc; ++i) {
        const std::string option = argv[i];
        if (option == "--check" || option == "--source") {
            (option == "--check" ? check_only_ : source_) = true;
            continue;
        }
        if (option != "--shape" && option != "--rung" && option != "--csv")
            throw InputError(option + ": unknown option; see --help");
        if (++i == argc) throw InputError(option + ": expected a value after it; see --help");
        if (option == "--shape") shape_ = parse_shape(argv[i]);
        if (option == "--rung") rung_ = argv[i];
        if (option == "--csv") csv_ = argv[i];
    }
    if (elements(shape_) > 0x1p60) refuse_shape();  // so that no product of some of them overflows
    if (!csv_.empty() && !std::ofstream(csv_, std::ios::app))
        throw InputError("--csv: " + csv_ + ": cannot be written");
}

void Ladder::refuse_shape() const {
    throw InputError("--shape " + joined(shape_) + ": needs more than the " + mebibytes(available_) +
                     " of memory that are free; pass smaller sizes");
}

// The number of elements of these sizes. Throws if there is not enough memory for them.
int64_t Ladder::count(std::initializer_list<int64_t> sizes, double bytes_each) {
    memory_ += elements(sizes) * bytes_each;
    if (memory_ > static_cast<double>(available_)) refuse_shape();
    return static_cast<int64_t>(elements(sizes));
}

Values& Ladder::tensor(const char* name, std::initializer_list<int64_t> sizes) {
    const int64_t n = count(sizes, sizeof(float) + sizeof(double));
    Values& t = tensors_.emplace_back();
    t.name = name;
    t.size = n;
    t.values = host_allocate<float>(n);
    t.exact = host_allocate<double>(n);
    return t;
}

void Ladder::fill(Values& t, double low, double high) {
    const Random random{++seed_, Purpose::parameters};
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < t.size; ++i) t.exact[i] = low + (high - low) * random.uniform(static_cast<uint64_t>(i));
    round(t);
}

// Rounds the reference's numbers to floats, so that both sides have the same inputs.
void Ladder::round(const Values& t) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < t.size; ++i) {
        t.values[i] = static_cast<float>(t.exact[i]);
        t.exact[i] = static_cast<double>(t.values[i]);
    }
}

const Values& Ladder::input(std::initializer_list<int64_t> sizes, double low, double high) {
    Values& t = tensor("", sizes);
    fill(t, low, high);
    return t;
}

const Values& Ladder::output(const char* name, std::initializer_list<int64_t> sizes, int64_t terms) {
    Values& t = tensor(name, sizes);
    t.tolerance = tolerance(terms);
    return t;
}

const Values& Ladder::updated(const char* name, std::initializer_list<int64_t> sizes, int64_t terms, double low,
                              double high) {
    Values& t = tensor(name, sizes);
    t.tolerance = tolerance(terms);
    t.start = host_allocate<float>(count(sizes, sizeof(float)));
    fill(t, low, high);
    std::copy_n(t.values.get(), t.size, t.start.get());
    return t;
}

float* Ladder::scratch(std::initializer_list<int64_t> sizes) {
    return scratch_.emplace_back(host_allocate<float>(count(sizes, sizeof(float)))).get();
}

std::vector<int32_t> Ladder::tokens(int64_t count, int64_t vocabulary) {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    const Random random{++seed_, Purpose::sampling};
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(random.below(vocabulary, i));
    return tokens;
}

void Ladder::rung(const char* name, const char* adds, std::function<void()> run, bool same_bits, const char* file,
                  int line) {
    passes_.back().rungs.push_back(
        {name, adds, std::move(run), same_bits, std::string(file) + ":" + std::to_string(line)});
}

bool Ladder::selected(const Pass& pass, const Rung& rung) const {
    return rung_.empty() || rung_ == rung.name || rung_ == std::to_string(&rung - pass.rungs.data() + 1);
}

// What is wrong with a rung, or empty. Outputs start with poison, so that missing results are noticed.
std::string Ladder::fault(const Pass& pass, const Rung& rung) try {
    const auto attempt = [&] {
        for (const Values* t : pass.results)
            if (t->start)
                std::copy_n(t->start.get(), t->size, t->values.get());
            else
                std::fill_n(t->values.get(), t->size, std::numeric_limits<float>::quiet_NaN());
        if (accelerator_)
            for (const Values* t : pass.results) accelerator_->upload(*t);
        rung.run();
        if (accelerator_)
            for (const Values* t : pass.results) accelerator_->download(*t);
    };
    attempt();
    std::vector<std::vector<float>> results;
    for (const Values* t : pass.results) {
        double largest = 0;
        for (int64_t i = 0; i < t->size; ++i) largest = std::max(largest, std::abs(t->exact[i]));
        for (int64_t i = 0; i < t->size; ++i) {
            const double got = static_cast<double>(t->values[i]), want = t->exact[i];
            if (std::abs(got - want) <= t->tolerance * largest) continue;  // false for NaN
            char text[160];
            std::snprintf(text, sizeof text, "%s[%lld] is %.9g instead of %.9g", t->name.c_str(),
                          static_cast<long long>(i), got, want);
            return text;
        }
        results.emplace_back(t->values.get(), t->values.get() + t->size);
    }
    if (!rung.same_bits) return "";
    const int threads = omp_get_max_threads();
    if (accelerator_)
        accelerator_->reorder();
    else
        omp_set_num_threads(1);
    attempt();
    omp_set_num_threads(threads);
    for (size_t i = 0; i < results.size(); ++i)
        if (std::memcmp(results[i].data(), pass.results[i]->values.get(), results[i].size() * sizeof(float)) != 0)
            return pass.results[i]->name + " has other bits " +
                   (accelerator_ ? "the next time" : "with one thread than with " + std::to_string(threads));
    return "";
} catch (const std::exception& error) {
    return error.what();
}

// From which rung on memory or arithmetic is the limit: all from there on reach at least 80 % of the peak.
void Ladder::print_verdict(const std::vector<const Rung*>& rungs, const std::vector<double>& shares, Unit unit) {
    const auto [bound, peak] =
        unit == Unit::flops ? std::pair("compute-bound", "the FMA peak") : std::pair("memory-bound", "a copy");
    const char* const last = rungs.back()->name.c_str();
    const double reached = 100 * shares.back();
    size_t first = shares.size();
    while (first > 0 && shares[first - 1] >= 0.8) --first;
    if (first + 1 < shares.size()) {
        std::printf("verdict: %s from %s on; %s reaches %.0f %% of %s\n", bound, rungs[first]->name.c_str(), last,
                    reached, peak);
    } else if (first < shares.size()) {
        std::printf("verdict: only %s is %s; it reaches %.0f %% of %s\n", last, bound, reached, peak);
    } else {
        std::printf("verdict: %s is not %s; it reaches %.0f %% of %s\n", last, bound, reached, peak);
    }
}

void Ladder::run_pass(const Pass& pass) {
    for (const Values* t : pass.results)
        if (t->start) std::copy_n(t->start.get(), t->size, t->exact.get());
    pass.reference();

    const bool flops = pass.work.unit == Unit::flops;
    const char* const unit = flops ? "GFLOP/s" : "GB/s";
    std::printf("\n%s: %.4g %s; correct within", pass.name.c_str(), pass.work.amount / 1e6, flops ? "MFLOP" : "MB");
    for (const Values* t : pass.results)
        std::printf("%s %.1e (%s)", t == pass.results[0] ? "" : ",", t->tolerance, t->name.c_str());
    std::printf(" of the largest value\n");
    if (!check_only_) std::printf("%95s %15s %9s %8s\n", "time", "rate", flops ? "of FMAs" : "of copy", "gain");
    std::vector<const Rung*> rungs;
    for (const Rung& rung : pass.rungs)
        if (selected(pass, rung)) rungs.push_back(&rung);
    std::vector<std::string> faults;
    for (const Rung* rung : rungs) faults.push_back(fault(pass, *rung));
    // Each rung, and the peak after it, runs in turn, so that a slow moment of the machine affects all of them.
    std::vector<std::function<double()>> measures;
    for (const Rung* rung : rungs) {
        if (accelerator_) {
            measures.push_back([rung, this] { return accelerator_->seconds_a_call(rung->run); });
            measures.push_back([unit = pass.work.unit, this] { return accelerator_->peak(unit); });
            continue;
        }
        measures.push_back([rung] { return seconds_a_call(rung->run); });
        measures.push_back(peak_of(pass.work.unit));
    }
    const std::vector<Samples> samples = timed() ? in_turn(measures, 5) : std::vector<Samples>();

    std::vector<double> shares;
    for (size_t i = 0; i < rungs.size(); ++i) {
        const Rung& rung = *rungs[i];
        const std::string number = std::to_string(&rung - pass.rungs.data() + 1),
                          ok = faults[i].empty() ? "OK" : "NOT OK";
        std::printf("%2s %-14s %-60s %-6s", number.c_str(), rung.name.c_str(), rung.adds.c_str(), ok.c_str());
        csv_rows_ += std::string(kernel.name) + ",\"" + pass.name + "\"," + number + ",\"" + rung.name + "\"," +
                     joined(shape_) + "," + ok;
        if (timed()) {
            const double seconds = samples[2 * i].median(), peak = samples[2 * i + 1].median();
            const double rate = pass.work.amount / seconds, gain = i ? samples[2 * i - 2].median() / seconds : 1;
            shares.push_back(rate / peak);
            std::printf(" %9.3f ms %7.1f %-7s %5.1f %%", seconds * 1e3, rate / 1e9, unit, 100 * rate / peak);
            if (i) std::printf(" %6.2f x", gain);
            char text[160];
            std::snprintf(text, sizeof text, ",%.6g,%.6g,%s,%.6g,%.4f,%.4g", seconds, rate / 1e9, unit, peak / 1e9,
                          rate / peak, gain);
            csv_rows_ += text;
        } else if (!check_only_) {
            std::printf(" %9s    %7s %-7s %5s", "-", "-", unit, "-");
        }
        csv_rows_ += "\n";
        std::printf("%s\n", source_ ? ("  " + rung.source).c_str() : "");
        if (!faults[i].empty()) std::printf("   %s\n", faults[i].c_str());
        all_correct_ = all_correct_ && faults[i].empty();
    }
    if (shares.size() > 1) print_verdict(rungs, shares, pass.work.unit);
    std::fflush(stdout);
}

void Ladder::run() {
    std::vector<const Pass*> wanted;
    std::vector<std::string> names;
    size_t rungs = 0;  // of the pass with the most
    for (const Pass& pass : passes_) {
        rungs = std::max(rungs, pass.rungs.size());
        bool any = false;
        for (const Rung& rung : pass.rungs) {
            any = any || selected(pass, rung);
            if (std::find(names.begin(), names.end(), rung.name) == names.end()) names.push_back(rung.name);
        }
        if (any) wanted.push_back(&pass);
    }
    if (wanted.empty())
        throw InputError("--rung: found '" + rung_ + "', expected a number from 1 to " + std::to_string(rungs) +
                         " or one of: " + joined(names, ", "));
    const std::string where = accelerator_ ? accelerator_->name() : std::to_string(omp_get_max_threads()) + " threads";
    std::printf("%s, %s %s, %s\n", kernel.name, shape_names().c_str(), joined(shape_).c_str(), where.c_str());
    for (const Pass* pass : wanted) run_pass(*pass);
    if (!csv_.empty())
        std::ofstream(csv_) << "kernel,pass,rung,name,shape,correct"
                            << (timed() ? ",seconds,rate,unit,peak,share,gain" : "") << "\n"
                            << csv_rows_;
}

int main(int argc, char** argv) {
    for (int i = 1; i < argc; ++i)
        if (std::strcmp(argv[i], "--help") == 0) {
            print_help();
            return 0;
        }
    try {
        Ladder ladder(argc, argv);
        climb(ladder);
        return ladder.all_correct() ? 0 : 1;
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "%s: out of memory; pass a smaller --shape\n", kernel.name);
    } catch (const std::exception& error) {  // bad input, or no GPU, or not enough of its memory
        std::fprintf(stderr, "%s: %s\n", kernel.name, error.what());
    }
    return 2;
}
