// The classifier: Cpu against Reference, tokens that count several times, padding, chunks of rows, differences,
// threads, NaN.
#include "layers/classifier_cpu.h"

#include "dev/test/layers/layer_check.h"

namespace {

struct Shape {
    int64_t N, C, V;
    int64_t padded() const { return (V + 127) / 128 * 128; }
};
const Shape shapes[] = {{1, 1, 1},    {1, 8, 2},    {3, 5, 7},     {7, 16, 15},  {12, 17, 16},   {13, 31, 17},
                        {64, 33, 67}, {65, 4, 257}, {30, 64, 256}, {5, 3, 1021}, {2, 129, 1023}, {17, 21, 5000}};

struct Tensors {
    explicit Tensors(const Shape& shape, double size = 1)
        : s(shape),
          inp(random_values(s.N * s.C, size)),
          weight(padded_with(nan64)),  // padding rows must not be used: a NaN in them would be noticed
          losses(nan_values(s.N)),
          dinp(nan_values(s.N * s.C)),
          dweight(padded_with(7)) {
        for (int64_t n = 0; n < s.N; ++n)
            targets.push_back(static_cast<int32_t>(generator()() % static_cast<uint64_t>(s.V)));
        targets[0] = static_cast<int32_t>(s.V - 1);
    }
    std::vector<double> padded_with(double padding) const {
        std::vector<double> x = uniform(s.padded() * s.C);
        std::fill(x.begin() + s.V * s.C, x.end(), padding);
        return x;
    }
    template <class Device>
    void run(Device& dev, bool backward = true) {
        const float scale = 0.3f;
        if (backward)
            classifier_forward_backward(dev, losses.on(dev), dinp.on(dev), dweight.on(dev), inp.on(dev), weight.on(dev),
                                        targets.data(), s.N, s.C, s.V, static_cast<typename Device::scalar>(scale),
                                        true, counts.empty() ? nullptr : counts.data());
        else
            classifier_forward(dev, losses.on(dev), inp.on(dev), weight.on(dev), targets.data(), s.N, s.C, s.V);
    }
    Shape s;
    Values inp, weight, losses, dinp, dweight;
    std::vector<int32_t> targets;
    std::vector<float> counts;  // how often each token counts; empty: once
};

// A logit is a sum of C products, with an error of 8 roundoffs of its terms' sum (layers/matmul_test). The
// denominator's lanes add `adds` numbers, and each sum is rounded; half of that, as the sums begin small. A loss has
// the errors of two logits and of the denominator, and some roundings of the largest logit and of the logarithm. A
// probability has the same relative error; so has its term in dinp and dweight, whose sums lose 8 more.
// If terms are rounded to bf16, other errors are small beside that, and gradients' magnitudes are their terms' sizes.
void set_magnitudes(Tensors& t, bool rounded_terms = false) {
    Magnitude size;
    Reference<double> exact;
    const Shape& s = t.s;
    std::vector<double> sizes(static_cast<size_t>(s.V)), logits(sizes.size());
    std::fill(t.dinp.magnitude.begin(), t.dinp.magnitude.end(), 0);
    const int64_t adds = std::min(s.V, classifier::run) / simd::W + s.V / classifier::run;
    const double row_errors = 8 + std::sqrt(static_cast<double>(s.N));
    for (double& before : t.dweight.magnitude) before *= rounded_terms ? 1 : row_errors;
    for (int64_t n = 0; n < s.N; ++n) {
        classifier_logits(size, sizes.data(), t.inp.on(size) + n * s.C, t.weight.on(size), 1, s.C, s.V);
        classifier_logits(exact, logits.data(), t.inp.on(exact) + n * s.C, t.weight.on(exact), 1, s.C, s.V);
        const double largest = *std::max_element(sizes.begin(), sizes.end());
        const int32_t target = t.targets[static_cast<size_t>(n)];
        const double loss = t.losses[n], log_sum = loss + logits[static_cast<size_t>(target)];
        const float* const counts = t.counts.empty() ? nullptr : t.counts.data();
        // The target is first counted as often as others, and then less often.
        const double of_target = 2 * (counts ? counts[target] : 0) * std::exp(-loss);
        const double p_error = 2 * 8 * largest + 4 + static_cast<double>(adds) / 2 + of_target;
        t.losses.magnitude[static_cast<size_t>(n)] = p_error + 2 * loss;
        for (int64_t v = 0; v < s.V; ++v) {
            const double p = count_of(counts, v, target) * std::exp(logits[static_cast<size_t>(v)] - log_sum);
            const auto dlogit = [&](double sum_errors) {
                // Beside the rounding, to 2^-8, the target's term has the loss's errors, of 2^-24.
                if (rounded_terms) return 0.3 * (v == target ? std::abs(p - 1) + p * p_error * 0x1p-16 : p);
                return 0.3 * (p * (p_error + sum_errors) + (v == target ? sum_errors : 0));
            };
            for (int64_t c = 0; c < s.C; ++c) {
                t.dinp.magnitude[static_cast<size_t>(n * s.C + c)] += dlogit(8) * std::abs(t.weight[v * s.C + c]);
                t.dweight.magnitude[static_cast<size_t>(v * s.C + c)] +=
                    dlogit(row_errors) * std::abs(t.inp[n * s.C + c]);
            }
        }
    }
}

void expect_agreement(const Shape& s, double size = 1) {
    SCOPED_TRACE(testing::PrintToString(std::vector{s.N, s.C, s.V}));
    Tensors t(s, size);
    Cpu cpu;
    Reference<double> reference;
    t.run(cpu), t.run(reference);
    const std::vector<float> losses(t.losses.on(cpu), t.losses.on(cpu) + s.N);
    set_magnitudes(t);
    t.losses.expect_close("losses", roundoff);
    t.dinp.expect_close("dinp", roundoff);
    t.dweight.expect_close("dweight", roundoff);
    for (int64_t i = s.V * s.C; i < s.padded() * s.C; ++i) ASSERT_EQ(t.dweight.on(cpu)[i], 7) << "a padding row";
    t.run(cpu, false);
    EXPECT_EQ(std::memcmp(losses.data(), t.losses.on(cpu), losses.size() * sizeof(float)), 0)
        << "the losses depend on whether gradients are wanted";
}

TEST(Classifier, CpuAgreesWithReference) {
    for (const Shape& s : shapes) expect_agreement(s);
}

// With bf16, operands that are already rounded give fp32's logits. Then the softmax's terms are rounded, and for
// dweight inp times the row's factor as well. An odd V leaves half of a row's last pair.
TEST(Classifier, TermsRoundedToBf16AgreeWithReference) {
    constexpr double rounding = 0x1p-8 * 1.01;  // to bf16, and what fp32 loses beside it
    for (const Shape& s : shapes) {
        SCOPED_TRACE(testing::PrintToString(std::vector{s.N, s.C, s.V}));
        Tensors t(s);
        Cpu cpu(MatmulKind::bf16);
        Reference<double> reference;
        for (Values* values : {&t.inp, &t.weight})
            for (int64_t i = 0; i < values->size(); ++i) {
                const float half = bf16(values->on(cpu)[i]);
                values->on(cpu)[i] = half, values->on(reference)[i] = static_cast<double>(half);
            }
        t.run(cpu), t.run(reference);
        set_magnitudes(t, true);
        t.losses.expect_close("losses", roundoff);
        t.dinp.expect_close("dinp", rounding);
        t.dweight.expect_close("dweight", 2 * rounding);
    }
}

// Sampled softmax: tokens that count up to 50 times. Most rows of the larger values are computed again, and the last
// shape has more channels than one block, so that pairs of bf16 are made of logits in memory.
TEST(Classifier, TokensThatCountSeveralTimesAgreeWithReference) {
    std::vector<Shape> all(std::begin(shapes), std::end(shapes));
    all.push_back({33, 800, 1000});
    for (const Shape& s : all)
        for (const double size : {1.0, 60.0})
            for (const MatmulKind matmul_kind : {MatmulKind::fp32, MatmulKind::bf16}) {
                SCOPED_TRACE(testing::PrintToString(std::vector{s.N, s.C, s.V}));
                const bool rounds = matmul_kind == MatmulKind::bf16;
                Tensors t(s, size);
                Cpu cpu(matmul_kind);
                Reference<double> reference;
                for (Values* values : {&t.inp, &t.weight})
                    for (int64_t i = 0; i < values->size(); ++i) {
                        const float half = bf16(values->on(cpu)[i]);
                        values->on(cpu)[i] = half, values->on(reference)[i] = static_cast<double>(half);
                    }
                for (const double x : uniform(s.V)) t.counts.push_back(static_cast<float>(1 + 49 * x * x));
                t.run(cpu), t.run(reference);
                set_magnitudes(t, rounds);
                t.losses.expect_close("losses", roundoff);
                t.dinp.expect_close("dinp", rounds ? 0x1p-8 * 1.01 : roundoff);
                t.dweight.expect_close("dweight", rounds ? 2 * 0x1p-8 * 1.01 : roundoff);
            }
}

// Where a target counts so often that nothing of the others' terms is left beside it, its loss is still not negative.
TEST(Classifier, ALikelyTargetThatCountsOften) {
    Tensors t({2, 16, 40});
    Cpu cpu;
    for (int64_t v = 0; v < 40; ++v) t.weight.on(cpu)[v * 16] = v == 7 ? 90 : -90;
    for (const int64_t n : {0, 1}) t.inp.on(cpu)[n * 16] = 1, t.targets[static_cast<size_t>(n)] = 7;
    t.counts.assign(40, 60000);
    t.run(cpu);
    for (const int64_t n : {0, 1}) {
        EXPECT_GE(t.losses.on(cpu)[n], 0);
        EXPECT_LT(t.losses.on(cpu)[n], 0.01);
    }
    for (int64_t i = 0; i < 2 * 16; ++i) EXPECT_TRUE(std::isfinite(t.dinp.on(cpu)[i])) << i;
}

TEST(Classifier, ManyChunksOfRows) {  // at 2^24 / V rows, but at least 64
    expect_agreement({340, 1, 50257});
    EXPECT_GT(classifier::chunks(340, 50257), 1);
}

// A chunk has at most 64 MiB of logits, so that they take little memory, but never less than 64 rows.
TEST(Classifier, ChunksHaveTheirSize) {
    EXPECT_EQ(classifier::chunks(65536, 256), 1);
    EXPECT_EQ(classifier::chunks(65537, 256), 2);
    EXPECT_EQ(classifier::chunks(64, 1 << 20), 1);
    EXPECT_EQ(classifier::chunks(65, 1 << 20), 2);
}

// A vocabulary of one token: the loss is 0, whatever its logit and the next row's are.
TEST(Classifier, AVocabularyOfOne) {
    Cpu cpu;
    const float inp[] = {-500, 500}, weight[] = {1};
    const int32_t targets[] = {0, 0};
    float losses[2];
    classifier_forward(cpu, losses, inp, weight, targets, 2, 1, 1);
    EXPECT_EQ(losses[0], 0);
    EXPECT_EQ(losses[1], 0);
}

// As at the start of training: each of the denominator's lanes adds thousands of terms near 1.
TEST(Classifier, NearlyEqualLogitsOfALargeVocabulary) {
    for (const double size : {0.0, 0.01, 0.02, 0.1}) {
        Tensors t({40, 1, 50257}, size);
        Cpu cpu;
        Reference<double> reference;
        t.run(cpu), t.run(reference);
        for (int64_t n = 0; n < 40; ++n) t.losses.magnitude[static_cast<size_t>(n)] = t.losses[n];
        t.losses.expect_close("losses", 4 * roundoff);
    }
}

TEST(Classifier, LargeLogitsNeitherOverflowNorVanish) {
    for (const double size : {30.0, 1e4}) {
        Tensors t({9, 16, 67}, size);
        Cpu cpu;
        Reference<double> reference;
        t.run(cpu), t.run(reference);
        set_magnitudes(t);
        t.losses.expect_close("losses", roundoff);
        for (int64_t i = 0; i < 9 * 16; ++i) EXPECT_TRUE(std::isfinite(t.dinp.on(cpu)[i])) << i;
    }
}

// The terms of earlier runs shrink where a run has a logit that is larger by more than 30: in no run, in the third, in
// each but the first, or to nothing. All logits are exact in bf16.
TEST(Classifier, LogitsThatGrowFromRunToRun) {
    const int64_t V = 4 * classifier::run - 1;
    for (const double growth : {9.0, 28.0, 40.0, 192.0})
        for (const MatmulKind matmul_kind : {MatmulKind::fp32, MatmulKind::bf16}) {
            SCOPED_TRACE(growth);
            Tensors t({1, 1, V});
            Cpu cpu(matmul_kind);
            Reference<double> reference;
            t.inp.on(cpu)[0] = 1, t.inp.on(reference)[0] = 1;
            for (int64_t v = 0; v < V; ++v) {
                const double logit = static_cast<double>(v / classifier::run) * growth - static_cast<double>(v % 4 * 4);
                t.weight.on(cpu)[v] = static_cast<float>(logit), t.weight.on(reference)[v] = logit;
            }
            t.targets[0] = 1;
            t.run(cpu), t.run(reference);
            const bool rounds = matmul_kind == MatmulKind::bf16;
            set_magnitudes(t, rounds);
            t.losses.expect_close("losses", roundoff);
            t.dinp.expect_close("dinp", rounds ? 3 * 0x1p-8 : roundoff);  // terms that shrink are rounded again
            t.dweight.expect_close("dweight", rounds ? 4 * 0x1p-8 : roundoff);
        }
}

// Rows whose sum of terms is out of bounds are computed again, in fp32 and in bf16, and those beside them are not
// touched: every third target is unlikelier than another token by e^60. Other logits are about -200, as those of a
// trained GPT-2 may be. The last shape has more channels than one block.
TEST(Classifier, VeryUnlikelyTargetsAmongOthers) {
    for (const Shape& s : {Shape{9, 16, 67}, Shape{40, 16, 2000}, Shape{33, 800, 1000}})
        for (const MatmulKind matmul_kind : {MatmulKind::fp32, MatmulKind::bf16}) {
            SCOPED_TRACE(testing::PrintToString(std::vector{s.N, s.C, s.V}));
            const bool rounds = matmul_kind == MatmulKind::bf16;
            Tensors t(s);
            Cpu cpu(matmul_kind);
            Reference<double> reference;
            const auto set = [&](Values& values, int64_t i, double x) {
                values.on(cpu)[i] = static_cast<float>(x), values.on(reference)[i] = x;
                values.magnitude[static_cast<size_t>(i)] = std::abs(x);
            };
            for (Values* values : {&t.inp, &t.weight})  // exact in bf16
                for (int64_t i = 0; i < values->size(); ++i) {
                    const double x = static_cast<double>(static_cast<float>(bf16(values->on(cpu)[i])));
                    set(*values, i, x / 16);
                }
            // The large terms of a logit are the last: each of those added to -200 would lose as much as all together.
            const int64_t last = s.C - 1;
            for (int64_t v = 0; v < s.V; ++v)
                set(t.weight, v * s.C + last - 1, v == 3 ? 15 : 0), set(t.weight, v * s.C + last, -25);
            for (int64_t n = 0; n < s.N; ++n) {
                set(t.inp, n * s.C + last - 1, n % 3 == 0 ? 4 : 0), set(t.inp, n * s.C + last, 8);
                t.targets[static_cast<size_t>(n)] = 5;
            }
            t.run(cpu), t.run(reference);
            EXPECT_GT(t.losses[0], 55);
            EXPECT_LT(t.losses[2], 20);
            set_magnitudes(t, rounds);
            t.losses.expect_close("losses", roundoff);
            t.dinp.expect_close("dinp", rounds ? 0x1p-8 * 1.01 : roundoff);
            t.dweight.expect_close("dweight", rounds ? 2 * 0x1p-8 * 1.01 : roundoff);
        }
}

// eval --weights: a few rows, and many, whose weights are converted some at a time.
TEST(Classifier, LossesWithStoredWeights) {
    for (const WeightType type : {WeightType::bf16, WeightType::int8})
        for (const Shape& s : {Shape{3, 33, 2500}, Shape{70, 100, 2500}}) {
            SCOPED_TRACE(testing::PrintToString(std::vector{s.N, s.C, s.V}));
            Tensors t(s);
            Cpu cpu;
            Reference<double> reference;
            std::vector<float> stored(static_cast<size_t>(s.V * weight_floats(type, s.C)));
            std::vector<float> row(static_cast<size_t>(s.C));
            store_weights(type, stored.data(), t.weight.on(cpu), s.V, s.C);
            with_rows(type, stored.data(), s.C, [&](const auto& rows) {
                for (int64_t v = 0; v < s.V; ++v) {
                    read_row(row.data(), rows, v, s.C);
                    std::copy(row.begin(), row.end(), t.weight.on(reference) + v * s.C);
                }
            });
            t.run(reference, false);
            std::vector<float> losses(static_cast<size_t>(s.N));
            cpu.weights = type;
            classifier_forward(cpu, losses.data(), t.inp.on(cpu), stored.data(), t.targets.data(), s.N, s.C, s.V);
            // Few rows are rounded to int8 as well.
            const double tolerance = type == WeightType::int8 && s.N <= gemm::few_rows ? 0.05 : 1e-5;
            for (int64_t n = 0; n < s.N; ++n)
                EXPECT_NEAR(losses[static_cast<size_t>(n)], t.losses.on(reference)[n], tolerance) << n;
        }
}

TEST(Classifier, LogitsAgreeWithReference) {
    for (const Shape& s : shapes) {
        SCOPED_TRACE(testing::PrintToString(std::vector{s.N, s.C, s.V}));
        Tensors t(s);
        Values logits = nan_values(s.V);
        Cpu cpu;
        Reference<double> reference;
        Magnitude magnitude;
        const auto run = [&](auto& dev) {
            classifier_logits(dev, logits.on(dev), t.inp.on(dev), t.weight.on(dev), 1, s.C, s.V);
        };
        run(cpu), run(reference), run(magnitude);
        logits.expect_close("logits", 8 * roundoff);
    }
}

TEST(Classifier, BackwardAgreesWithDifferences) {
    const int64_t N = 4, C = 5, V = 7;
    const std::vector<float> several = {2, 1, 5, 3, 1, 40, 9};
    for (const float* const counts : {static_cast<const float*>(nullptr), several.data()}) {
        Reference<double> dev;
        std::vector<double> inp = uniform(N * C), weight = uniform(V * C), losses(N), dinp(N * C), dweight(V * C);
        const std::vector<int32_t> targets = {0, 6, 3, 3};
        const double scale = 0.7;
        const auto f = [&] {
            classifier_forward(dev, losses.data(), inp.data(), weight.data(), targets.data(), N, C, V, counts);
            double sum = 0;
            for (const double loss : losses) sum += loss;
            return scale * sum;
        };
        classifier_forward_backward(dev, losses.data(), dinp.data(), dweight.data(), inp.data(), weight.data(),
                                    targets.data(), N, C, V, scale, true, counts);
        expect_gradient("inp", f, inp, dinp);
        expect_gradient("weight", f, weight, dweight);
    }
}

// Few rows are computed by several threads from 2^14 weights on, which 5,000 tokens of 4 channels have.
TEST(Classifier, BitsDoNotDependOnTheThreads) {
    for (const MatmulKind matmul_kind : {MatmulKind::fp32, MatmulKind::bf16})
        for (const Shape& s : {Shape{13, 31, 67}, Shape{1, 5, 1}, Shape{5, 4, 5000}, Shape{340, 2, 50257}})
            expect_same_bits_for_any_thread_count([&](Cpu& dev) {
                dev.matmul_kind = matmul_kind;
                Tensors t(s);
                Values logits = nan_values(s.V);
                classifier_logits(dev, logits.on(dev), t.inp.on(dev), t.weight.on(dev), 1, s.C, s.V);
                t.run(dev);
                std::vector<float> all;
                for (const Values* v : {&logits, &t.losses, &t.dinp, &t.dweight}) append(all, *v);
                return all;
            });
}

TEST(Classifier, NaNStaysInItsRow) {
    Tensors t({13, 31, 67});
    Cpu cpu;
    t.inp.on(cpu)[4 * 31 + 30] = NAN;
    t.run(cpu);
    expect_nan_only_where("losses", t.losses, [](int64_t n) { return n == 4; });
    expect_nan_only_where("dinp", t.dinp, [](int64_t i) { return i / 31 == 4; });
    expect_nan_only_where("dweight", t.dweight, [](int64_t i) { return i / 31 < 67; });  // a sum over the rows
}

TEST(Classifier, NaNInOneTokensWeightsReachesEveryLoss) {
    for (const int64_t v : {0, 15, 16, 66}) {  // the first lane, and others, of the search for the largest logit
        Tensors t({13, 31, 67});
        Cpu cpu;
        t.weight.on(cpu)[v * 31 + 7] = NAN;
        t.run(cpu);
        expect_nan_only_where("losses", t.losses, [](int64_t) { return true; });
        expect_nan_only_where("dinp", t.dinp, [](int64_t) { return true; });
    }
}

}  // namespace
