// Compares a model on any device with a reference: the dump that scripts/dump_reference.py made with PyTorch in
// float64, or an llm.c pair of model and debug state.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "gpt2.h"
#include "io/file/error.h"
#include "io/model/llmc_files.h"
#include "io/model/safetensors.h"

// Counts comparisons, and prints one line each.
struct Check {
    int passed = 0, failed = 0, skipped = 0;
    bool quiet = false;

    // Passes when the largest |value - reference| is at most tolerance * the largest |reference|; NaN or infinity on
    // either side fails.
    template <class T, class U>
    void compare(const std::string& name, const T* values, const U* reference, int64_t n, double tolerance) {
        double difference = 0, largest = 0;
        bool finite = true;
        for (int64_t i = 0; i < n; ++i) {
            const double x = static_cast<double>(values[i]), r = static_cast<double>(reference[i]);
            finite = finite && std::isfinite(x) && std::isfinite(r);
            difference = std::max(difference, std::abs(x - r));
            largest = std::max(largest, std::abs(r));
        }
        const bool ok = finite && difference <= tolerance * largest;
        ++(ok ? passed : failed);
        if (!quiet)
            std::printf("%-6s %-22s %9lld values  largest difference %.1e of %.1e: relative %.1e, allowed %.1e%s\n",
                        ok ? "OK" : "NOT OK", name.c_str(), static_cast<long long>(n), difference, largest,
                        largest > 0 ? difference / largest : difference, tolerance, finite ? "" : "  (not finite)");
    }
    void skip(const std::string& name, const char* why) {
        ++skipped;
        if (!quiet) std::printf("skip   %-22s %s\n", name.c_str(), why);
    }
};

// The tolerance of a comparison by its name ("act.ln1.0", "grad.qkvw", …).
using Tolerance = double (*)(const std::string& name);

// Reference<double> computes the same as PyTorch in float64; only the order of summation differs.
inline double tolerance_double(const std::string& name) {
    if (name.starts_with("final.qkvb") && name.ends_with(".k"))
        return 1e-8;  // a true gradient of 0, see ReferenceCheck::train
    return 1e-10;
}

inline double tolerance_float(const std::string& name) {
    if (name.starts_with("final.qkvb") && name.ends_with(".k"))
        return 1;  // noise divided by noise: only finiteness and size are checked
    if (name.starts_with("final.") || name.starts_with("train."))
        return 2e-3;  // ten steps of AdamW, which divides by small square roots
    if (name.starts_with("grad.") || name.starts_with("dact."))
        return 2e-5;  // sums over N rows and two passes through the layers
    return 5e-6;      // forward: some 40 roundings of 6e-8 in a row
}

template <class Device, class Scalar = typename Device::scalar>
class ReferenceCheck {
public:
    using scalar = Scalar;
    using wide = typename GPT2<Device, Scalar>::wide;

    ReferenceCheck(const std::string& path, Device device, Tolerance t, Check& c)
        : dump(path),
          shape(read_shape(dump)),
          B(number("batch")),
          T(number("seq")),
          tolerance(t),
          check(c),
          model(std::move(device), shape, B, T, ActivationPolicy::all),
          x(tokens("x")),
          y(tokens("y")) {}

