// Attention for generation: Reference against attention over the whole sequence, Cpu against Reference, threads.
#include "layers/cached_attention_cpu.h"

#include "layers/attention.h"

#include "dev/test/layers/cached_attention_check.h"
#include "dev/test/layers/layer_check.h"

namespace {

using Shape = CachedShape;
std::vector<Shape> shapes() {
    std::vector<Shape> all{{1, 0, 1, 1, 1}, {2, 3, 9, 3, 80}, {1, 1023, 1, 2, 64}};
    for (const int64_t past : {0, 1, 5, 16, 40})
        for (const int64_t hs : {1, 7, 16, 64, 72}) all.push_back({1 + past % 2, past, 1 + hs % 3, 2, hs});
    return all;
}

// A sequence of past + T positions: the first `past` are appended and then the others, whose output is computed.
struct Tensors {
    explicit Tensors(const Shape& shape, double size = 2)
        : s(shape),
          before(random_values(s.B * s.past * 3 * s.C(), size)),
          qkv(random_values(s.B * s.T * 3 * s.C(), size)),
          keys(nan_values(s.B * s.C() * s.capacity())),
          values(nan_values(s.B * s.C() * s.capacity())),
          out(nan_values(s.B * s.T * s.C())) {}
    template <class Device>
    void forward(Device& dev) {
        forward_after_past(*this, dev);
    }
    // qkv of the whole sequences, (B,past+T,3C)
    std::vector<double> whole() const {
        std::vector<double> all;
        for (int64_t b = 0; b < s.B; ++b)
            for (const Values* part : {&before, &qkv}) {
                const int64_t piece = part->size() / s.B;
                all.insert(all.end(), part->exact.begin() + b * piece, part->exact.begin() + (b + 1) * piece);
            }
        return all;
    }
    Shape s;
    Values before, qkv, keys, values, out;
};

// The allowed errors, in roundoffs, as attention_test's: a score loses 8 of the sum of |q k| / sqrt(hs), which e^x
// turns into the same share of a probability, twice with the denominator's; e^x, its argument and its sum round too.
void set_magnitudes(Tensors& t, const std::vector<double>& qkv) {
    const int64_t hs = t.s.hs, C = t.s.C(), seq = t.s.past + t.s.T;
    const double scale = 1 / std::sqrt(static_cast<double>(hs));
    for (int64_t row = 0; row < t.s.B * t.s.T; ++row)
        for (int64_t h = 0; h < t.s.NH; ++h) {
            const double* const base = qkv.data() + row / t.s.T * seq * 3 * C + h * hs;
            const int64_t position = t.s.past + row % t.s.T;
            const double* const q = base + position * 3 * C;
            std::vector<double> scores;
            double error = 0, largest = -INFINITY, sum = 0;
            for (int64_t s = 0; s <= position; ++s) {
                double score = 0, size = 0;
                for (int64_t c = 0; c < hs; ++c) {
                    const double product = q[c] * base[s * 3 * C + C + c];
                    score += product * scale, size += std::abs(product) * scale;
                }
                scores.push_back(score), error = std::max(error, 8 * size), largest = std::max(largest, score);
            }
            for (const double score : scores) sum += std::exp(score - largest);
            const double log_sum = largest + std::log(sum);
            for (int64_t c = 0; c < hs; ++c) {
                double& allowed = t.out.magnitude[static_cast<size_t>(row * C + h * hs + c)];
                allowed = 1e-38 / roundoff;
                for (int64_t s = 0; s <= position; ++s)
                    allowed += std::exp(scores[static_cast<size_t>(s)] - log_sum) *
                               (2 * error + 2 * std::abs(log_sum) + 16) * std::abs(base[s * 3 * C + 2 * C + c]);
            }
        }
}

TEST(CachedAttention, ReferenceAgreesWithAttentionOverTheWholeSequence) {
    for (const Shape& s : shapes()) {
        Tensors t(s);
        Reference<double> reference;
        t.forward(reference);
        const int64_t seq = s.past + s.T, C = s.C();
        const std::vector<double> qkv = t.whole();
        std::vector<double> out(static_cast<size_t>(s.B * seq * C)), logsumexp(static_cast<size_t>(s.B * s.NH * seq));
        attention_forward(reference, out.data(), logsumexp.data(), qkv.data(), s.B, seq, C, s.NH);
        for (int64_t row = 0; row < s.B * s.T; ++row)
            for (int64_t c = 0; c < C; ++c)
                ASSERT_NEAR(t.out[row * C + c],
                            out[static_cast<size_t>((row / s.T * seq + s.past + row % s.T) * C + c)], 1e-12)
                    << testing::PrintToString(std::vector{s.B, s.past, s.T, s.NH, s.hs});
    }
}

TEST(CachedAttention, CpuAgreesWithReference) {
    for (const Shape& s : shapes())
        for (const double size : {2.0, 12.0}) {
            SCOPED_TRACE(testing::PrintToString(std::vector{s.B, s.past, s.T, s.NH, s.hs}));
            Tensors t(s, size);
            Cpu cpu = cpu_with_stale_scratch();
            Reference<double> reference;
            t.forward(cpu), t.forward(reference);
            set_magnitudes(t, t.whole());
            t.out.expect_close("out", roundoff);
            for (const auto& [kept, name] : {std::pair{&t.keys, "keys"}, std::pair{&t.values, "values"}})
                for (int64_t i = 0; i < kept->size(); ++i) {  // the same floats, and NaN where nothing was appended
                    const double copied = static_cast<double>(kept->cpu.get()[i]), exact = (*kept)[i];
                    ASSERT_TRUE(std::isnan(exact) ? std::isnan(copied) : copied == exact) << name << " " << i;
                }
        }
}

TEST(CachedAttention, BitsDoNotDependOnTheThreads) {
    const Shape s{2, 37, 3, 3, 40};
    std::vector<float> first;
    for (const int threads : {1, 2, 3, 7}) {
        const Threads these(threads);
        generator().seed(5);
        Tensors t(s);
        Cpu cpu;
        t.forward(cpu);
        std::vector<float> all;
        append(all, t.out);
        if (first.empty()) first = all;
        EXPECT_EQ(std::memcmp(all.data(), first.data(), all.size() * sizeof(float)), 0) << threads << " threads";
    }
}

TEST(CachedAttention, NaNIsSeen) {
    Tensors t({1, 20, 1, 2, 16});
    t.before.cpu.get()[4 * 3 * 32 + 32 + 3] = NAN;  // a key of the first head
    Cpu cpu;
    t.forward(cpu);
    for (int64_t c = 0; c < 32; ++c) EXPECT_EQ(std::isnan(t.out.cpu.get()[c]), c < 16) << c;
}

}  // namespace
