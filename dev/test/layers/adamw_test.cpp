// AdamW: Cpu against Reference, Reference against PyTorch, threads, NaN.
#include "layers/adamw_cpu.h"

#include "dev/test/layers/layer_check.h"

namespace {

struct Tensors {
    explicit Tensors(int64_t n)
        : param(random_values(n)), grad(random_values(n)), m(random_values(n, 0.1)), v(uniform(n)) {
        for (int64_t i = 0; i < n; ++i)  // v is a mean of squares
            v.exact[static_cast<size_t>(i)] = std::abs(v[i]), v.cpu.get()[i] = std::abs(v.cpu.get()[i]);
    }
    template <class Device>
    void update(Device& dev, const UpdateParams& params, double grad_scale) {
        const StepStatus status{.grad_scale = grad_scale, .apply = 1};
        adamw_update(dev, param.on(dev), grad.on(dev), m.on(dev), v.on(dev), param.size(), &params, true, &status);
    }
    Values param, grad, m, v;
};

TEST(AdamW, CpuAgreesWithReference) {
    const UpdateParams settings[] = {{},
                                     {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1},
                                     {.lr = 3e-4, .beta1 = 0, .beta2 = 0.5, .eps = 1e-3, .weight_decay = 1}};
    for (const UpdateParams& o : settings)
        for (const int64_t n : {0, 1, 3, 7, 8, 15, 16, 17, 31, 33, 1000, 20011})
            for (const int64_t step : {1, 2, 1000, 1000000}) {
                SCOPED_TRACE(testing::PrintToString(std::vector{n, step}));
                Tensors t(n);
                const Values before(t.param.exact), old_m(t.m.exact);
                const double scale = 0.375;  // a float
                Cpu cpu;
                Reference<double> reference;
                t.update(cpu, at_step(o, step), scale);
                t.update(reference, at_step(o, step), scale);
                for (int64_t i = 0; i < n; ++i) {
                    const size_t at = static_cast<size_t>(i);
                    const double g = std::abs(t.grad[i]) * scale;
                    t.m.magnitude[at] = o.beta1 * std::abs(old_m[i]) + (1 - o.beta1) * g;
                    t.v.magnitude[at] = t.v[i];  // a sum of positive terms
                    // m's sum may cancel, and then the step is off by as much as its terms are
                    const double m = t.m.magnitude[at] / (1 - std::pow(o.beta1, step));
                    const double root = std::sqrt(t.v[i] / (1 - std::pow(o.beta2, step))) + o.eps;
                    t.param.magnitude[at] = std::abs(before[i]) + o.lr * m / root;
                }
                // m: 5 roundings, betas' included; v: 6; the step: m's, half of v's, and 8 of its own
                t.m.expect_close("m", 5 * roundoff);
                t.v.expect_close("v", 6 * roundoff);
                t.param.expect_close("param", 16 * roundoff);
            }
}

TEST(AdamW, ReferenceDoesWhatPyTorchDoes) {  // torch.optim.AdamW in float64, three steps on one parameter
    Reference<double> dev;
    const UpdateParams o{.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.2};
    const StepStatus unclipped{.grad_scale = 1, .apply = 1};
    double param = 1.5, m = 0, v = 0;
    const double gradients[] = {0.5, -2.0, 0.25},
                 expected[] = {1.3700000019999998, 1.3984390413825702, 1.4057181965407615};
    for (int64_t step = 1; step <= 3; ++step) {
        const UpdateParams params = at_step(o, step);
        adamw_update(dev, &param, &gradients[step - 1], &m, &v, 1, &params, true, &unclipped);
        EXPECT_NEAR(param, expected[step - 1], 1e-14) << step;
    }
}

TEST(AdamW, ZeroGradientsOnlyShrink) {
    Tensors t(21);
    Cpu cpu;
    for (Values* zeros : {&t.grad, &t.m, &t.v}) std::fill_n(zeros->on(cpu), 21, 0.0f);
    t.update(cpu, at_step({.lr = 0.5, .weight_decay = 0.5}, 1), 1);
    for (int64_t i = 0; i < 21; ++i) EXPECT_EQ(t.param.on(cpu)[i], static_cast<float>(t.param[i] * 0.75));
}

template <class Device>
void expect_no_decay_and_no_skipped_update() {
    using T = typename Device::scalar;
    Device dev;
    std::vector<T> param{1, -2}, grad(2), m(2), v(2);
    const UpdateParams params = at_step({.weight_decay = 1}, 1);
    StepStatus status{.grad_scale = 1, .apply = 1};
    adamw_update(dev, param.data(), grad.data(), m.data(), v.data(), 2, &params, false, &status);
    EXPECT_EQ(param, (std::vector<T>{1, -2}));
    status.apply = 0;
    adamw_update(dev, param.data(), grad.data(), m.data(), v.data(), 2, &params, true, &status);
    EXPECT_EQ(param, (std::vector<T>{1, -2}));
}
TEST(AdamW, NothingDecaysWithoutDecayOrInASkippedUpdate) {
    expect_no_decay_and_no_skipped_update<Cpu>();
    expect_no_decay_and_no_skipped_update<Reference<double>>();
}

TEST(AdamW, BitsDoNotDependOnTheThreads) {
    expect_same_bits_for_any_thread_count([](Cpu& dev) {
        Tensors t(10007);
        t.update(dev, at_step({.weight_decay = 0.1}, 3), 0.5);
        std::vector<float> all;
        for (const Values* v : {&t.param, &t.m, &t.v}) append(all, *v);
        return all;
    });
}

TEST(AdamW, NaNStaysInItsElement) {
    Tensors t(37);
    Cpu cpu;
    t.grad.on(cpu)[4] = NAN, t.param.on(cpu)[36] = NAN;
    t.update(cpu, at_step({}, 1), 1);
    expect_nan_only_where("param", t.param, [](int64_t i) { return i == 4 || i == 36; });
    expect_nan_only_where("m", t.m, [](int64_t i) { return i == 4; });
    expect_nan_only_where("v", t.v, [](int64_t i) { return i == 4; });
}

TEST(AdamW, NaNInTheGradientsScaleReachesEverything) {
    Tensors t(37);
    Cpu cpu;
    t.update(cpu, at_step({}, 1), NAN);
    expect_nan_only_where("param", t.param, [](int64_t) { return true; });
}

// ---- sparse_adamw_update

// Gradients of which some are 0: alone, and in runs as long as many rows.
struct SparseTensors : Tensors {
    explicit SparseTensors(int64_t n) : Tensors(n) {
        Cpu cpu;
        for (int64_t i = 0; i < n; ++i)
            if (i % 5 == 2 || (100 <= i && i < 400)) grad.exact[static_cast<size_t>(i)] = 0, grad.on(cpu)[i] = 0;
    }
    template <class Device>
    void update(Device& dev, const UpdateParams& params, double grad_scale, int64_t begin, int64_t end) {
        const StepStatus status{.grad_scale = grad_scale, .apply = 1};
        sparse_adamw_update(dev, param.on(dev) + begin, grad.on(dev) + begin, v.on(dev) + begin, end - begin, &params,
                            &status);
    }
    template <class Device>
    void update(Device& dev, const UpdateParams& params, double grad_scale) {
        update(dev, params, grad_scale, 0, param.size());
    }
};

TEST(SparseAdamW, CpuAgreesWithReference) {
    for (const int64_t n : {0, 1, 3, 7, 8, 15, 16, 17, 64, 65, 1000, 20011})
        for (const int64_t step : {1, 2, 8, 1000}) {
            SCOPED_TRACE(testing::PrintToString(std::vector{n, step}));
            const UpdateParams o{.lr = 0.01, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1};
            SparseTensors t(n);
            const Values before(t.param.exact);
            const double scale = 0.375;  // a float
            Cpu cpu;
            Reference<double> reference;
            t.update(cpu, at_step(o, step), scale);
            t.update(reference, at_step(o, step), scale);
            for (int64_t i = 0; i < n; ++i) {
                const size_t at = static_cast<size_t>(i);
                t.v.magnitude[at] = t.v[i];
                const double root = std::sqrt(t.v[i] / (1 - std::pow(o.beta2, step))) + o.eps;
                t.param.magnitude[at] = std::abs(before[i]) + o.lr * std::abs(t.grad[i]) * scale / root;
            }
            // as for AdamW
            t.v.expect_close("v", 6 * roundoff);
            t.param.expect_close("param", 16 * roundoff);
        }
}

// torch.optim.SparseAdam in float64 with beta1 = 0, three steps on two rows, of which the second step has one. Its eps
// is inside the bias correction, so it is too small to matter here.
TEST(SparseAdamW, ReferenceDoesWhatPyTorchDoes) {
    Reference<double> dev;
    const UpdateParams o{.lr = 0.1, .beta2 = 0.99, .eps = 1e-30, .weight_decay = 0};
    const StepStatus status{.grad_scale = 1, .apply = 1};
    double param[4] = {1.5, -0.5, 2.0, 0.25}, v[4] = {};
    const double gradients[3][4] = {{0.5, -2.0, 0.125, 1.0}, {0, 0, -2.0, 0.5}, {0.25, 0.75, 1.5, -0.375}},
                 expected[3][4] = {{1.4, -0.4, 1.9, 0.15},
                                   {1.4, -0.4, 2.0407953814212303, 0.0866588855940034},
                                   {1.3226171541056437, -0.46077955436539264, 1.9371866963760256, 0.141909618437024}};
    for (int64_t step = 1; step <= 3; ++step) {
        const UpdateParams params = at_step(o, step);
        sparse_adamw_update(dev, param, gradients[step - 1], v, 4, &params, &status);
        for (int i = 0; i < 4; ++i) EXPECT_NEAR(param[i], expected[step - 1][i], 1e-13) << step;
    }
}

TEST(SparseAdamW, IsAdamWWithoutMomentumWhereNoGradientIsZero) {
    generator().seed(4);
    Tensors sparse(50);
    generator().seed(4);
    Tensors dense(50);
    Reference<double> dev;
    const StepStatus status{.grad_scale = 0.5, .apply = 1};
    for (int64_t step = 1; step <= 3; ++step) {
        const UpdateParams params = at_step({.lr = 0.1, .beta1 = 0, .beta2 = 0.99, .weight_decay = 0}, step);
        dense.update(dev, params, 0.5);
        sparse_adamw_update(dev, sparse.param.on(dev), sparse.grad.on(dev), sparse.v.on(dev), 50, &params, &status);
        for (int64_t i = 0; i < 50; ++i) {
            EXPECT_NEAR(sparse.param[i], dense.param[i], 1e-14);
            EXPECT_NEAR(sparse.v[i], dense.v[i], 1e-14);
        }
    }
}

TEST(SparseAdamW, DecaysAsMuchAsADecayInEachStep) {
    Reference<double> dev;
    const StepStatus status{.grad_scale = 1, .apply = 1};
    double param = 1, v = 0;
    const double grad = 0;
    constexpr int64_t steps = 4 * sparse_decay_every;
    for (int64_t step = 1; step <= steps; ++step) {
        const UpdateParams params = at_step({.lr = 0.01, .weight_decay = 0.1}, step);
        sparse_adamw_update(dev, &param, &grad, &v, 1, &params, &status);
        EXPECT_EQ(param == 1, step < sparse_decay_every) << step;
    }
    EXPECT_NEAR(param, std::pow(1 - 0.01 * 0.1, steps), 1e-14);
}

// The values of unused rows only decay, and their gradients are not read: a NaN in them does not show.
TEST(SparseAdamW, KnownRowsGiveTheSameBits) {
    Cpu cpu;
    for (const int64_t C : {1, 7, 16, 64, 100})
        for (const int64_t step : {sparse_decay_every - 1, sparse_decay_every}) {
            SCOPED_TRACE(testing::PrintToString(std::vector{C, step}));
            const UpdateParams params = at_step({.lr = 0.1, .beta2 = 0.99, .weight_decay = 0.5}, step);
            constexpr int64_t n = 1003, padding = 3;
            const int64_t rows = (n - padding) / C;
            const StepStatus status{.grad_scale = 0.5, .apply = 1};
            std::vector<uint8_t> used(static_cast<size_t>(rows));
            for (int64_t v = 0; v < rows; ++v) used[static_cast<size_t>(v)] = v % 3 == 1;
            generator().seed(5);
            SparseTensors known(n);
            generator().seed(5);
            SparseTensors scanned(n);
            for (int64_t i = 0; i < n; ++i) {
                const bool in_use = i < rows * C && used[static_cast<size_t>(i / C)];
                if (!in_use) known.grad.on(cpu)[i] = NAN, scanned.grad.on(cpu)[i] = 0;
            }
            sparse_adamw_update(cpu, known.param.on(cpu), known.grad.on(cpu), known.v.on(cpu), n, &params, &status,
                                {.used = used.data(), .rows = rows, .columns = C});
            sparse_adamw_update(cpu, scanned.param.on(cpu), scanned.grad.on(cpu), scanned.v.on(cpu), n, &params,
                                &status);
            for (int64_t i = 0; i < rows * C; ++i) {
                ASSERT_EQ(known.param.on(cpu)[i], scanned.param.on(cpu)[i]) << i;
                ASSERT_EQ(known.v.on(cpu)[i], scanned.v.on(cpu)[i]) << i;
            }
        }
}

template <class Device>
void expect_only_decay_without_gradient() {
    SparseTensors t(500);
    Device dev;
    std::vector<double> param, v;
    for (int64_t i = 0; i < 500; ++i) param.push_back(t.param.on(dev)[i]), v.push_back(t.v.on(dev)[i]);
    t.update(dev, at_step({.lr = 0.1, .weight_decay = 0.5}, sparse_decay_every), 1);
    const double shrink = std::pow(1 - 0.1 * 0.5, sparse_decay_every);
    for (int64_t i = 0; i < 500; ++i) {
        const size_t at = static_cast<size_t>(i);
        const bool moved = std::abs(t.param.on(dev)[i] - param[at] * shrink) > 1e-6;
        EXPECT_EQ(moved, t.grad.on(dev)[i] != 0) << i;
        EXPECT_EQ(t.v.on(dev)[i] != v[at], t.grad.on(dev)[i] != 0) << i;
    }
    const StepStatus skipped{.grad_scale = 1, .apply = 0};
    const UpdateParams params = at_step({.weight_decay = 1}, sparse_decay_every);
    const double before = t.param.on(dev)[0];
    sparse_adamw_update(dev, t.param.on(dev), t.grad.on(dev), t.v.on(dev), 500, &params, &skipped);
    EXPECT_EQ(t.param.on(dev)[0], before);
}
TEST(SparseAdamW, ValuesWithoutGradientOnlyDecay) {
    expect_only_decay_without_gradient<Cpu>();
    expect_only_decay_without_gradient<Reference<double>>();
}

// Ranks share an update, and a slice may begin anywhere.
TEST(SparseAdamW, BitsDependNeitherOnTheThreadsNorOnSlices) {
    const auto update = [](Cpu& dev, int64_t cut) {
        generator().seed(4);
        SparseTensors t(10007);
        const UpdateParams params = at_step({.weight_decay = 0.1}, sparse_decay_every);
        t.update(dev, params, 0.5, 0, cut);
        t.update(dev, params, 0.5, cut, 10007);
        std::vector<float> all;
        for (const Values* v : {&t.param, &t.v}) append(all, *v);
        return all;
    };
    expect_same_bits_for_any_thread_count([&](Cpu& dev) { return update(dev, 0); });
    Cpu dev;
    const std::vector<float> whole = update(dev, 0);
    for (const int64_t cut : {1, 103, 5000}) EXPECT_EQ(update(dev, cut), whole) << cut;
}

TEST(SparseAdamW, NaNStaysInItsElement) {
    SparseTensors t(37);
    Cpu cpu;
    t.grad.on(cpu)[4] = NAN, t.param.on(cpu)[36] = NAN;
    t.update(cpu, at_step({}, 1), 1);
    expect_nan_only_where("param", t.param, [](int64_t i) { return i == 4 || i == 36; });
    expect_nan_only_where("v", t.v, [](int64_t i) { return i == 4; });
}

}  // namespace
