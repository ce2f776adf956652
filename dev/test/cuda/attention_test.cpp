// Compares attention on Cuda with Reference: in the emulator, with several thread orders, or on a GPU.
#include "layers/attention.cuh"

#include "dev/test/cuda/cuda_check.h"

namespace {

// A tensor with the allowed error of each element.
template <class T>
struct Tensor : CudaTensor<T> {
    Tensor(Cuda& device, const std::vector<double>& values, bool misaligned = false)
        : CudaTensor<T>(device, values, misaligned), allowed(values.size()) {}
    void expect_close(const char* name) const {
        CudaTensor<T>::expect_close(name, [&](int64_t i) { return allowed[static_cast<size_t>(i)]; });
    }
    double operator[](int64_t i) const { return this->exact[static_cast<size_t>(i)]; }

    std::vector<double> allowed;
};

constexpr BatchPlace dropout_place{.seed = 3, .step = 4, .first_sequence = 5};
const uint32_t dropout_threshold = Dropout::threshold_of(0.3);

struct Shape {
    int64_t B, T, NH, hs;
    int64_t C() const { return NH * hs; }
};

template <class T>
struct Layer {
    explicit Layer(const Shape& shape, double size = 2, bool off_a_boundary = false)
        : s(shape), misaligned(off_a_boundary) {
        generator().seed(1234);
        qkv = std::make_unique<Tensor<T>>(cuda, uniform(s.B * s.T * 3 * s.C(), size), misaligned);
        dout = std::make_unique<Tensor<T>>(cuda, uniform(s.B * s.T * s.C()), misaligned);
    }
    template <class Device>
    void forward(Device& dev) {
        attention_forward(dev, out.on(dev), logsumexp.on(dev), qkv->on(dev), s.B, s.T, s.C(), s.NH, dropout(dev));
    }
    template <class Device>
    void backward(Device& dev) {
        attention_backward(dev, dqkv.on(dev), dout->on(dev), out.on(dev), qkv->on(dev), logsumexp.on(dev), s.B, s.T,
                           s.C(), s.NH, dropout(dev));
    }
    Dropout dropout(Cuda&) const { return drops ? Dropout{place.get(), dropout_threshold, 2} : Dropout{}; }
    Dropout dropout(Reference<double>&) const {
        return drops ? Dropout{&dropout_place, dropout_threshold, 2} : Dropout{};
    }
    // Both devices' backwards read the same forward results.
    void share_forward() {
        const auto share = [](auto& t) {
            const std::vector<float> values = t.values();
            std::copy(values.begin(), values.end(), t.exact.begin());
        };
        share(out), share(logsumexp);
    }
    std::vector<float> all() const {
        std::vector<float> result = logsumexp.values();
        for (const Tensor<T>* t : {&out, &dqkv}) {
            const std::vector<float> values = t->values();
            result.insert(result.end(), values.begin(), values.end());
        }
        return result;
    }
    void set(int64_t position, int64_t channel, double value) {  // of qkv (B*T,3C)
        qkv->exact[static_cast<size_t>(position * 3 * s.C() + channel)] = value;
        qkv = std::make_unique<Tensor<T>>(cuda, qkv->exact, misaligned);
    }

