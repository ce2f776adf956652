// Causal attention: Cpu, in fp32 and with bf16 matmuls, against Reference, causality, differences, threads, NaN.
#include "layers/attention_cpu.h"

#include "device/bf16.h"
#include "device/cpu/gemm/gemm_amx.h"

#include "dev/test/layers/layer_check.h"

namespace {

struct Shape {
    int64_t B, T, NH, hs;
    int64_t C() const { return NH * hs; }
};
std::vector<Shape> shapes() {
    std::vector<Shape> all;
    for (const int64_t T : {1, 2, 3, 5, 15, 16, 17, 31, 33, 47, 48, 49, 64, 65, 97, 128})
        for (const int64_t hs : {1, 7, 16, 31, 64, 80, 128}) all.push_back({1 + T % 2, T, 1 + (T + hs) % 3, hs});
    for (const Shape& s : {Shape{3, 20, 12, 64}, Shape{1, 191, 1, 32}, Shape{1, 192, 1, 32}, Shape{1, 193, 1, 32},
                           Shape{1, 257, 2, 31}, Shape{1, 299, 1, 7}, Shape{1, 430, 2, 96}, Shape{1, 600, 1, 64}})
        all.push_back(s);
    return all;
}

// With bf16 matmuls the inputs are exact in bf16, so that only attention's intermediate values are rounded.
Values operands(MatmulKind matmul_kind, int64_t n, double size = 1) {
    std::vector<double> values = uniform(n, size);
    if (matmul_kind == MatmulKind::bf16)
        for (double& x : values) x = static_cast<float>(bf16(x));
    return Values(values);
}

const BatchPlace dropout_place{.seed = 3, .step = 4, .first_sequence = 5};
const Dropout some_dropout{&dropout_place, Dropout::threshold_of(0.3), 2};

struct Tensors {
    Tensors(MatmulKind how, const Shape& shape, double size = 2)
        : matmul_kind(how),
          s(shape),
          qkv(operands(matmul_kind, s.B * s.T * 3 * s.C(), size)),
          out(nan_values(s.B * s.T * s.C())),
          logsumexp(nan_values(s.B * s.NH * s.T)),
          dout(operands(matmul_kind, s.B * s.T * s.C())),
          dqkv(nan_values(s.B * s.T * 3 * s.C())) {}
    template <class Device>
    void forward(Device& dev) {
        attention_forward(dev, out.on(dev), logsumexp.on(dev), qkv.on(dev), s.B, s.T, s.C(), s.NH, dropout);
    }
    template <class Device>
    void backward(Device& dev) {
        attention_backward(dev, dqkv.on(dev), dout.on(dev), out.on(dev), qkv.on(dev), logsumexp.on(dev), s.B, s.T,
                           s.C(), s.NH, dropout);
    }
    // Both devices' backwards read the same forward results.
    void share_forward() {
        for (Values* v : {&out, &logsumexp})
            for (int64_t i = 0; i < v->size(); ++i)
                v->exact[static_cast<size_t>(i)] = static_cast<double>(v->cpu.get()[i]);
    }
    std::vector<float> all() const {
        std::vector<float> result;
        for (const Values* v : {&out, &logsumexp, &dqkv}) append(result, *v);
        return result;
    }
    MatmulKind matmul_kind;
    Shape s;
    Values qkv, out, logsumexp, dout, dqkv;
    Dropout dropout{};
};

// The allowed errors, in roundoffs. Sums lose 8 of their terms (layers/matmul_test): a score loses 8 of the sum of |q
// k| / sqrt(hs), at most `score_error` in a row. e^x turns that into the same share of a probability, twice with the
// denominator's; its own rounding, its argument's and its sum's are 8 together. In the backward, dscore is a difference
// of two sums, and also loses 8 of both. Probabilities below 1.2e-38, the smallest normal float, may be 0. As bf16
// operands, probabilities and dscore are rounded to 8 bits instead of 24, which costs another 2^16, and dscore below
// 1.2e-38 is 0. Dropout multiplies a probability by its scale at most, whose rounding and the multiplication's are 2
// roundoffs.
void set_magnitudes(Tensors& t) {
    const int64_t B = t.s.B, T = t.s.T, NH = t.s.NH, hs = t.s.hs;
    const int64_t C = t.s.C();
    const double scale = 1 / std::sqrt(static_cast<double>(hs));
    const bool bf16 = t.matmul_kind == MatmulKind::bf16;
    const double rounding = (bf16 ? 1 << 16 : 0) + (t.dropout.on() ? 2 : 0), factor = t.dropout.scale();
    const double flushed = 1.2e-38 / roundoff;  // the largest probability that may be 0
    const double underflow = (bf16 ? 1.2e-38 * static_cast<double>(T) : 1e-38) / roundoff;
    for (Values* v : {&t.out, &t.dqkv}) std::fill(v->magnitude.begin(), v->magnitude.end(), underflow);
    const auto size = [&](const Values& a, int64_t i, const Values& b,
                          int64_t j) {  // sum of |a b| over a head's channels
        double sum = 0;
        for (int64_t c = 0; c < hs; ++c) sum += std::abs(a[i + c] * b[j + c]);
        return sum;
    };
    for (int64_t b = 0; b < B; ++b)
        for (int64_t h = 0; h < NH; ++h)
            for (int64_t t1 = 0; t1 < T; ++t1) {
                const int64_t q = (b * T + t1) * 3 * C + h * hs, o = (b * T + t1) * C + h * hs;
                const double log_sum = t.logsumexp[(b * NH + h) * T + t1];
                double score_error = 0;
                for (int64_t s = 0; s <= t1; ++s)
                    score_error =
                        std::max(score_error, 8 * scale * size(t.qkv, q, t.qkv, (b * T + s) * 3 * C + h * hs + C));
                const double p_error = 2 * score_error + 2 * std::abs(log_sum) + 8;
                t.logsumexp.magnitude[static_cast<size_t>((b * NH + h) * T + t1)] = p_error;
                const double d_out = size(t.dout, o, t.out, o);
                for (int64_t s = 0; s <= t1; ++s) {
                    const int64_t k = (b * T + s) * 3 * C + h * hs + C, v = k + C;
                    double score = 0, dp = 0;
                    for (int64_t c = 0; c < hs; ++c)
                        score += t.qkv[q + c] * t.qkv[k + c], dp += t.dout[o + c] * (t.qkv[v + c] - t.out[o + c]);
                    const double p = std::exp(score * scale - log_sum),
                                 p_loss = factor * (p * (p_error + 8 + rounding) + flushed);
                    const double dscore =
                        scale *
                        ((factor * size(t.dout, o, t.qkv, v) + d_out) * (p * (p_error + 8) + flushed) +
                         p * (t.dropout.on() ? factor * size(t.dout, o, t.qkv, v) + d_out : std::abs(dp)) * rounding);
                    for (int64_t c = 0; c < hs; ++c) {
                        const auto add = [](Values& to, int64_t i, double x) {
                            to.magnitude[static_cast<size_t>(i)] += std::abs(x);
                        };
                        add(t.out, o + c, p_loss * t.qkv[v + c]);
                        add(t.dqkv, q + c, dscore * t.qkv[k + c]);
                        add(t.dqkv, k + c, dscore * t.qkv[q + c]);
                        add(t.dqkv, v + c, p_loss * t.dout[o + c]);
                    }
                }
            }
}

void expect_agreement(Tensors& t) {
    SCOPED_TRACE(testing::PrintToString(std::vector{t.s.B, t.s.T, t.s.NH, t.s.hs}));
    Cpu cpu = cpu_with_stale_scratch(t.matmul_kind);
    Reference<double> reference;
    t.forward(cpu), t.forward(reference);
    const std::vector<double> out = t.out.exact, logsumexp = t.logsumexp.exact;
    t.share_forward();
    t.backward(cpu), t.backward(reference);
    set_magnitudes(t);
    t.out.exact = out, t.logsumexp.exact = logsumexp;
    t.out.expect_close("out", roundoff);
    t.logsumexp.expect_close("logsumexp", roundoff);
    t.dqkv.expect_close("dqkv", roundoff);
}

std::string why_not_bf16() { return gemm::has_bf16 ? "" : "this CPU has no AVX512-BF16"; }
std::vector<MatmulKind> matmul_kinds() {
    if (why_not_bf16().empty()) return {MatmulKind::fp32, MatmulKind::bf16};
    return {MatmulKind::fp32};
}
class Attention : public ::testing::TestWithParam<MatmulKind> {};
INSTANTIATE_TEST_SUITE_P(MatmulKind, Attention, ::testing::ValuesIn(matmul_kinds()),
                         [](const auto& of) { return of.param == MatmulKind::bf16 ? "bf16" : "fp32"; });
// One key: its probability is 1, and out is its value as an operand of the matmul.
TEST(AttentionOfBf16, RoundsValues) {
    if (!why_not_bf16().empty()) GTEST_SKIP() << why_not_bf16();
    const float qkv[] = {1, 1, 1 + 0x1p-9f};
    float out = NAN, logsumexp = NAN;
    Cpu fp32, rounding(MatmulKind::bf16);
    attention_forward(fp32, &out, &logsumexp, qkv, 1, 1, 1, 1);
    EXPECT_EQ(out, 1 + 0x1p-9f);
    attention_forward(rounding, &out, &logsumexp, qkv, 1, 1, 1, 1);
    EXPECT_EQ(out, 1);
}

// On one thread; another test checks that more threads give the same bits.
TEST_P(Attention, CpuAgreesWithReference) {
    const Threads one(1);
    for (const Shape& s : shapes()) {
        Tensors t(GetParam(), s);
        expect_agreement(t);
    }
}

TEST_P(Attention, CpuAgreesWithReferenceWithDropout) {
    const Threads one(1);
    for (const Shape& s : {Shape{1, 1, 1, 7}, Shape{2, 17, 2, 16}, Shape{2, 65, 3, 31}, Shape{1, 128, 2, 64},
                           Shape{2, 193, 1, 32}, Shape{1, 430, 2, 16}}) {
        Tensors t(GetParam(), s);
        t.dropout = some_dropout;
        expect_agreement(t);
    }
}

TEST_P(Attention, ScoresOfAnySize) {
    const Threads one(1);
    for (const double size : {0.0, 1e-10, 12.0, 60.0}) {
        Tensors t(GetParam(), {1, 67, 2, 24}, size);
        expect_agreement(t);
    }
}

// The largest score so far rises in every block of keys, or never after the first.
TEST_P(Attention, ScoresThatRiseOrFallAlongTheKeys) {
    const Threads one(1);
    for (const double slope : {0.05, -0.05, 2.0, -2.0}) {
        Tensors t(GetParam(), {1, 430, 1, 16});
        for (int64_t position = 0; position < t.s.T; ++position)
            for (int64_t c = 0; c < 2 * t.s.C(); ++c) {
                const int64_t i = position * 3 * t.s.C() + c;
                const double value = c < t.s.C() ? 1 : t.qkv[i] + slope * static_cast<double>(position);
                t.qkv.cpu.get()[i] = static_cast<float>(GetParam() == MatmulKind::bf16 ? bf16(value) : value);
                t.qkv.exact[static_cast<size_t>(i)] = static_cast<double>(t.qkv.cpu.get()[i]);
            }
        expect_agreement(t);
    }
}

// q·k overflows to -inf for the first 250 keys, which must not affect later queries, even if a whole block of keys
// overflows.
TEST_P(Attention, KeysWithAScoreOfMinusInfinityCountNothing) {
    Tensors t(GetParam(), {1, 300, 1, 16}, 0.5);
    Cpu cpu(GetParam());
    const int64_t C = t.s.C(), first = 250;
    for (int64_t position = 0; position < t.s.T; ++position) {
        float* const q = t.qkv.on(cpu) + position * 3 * C;
        std::fill(q, q + 2 * C, 0.0f);
        q[0] = 1e30f, q[C] = position < first ? -1e30f : 0.0f;
    }
    t.forward(cpu);
    for (int64_t c = 0; c < C; ++c) {
        double sum = 0;
        for (int64_t position = first; position < t.s.T; ++position) {
            sum += t.qkv[position * 3 * C + 2 * C + c];
            const double mean = sum / static_cast<double>(position - first + 1);
            ASSERT_LE(std::abs(static_cast<double>(t.out.on(cpu)[position * C + c]) - mean), 20 * roundoff) << position;
        }
    }
}

TEST_P(Attention, HugeScoresStayFinite) {
    Tensors t(GetParam(), {1, 50, 1, 16}, 1e6);
    Cpu cpu(GetParam());
    t.forward(cpu), t.backward(cpu);
    for (const float x : t.all()) ASSERT_TRUE(std::isfinite(x));
}

TEST_P(Attention, NothingDependsOnLaterTokens) {
    const Shape s{2, 70, 2, 19};
    Tensors t(GetParam(), s);
    Cpu cpu(GetParam());
    t.forward(cpu);
    const std::vector<float> before(t.out.on(cpu), t.out.on(cpu) + t.out.size());
    const int64_t changed = 41, row = s.C();
    for (int64_t b = 0; b < s.B; ++b)
        for (int64_t i = changed * 3 * row; i < s.T * 3 * row; ++i) t.qkv.on(cpu)[b * s.T * 3 * row + i] *= 1.7f;
    t.forward(cpu);
    for (int64_t b = 0; b < s.B; ++b) {
        const float* const now = t.out.on(cpu) + b * s.T * row;
        EXPECT_EQ(std::memcmp(now, before.data() + b * s.T * row, static_cast<size_t>(changed * row) * sizeof(float)),
                  0);
        EXPECT_NE(now[changed * row], before[static_cast<size_t>((b * s.T + changed) * row)]);
    }
}

TEST(AttentionReference, BackwardAgreesWithDifferences) {
    const int64_t B = 2, T = 5, NH = 2, C = 6;
    Reference<double> dev;
    for (const Dropout& dropout : {Dropout{}, some_dropout}) {
        std::vector<double> qkv = uniform(B * T * 3 * C), out(B * T * C), logsumexp(B * NH * T), dqkv(qkv.size());
        const std::vector<double> dout = uniform(B * T * C);
        const auto f = [&] {
            attention_forward(dev, out.data(), logsumexp.data(), qkv.data(), B, T, C, NH, dropout);
            return dot(out, dout);
        };
        f();
        attention_backward(dev, dqkv.data(), dout.data(), out.data(), qkv.data(), logsumexp.data(), B, T, C, NH,
                           dropout);
        expect_gradient("qkv", f, qkv, dqkv);
    }
}

TEST_P(Attention, BitsDoNotDependOnTheThreads) {
    for (const Shape& s : {Shape{1, 1, 1, 1}, Shape{2, 67, 3, 19}, Shape{1, 430, 2, 16}, Shape{3, 9, 5, 64}})
        expect_same_bits_for_any_thread_count([&](Cpu& dev) {
            dev.matmul_kind = GetParam();
            Tensors t(GetParam(), s), dropping(GetParam(), s);
            dropping.dropout = some_dropout;
            std::vector<float> all;
            for (Tensors* of : {&t, &dropping}) {
                of->forward(dev), of->backward(dev);
                const std::vector<float> results = of->all();
                all.insert(all.end(), results.begin(), results.end());
            }
            return all;
        });
}

// Whether an element of a (B,T,k*C) tensor is in sequence 1, head 1.
bool in_head(const Shape& s, int64_t i, int64_t k) { return i / (s.T * k * s.C()) == 1 && i % s.C() / s.hs == 1; }

const Shape nan_shape{2, 210, 2, 19};
const std::vector<int64_t> nan_positions = {0, 33, 95, 96, 200, 209};
// In a head's first vector of channels, or in its last.
int64_t nan_channel(int64_t position) { return position % 2 == 0 ? 4 : nan_shape.hs - 1; }
// Sets a NaN in sequence 1, head 1, nan_channel(position) of the part at `offset` in a row of a (B,T,k*C) tensor.
void put_nan(Values& values, const Shape& s, int64_t position, int64_t k, int64_t offset) {
    values.cpu.get()[((1 * s.T + position) * k + offset) * s.C() + s.hs + nan_channel(position)] = NAN;
}

TEST_P(Attention, NaNInAQueryStaysInItsRowAndHead) {
    const Shape& s = nan_shape;
    for (const int64_t position : nan_positions) {
        Tensors t(GetParam(), s);
        Cpu cpu(GetParam());
        put_nan(t.qkv, s, position, 3, 0);
        t.forward(cpu);
        expect_nan_only_where("out", t.out, [&](int64_t i) { return in_head(s, i, 1) && i / s.C() % s.T == position; });
        expect_nan_only_where("logsumexp", t.logsumexp,
                              [&](int64_t i) { return i == (1 * s.NH + 1) * s.T + position; });
    }
}

TEST_P(Attention, NaNInAKeyOrValueReachesTheQueriesThatSeeIt) {
    const Shape& s = nan_shape;
    for (const int64_t position : nan_positions)
        for (const int64_t part : {1, 2}) {
            Tensors t(GetParam(), s);
            Cpu cpu(GetParam());
            put_nan(t.qkv, s, position, 3, part);
            t.forward(cpu);
            expect_nan_only_where("out", t.out, [&](int64_t i) {
                return in_head(s, i, 1) && i / s.C() % s.T >= position &&
                       (part == 1 || i % s.hs == nan_channel(position));
            });
        }
}

TEST_P(Attention, NaNInDoutReachesItsQueryAndTheKeysThatItSees) {
    const Shape& s = nan_shape;
    for (const int64_t position : nan_positions) {
        Tensors t(GetParam(), s);
        Cpu cpu(GetParam());
        t.forward(cpu);
        put_nan(t.dout, s, position, 1, 0);
        t.backward(cpu);
        expect_nan_only_where("dqkv", t.dqkv, [&](int64_t i) {
            const int64_t at = i / (3 * s.C()) % s.T, part = i / s.C() % 3;
            return in_head(s, i, 3) &&
                   (part == 0 ? at == position : at <= position && (part == 1 || i % s.hs == nan_channel(position)));
        });
    }
}

}  // namespace
