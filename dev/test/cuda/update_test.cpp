// Compares GELU, the step's status, AdamW, rounding and the sum over ranks on Cuda with Reference or the Cpu: in the
// emulator or on a GPU.
#include "layers/adamw.cuh"
#include "layers/gelu.cuh"
#include "layers/global_norm.cuh"
#include "layers/global_norm.h"
#include "device/cuda/rounding.cuh"
#include "device/cuda/tree.cuh"
#include "device/parallel/slices.h"

#include "dev/test/cuda/cuda_check.h"

namespace {

// Sizes that are not whole vectors, one block, several blocks, and 0.
constexpr int64_t counts[] = {0, 1, 3, 8, 255, 257, 1000, 2048, 5003};

// --- GELU
template <class T>
class CudaGelu : public testing::Test {};
using StorageTypes = testing::Types<float, bf16>;
TYPED_TEST_SUITE(CudaGelu, StorageTypes);

// The allowed errors: u, up to 30, has some 5 roundings, which the exponential makes relative; beyond that e^u is too
// small to matter in any sum. expf itself is exact to 2 units in the last place.
double gelu_error(double x) { return roundoff * 32 * std::max(1.0, std::abs(x)); }

TYPED_TEST(CudaGelu, AgreesWithReference) {
    for (const int64_t n : counts)
        for (const bool misaligned : {false, true})
            in_every_order([&] {
                generator().seed(static_cast<unsigned>(n));
                Cuda dev;
                Reference<double> reference;
                CudaTensor<TypeParam> inp(dev, uniform(n, 8), misaligned), out(dev, nans(n), misaligned),
                    dout(dev, uniform(n), misaligned), dinp(dev, nans(n), misaligned);
                gelu_forward(dev, out.on(dev), inp.on(dev), n);
                gelu_forward(reference, out.exact.data(), inp.exact.data(), n);
                // Far below 0, u's own rounding is all of the error; the value is tiny.
                out.expect_close("out",
                                 [&](int64_t i) { return gelu_error(inp.exact[i]) * std::abs(out.exact[i]) + 1e-14; });
                gelu_backward(dev, dinp.on(dev), inp.on(dev), dout.on(dev), n);
                gelu_backward(reference, dinp.exact.data(), inp.exact.data(), dout.exact.data(), n);
                dinp.expect_close("dinp",
                                  [&](int64_t i) { return gelu_error(inp.exact[i]) * std::abs(dout.exact[i]); });
                // in place, to the bit
                const std::vector<float> expected = dinp.values();
                gelu_backward(dev, dout.on(dev), inp.on(dev), dout.on(dev), n);
                EXPECT_EQ(dout.values(), expected);
            });
}

TYPED_TEST(CudaGelu, FarFromZero) {
    Cuda dev;
    const std::vector<double> x = {-INFINITY, -3e38, -1e20, -100, -20, 20, 100, 1e20, 3e38, INFINITY, nan64, 0.0};
    const auto n = static_cast<int64_t>(x.size());
    CudaTensor<TypeParam> inp(dev, x), out(dev, nans(n)), dinp(dev, nans(n)),
        ones(dev, std::vector<double>(x.size(), 1));
    gelu_forward(dev, out.on(dev), inp.on(dev), n);
    gelu_backward(dev, dinp.on(dev), inp.on(dev), ones.on(dev), n);
    const std::vector<float> y = out.values(), dx = dinp.values();
    for (size_t i = 1; i < 5; ++i) EXPECT_TRUE(y[i] == 0 && dx[i] == 0) << x[i];
    for (size_t i = 5; i < 10; ++i)
        EXPECT_TRUE(y[i] == static_cast<float>(inp.exact[i]) && dx[i] == 1) << x[i] << " " << y[i] << " " << dx[i];
    EXPECT_TRUE(std::isnan(y[10]) && std::isnan(dx[10]));
    EXPECT_TRUE(y[11] == 0 && dx[11] == 0.5f);
}

// --- the step's status
StepStatus status_of(Cuda& dev, const CudaBuffer<StepStatus>& s) { return to_host(dev, s.get(), 1)[0]; }

// Squares of floats are exact in double. Only the order of n additions differs, each of which is rounded.
TEST(CudaStepStatus, LossAndNormAgreeWithReference) {
    for (const int64_t n : {0, 1, 5, 4099, 40003})
        for (const bool misaligned : {false, true}) {
            Cuda dev;
            Reference<double> reference;
            CudaTensor<float> losses(dev, uniform(n, 10), misaligned), gradients(dev, uniform(n, 3), misaligned);
            const auto s = allocate<StepStatus>(dev, 1);
            StepStatus expected{};
            for (const double scale : {0.5, 0.25}) {
                add_loss(dev, s.get(), losses.on(dev), n, scale);
                add_loss(reference, &expected, losses.exact.data(), n, scale);
            }
            const UpdateParams params{.clip = 2};
            decide(dev, s.get(), gradients.on(dev), n, copied(dev, params).get());
            decide(reference, &expected, gradients.exact.data(), n, &params);
            const StepStatus got = status_of(dev, s);
            EXPECT_LE(std::abs(got.loss - expected.loss),
                      static_cast<double>(n) * 0x1p-53 * 10 * static_cast<double>(n))
                << n;
            EXPECT_LE(std::abs(got.squared_norm - expected.squared_norm),
                      static_cast<double>(n) * 0x1p-53 * expected.squared_norm)
                << n;
            EXPECT_LE(std::abs(got.grad_scale - expected.grad_scale), 1e-11) << n;
            EXPECT_EQ(got.apply, 1);
        }
}

TEST(CudaStepStatus, TheSameBitsInEveryOrder) {
    expect_same_bits([&] {
        generator().seed(3);
        Cuda dev;
        CudaTensor<float> x(dev, uniform(3001));
        const auto s = allocate<StepStatus>(dev, 1);
        add_loss(dev, s.get(), x.on(dev), 3001, 0.1);
        decide(dev, s.get(), x.on(dev), 3001, copied(dev, UpdateParams{.clip = 1}).get());
        const StepStatus got = status_of(dev, s);
        std::vector<float> bits(sizeof got / sizeof(float));
        std::memcpy(bits.data(), &got, sizeof got);
        return bits;
    });
}

// As ranks compute it: each sums the squares of its runs, and one adds them all.
TEST(CudaStepStatus, TheSameBitsFromRunsThatWereSummedApart) {
    for (const int64_t n : {int64_t{5}, 3 * global_norm::run, 7 * global_norm::run + 3}) {
        Cuda dev;
        CudaTensor<float> x(dev, uniform(n));
        const auto whole = allocate<StepStatus>(dev, 1), parts = allocate<StepStatus>(dev, 1);
        const auto params = copied(dev, UpdateParams{.clip = 1});
        decide(dev, whole.get(), x.on(dev), n, params.get());
        const int64_t runs = global_norm::runs(n);
        const auto sums = allocate<double>(dev, runs);
        for (int64_t first = 0; first < runs; first += 2) {
            const int64_t begin = first * global_norm::run, end = std::min(n, begin + 2 * global_norm::run);
            sums_of_squares(dev, sums.get() + first, x.on(dev) + begin, end - begin);
        }
        decide_by_sums(dev, parts.get(), sums.get(), runs, params.get());
        EXPECT_EQ(status_of(dev, parts).squared_norm, status_of(dev, whole).squared_norm) << n;
        EXPECT_EQ(status_of(dev, parts).grad_scale, status_of(dev, whole).grad_scale) << n;
    }
}

struct Case {
    double gradient, loss;
    UpdateParams params;
    bool apply;
    double grad_scale;
};
TEST(CudaStepStatus, WhatIsApplied) {
    const UpdateParams none;
    for (const auto& [gradient, loss, params, apply, scale] :
         std::vector<Case>{{3, 1, none, true, 1},
                           {3, 1, {.clip = 1.5}, true, 0.5},
                           {3, 1, {.clip = 4}, true, 1},
                           {0, 0, {.clip = 1}, true, 1},
                           {1e25, 1, {.clip = 1}, true, 1e-25},  // its square overflows a float
                           {3, 1, {.max_loss = 1, .max_norm = 3}, true, 1},
                           {3, 1.01, {.max_loss = 1, .max_norm = 3}, false, 1},
                           {3.01, 1, {.max_loss = 1, .max_norm = 3}, false, 1},
                           {INFINITY, 1, none, false, 1},
                           {nan64, 1, none, false, 1},
                           {3, nan64, none, false, 1},
                           {3, INFINITY, none, false, 1}}) {
        Cuda dev;
        std::vector<double> g(7);
        g[5] = gradient;
        CudaTensor<float> gradients(dev, g), losses(dev, {loss});
        const auto s = allocate<StepStatus>(dev, 1);
        add_loss(dev, s.get(), losses.on(dev), 1, 1);
        decide(dev, s.get(), gradients.on(dev), 7, copied(dev, params).get());
        const StepStatus got = status_of(dev, s);
        EXPECT_EQ(got.apply, apply) << gradient << " " << loss;
        EXPECT_TRUE(!apply || std::abs(got.grad_scale / scale - 1) <= 1e-6) << gradient << " " << loss;
    }
}

// --- AdamW
TEST(CudaAdamW, AgreesWithReference) {
    const UpdateParams o{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    for (const int64_t n : counts)
        for (const bool misaligned : {false, true}) {
            Cuda dev;
            Reference<double> reference;
            CudaTensor<float> param(dev, uniform(n), misaligned), m(dev, uniform(n, 1e-2), misaligned);
            std::vector<double> squares = uniform(n, 1e-3);
            for (double& x : squares) x = std::abs(x);
            CudaTensor<float> v(dev, squares, misaligned);
            const StepStatus quartered{.grad_scale = 0.25, .apply = 1};
            const auto s = copied(dev, quartered);
            for (const int64_t step : {1, 2, 1000}) {
                CudaTensor<float> grad(dev, uniform(n), misaligned);
                const UpdateParams params = at_step(o, step);
                const bool decay = step % 2 == 0;
                adamw_update(dev, param.on(dev), grad.on(dev), m.on(dev), v.on(dev), n, copied(dev, params).get(),
                             decay, s.get());
                adamw_update(reference, param.exact.data(), grad.exact.data(), m.exact.data(), v.exact.data(), n,
                             &params, decay, &quartered);
                // |m| is below 1/16, and its terms (1 - beta1) g have 4 roundings for 1 - beta1, then a few
                m.expect_close("m", [](int64_t) { return roundoff; });
                // 1 - beta2 has 10 roundings
                v.expect_close("v", [&](int64_t i) { return 32 * roundoff * v.exact[i]; });
                // the update is lr * (a ratio of the moments), whose error is that of m, which may cancel
                param.expect_close("param", [&](int64_t i) {
                    const double ratio = 0.1 / std::sqrt(0.05 * v.exact[i] + 1e-12);
                    return 8 * roundoff * (std::abs(param.exact[i]) + 1) + 64 * roundoff * o.lr * (1 + ratio);
                });
            }
        }
}

// If the step is not applied, no bit changes, whatever the gradients are.
TEST(CudaAdamW, LeftOutWhereTheStepIsNotApplied) {
    Cuda dev;
    constexpr int64_t n = 300;
    CudaTensor<float> param(dev, uniform(n)), m(dev, uniform(n)), v(dev, uniform(n)), grad(dev, nans(n));
    const std::vector<float> before[] = {param.values(), m.values(), v.values()};
    const auto s = allocate<StepStatus>(dev, 1);
    decide(dev, s.get(), grad.on(dev), n, copied(dev, UpdateParams{.clip = 1}).get());
    adamw_update(dev, param.on(dev), grad.on(dev), m.on(dev), v.on(dev), n, copied(dev, at_step({}, 1)).get(), true,
                 s.get());
    EXPECT_EQ(param.values(), before[0]);
    EXPECT_EQ(m.values(), before[1]);
    EXPECT_EQ(v.values(), before[2]);
}

// --- rounding
std::vector<bf16> rounded(Cuda& dev, const std::vector<float>& x, uint64_t seed, int64_t step, int64_t offset = 0) {
    const auto n = static_cast<int64_t>(x.size());
    const auto in = cuda_allocate<float>(n + offset);
    const auto out = cuda_allocate<bf16>(n + offset);
    to_device(dev, in.get() + offset, x.data(), n);
    round_stochastically(dev, out.get() + offset, in.get() + offset, n,
                         copied(dev, UpdateParams{.rounding_seed = seed, .step = step}).get(), nullptr);
    return to_host(dev, out.get() + offset, n);
}
std::vector<uint16_t> bits_of(const std::vector<bf16>& x) {
    std::vector<uint16_t> bits;
    for (const bf16 value : x) bits.push_back(value.bits);
    return bits;
}

TEST(StochasticRounding, GivesOneOfTheTwoNeighbours) {
    Cuda dev;
    for (const int64_t n : counts) {
        std::vector<float> x;
        for (const double value : uniform(n, 100)) x.push_back(static_cast<float>(value));
        const std::vector<bf16> y = rounded(dev, x, 1, 2);
        for (size_t i = 0; i < x.size(); ++i) {
            const uint16_t down = static_cast<uint16_t>(std::bit_cast<uint32_t>(x[i]) >> 16);
            ASSERT_TRUE(y[i].bits == down || y[i].bits == down + 1) << x[i];
        }
    }
}

TEST(StochasticRounding, WhatBf16HoldsStays) {
    Cuda dev;
    std::vector<float> x;
    for (uint32_t bits = 0; bits < 0x10000; bits += 7) x.push_back(std::bit_cast<float>(bits << 16));
    x.insert(x.end(), {0.0f, -0.0f, INFINITY, -INFINITY, 1.0f});
    const std::vector<bf16> y = rounded(dev, x, 3, 4);
    for (size_t i = 0; i < x.size(); ++i) {
        if (x[i] != x[i])
            ASSERT_TRUE(static_cast<float>(y[i]) != static_cast<float>(y[i])) << i;
        else
            ASSERT_EQ(y[i].bits, std::bit_cast<uint32_t>(x[i]) >> 16) << x[i];
    }
    // NaN whose upper half would be infinity, or which a carry would make a number
    for (const uint32_t bits : {0x7f800001u, 0xff80ffffu, 0x7fffffffu, 0xffffffffu}) {
        const bf16 nan = rounded(dev, {std::bit_cast<float>(bits)}, 1, 1)[0];
        EXPECT_TRUE(static_cast<float>(nan) != static_cast<float>(nan)) << bits;
    }
}

// n times the same value x = down + p * ulp: how many go up is binomial, of mean n p and deviation sqrt(n p (1 - p)).
// Beyond 5 deviations lies less than one in a million; the numbers are the same at every run.
TEST(StochasticRounding, IsUnbiased) {
    Cuda dev;
    constexpr int64_t n = 40000;
    int64_t step = 0;
    for (const double p : {0.001, 0.1, 0.5, 0.75, 0.999})
        for (const float down : {1.0f, -0.0078125f, 96.0f}) {
            const uint32_t bits = std::bit_cast<uint32_t>(down) + static_cast<uint32_t>(p * 65536);
            const double exact = static_cast<double>(static_cast<uint32_t>(p * 65536)) / 65536;
            const std::vector<bf16> y =
                rounded(dev, std::vector<float>(static_cast<size_t>(n), std::bit_cast<float>(bits)), 42, ++step);
            const auto up = std::count_if(y.begin(), y.end(), [&](bf16 v) { return static_cast<float>(v) != down; });
            EXPECT_LE(std::abs(static_cast<double>(up) - n * exact), 5 * std::sqrt(n * exact * (1 - exact)))
                << p << " of " << down;
        }
}

// Rounding depends only on seed, step and index, not on the launch, the vectors or neighbouring values.
TEST(StochasticRounding, DependsOnSeedStepAndIndexAlone) {
    Cuda dev;
    std::vector<float> x(4999, 1.00390625f);  // half way between two neighbours
    const std::vector<uint16_t> once = bits_of(rounded(dev, x, 1, 1));
    in_every_order([&] { EXPECT_EQ(bits_of(rounded(dev, x, 1, 1)), once); });
    EXPECT_EQ(bits_of(rounded(dev, x, 1, 1, 1)), once);  // off a vector's boundary
    const auto differing = [&](const std::vector<uint16_t>& other) {
        size_t count = 0;
        for (size_t i = 0; i < once.size(); ++i) count += once[i] != other[i];
        return static_cast<double>(count) / static_cast<double>(once.size());
    };
    // half of the values: 5 deviations of sqrt(1/4/n)
    EXPECT_NEAR(differing(bits_of(rounded(dev, x, 2, 1))), 0.5, 0.036);
    EXPECT_NEAR(differing(bits_of(rounded(dev, x, 1, 2))), 0.5, 0.036);
    for (size_t distance = 1; distance <= 8; ++distance) {  // values that share a draw go the same way
        std::vector<uint16_t> shifted(once.begin() + static_cast<ptrdiff_t>(distance), once.end());
        shifted.insert(shifted.end(), once.begin(), once.begin() + static_cast<ptrdiff_t>(distance));
        EXPECT_NEAR(differing(shifted), 0.5, 0.036) << distance;
    }
    x.resize(100);
    const std::vector<uint16_t> fewer = bits_of(rounded(dev, x, 1, 1));
    EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), once.begin()));
}