    Shape s;
    bool misaligned;
    Cuda cuda{};
    Reference<double> reference{};
    bool drops = false;
    CudaBuffer<BatchPlace> place = copied(cuda, dropout_place);
    std::unique_ptr<Tensor<T>> qkv, dout;
    Tensor<T> out{cuda, nans(s.B*s.T*s.C()), misaligned}, dqkv{cuda, nans(s.B*s.T * 3 * s.C()), misaligned};
    Tensor<float> logsumexp{cuda, nans(s.B* s.NH* s.T)};
};

// The allowed errors. Sums in fp32 lose 8 roundoffs of the size of their terms. A score loses those of |q k| /
// sqrt(hs), at most `score_error` in a row; e^x turns that into the same share of a probability, twice with the
// denominator's, and the roundings of e^x and its argument are 8 more. On tensor cores, probabilities and dscore are
// operands, so they are rounded to bf16: half of the last of 8 bits. Dropout multiplies a probability by its scale at
// most, which costs 2 more roundoffs.
template <class T>
void set_allowed(Layer<T>& t) {
    const int64_t B = t.s.B, seq = t.s.T, NH = t.s.NH, hs = t.s.hs;
    const int64_t C = t.s.C();
    const double scale = 1 / std::sqrt(static_cast<double>(hs)), factor = std::is_same_v<T, bf16> ? 0x1p-8 : 0;
    const double largest_factor = t.dropout(t.reference).scale();
    for (Tensor<T>* x : {&t.out, &t.dqkv}) std::fill(x->allowed.begin(), x->allowed.end(), 1e-37);
    const Tensor<T>&qkv = *t.qkv, &dout = *t.dout;
    const auto size = [&](const Tensor<T>& a, int64_t i, const Tensor<T>& b, int64_t j) {
        double sum = 0;
        for (int64_t c = 0; c < hs; ++c) sum += std::abs(a[i + c] * b[j + c]);
        return sum;
    };
    for (int64_t row = 0; row < B * NH * seq; ++row) {
        const int64_t b = row / seq / NH, h = row / seq % NH, t1 = row % seq;
        const int64_t q = (b * seq + t1) * 3 * C + h * hs, o = (b * seq + t1) * C + h * hs;
        const double log_sum = t.logsumexp[row], d_out = size(dout, o, t.out, o);
        double score_error = 0;
        for (int64_t s = 0; s <= t1; ++s)
            score_error = std::max(score_error, 8 * scale * size(qkv, q, qkv, (b * seq + s) * 3 * C + h * hs + C));
        const double p_error = 2 * score_error + 2 * std::abs(log_sum) + 8;
        t.logsumexp.allowed[static_cast<size_t>(row)] = p_error * roundoff;
        for (int64_t s = 0; s <= t1; ++s) {
            const int64_t k = (b * seq + s) * 3 * C + h * hs + C, v = k + C;
            double score = 0;
            for (int64_t c = 0; c < hs; ++c) score += qkv[q + c] * qkv[k + c];
            const double p = std::exp(score * scale - log_sum), off = p * ((p_error + 10) * roundoff + factor);
            const double dscore = off * (largest_factor * size(dout, o, qkv, v) + d_out) * scale,
                         weight = off * largest_factor;
            const auto add = [](Tensor<T>& to, int64_t i, double x) {
                to.allowed[static_cast<size_t>(i)] += std::abs(x);
            };
            for (int64_t c = 0; c < hs; ++c) {
                add(t.out, o + c, weight * qkv[v + c]);
                add(t.dqkv, q + c, dscore * qkv[k + c]);
                add(t.dqkv, k + c, dscore * qkv[q + c]);
                add(t.dqkv, v + c, weight * dout[o + c]);
            }
        }
    }
}

template <class T>
void expect_agreement(Layer<T>& t) {
    SCOPED_TRACE(testing::PrintToString(std::vector{t.s.B, t.s.T, t.s.NH, t.s.hs}));
    t.forward(t.cuda), t.forward(t.reference);
    const std::vector<double> out = t.out.exact, logsumexp = t.logsumexp.exact;
    t.share_forward();
    t.backward(t.cuda), t.backward(t.reference);
    set_allowed(t);
    t.out.exact = out, t.logsumexp.exact = logsumexp;
    t.out.expect_close("out");
    t.logsumexp.expect_close("logsumexp");
    t.dqkv.expect_close("dqkv");
}

template <class T>
class CudaAttention : public testing::Test {};
using StorageTypes = testing::Types<float, bf16>;
TYPED_TEST_SUITE(CudaAttention, StorageTypes);

// One position, less than a tile, whole tiles, one more and one less; head sizes that are not whole vectors or tiles.
const Shape shapes[] = {{1, 1, 1, 8},    {2, 2, 3, 1},    {1, 17, 2, 13},  {2, 63, 1, 64}, {1, 64, 2, 64},
                        {1, 65, 1, 64},  {1, 129, 1, 32}, {1, 130, 1, 64}, {1, 34, 2, 96}, {2, 33, 1, 80},
                        {1, 66, 1, 128}, {1, 19, 1, 200}, {1, 257, 1, 16}};

TYPED_TEST(CudaAttention, AgreesWithReference) {
    for (const Shape& s : shapes) {
        Layer<TypeParam> t(s);
        expect_agreement(t);
        if (this->HasFatalFailure()) return;
    }
}

TYPED_TEST(CudaAttention, AgreesWithReferenceWithDropout) {
    for (const Shape& s :
         {Shape{2, 17, 2, 13}, Shape{2, 65, 2, 64}, Shape{1, 130, 1, 64}, Shape{1, 67, 1, 96}, Shape{2, 34, 1, 128}}) {
        Layer<TypeParam> t(s);
        t.drops = true;
        expect_agreement(t);
        if (this->HasFatalFailure()) return;
    }
}

// Without subtracting the largest score e^x would overflow in fp32, and one key has all of the probability.
TYPED_TEST(CudaAttention, LargeScores) {
    for (const double size : {0.0, 12.0, 60.0}) {
        Layer<TypeParam> t({1, 67, 1, 64}, size);
        expect_agreement(t);
    }
}

// The largest score so far rises with every key, or never after the first.
TYPED_TEST(CudaAttention, ScoresThatRiseOrFallAlongTheKeys) {
    for (const double slope : {0.1, -0.1, -4.0}) {
        Layer<TypeParam> t({1, 140, 1, 64});
        std::vector<double> qkv = t.qkv->exact;
        for (size_t i = 0; i < qkv.size(); ++i)
            if (i % 192 < 128) qkv[i] = i % 192 < 64 ? 1 : qkv[i] + slope * static_cast<double>(i / 192);
        t.qkv = std::make_unique<Tensor<TypeParam>>(t.cuda, qkv);
        expect_agreement(t);
    }
}

// Scores of -inf before any other: rows with only these keys are NaN, as in Reference; the other rows are not affected.
TYPED_TEST(CudaAttention, ScoresOfMinusInfinity) {
    Layer<TypeParam> t({1, 90, 1, 64});
    std::vector<double> qkv = t.qkv->exact;
    for (size_t i = 0; i < qkv.size(); ++i) {
        if (i % 192 < 64) qkv[i] = i % 192 == 0 ? 3e30 : 0;
        if (i % 192 == 64) qkv[i] = i / 192 < 70 ? -3e30 : 0;
    }
    t.qkv = std::make_unique<Tensor<TypeParam>>(t.cuda, qkv);
    t.forward(t.cuda);
    const std::vector<float> out = t.out.values();
    for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(std::isnan(out[i]), i / 64 < 70) << i;
}

// A NaN at one position reaches that position and later ones; in the backward it reaches gradients of earlier ones.
TYPED_TEST(CudaAttention, NaNStaysBehindTheMask) {
    constexpr int64_t T = 90;
    for (const int64_t hs : {64, 80}) {
        if (hs == 80 && std::is_same_v<TypeParam, float>) continue;  // the same kernel as for 64
        for (const int64_t bad : {0, 63, 77}) {
            for (const int64_t part : {0, 1, 2}) {  // q, k, v
                Layer<TypeParam> t({1, T, 1, hs});
                t.set(bad, part * hs + 3, nan64);
                t.forward(t.cuda);
                const std::vector<float> out = t.out.values();
                for (int64_t i = 0; i < T * hs; ++i) {
                    const int64_t row = i / hs;
                    const bool reached = part == 0 ? row == bad : part == 1 ? row >= bad : row >= bad && i % hs == 3;
                    ASSERT_EQ(std::isnan(out[i]), reached) << hs << ": " << bad << ", " << part << ", " << i;
                }
            }
            Layer<TypeParam> t({1, T, 1, hs});
            t.forward(t.cuda);
            t.dout->exact[bad * hs + 3] = nan64;
            t.dout = std::make_unique<Tensor<TypeParam>>(t.cuda, t.dout->exact);
            t.backward(t.cuda);
            const std::vector<float> dqkv = t.dqkv.values();
            for (int64_t i = 0; i < T * 3 * hs; ++i) {
                const int64_t row = i / (3 * hs), part = i / hs % 3;
                const bool reached = part == 0 ? row == bad : part == 1 ? row <= bad : row <= bad && i % hs == 3;
                ASSERT_EQ(std::isnan(dqkv[i]), reached) << hs << ": " << bad << ", " << i;
            }
        }
    }
}

// Values of masked keys in the tile of earlier queries do not reach them either, infinity included.
TYPED_TEST(CudaAttention, InfiniteValuesStayBehindTheMask) {
    Layer<TypeParam> t({1, 30, 1, 64});
    t.set(21, 2 * 64 + 3, -static_cast<double>(INFINITY));
    t.forward(t.cuda);
    const std::vector<float> out = t.out.values();
    for (int64_t i = 0; i < 30 * 64; ++i) ASSERT_EQ(std::isfinite(out[i]), i / 64 < 21 || i % 64 != 3) << i;
}

// The bits do not depend on the order of the threads, as sums have a fixed shape.
TYPED_TEST(CudaAttention, TheSameBitsAtEveryRun) {
    for (const Shape& s : {Shape{2, 140, 1, 64}, Shape{1, 70, 2, 96}, Shape{2, 50, 2, 20}}) {
        SCOPED_TRACE(testing::Message() << s.T << ", " << s.hs);
        expect_same_bits([&] {
            Layer<TypeParam> t(s);
            t.forward(t.cuda), t.backward(t.cuda);
            return t.all();
        });
    }
}

TYPED_TEST(CudaAttention, OffAVectorsBoundary) {
    for (const int64_t hs : {64, 30}) {
        Layer<TypeParam> t({1, 70, 2, hs}, 2, true);
        expect_agreement(t);
    }
}

TYPED_TEST(CudaAttention, NoPositionsNoWork) {
    for (const Shape& s : {Shape{0, 5, 2, 64}, Shape{3, 0, 2, 64}}) {
        Layer<TypeParam> t(s);
        t.forward(t.cuda), t.backward(t.cuda);
    }
}

TEST(CudaAttentionErrors, HeadsThatAreTooLarge) {
    Layer<float> t({1, 2, 1, 257});
    EXPECT_THROW(t.forward(t.cuda), std::invalid_argument);
    EXPECT_THROW(t.backward(t.cuda), std::invalid_argument);
}

}  // namespace
