// RMSNorm: Cpu against Reference in float and bf16, optional arguments, fused residual, differences, threads, NaN.
#include "layers/rmsnorm_cpu.h"

#include "dev/test/layers/layer_check.h"

namespace {

const std::pair<int64_t, int64_t> shapes[] = {{1, 1},    {5, 1},    {2, 3},     {9, 7},    {65, 15},  {16, 16},
                                              {17, 17},  {3, 64},   {2, 65},    {520, 19}, {31, 127}, {6, 768},
                                              {3, 1600}, {1, 5003}, {37, 2081}, {6, 4099}};

struct Tensors {
    Tensors(int64_t rows, int64_t channels)
        : N(rows),
          C(channels),
          inp(random_values(N * C)),
          branch(random_values(N * C)),
          weight(random_values(C)),
          residual(nan_values(N * C)),
          out(nan_values(N * C)),
          rrms(nan_values(N)),
          dout(random_values(N * C)),
          dresidual(random_values(N * C)),
          dinp(nan_values(N * C)),
          dweight(random_values(C)) {}
    int64_t N, C;
    Values inp, branch, weight, residual, out, rrms, dout, dresidual, dinp, dweight;
};

// Rounding errors as in layernorm's test: those of a sum in a lane, and a few more.
double sum_error(int64_t C) { return 4 + std::sqrt(static_cast<double>(C) / simd::W); }

TEST(RMSNorm, ForwardAgreesWithReference) {
    for (const auto& [N, C] : shapes)
        for (const bool weight : {true, false})
            for (const bool fused : {false, true}) {
                SCOPED_TRACE(testing::PrintToString(std::vector<int64_t>{N, C, weight, fused}));
                Tensors t(N, C);
                Cpu cpu;
                Reference<double> reference;
                const auto run = [&, N = N, C = C](auto& dev) {
                    if (fused)
                        residual_rmsnorm_forward(dev, t.residual.on(dev), t.out.on(dev), t.rrms.on(dev), t.inp.on(dev),
                                                 t.branch.on(dev), weight ? t.weight.on(dev) : nullptr, N, C);
                    else
                        rmsnorm_forward(dev, t.out.on(dev), t.rrms.on(dev), t.inp.on(dev),
                                        weight ? t.weight.on(dev) : nullptr, N, C);
                };
                run(cpu), run(reference);
                // A sum's rounding error is relative to its terms, which may cancel.
                for (int64_t i = 0; i < N * C; ++i) {
                    const double w = weight ? std::abs(t.weight[i % C]) : 1;
                    const double x = std::abs(t.inp[i]) + (fused ? std::abs(t.branch[i]) : 0);
                    t.residual.magnitude[static_cast<size_t>(i)] = x;
                    t.out.magnitude[static_cast<size_t>(i)] = x * t.rrms[i / C] * w;
                }
                for (int64_t row = 0; row < N; ++row) {
                    double terms = 0;
                    for (int64_t c = 0; c < C; ++c) {
                        const double x = t.residual.magnitude[static_cast<size_t>(row * C + c)];
                        terms += x * x / static_cast<double>(C);
                    }
                    const double r = t.rrms[row];  // d(rrms) = rrms³ / 2 * d(mean square)
                    t.rrms.magnitude[static_cast<size_t>(row)] = r + r * r * r * terms;
                    for (int64_t c = 0; c < C; ++c)
                        t.out.magnitude[static_cast<size_t>(row * C + c)] *= 1 + r * r * terms;
                }
                t.rrms.expect_close("rrms", sum_error(C) * roundoff);
                t.out.expect_close("out", (sum_error(C) + 4) * roundoff);
                if (fused) t.residual.expect_close("residual", roundoff);
            }
}

struct Outputs {
    bool dinp = true, dweight = true, dresidual = true, weight = true;
};

void expect_backward(Tensors& t, const Outputs& o) {
    Cpu cpu = cpu_with_stale_scratch();
    Reference<double> reference;
    rmsnorm_forward(cpu, t.out.on(cpu), t.rrms.on(cpu), t.inp.on(cpu), t.weight.on(cpu), t.N, t.C);
    for (int64_t i = 0; i < t.N; ++i)  // both read the same statistics
        t.rrms.exact[static_cast<size_t>(i)] = static_cast<double>(t.rrms.cpu.get()[i]);
    const auto run = [&](auto& dev) {
        rmsnorm_backward(dev, o.dinp ? t.dinp.on(dev) : nullptr, o.dweight ? t.dweight.on(dev) : nullptr,
                         t.dout.on(dev), t.inp.on(dev), o.weight ? t.weight.on(dev) : nullptr, t.rrms.on(dev),
                         o.dresidual ? t.dresidual.on(dev) : nullptr, t.N, t.C);
    };
    run(cpu), run(reference);
    for (int64_t row = 0; row < t.N; ++row) {
        const auto at = [&](int64_t c) { return static_cast<size_t>(row * t.C + c); };
        const auto norm = [&](int64_t c) { return std::abs(t.inp.exact[at(c)] * t.rrms[row]); };
        const auto dnorm = [&](int64_t c) { return std::abs(t.dout.exact[at(c)] * (o.weight ? t.weight[c] : 1)); };
        double mean = 0;
        for (int64_t c = 0; c < t.C; ++c) {
            mean += dnorm(c) * norm(c) / static_cast<double>(t.C);
            t.dweight.magnitude[static_cast<size_t>(c)] += std::abs(t.dout.exact[at(c)]) * norm(c);
        }
        for (int64_t c = 0; c < t.C; ++c)
            t.dinp.magnitude[at(c)] =
                (o.dresidual ? std::abs(t.dresidual.exact[at(c)]) : 0) + t.rrms[row] * (dnorm(c) + norm(c) * mean);
    }
    if (o.dinp)
        t.dinp.expect_close("dinp", (sum_error(t.C) + 4) * roundoff);
    else
        expect_nan_only_where("dinp", t.dinp, [](int64_t) { return true; });
    t.dweight.expect_close("dweight", o.dweight ? 8 * roundoff : 0);  // at most 64 runs; not asked for: unchanged
}

TEST(RMSNorm, BackwardAgreesWithReference) {
    for (const auto& [N, C] : shapes) {
        SCOPED_TRACE(testing::PrintToString(std::vector{N, C}));
        Tensors t(N, C);
        expect_backward(t, {});
    }
}

TEST(RMSNorm, BackwardWithoutEachOfItsOptionalArguments) {
    for (const Outputs& o : {Outputs{.dinp = false}, Outputs{.dweight = false}, Outputs{.dresidual = false},
                             Outputs{.weight = false}, Outputs{false, false, false, false}}) {
        Tensors t(13, 37);
        expect_backward(t, o);
    }
}

TEST(RMSNorm, BackwardAgreesWithDifferences) {
    const int64_t N = 3, C = 7;
    Reference<double> dev;
    std::vector<double> inp = uniform(N * C), weight = uniform(C), out(N * C), rrms(N), dinp(N * C), dweight(C);
    const std::vector<double> dout = uniform(N * C), dresidual = uniform(N * C);
    const auto f = [&] {
        rmsnorm_forward(dev, out.data(), rrms.data(), inp.data(), weight.data(), N, C);
        return dot(out, dout) + dot(inp, dresidual);
    };
    f();
    rmsnorm_backward(dev, dinp.data(), dweight.data(), dout.data(), inp.data(), weight.data(), rrms.data(),
                     dresidual.data(), N, C);
    expect_gradient("inp", f, inp, dinp);
    expect_gradient("weight", f, weight, dweight);
}

TEST(RMSNorm, BF16IsFloatRoundedAtTheEnd) {
    for (const auto& [N, C] : shapes) {
        SCOPED_TRACE(testing::PrintToString(std::vector{N, C}));
        const auto halves = [](const std::vector<double>& x) { return std::vector<bf16>(x.begin(), x.end()); };
        const std::vector<bf16> inp = halves(uniform(N * C)), branch = halves(uniform(N * C)),
                                dout = halves(uniform(N * C));
        const std::vector<bf16> weight = halves(uniform(C));
        struct Results {
            std::vector<bf16> residual, out, dinp, dweight;
            std::vector<float> rrms;
        };
        const auto run = [&, N = N, C = C](auto&& dev) {
            const std::vector<bf16> none(static_cast<size_t>(N * C), bf16(NAN));
            Results r{none, none, none, weight, std::vector<float>(static_cast<size_t>(N))};
            residual_rmsnorm_forward(dev, r.residual.data(), r.out.data(), r.rrms.data(), inp.data(), branch.data(),
                                     weight.data(), N, C);
            rmsnorm_backward(dev, r.dinp.data(), r.dweight.data(), dout.data(), r.residual.data(), weight.data(),
                             r.rrms.data(), nullptr, N, C);
            return r;
        };
        const Results cpu = run(Cpu{}), reference = run(Reference<float>{});
        // Floats that differ in their last bits may round to neighbouring bf16: 2^-7 of the value, and twice that for
        // out.
        const auto expect_near = [](const char* name, const auto& a, const auto& b, double relative, double absolute) {
            for (size_t i = 0; i < a.size(); ++i)
                ASSERT_LE(std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])),
                          relative * std::abs(static_cast<double>(b[i])) + absolute)
                    << name << " " << i;
        };
        expect_near("residual", cpu.residual, reference.residual, 0, 0);  // one rounding of the same sum
        expect_near("rrms", cpu.rrms, reference.rrms, 1e-5, 0);
        expect_near("out", cpu.out, reference.out, 0x1p-6, 0);
        expect_near("dinp", cpu.dinp, reference.dinp, 0x1p-7, 1e-4);
        expect_near("dweight", cpu.dweight, reference.dweight, 0x1p-7, 1e-4);
    }
}

