// LayerNorm: Cpu against Reference in float and bf16, fused residual, hard rows, optional arguments, streaming stores,
// differences, threads, NaN.
#include "layers/layernorm_cpu.h"

#include "dev/test/layers/layer_check.h"

namespace {

struct Options {
    bool weight = true, bias = true;
};

struct Tensors {
    Tensors(int64_t rows, int64_t channels, double offset = 0, double spread = 1)
        : N(rows),
          C(channels),
          inp(shifted(uniform(N * C, spread), offset)),
          weight(random_values(C)),
          bias(random_values(C)),
          out(nan_values(N * C)),
          mean(nan_values(N)),
          rstd(nan_values(N)),
          dout(random_values(N * C)),
          dresidual(random_values(N * C)),
          dinp(nan_values(N * C)),
          dweight(random_values(C)),
          dbias(random_values(C)) {}
    static std::vector<double> shifted(std::vector<double> x, double offset) {
        for (double& value : x) value += offset;
        return x;
    }
    template <class Device>
    void forward(Device& dev, const Options& o = {}) {
        layernorm_forward(dev, out.on(dev), mean.on(dev), rstd.on(dev), inp.on(dev),
                          o.weight ? weight.on(dev) : nullptr, o.bias ? bias.on(dev) : nullptr, N, C);
    }
    // Both devices' backwards read the same statistics.
    void share_statistics() {
        for (Values* v : {&mean, &rstd})
            for (int64_t i = 0; i < N; ++i) v->exact[static_cast<size_t>(i)] = static_cast<double>(v->cpu.get()[i]);
    }
    int64_t N, C;
    Values inp, weight, bias, out, mean, rstd, dout, dresidual, dinp, dweight, dbias;
};

// A lane sums C/W terms: rounding errors of random sign, one per partial sum, grow as the root of their number; 4 more
// are for the lanes' sum, the division and the rounding to float.
double sum_error(int64_t C) { return 4 + std::sqrt(static_cast<double>(C) / simd::W); }

// The allowed errors in roundoffs. In float the mean has an error of one roundoff of itself, and those of a sum of the
// distances from it; in the norm that is relative to the row's spread, 1 / rstd.
void forward_magnitudes(Tensors& t, const Options& o) {
    const double loss = sum_error(t.C);
    for (int64_t row = 0; row < t.N; ++row) {
        const double m = t.mean[row], r = t.rstd[row];
        double distance = 0;
        for (int64_t c = 0; c < t.C; ++c) distance += std::abs(t.inp[row * t.C + c] - m) / static_cast<double>(t.C);
        const double dm = std::abs(m) + loss * distance;
        t.mean.magnitude[static_cast<size_t>(row)] = dm;
        t.rstd.magnitude[static_cast<size_t>(row)] = r * loss;
        for (int64_t c = 0; c < t.C; ++c) {
            const double norm = (t.inp[row * t.C + c] - m) * r, w = o.weight ? t.weight[c] : 1;
            t.out.magnitude[static_cast<size_t>(row * t.C + c)] =
                std::abs(w) * (r * dm + std::abs(norm) * (loss + 4)) + (o.bias ? std::abs(t.bias[c]) : 0);
        }
    }
}

void expect_forward(Tensors& t, const Options& o) {
    Cpu cpu = cpu_with_stale_scratch();
    Reference<double> reference;
    t.forward(cpu, o), t.forward(reference, o);
    forward_magnitudes(t, o);
    t.mean.expect_close("mean", roundoff);
    t.rstd.expect_close("rstd", roundoff);
    t.out.expect_close("out", roundoff);
}

const std::pair<int64_t, int64_t> shapes[] = {
    {1, 1},     {5, 1},    {1, 2},   {2, 3},    {7, 4},    {3, 5},     {9, 7},   {8, 8},  {65, 15},
    {16, 16},   {17, 17},  {3, 31},  {4, 32},   {11, 33},  {520, 19},  {2, 63},  {2, 64}, {2, 65},
    {1000, 21}, {31, 127}, {6, 768}, {3, 1600}, {1, 5003}, {37, 2081}, {6, 4099}};

TEST(LayerNorm, ForwardAgreesWithReference) {
    for (const auto& [N, C] : shapes)
        for (const Options& o :
             {Options{true, true}, Options{false, false}, Options{true, false}, Options{false, true}}) {
            SCOPED_TRACE(testing::PrintToString(std::vector<int64_t>{N, C, o.weight, o.bias}));
            Tensors t(N, C);
            expect_forward(t, o);
        }
}

TEST(LayerNorm, EpsIsAnArgument) {
    for (const double eps : {1e-12, 1e-3, 2.0}) {
        Tensors t(3, 37);
        Cpu cpu;
        layernorm_forward(cpu, t.out.on(cpu), t.mean.on(cpu), t.rstd.on(cpu), t.inp.on(cpu), nullptr, nullptr, 3, 37,
                          static_cast<float>(eps));
        for (int64_t row = 0; row < 3; ++row) {
            double mean = 0, variance = 0;
            for (int64_t c = 0; c < 37; ++c) mean += t.inp[row * 37 + c] / 37;
            for (int64_t c = 0; c < 37; ++c)
                variance += (t.inp[row * 37 + c] - mean) * (t.inp[row * 37 + c] - mean) / 37;
            EXPECT_NEAR(t.rstd.on(cpu)[row], 1 / std::sqrt(variance + eps), 1e-5);
        }
    }
}

// The fused layer equals an addition and the plain layer, to the last bit; residual may be one of its own summands.
TEST(LayerNorm, ResidualForwardIsAdditionThenForward) {
    for (const auto& [N, C] : shapes) {
        SCOPED_TRACE(testing::PrintToString(std::vector{N, C}));
        Tensors t(N, C), fused(N, C);
        Cpu cpu;
        Values branch = random_values(N * C), residual = nan_values(N * C);
        residual_layernorm_forward(cpu, residual.on(cpu), fused.out.on(cpu), fused.mean.on(cpu), fused.rstd.on(cpu),
                                   t.inp.on(cpu), branch.on(cpu), t.weight.on(cpu), t.bias.on(cpu), N, C);
        for (int64_t i = 0; i < N * C; ++i) t.inp.on(cpu)[i] += branch.on(cpu)[i];
        t.forward(cpu);
        const auto same = [](Values& a, Values& b) {
            Cpu dev;
            return std::memcmp(a.on(dev), b.on(dev), static_cast<size_t>(a.size()) * sizeof(float)) == 0;
        };
        EXPECT_TRUE(same(residual, t.inp) && same(fused.out, t.out) && same(fused.mean, t.mean));
        for (int64_t i = 0; i < N * C; ++i)
            t.inp.on(cpu)[i] = residual.on(cpu)[i] / 2, branch.on(cpu)[i] = t.inp.on(cpu)[i];
        residual_layernorm_forward(cpu, branch.on(cpu), fused.out.on(cpu), fused.mean.on(cpu), fused.rstd.on(cpu),
                                   t.inp.on(cpu), branch.on(cpu), t.weight.on(cpu), t.bias.on(cpu), N, C);
        EXPECT_TRUE(same(branch, residual) && same(fused.out, t.out) && same(fused.rstd, t.rstd));
    }
}

TEST(LayerNorm, BF16IsFloatRoundedAtTheEnd) {
    for (const auto& [N, C] : shapes) {
        SCOPED_TRACE(testing::PrintToString(std::vector{N, C}));
        const auto halves = [](const std::vector<double>& x) { return std::vector<bf16>(x.begin(), x.end()); };
        const std::vector<bf16> inp = halves(uniform(N * C)), branch = halves(uniform(N * C));
        const std::vector<bf16> dout = halves(uniform(N * C)), weight = halves(uniform(C)), bias = halves(uniform(C));
        struct Results {
            std::vector<bf16> residual, out, dinp, dweight, dbias;
            std::vector<float> mean, rstd;
        };
        const auto run = [&, N = N, C = C](auto&& dev) {
            const std::vector<bf16> none(static_cast<size_t>(N * C), bf16(NAN));
            const std::vector<float> rows(static_cast<size_t>(N));
            Results r{none, none, none, weight, bias, rows, rows};
            residual_layernorm_forward(dev, r.residual.data(), r.out.data(), r.mean.data(), r.rstd.data(), inp.data(),
                                       branch.data(), weight.data(), bias.data(), N, C);
            layernorm_backward(dev, r.dinp.data(), r.dweight.data(), r.dbias.data(), dout.data(), r.residual.data(),
                               weight.data(), r.mean.data(), r.rstd.data(), nullptr, N, C);
            return r;
        };
        const Results cpu = run(Cpu{}), reference = run(Reference<float>{});
        // Floats that differ in their last bits may round to neighbouring bf16: 2^-7 of the value. Statistics are
        // floats.
        const auto expect_near = [](const char* name, const auto& a, const auto& b, double relative, double absolute) {
            for (size_t i = 0; i < a.size(); ++i)
                ASSERT_LE(std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])),
                          relative * std::abs(static_cast<double>(b[i])) + absolute)
                    << name << " " << i;
        };
        double rstd = 0;  // rows of one or of near equals have up to 316: roundings of x count so much more
        for (const float r : reference.rstd) rstd = std::max(rstd, static_cast<double>(r));
        expect_near("residual", cpu.residual, reference.residual, 0, 0);  // one rounding of the same sum
        expect_near("mean", cpu.mean, reference.mean, 0, 1e-5);
        expect_near("rstd", cpu.rstd, reference.rstd, 1e-4, 0);
        expect_near("out", cpu.out, reference.out, 0x1p-7, 1e-5 * rstd);
        expect_near("dinp", cpu.dinp, reference.dinp, 0x1p-7, 1e-4 * rstd);
        expect_near("dweight", cpu.dweight, reference.dweight, 0x1p-7, 1e-4 * rstd);
        expect_near("dbias", cpu.dbias, reference.dbias, 0x1p-7, 1e-4);
    }
}

