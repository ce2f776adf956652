// Compares LayerNorm and RMSNorm with PyTorch's results, the state file of scripts/dump_layernorm.py.
#pragma once

#include <cmath>
#include <cstdio>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "io/file/error.h"
#include "io/model/safetensors.h"
#include "layers/layernorm_cpu.h"
#include "layers/rmsnorm_cpu.h"

namespace layernorm_check {

using Numbers = std::vector<double>;
using Tensors = std::map<std::string, Numbers>;

struct Case {
    std::string key, norm, dtype;  // "0007", "layernorm" or "rmsnorm", "float64", "float32" or "bfloat16"
    std::vector<int64_t> shape, normalized_shape;
    double eps = 0;
    int64_t passes = 0;  // number of backward passes, over which the gradients of parameters add up
    Rows rows;
    Tensors inputs, results;  // results of PyTorch, without those that were not requested
    bool has(const std::string& name) const { return inputs.contains(name); }
};

class File {
public:
    explicit File(const std::string& path) : file_(path) {}

    int64_t cases() const {
        const auto found = file_.metadata().find("cases");
        if (found == file_.metadata().end()) wrong("metadata \"cases\"", "none", "a number");
        return integer("metadata \"cases\"", found->second);
    }

    Case read(int64_t i) const {
        char key[8];
        std::snprintf(key, sizeof key, "%04d", static_cast<int>(i));
        const std::string field = std::string("metadata \"case.") + key + "\"";
        const auto found = file_.metadata().find(std::string("case.") + key);
        if (found == file_.metadata().end()) wrong(field, "none", "its norm, dtype and shapes");
        Case c;
        c.key = key;
        std::istringstream words(found->second);
        words >> c.norm >> c.dtype;
        std::map<std::string, std::string> options;
        for (std::string word; words >> word;)
            options[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
        if (c.norm != "layernorm" && c.norm != "rmsnorm") wrong(field, "'" + c.norm + "'", "layernorm or rmsnorm");
        if (c.dtype != "float64" && c.dtype != "float32" && c.dtype != "bfloat16")
            wrong(field, "'" + c.dtype + "'", "float64, float32 or bfloat16");
        c.shape = list(field + " shape", options["shape"]);
        c.normalized_shape = list(field + " normalized_shape", options["normalized_shape"]);
        c.passes = integer(field + " passes", options["passes"]);
        std::istringstream eps(options["eps"]);
        if (!(eps >> c.eps) || !(c.eps > 0)) wrong(field + " eps", "'" + options["eps"] + "'", "a number above 0");
        try {
            c.rows = normalized_rows(c.shape, c.normalized_shape);
        } catch (const std::invalid_argument& e) {
            throw InputError(file_.path() + ": " + field + ": " + e.what());
        }
        const int64_t all = c.rows.N * c.rows.C;
        take(c.inputs, c, {"x", "dout"}, all, true);
        take(c.inputs, c, {"branch", "dresidual"}, all, false);
        take(c.inputs, c, {"weight", "bias"}, c.rows.C, false);
        take(c.results, c, {"out"}, all, true);
        take(c.results, c, {"residual"}, all, c.has("branch"));
        take(c.results, c, {"mean", "rstd"}, c.rows.N, false);
        take(c.results, c, {"dx"}, all, false);
        take(c.results, c, {"dweight", "dbias"}, c.rows.C, false);
        return c;
    }

private:
    [[noreturn]] void wrong(const std::string& field, const std::string& found, const std::string& expected) const {
        bad_input(file_.path(), field, found, expected, "make the file with scripts/dump_layernorm.py");
    }
    int64_t integer(const std::string& field, const std::string& text) const {
        std::istringstream in(text);
        int64_t value = 0;
        if (!(in >> value) || !in.eof() || value < 0 || value > 9999) wrong(field, "'" + text + "'", "0 to 9999");
        return value;
    }
    std::vector<int64_t> list(const std::string& field, const std::string& text) const {
        std::vector<int64_t> values;
        std::istringstream in(text);
        for (std::string part; std::getline(in, part, ',');) values.push_back(integer(field, part));
        return values;
    }
    void take(Tensors& to, const Case& c, const std::vector<std::string>& names, int64_t size, bool required) const {
        for (const std::string& name : names) {
            const SafetensorsFile::Entry* const entry = file_.find(c.key + "." + name);
            if (!entry && !required) continue;
            const std::string field = "tensor " + c.key + "." + name;
            if (!entry) wrong(field, "none", std::to_string(size) + " values");
            if (entry->elements() != size)
                wrong(field, std::to_string(entry->elements()) + " values", std::to_string(size));
            Numbers& values = to[name];
            values.resize(static_cast<size_t>(size));
            file_.read(*entry, values.data());
        }
    }
    SafetensorsFile file_;
};

// The results of a device for the case, with tensors stored as S.
template <class S, class Device>
Tensors run(Device dev, const Case& c) {
    using A = typename Device::scalar;
    const auto [N, C] = c.rows;
    std::map<std::string, std::vector<S>> stored;
    std::map<std::string, std::vector<A>> statistics;
    for (const auto& [name, values] : c.inputs)
        for (const double value : values) stored[name].push_back(static_cast<S>(value));
    for (const auto& [name, values] : c.results)
        if (!c.has(name))
            stored[name].resize(values.size(), static_cast<S>(name[0] == 'd' && name != "dx" ? 0.0 : NAN));
    for (const char* name : {"mean", "rstd"}) statistics[name].resize(static_cast<size_t>(N), static_cast<A>(NAN));

    const auto at = [&](const std::string& name) -> S* {  // null if the case does not have it
        const auto found = stored.find(name);
        return found == stored.end() ? nullptr : found->second.data();
    };
    A *const mean = statistics["mean"].data(), *const rstd = statistics["rstd"].data();
    const A eps = static_cast<A>(c.eps);
    const S* const inp = c.has("branch") ? at("residual") : at("x");
    if (c.norm == "layernorm") {
        if (c.has("branch"))
            residual_layernorm_forward(dev, at("residual"), at("out"), mean, rstd, at("x"), at("branch"), at("weight"),
                                       at("bias"), N, C, eps);
        else
            layernorm_forward(dev, at("out"), mean, rstd, inp, at("weight"), at("bias"), N, C, eps);
        for (int64_t pass = 0; pass < c.passes; ++pass)
            layernorm_backward(dev, at("dx"), at("dweight"), at("dbias"), at("dout"), inp, at("weight"), mean, rstd,
                               at("dresidual"), N, C);
    } else {
        if (c.has("branch"))
            residual_rmsnorm_forward(dev, at("residual"), at("out"), rstd, at("x"), at("branch"), at("weight"), N, C,
                                     eps);
        else
            rmsnorm_forward(dev, at("out"), rstd, inp, at("weight"), N, C, eps);
        for (int64_t pass = 0; pass < c.passes; ++pass)
            rmsnorm_backward(dev, at("dx"), at("dweight"), at("dout"), inp, at("weight"), rstd, at("dresidual"), N, C);
    }
    Tensors results;
    for (const auto& result : c.results) {
        const std::string& name = result.first;
        const auto copy = [&](const auto& from) { results[name].assign(from.begin(), from.end()); };
        statistics.contains(name) ? copy(statistics[name]) : copy(stored[name]);
    }
    return results;
}

// The size of the terms of each result, to which its rounding errors are proportional. A mean has a rounding error of
// its own size; relative to the row's spread that is |mean| * rstd, and the norm has this error too. So rows far from 0
// lose digits, in PyTorch as well as here.
inline Tensors magnitudes(const Case& c) {
    const int64_t N = c.rows.N, C = c.rows.C;
    const auto size = [](int64_t n) { return Numbers(static_cast<size_t>(n)); };
    Tensors t{{"out", size(N * C)}, {"residual", size(N * C)}, {"dx", size(N * C)}, {"mean", size(N)},
              {"rstd", size(N)},    {"dweight", size(C)},      {"dbias", size(C)}};
    const auto value = [&](const char* name, int64_t i, double absent) {
        return c.has(name) ? std::abs(c.inputs.at(name)[static_cast<size_t>(i)]) : absent;
    };
    const Numbers& x = c.inputs.at("x");
    const bool centred = c.norm == "layernorm";
    for (int64_t row = 0; row < N; ++row) {
        const auto at = [&](int64_t k) { return static_cast<size_t>(row * C + k); };
        Numbers inp(static_cast<size_t>(C)), norm(static_cast<size_t>(C));
        double mean = 0, square = 0, size_of_inp = 0;
        for (int64_t k = 0; k < C; ++k) {
            inp[static_cast<size_t>(k)] = x[at(k)] + (c.has("branch") ? c.inputs.at("branch")[at(k)] : 0);
            mean += inp[static_cast<size_t>(k)] / static_cast<double>(C);
            size_of_inp += (std::abs(x[at(k)]) + value("branch", row * C + k, 0)) / static_cast<double>(C);
        }
        if (!centred) mean = 0;
        for (const double v : inp) square += (v - mean) * (v - mean) / static_cast<double>(C);
        const double r = 1 / std::sqrt(square + c.eps), far = centred || c.has("branch") ? size_of_inp * r : 0;
        double mean_dnorm = 0, mean_dnorm_norm = 0;
        for (int64_t k = 0; k < C; ++k) {
            double& n = norm[static_cast<size_t>(k)];
            n = std::abs(inp[static_cast<size_t>(k)] - mean) * r * (1 + far) + far;
            const double dout = value("dout", row * C + k, 0), dnorm = dout * value("weight", k, 1);
            mean_dnorm += dnorm / static_cast<double>(C);
            mean_dnorm_norm += dnorm * n / static_cast<double>(C);
            t["out"][at(k)] = n * value("weight", k, 1) + value("bias", k, 0);
            t["residual"][at(k)] = std::abs(x[at(k)]) + value("branch", row * C + k, 0);
            t["dweight"][static_cast<size_t>(k)] += static_cast<double>(c.passes) * dout * n;
            t["dbias"][static_cast<size_t>(k)] += static_cast<double>(c.passes) * dout;
        }
        for (int64_t k = 0; k < C; ++k)
            t["dx"][at(k)] =
                value("dresidual", row * C + k, 0) + r * (1 + far) *
                                                         (value("dout", row * C + k, 0) * value("weight", k, 1) +
                                                          mean_dnorm + norm[static_cast<size_t>(k)] * mean_dnorm_norm);
        t["mean"][static_cast<size_t>(row)] = size_of_inp;
        t["rstd"][static_cast<size_t>(row)] = r * (1 + far);
    }
    return t;
}

struct Check {
    int passed = 0, failed = 0;
    bool quiet = false;  // print only comparisons that fail