    void run() {
        forward_and_backward();
        train();
    }

private:
    template <class Number>
    static Number parse(const SafetensorsFile& file, const std::string& key, Number low, Number high) {
        const auto found = file.metadata().find(key);
        const std::string text = found == file.metadata().end() ? "none" : found->second;
        Number value{};
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc{} || end != text.data() + text.size() || !(low <= value && value <= high))
            bad_input(file.path(), "metadata \"" + key + "\"", text, "a number",
                      "make the dump again with scripts/dump_reference.py");
        return value;
    }
    static int64_t number(const SafetensorsFile& file, const std::string& key) {
        return parse<int64_t>(file, key, 1, 1'000'000);
    }
    int64_t number(const std::string& key) const { return number(dump, key); }
    double real(const std::string& key) const { return parse(dump, key, 0.0, 1e9); }
    static GPT2Config read_shape(const SafetensorsFile& f) {
        return {.context = number(f, "context"),
                .vocab = number(f, "vocab"),
                .layers = number(f, "layers"),
                .heads = number(f, "heads"),
                .channels = number(f, "channels"),
                .dropout = f.metadata().contains("dropout") ? parse(f, "dropout", 0.0, 1.0) : 0};
    }

    std::vector<double> read(const std::string& name, int64_t size) {
        const SafetensorsFile::Entry* entry = dump.find(name);
        if (!entry)
            throw InputError(dump.path() + ": tensor " + name +
                             ": missing; make the dump again with scripts/dump_reference.py");
        if (entry->elements() != size)
            bad_input(dump.path(), "tensor " + name, std::to_string(entry->elements()) + " values",
                      std::to_string(size), "make the dump again with scripts/dump_reference.py");
        std::vector<double> values(static_cast<size_t>(size));
        dump.read(*entry, values.data());
        return values;
    }
    std::vector<int32_t> tokens(const std::string& name) {
        const SafetensorsFile::Entry* entry = dump.find(name);
        if (!entry || entry->dtype != DType::I32 || entry->elements() != B * T)
            throw InputError(dump.path() + ": tensor " + name +
                             ": expected B*T int32; make the dump again with scripts/dump_reference.py");
        const int32_t* p = static_cast<const int32_t*>(dump.data(*entry));
        return {p, p + B * T};
    }
    void compare(const std::string& name, const std::vector<double>& found) {
        const auto n = static_cast<int64_t>(found.size());
        check.compare(name, found.data(), read(name, n).data(), n, tolerance(name));
    }
    int64_t elements(const Parameter& p) const { return p.copies * p.piece(); }
    const scalar* act(const Tensor& t, int64_t copy = 0) const { return model.activations.get() + t.at(copy); }

    // The device's values at p (n).
    template <class Value>
    std::vector<double> values(const Value* p, int64_t n) {
        std::vector<double> result;
        for (const Value v : to_host(model.dev, p, n)) result.push_back(static_cast<double>(static_cast<wide>(v)));
        return result;
    }
    std::vector<double> values(const Tensor& t, int64_t copy = 0) {
        if (t.width == 1) return values(act(t, copy), t.piece());
        return values(reinterpret_cast<const wide*>(act(t, copy)), t.piece());
    }
    // The parameters as the optimizer has them.
    std::vector<double> parameter_values(int64_t offset, int64_t n) {
        if constexpr (GPT2<Device, Scalar>::mixed)
            return values(model.master.get() + offset, n);
        else
            return values(model.parameters.get() + offset, n);
    }
    void set_parameters() {
        std::vector<double> all(static_cast<size_t>(model.table.size));
        for (const Parameter& p : model.table.rows) {
            const std::vector<double> read_values = read("param." + p.name, elements(p));
            std::copy(read_values.begin(), read_values.end(), all.begin() + p.offset);
        }
        if constexpr (std::is_same_v<wide, float>) {
            const Model::HostState host = model.download();
            std::copy(all.begin(), all.end(), host.parameters);
            model.upload(host);
        } else {
            std::copy(all.begin(), all.end(), model.parameters.get());
        }
    }

    // Dropout's masks depend on it.
    void set_step(int64_t step) {
        model.batch_place = {.seed = parse<uint64_t>(dump, "seed", 0, ~uint64_t{0}), .step = step};
    }

    void forward_and_backward() {
        const int64_t C = shape.channels, V = shape.vocab, N = B * T;
        set_parameters();
        set_step(1);
        model.forward_backward(x.data(), y.data(), B, T, 1.0 / static_cast<double>(N));
        const double loss = model.loss();
        compare("loss", {loss});
        for (const Tensor& t : model.acts.rows) {
            if (t.name == "logits") continue;  // it has one token; the logits of all tokens are compared below
            const bool gradient = t.name[0] == 'd';
            const std::string name = gradient ? "dact." + t.name.substr(1) : "act." + t.name;
            const bool once = dump.find(name) != nullptr;  // lnf and losses; a block's tensors carry the block's number
            for (int64_t l = 0; l < t.copies; ++l) compare(once ? name : name + "." + std::to_string(l), values(t, l));
        }
        for (const Parameter& p : model.table.rows)
            compare("grad." + p.name, values(model.gradients.get() + p.offset, elements(p)));

        // Tensors that the fused layers never store: computed from their neighbours, or by the same layer without
        // fusion.
        const auto hidden = allocate<scalar>(model.dev, 4 * N * C), logit_row = allocate<scalar>(model.dev, V);
        const auto unused = allocate<wide>(model.dev, 4 * C * C);
        const auto dropped = allocate<scalar>(model.dev, N * C);
        for (int64_t l = 0; l < shape.layers; ++l) {
            const std::string block = "." + std::to_string(l);
            const auto subtract = [&](const std::string& name, std::vector<double> after,
                                      const std::vector<double>& before) {
                for (size_t i = 0; i < after.size(); ++i) after[i] -= before[i];
                compare(name + block, after);
            };
            subtract("act.attproj", values(model.acts.residual2, l), values(model.acts.residual1, l));
            subtract("act.fcproj", values(model.acts.residual1, l + 1), values(model.acts.residual2, l));
            const scalar* dfcproj = act(model.acts.dresidual1, l + 1);
            if (const Dropout dropout = model.training_dropout(); dropout.on()) {
                apply_dropout(model.dev, dropped.get(), dfcproj, static_cast<const scalar*>(nullptr),
                              dropout.at(l, DropoutSite::mlp_projection), B, T, C);
                dfcproj = dropped.get();
            }
            matmul_backward(model.dev, hidden.get(), unused.get(), static_cast<wide*>(nullptr), dfcproj,
                            act(model.acts.fch_gelu, l), model.parameters.get() + model.table.fcprojw.at(l), N, 4 * C,
                            C);
            compare("dact.fch_gelu" + block, values(hidden.get(), 4 * N * C));
        }
        std::vector<double> logits;
        for (int64_t n = 0; n < N; ++n) {
            classifier_logits(model.dev, logit_row.get(), act(model.acts.lnf) + n * C,
                              model.parameters.get() + model.table.wte.offset, 1, C, V);
            for (const double logit : values(logit_row.get(), V)) logits.push_back(logit);
        }
        compare("act.logits", logits);
        check.skip("dact.logits",
                   "lives only inside the classifier; what it leads to, dact.lnf and grad.wte, is compared");
    }

    void train() {
        const UpdateParams params{.lr = real("lr"),
                                  .beta1 = real("beta1"),
                                  .beta2 = real("beta2"),
                                  .eps = real("eps"),
                                  .weight_decay = real("weight_decay"),
                                  .clip = real("clip")};
        const int64_t steps = number("steps"), N = B * T;
        std::vector<double> losses, norms;
        zero(model.dev, model.gradients.get(), model.table.size);
        take(model.dev, model.status.get());
        for (int64_t step = 1; step <= steps; ++step) {
            set_step(step);
            model.forward_backward(x.data(), y.data(), B, T, 1.0 / static_cast<double>(N));
            const StepResult result = model.update(at_step(params, step));
            losses.push_back(result.loss);
            norms.push_back(result.grad_norm);
        }
        compare("train.losses", losses);
        compare("train.grad_norms", norms);
        for (const Parameter& p : model.table.rows) {
            if (!p.name.starts_with("qkv")) {
                compare("final." + p.name, parameter_values(p.offset, elements(p)));
                continue;
            }
            // AdamW turns a gradient that is 0 except for rounding into whole steps. Such are the gradients of a bias
            // on all keys, which changes no softmax, and of all queries and keys if a token attends only to itself.
            const std::vector<double> reference = read("final." + p.name, elements(p));
            const int64_t third = p.piece() / 3;
            for (int64_t l = 0; l < shape.layers; ++l)
                for (const int64_t part : {0, 1, 2}) {
                    const std::string name = "final." + p.name + "." + std::to_string(l) +
                                             (part == 0   ? ".q"
                                              : part == 1 ? ".k"
                                                          : ".v");
                    const int64_t at = l * p.stride + part * third;
                    if (T == 1 && part < 2)
                        check.skip(name, "sequences of one token: its gradient is 0, and AdamW divides noise by noise");
                    else
                        check.compare(name, parameter_values(p.offset + at, third).data(), reference.data() + at, third,
                                      tolerance(name));
                }
        }
    }

    SafetensorsFile dump;
    const GPT2Config shape;
    const int64_t B, T;
    const Tolerance tolerance;
    Check& check;
    GPT2<Device, Scalar> model;
    std::vector<int32_t> x, y;
};