// Results of 16 MiB and more are written by streaming stores: the bits are those of the same rows a few at a time.
template <class S>
void expect_same_bits_past_the_caches(int64_t N, int64_t C, int64_t few) {
    Cpu cpu;
    const auto make = [](int64_t n, auto from) {
        auto x = host_allocate<S>(n);
        for (int64_t i = 0; i < n; ++i) x[i] = static_cast<S>(static_cast<float>((i * 7919 + from) % 1009) / 500 - 1);
        return x;
    };
    const auto inp = make(N * C, 1), branch = make(N * C, 2), dout = make(N * C, 3), weight = make(C, 4);
    const auto residual = make(N * C, 5), out = make(N * C, 6), part_residual = make(few * C, 0),
               part = make(few * C, 0);
    std::vector<float> mean(static_cast<size_t>(N)), rstd(mean);
    ASSERT_TRUE(should_stream(out.get(), N, C));
    ASSERT_FALSE(should_stream(part.get(), few, C));
    const auto same = [&](const auto& whole, const auto& rows, int64_t row) {
        return std::memcmp(whole.get() + row * C, rows.get(), static_cast<size_t>(few * C) * sizeof(S)) == 0;
    };
    residual_layernorm_forward(cpu, residual.get(), out.get(), mean.data(), rstd.data(), inp.get(), branch.get(),
                               weight.get(), weight.get(), N, C);
    for (int64_t row = 0; row < N; row += few) {
        residual_layernorm_forward(cpu, part_residual.get(), part.get(), mean.data(), rstd.data(), inp.get() + row * C,
                                   branch.get() + row * C, weight.get(), weight.get(), few, C);
        ASSERT_TRUE(same(residual, part_residual, row) && same(out, part, row)) << row;
    }
    layernorm_forward(cpu, out.get(), mean.data(), rstd.data(), inp.get(), weight.get(), weight.get(), N, C);
    for (int64_t row = 0; row < N; row += few) {
        std::vector<float> m(static_cast<size_t>(few)), r(m);
        layernorm_forward(cpu, part.get(), m.data(), r.data(), inp.get() + row * C, weight.get(), weight.get(), few, C);
        ASSERT_TRUE(same(out, part, row)) << row;
    }
    layernorm_backward(cpu, out.get(), nullptr, nullptr, dout.get(), inp.get(), weight.get(), mean.data(), rstd.data(),
                       branch.get(), N, C);
    for (int64_t row = 0; row < N; row += few) {
        layernorm_backward(cpu, part.get(), nullptr, nullptr, dout.get() + row * C, inp.get() + row * C, weight.get(),
                           mean.data() + row, rstd.data() + row, branch.get() + row * C, few, C);
        ASSERT_TRUE(same(out, part, row)) << row;
    }
}
TEST(LayerNorm, ResultsPastTheCachesHaveTheSameBits) {
    expect_same_bits_past_the_caches<float>(8200, 1024, 820);
    expect_same_bits_past_the_caches<bf16>(16400, 1024, 1640);
}