    void file(const File& f) {
        const int64_t cases = f.cases();
        for (int64_t i = 0; i < cases; ++i) {
            const Case c = f.read(i);
            const Tensors size = magnitudes(c);
            // Rounding errors of random sign grow as the root of their number: those of a sum over a row or a column,
            // in PyTorch and here. The 8 is for the few other roundings.
            const double loss = 8 + 2 * std::sqrt(static_cast<double>(std::max(c.rows.N, c.rows.C)));
            const double to_double = loss * 0x1p-53, to_float = loss * 0x1p-24;
            if (c.dtype == "float64") {
                compare("Reference<double>", c, run<double>(Reference<double>{}, c), size, to_double);
                compare("Cpu", c, run<float>(Cpu{}, c), size, to_float);
            } else if (c.dtype == "float32") {
                compare("Reference<float>", c, run<float>(Reference<float>{}, c), size, to_float);
                compare("Cpu", c, run<float>(Cpu{}, c), size, to_float);
            } else {
                // One rounding to bf16 in PyTorch, one here, and for rmsnorm that of its norm, which PyTorch does not
                // round; PyTorch also rounds intermediate sums over rows.
                const double to_bf16 = 0x1p-7 + to_float, root = std::sqrt(static_cast<double>(c.rows.N));
                compare("Reference<float>, bf16", c, run<bf16>(Reference<float>{}, c), size, to_bf16, root);
                compare("Cpu, bf16", c, run<bf16>(Cpu{}, c), size, to_bf16, root);
            }
        }
    }

private:
    void compare(const char* device, const Case& c, const Tensors& found, const Tensors& size, double tolerance,
                 double sums = 1) {
        for (const auto& [name, expected] : c.results) {
            const Numbers &values = found.at(name), &magnitude = size.at(name);
            const double relative = tolerance * (name == "dweight" || name == "dbias" ? sums : 1);
            double largest = 0, share = 0;  // the largest difference; its share of the allowed one
            bool ok = true;
            for (size_t i = 0; i < expected.size(); ++i) {
                const double difference = std::abs(values[i] - expected[i]), allowed = relative * magnitude[i];
                ok = ok && difference <= allowed;  // NaN fails
                largest = std::max(largest, difference);
                if (difference > 0) share = std::max(share, difference / allowed);
            }
            ++(ok ? passed : failed);
            if (ok && quiet) continue;
            std::printf("%-6s %s %s %s %s over %s%s%s  %s: %s: largest difference %.1e, %.0f %% of what is allowed\n",
                        ok ? "OK" : "NOT OK", c.key.c_str(), c.norm.c_str(), c.dtype.c_str(),
                        shape_text(c.shape).c_str(), shape_text(c.normalized_shape).c_str(),
                        c.has("weight") ? " weight" : "", c.has("bias") ? " bias" : "", name.c_str(), device, largest,
                        100 * share);
        }
    }
};

// layernorm_check [--quiet] FILE. Returns the exit status: 0 if all results agree, 1 if some do not, 2 if the file
// cannot be used.
inline int main(const std::vector<std::string>& arguments) {
    try {
        Check check;
        check.quiet = !arguments.empty() && arguments[0] == "--quiet";
        if (arguments.size() != (check.quiet ? 2 : 1) || arguments.back().starts_with("-"))
            throw InputError("expected [--quiet] FILE, a state file of scripts/dump_layernorm.py");
        const File file(arguments.back());
        check.file(file);
        std::printf("%d passed, %d failed\n", check.passed, check.failed);
        return check.failed ? 1 : 0;
    } catch (const InputError& e) {
        std::fprintf(stderr, "layernorm_check: %s\n", e.what());
        return 2;
    }
}

}  // namespace layernorm_check
