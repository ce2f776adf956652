// GELU: Cpu against Reference, Reference against PyTorch and differences, threads, NaN.
#include "layers/gelu_cpu.h"

#include "dev/test/layers/layer_check.h"

namespace {

// The error of the float formulas in roundoffs, given the sigmoid s of z = 2u. Three roundings of z change s by
// 3 |z| s (1 - s); e^-z (1.25 ulp: 2.5), the sum and the quotient add 5 s. e^-z is infinite if s is below 4.2e-39. The
// oracle's own 1 + tanh(u) cancels too: it loses 2^-53, or 2^-29 roundoffs.
struct Losses {
    explicit Losses(double x) {
        const double cubic = gelu_cubic * x * x, z = 2 * gelu_scale * x * (1 + cubic);
        const double s = 1 / (1 + std::exp(-z)), rest = 1 / (1 + std::exp(z));
        const double xdz = std::abs(x) * 2 * gelu_scale * (1 + 3 * cubic);
        const double tiny = 4.2e-39 / roundoff, oracle = 0x1p-28;
        const double ds = s * (5 + 3 * std::abs(z) * rest) + tiny + oracle;
        value = std::abs(x) * (s + ds);
        derivative =
            s + ds + xdz * (ds * rest + s * (ds + rest) + 3 * s * rest);  // of s, x s, 1 - s, and their products
    }
    double value, derivative;
};

std::vector<double> sweep() {
    std::vector<double> x;
    for (double v = -14; v < 14; v += 0.00137) x.push_back(v);
    for (double size = 1e-30; size < 1e37; size *= 3.7) x.push_back(size), x.push_back(-size);
    x.push_back(0);
    return x;
}

template <class Device>
void run(Device& dev, Values& out, Values& dinp, Values& inp, Values& dout) {
    gelu_forward(dev, out.on(dev), inp.on(dev), inp.size());
    gelu_backward(dev, dinp.on(dev), inp.on(dev), dout.on(dev), inp.size());
}

TEST(Gelu, CpuAgreesWithReference) {
    Values inp(sweep());
    const int64_t n = inp.size();
    Values out = nan_values(n), dinp = nan_values(n), dout = random_values(n);
    Cpu cpu;
    Reference<double> reference;
    run(cpu, out, dinp, inp, dout), run(reference, out, dinp, inp, dout);
    for (int64_t i = 0; i < n; ++i) {
        const Losses losses(inp[i]);
        const size_t at = static_cast<size_t>(i);
        out.magnitude[at] = losses.value;
        dinp.magnitude[at] = std::abs(dout[i]) * losses.derivative;
    }
    out.expect_close("out", roundoff);
    dinp.expect_close("dinp", roundoff);
}

TEST(Gelu, EveryLength) {
    for (int64_t n = 0; n <= 70; ++n) {
        SCOPED_TRACE(n);
        Values inp = random_values(n, 3), out = nan_values(n), dinp = nan_values(n), dout = random_values(n);
        Cpu cpu;
        Reference<double> reference;
        run(cpu, out, dinp, inp, dout), run(reference, out, dinp, inp, dout);
        for (Values* v : {&out, &dinp}) std::fill(v->magnitude.begin(), v->magnitude.end(), 3.0);
        out.expect_close("out", 4 * roundoff);
        dinp.expect_close("dinp", 4 * roundoff);
    }
}

TEST(Gelu, TheGradientMayTakeTheOutputsGradientsPlace) {
    Values inp = random_values(37, 3), dout = random_values(37), dinp = nan_values(37);
    Cpu cpu;
    gelu_backward(cpu, dinp.on(cpu), inp.on(cpu), dout.on(cpu), 37);
    gelu_backward(cpu, dout.on(cpu), inp.on(cpu), dout.on(cpu), 37);
    EXPECT_EQ(std::memcmp(dinp.on(cpu), dout.on(cpu), 37 * sizeof(float)), 0);
}

TEST(Gelu, IsTheTanhFormAsPyTorchComputesIt) {
    Reference<double> dev;
    const std::vector<double> inp = {-3, -1, -0.5, 0, 0.5, 1, 3};  // torch.nn.functional.gelu(x, approximate="tanh")
    const std::vector<double> expected = {-0.0036373920817729943, -0.15880800939172324, -0.15428599017485606, 0,
                                          0.34571400982514394,    0.8411919906082768,   2.996362607918227};
    std::vector<double> out(inp.size());
    gelu_forward(dev, out.data(), inp.data(), static_cast<int64_t>(inp.size()));
    for (size_t i = 0; i < inp.size(); ++i) EXPECT_NEAR(out[i], expected[i], 1e-15);
}

TEST(Gelu, BackwardAgreesWithDifferences) {
    Reference<double> dev;
    std::vector<double> inp = uniform(200, 6), out(200), dinp(200);
    const std::vector<double> dout = uniform(200);
    gelu_backward(dev, dinp.data(), inp.data(), dout.data(), 200);
    const auto f = [&] {
        gelu_forward(dev, out.data(), inp.data(), 200);
        return dot(out, dout);
    };
    expect_gradient("inp", f, inp, dinp);
}

TEST(Gelu, BitsDoNotDependOnTheThreads) {
    expect_same_bits_for_any_thread_count([](Cpu& dev) {
        constexpr int64_t n = 1003;
        Values inp = random_values(n, 4), out = nan_values(n), dinp = nan_values(n), dout = random_values(n);
        gelu_forward(dev, out.on(dev), inp.on(dev), n);
        gelu_backward(dev, dinp.on(dev), inp.on(dev), dout.on(dev), n);
        std::vector<float> all;
        append(all, out), append(all, dinp);
        return all;
    });
}

TEST(Gelu, NaNStaysInItsElement) {
    Values inp = random_values(37), out = nan_values(37), dinp = nan_values(37), dout = random_values(37);
    Cpu cpu;
    inp.on(cpu)[5] = NAN, dout.on(cpu)[35] = NAN, inp.on(cpu)[36] = INFINITY;
    gelu_forward(cpu, out.on(cpu), inp.on(cpu), 37);
    gelu_backward(cpu, dinp.on(cpu), inp.on(cpu), dout.on(cpu), 36);
    dinp.on(cpu)[36] = 0;
    expect_nan_only_where("out", out, [](int64_t i) { return i == 5; });
    expect_nan_only_where("dinp", dinp, [](int64_t i) { return i == 5 || i == 35; });
    EXPECT_EQ(out.on(cpu)[36], INFINITY);
}

}  // namespace