TEST(RMSNorm, ResidualInPlaceHasTheSameBits) {
    Tensors t(13, 37), in_place(13, 37);
    Cpu cpu;
    residual_rmsnorm_forward(cpu, t.residual.on(cpu), t.out.on(cpu), t.rrms.on(cpu), t.inp.on(cpu), t.branch.on(cpu),
                             t.weight.on(cpu), 13, 37);
    residual_rmsnorm_forward(cpu, t.inp.on(cpu), in_place.out.on(cpu), in_place.rrms.on(cpu), t.inp.on(cpu),
                             t.branch.on(cpu), t.weight.on(cpu), 13, 37);
    EXPECT_EQ(std::memcmp(t.residual.on(cpu), t.inp.on(cpu), 13 * 37 * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(t.out.on(cpu), in_place.out.on(cpu), 13 * 37 * sizeof(float)), 0);
}

TEST(RMSNorm, HugeAndDenormalValues) {
    Cpu dev;
    std::vector<float> inp(33, 0), out(33), rrms(1);
    inp[7] = 1e30f;  // its square overflows
    rmsnorm_forward(dev, out.data(), rrms.data(), inp.data(), nullptr, 1, 33);
    EXPECT_NEAR(out[7], std::sqrt(33.0), 1e-5);
    EXPECT_EQ(out[8], 0);
    inp[7] = 1e-42f;
    rmsnorm_forward(dev, out.data(), rrms.data(), inp.data(), nullptr, 1, 33);
    EXPECT_NEAR(out[7], 1e-39f, 1e-41f);  // times 1 / sqrt(eps)
}

TEST(RMSNorm, NoRowsNoChange) {
    Tensors t(0, 37);
    expect_backward(t, {});
}

TEST(RMSNorm, BitsDoNotDependOnTheThreads) {
    for (const auto& [N, C] : {std::pair<int64_t, int64_t>{1, 5}, {70, 33}, {530, 48}})
        expect_same_bits_for_any_thread_count([N = N, C = C](Cpu& dev) {
            Tensors t(N, C);
            residual_rmsnorm_forward(dev, t.residual.on(dev), t.out.on(dev), t.rrms.on(dev), t.inp.on(dev),
                                     t.branch.on(dev), t.weight.on(dev), N, C);
            rmsnorm_backward(dev, t.dinp.on(dev), t.dweight.on(dev), t.dout.on(dev), t.residual.on(dev),
                             t.weight.on(dev), t.rrms.on(dev), t.dresidual.on(dev), N, C);
            std::vector<float> all;
            for (const Values* v : {&t.residual, &t.out, &t.rrms, &t.dinp, &t.dweight}) append(all, *v);
            return all;
        });
}

TEST(RMSNorm, NaNStaysInItsRow) {
    Tensors t(9, 37);
    Cpu cpu;
    t.inp.on(cpu)[4 * 37 + 36] = NAN, t.inp.on(cpu)[7 * 37] = INFINITY;
    rmsnorm_forward(cpu, t.out.on(cpu), t.rrms.on(cpu), t.inp.on(cpu), t.weight.on(cpu), 9, 37);
    expect_nan_only_where("rrms", t.rrms, [](int64_t row) { return row == 4; });
    // One infinity among numbers: they become 0, and the infinity becomes infinity * 0.
    expect_nan_only_where("out", t.out, [](int64_t i) { return i / 37 == 4 || i == 7 * 37; });
    EXPECT_EQ(t.rrms.on(cpu)[7], 0);
}

}  // namespace