TEST(LayerNorm, HardRows) {
    for (const int64_t C : {1, 3, 16, 33, 768}) {
        for (const auto& [offset, spread] :
             {std::pair{1e4, 1e-2}, {-1e4, 1e-2}, {3.7, 0.0}, {0.0, 0.0}, {0.0, 1e-38}, {0.0, 1e15}}) {
            SCOPED_TRACE(testing::Message() << C << " values around " << offset << " by " << spread);
            Tensors t(4, C, offset, spread);
            expect_forward(t, {});
        }
    }
}

// The forward's first guess at the mean, from the first values, is far off here.
TEST(LayerNorm, ARowThatBeginsUnlikeItsRest) {
    for (const int64_t C : {100, 768, 8192}) {
        SCOPED_TRACE(C);
        Tensors t(1, C, 0, 1e-2);
        Cpu cpu;
        std::fill_n(t.inp.on(cpu), 64, 1e3f);
        std::fill_n(t.inp.exact.begin(), 64, 1e3);
        expect_forward(t, {});
    }
}

// The mean of equal values is that value, to the last bit: an error of half a unit, times rstd, would be noticed.
TEST(LayerNorm, AConstantRowBecomesTheBias) {
    for (const double value : {3.0, 3.7, -1e4, 1e8})
        for (const int64_t C : {1, 4, 5, 64, 768, 1600}) {
            SCOPED_TRACE(testing::Message() << C << " times " << value);
            Tensors t(2, C, value, 0);
            Cpu cpu;
            t.forward(cpu);
            for (int64_t i = 0; i < 2 * C; ++i) ASSERT_EQ(t.out.on(cpu)[i], t.bias.on(cpu)[i % C]);
            EXPECT_NEAR(t.rstd.on(cpu)[0], 1 / std::sqrt(1e-5), 1e-2);
        }
}