// As ranks round it: each a slice, which need not begin at a vector's boundary.
TEST(StochasticRounding, TheSameBitsInParts) {
    Cuda dev;
    constexpr int64_t n = 4999;
    const std::vector<float> x(n, 1.00390625f);
    const std::vector<uint16_t> once = bits_of(rounded(dev, x, 1, 1));
    const auto params = copied(dev, UpdateParams{.rounding_seed = 1, .step = 1});
    for (const int64_t offset : {0, 1}) {
        const auto in = cuda_allocate<float>(n + offset);
        const auto out = allocate<bf16>(dev, n + offset);
        to_device(dev, in.get() + offset, x.data(), n);
        const int64_t cuts[] = {0, 5, 6, 8, 1003, 4096, n};
        for (size_t part = 0; part + 1 < std::size(cuts); ++part)
            round_stochastically(dev, out.get() + offset + cuts[part], in.get() + offset + cuts[part],
                                 cuts[part + 1] - cuts[part], params.get(), nullptr, cuts[part]);
        EXPECT_EQ(bits_of(to_host(dev, out.get() + offset, n)), once) << offset;
    }
}

// Leaves of very different sizes make the order visible. The sum goes into each of the leaves in turn.
TEST(CudaTree, HasTheBitsOfTheCpu) {
    for (const size_t count : {2, 4, 8, 32})
        for (const bool misaligned : {false, true})
            for (const size_t result : {size_t{0}, count - 1}) {
                Cuda dev;
                Cpu cpu;
                constexpr int64_t n = 303;
                std::vector<CudaTensor<float>> leaves;
                std::vector<std::vector<float>> on_cpu;
                std::vector<float*> parts, cpu_parts;
                for (size_t leaf = 0; leaf < count; ++leaf) {
                    leaves.emplace_back(dev, uniform(n, leaf % 3 == 0 ? 1e6 : 1), misaligned && leaf == count / 2);
                    on_cpu.push_back(leaves.back().values());
                }
                for (size_t leaf = 0; leaf < count; ++leaf)
                    parts.push_back(leaves[leaf].on(dev)), cpu_parts.push_back(on_cpu[leaf].data());
                add_as_tree(dev, parts, result, n);
                add_as_tree(cpu, cpu_parts, result, n);
                ASSERT_EQ(leaves[result].values(), on_cpu[result]) << count << ", " << result;
            }
}

TEST(Convert, ToNearestAndBack) {
    for (const int64_t n : counts)
        for (const bool misaligned : {false, true}) {
            Cuda dev;
            CudaTensor<float> x(dev, uniform(n), misaligned), back(dev, nans(n), misaligned);
            CudaTensor<bf16> y(dev, nans(n), misaligned);
            convert(dev, y.on(dev), x.on(dev), n);
            convert(dev, back.on(dev), y.on(dev), n);
            const std::vector<float> from = x.values(), narrow = y.values(), wide = back.values();
            for (size_t i = 0; i < from.size(); ++i) {
                ASSERT_EQ(narrow[i], static_cast<float>(bf16(from[i]))) << i;
                ASSERT_EQ(wide[i], narrow[i]) << i;
            }
        }
}

}  // namespace