TEST(LayerNorm, ARowsBitsDoNotDependOnTheOthers) {
    Tensors t(5, 77), one(1, 77), changed(5, 77);
    Cpu cpu;
    t.forward(cpu);
    std::copy(t.weight.on(cpu), t.weight.on(cpu) + 77, one.weight.on(cpu));
    std::copy(t.bias.on(cpu), t.bias.on(cpu) + 77, one.bias.on(cpu));
    for (int64_t row = 0; row < 5; ++row) {
        std::copy(t.inp.on(cpu) + row * 77, t.inp.on(cpu) + (row + 1) * 77, one.inp.on(cpu));
        one.forward(cpu);
        EXPECT_EQ(std::memcmp(one.out.on(cpu), t.out.on(cpu) + row * 77, 77 * sizeof(float)), 0) << row;
        EXPECT_EQ(one.mean.on(cpu)[0], t.mean.on(cpu)[row]);
        EXPECT_EQ(one.rstd.on(cpu)[0], t.rstd.on(cpu)[row]);
    }
}

struct Outputs {
    bool dinp = true, dweight = true, dbias = true, dresidual = true, weight = true;
};

void expect_backward(Tensors& t, const Outputs& o) {
    Cpu cpu = cpu_with_stale_scratch();
    Reference<double> reference;
    t.forward(cpu), t.share_statistics();
    const auto run = [&](auto& dev) {
        layernorm_backward(dev, o.dinp ? t.dinp.on(dev) : nullptr, o.dweight ? t.dweight.on(dev) : nullptr,
                           o.dbias ? t.dbias.on(dev) : nullptr, t.dout.on(dev), t.inp.on(dev),
                           o.weight ? t.weight.on(dev) : nullptr, t.mean.on(dev), t.rstd.on(dev),
                           o.dresidual ? t.dresidual.on(dev) : nullptr, t.N, t.C);
    };
    run(cpu), run(reference);
    for (int64_t row = 0; row < t.N; ++row) {
        const double m = t.mean[row], r = t.rstd[row];
        const auto at = [&](int64_t c) { return static_cast<size_t>(row * t.C + c); };
        const auto norm = [&](int64_t c) { return std::abs((t.inp.exact[at(c)] - m) * r); };
        const auto dnorm = [&](int64_t c) { return std::abs(t.dout.exact[at(c)] * (o.weight ? t.weight[c] : 1)); };
        double mean_dnorm = 0, mean_dnorm_norm = 0;
        for (int64_t c = 0; c < t.C; ++c) {
            mean_dnorm += dnorm(c) / static_cast<double>(t.C);
            mean_dnorm_norm += dnorm(c) * norm(c) / static_cast<double>(t.C);
            t.dweight.magnitude[static_cast<size_t>(c)] += std::abs(t.dout.exact[at(c)]) * norm(c);
            t.dbias.magnitude[static_cast<size_t>(c)] += std::abs(t.dout.exact[at(c)]);
        }
        for (int64_t c = 0; c < t.C; ++c)
            t.dinp.magnitude[at(c)] = (o.dresidual ? std::abs(t.dresidual.exact[at(c)]) : 0) +
                                      r * (dnorm(c) + mean_dnorm + norm(c) * mean_dnorm_norm);
    }
    if (o.dinp)
        t.dinp.expect_close("dinp", (sum_error(t.C) + 4) * roundoff);  // 4: norm, its products, the differences
    else
        expect_nan_only_where("dinp", t.dinp, [](int64_t) { return true; });
    // Sums over at most 64 runs of N/64 rows, of products with 3 roundings each. If not requested, they are unchanged.
    t.dweight.expect_close("dweight", o.dweight ? 8 * roundoff : 0);
    t.dbias.expect_close("dbias", o.dbias ? 8 * roundoff : 0);
}

TEST(LayerNorm, BackwardAgreesWithReference) {
    for (const auto& [N, C] : shapes) {
        SCOPED_TRACE(testing::PrintToString(std::vector{N, C}));
        Tensors t(N, C);
        expect_backward(t, {});
    }
}

TEST(LayerNorm, BackwardWithoutEachOfItsOptionalArguments) {
    for (const Outputs& o : {Outputs{.dinp = false}, Outputs{.dweight = false}, Outputs{.dbias = false},
                             Outputs{.dresidual = false}, Outputs{.weight = false},
                             Outputs{.dweight = false, .dbias = false}, Outputs{false, false, false, false, false}}) {
        Tensors t(13, 37);
        expect_backward(t, o);
    }
}

TEST(LayerNorm, TheResidualsGradientMayBeUpdatedInPlace) {
    Tensors t(13, 37);
    Cpu cpu;
    t.forward(cpu);
    const auto run = [&](float* dinp) {
        layernorm_backward(cpu, dinp, t.dweight.on(cpu), t.dbias.on(cpu), t.dout.on(cpu), t.inp.on(cpu),
                           t.weight.on(cpu), t.mean.on(cpu), t.rstd.on(cpu), t.dresidual.on(cpu), t.N, t.C);
    };
    run(t.dinp.on(cpu)), run(t.dresidual.on(cpu));
    EXPECT_EQ(std::memcmp(t.dinp.on(cpu), t.dresidual.on(cpu), t.N * t.C * sizeof(float)), 0);
}

TEST(LayerNorm, NoRowsNoChange) {
    Tensors t(0, 37);
    expect_forward(t, {});
    expect_backward(t, {});
}

TEST(LayerNorm, BackwardAgreesWithDifferences) {
    const int64_t N = 3, C = 7;
    Reference<double> dev;
    std::vector<double> inp = uniform(N * C), weight = uniform(C), bias = uniform(C), out(N * C), mean(N), rstd(N);
    const std::vector<double> dout = uniform(N * C), dresidual = uniform(N * C);
    std::vector<double> dinp(N * C), dweight(C), dbias(C);
    const auto f = [&] {
        layernorm_forward(dev, out.data(), mean.data(), rstd.data(), inp.data(), weight.data(), bias.data(), N, C);
        return dot(out, dout) + dot(inp, dresidual);
    };
    f();
    layernorm_backward(dev, dinp.data(), dweight.data(), dbias.data(), dout.data(), inp.data(), weight.data(),
                       mean.data(), rstd.data(), dresidual.data(), N, C);
    expect_gradient("inp", f, inp, dinp);
    expect_gradient("weight", f, weight, dweight);
    expect_gradient("bias", f, bias, dbias);
}

TEST(LayerNorm, BitsDoNotDependOnTheThreads) {
    for (const auto& [N, C] : {std::pair<int64_t, int64_t>{1, 5}, {70, 33}, {530, 48}})
        expect_same_bits_for_any_thread_count([N = N, C = C](Cpu& dev) {
            Tensors t(N, C);
            t.forward(dev);
            layernorm_backward(dev, t.dinp.on(dev), t.dweight.on(dev), t.dbias.on(dev), t.dout.on(dev), t.inp.on(dev),
                               t.weight.on(dev), t.mean.on(dev), t.rstd.on(dev), t.dresidual.on(dev), N, C);
            std::vector<float> all;
            for (const Values* v : {&t.out, &t.mean, &t.rstd, &t.dinp, &t.dweight, &t.dbias}) append(all, *v);
            return all;
        });
}

TEST(LayerNorm, NaNStaysInItsRow) {
    Tensors t(9, 37);
    Cpu cpu;
    t.inp.on(cpu)[4 * 37 + 36] = NAN, t.inp.on(cpu)[7 * 37] = INFINITY, t.dout.on(cpu)[2 * 37 + 5] = NAN;
    t.forward(cpu);
    layernorm_backward(cpu, t.dinp.on(cpu), t.dweight.on(cpu), t.dbias.on(cpu), t.dout.on(cpu), t.inp.on(cpu),
                       t.weight.on(cpu), t.mean.on(cpu), t.rstd.on(cpu), t.dresidual.on(cpu), 9, 37);
    const auto row_is_hit = [](int64_t i) { return i / 37 == 4 || i / 37 == 7; };
    expect_nan_only_where("out", t.out, row_is_hit);
    expect_nan_only_where("rstd", t.rstd, [](int64_t row) { return row == 4 || row == 7; });
    expect_nan_only_where("dinp", t.dinp, [&](int64_t i) { return row_is_hit(i) || i / 37 == 2; });
    expect_nan_only_where("dweight", t.dweight, [](int64_t) { return true; });  // a sum over the rows
    expect_nan_only_where("dbias", t.dbias, [](int64_t c) { return c == 5; });
}

}  // namespace
