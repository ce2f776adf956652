// Compares the classifier on Cuda with Reference.
#include "layers/classifier.cuh"

#include "dev/test/cuda/cuda_check.h"

namespace {

struct Shape {
    int64_t N, C, V;
};
// Vocabularies smaller than a vector, of whole vectors or not, padded or not, and larger than a block takes at once;
// rows that fill several chunks, the last one only in part.
const Shape shapes[] = {{1, 8, 1}, {5, 8, 5}, {7, 24, 128}, {4, 5, 131}, {2, 16, 1000}, {2, 8, 4301}};

struct Options {
    double weight_size = 1;
    bool accumulate = true;
    int64_t nan_row = -1;  // of inp
};

template <class T>
struct Classifier {
    explicit Classifier(const Shape& shape, const Options& options = {})
        : N(shape.N), C(shape.C), V(shape.V), o(options) {
        cuda.classifier_rows = 3;
        if (!o.accumulate) std::fill(dweight.exact.begin(), dweight.exact.end(), 0.0);
        for (int64_t n = 0; n < N; ++n) targets.push_back(static_cast<int32_t>(n == 0 ? V - 1 : n * 37 % V));
        to_device(cuda, targets_memory.get(), targets.data(), N);
    }
    std::vector<double> random_inp() const {
        std::vector<double> x = uniform(N * C);
        if (o.nan_row >= 0) x[static_cast<size_t>(o.nan_row * C + 3)] = nan64;
        return x;
    }
    std::vector<double> random_weight() const {  // the padding's values must not matter
        std::vector<double> x = uniform(Vp * C, o.weight_size);
        std::fill(x.begin() + V * C, x.end(), 1000.0);
        return x;
    }
    const int32_t* targets_on(Cuda&) const { return targets_memory.get(); }
    const int32_t* targets_on(Reference<double>&) const { return targets.data(); }
    template <class Device>
    void forward(Device& dev) {
        classifier_forward(dev, losses.on(dev), inp.on(dev), weight.on(dev), targets_on(dev), N, C, V);
    }
    template <class Device, class... Accumulate>
    void forward_backward(Device& dev, Accumulate... accumulate) {
        using Scale = std::conditional_t<std::is_same_v<Device, Cuda>, float, double>;
        classifier_forward_backward(dev, losses.on(dev), dinp.on(dev), dweight.on(dev), inp.on(dev), weight.on(dev),
                                    targets_on(dev), N, C, V, Scale(scale), accumulate...);
    }
    std::vector<float> results() const {
        std::vector<float> all = losses.values();
        for (const std::vector<float>& x : {dinp.values(), dweight.values()}) all.insert(all.end(), x.begin(), x.end());
        return all;
    }

    static constexpr double scale = 0.125;
    int seeded = (generator().seed(1234), 0);
    int64_t N, C, V, Vp = classifier_padded(V);
    Options o;
    Cuda cuda{};
    Reference<double> reference{};
    CudaTensor<T> inp{cuda, random_inp()}, weight{cuda, random_weight()}, dinp{cuda, nans(N*C)};
    CudaTensor<float> losses{cuda, nans(N)}, dweight{cuda, o.accumulate ? uniform(Vp*C) : nans(Vp*C)};
    std::vector<int32_t> targets;
    CudaBuffer<int32_t> targets_memory = cuda_allocate<int32_t>(N);
};

// The allowed errors of logits, losses and logits' gradients, from their roundings; computed in double.
template <class T>
struct Allowed {
    explicit Allowed(const Classifier<T>& t) : dlogits(size(t.N * t.V)), errors(size(t.N * t.V)), losses(size(t.N)) {
        // The error of a sum of K products is that of the roundings on one path through it, with random signs. Logits
        // and their gradients are stored as T.
        const double stored = std::is_same_v<T, bf16> ? 0x1p-8 : 0;
        for (int64_t n = 0; n < t.N; ++n) {
            std::vector<double> logits(size(t.V)), off(size(t.V));
            double largest = -INFINITY, sum = 0, worst = 0;
            for (int64_t v = 0; v < t.V; ++v) {
                double terms = 0;
                for (int64_t c = 0; c < t.C; ++c) {
                    const double term = t.inp.exact[size(n * t.C + c)] * t.weight.exact[size(v * t.C + c)];
                    logits[size(v)] += term, terms += std::abs(term);
                }
                off[size(v)] = roundings(t.C) * terms + stored * std::abs(logits[size(v)]);
                largest = std::max(largest, logits[size(v)]), worst = std::max(worst, off[size(v)]);
            }
            for (const double logit : logits) sum += std::exp(logit - largest);
            // e^x by 2^(x log2 e) is off by x times a rounding, but x e^x is small; V terms are added
            const double of_sum = worst + 4 * roundings(t.V);
            const int64_t target = t.targets[size(n)];
            losses[size(n)] = of_sum + off[size(target)] + 4 * roundoff * (std::abs(largest) + std::log(sum));
            for (int64_t v = 0; v < t.V; ++v) {
                const double p = std::exp(logits[size(v)] - largest) / sum, d = t.scale * (p - (v == target));
                dlogits[size(n * t.V + v)] = std::abs(d);
                errors[size(n * t.V + v)] =
                    t.scale * p * (of_sum + off[size(v)]) + stored * std::abs(d) + 4 * roundoff * t.scale;
            }
        }
    }
    static size_t size(int64_t n) { return static_cast<size_t>(n); }
    static double roundings(int64_t K) { return roundoff * (8 + std::sqrt(static_cast<double>(K))); }
    std::vector<double> dlogits, errors, losses;  // |dlogits|, and the allowed errors
};

template <class T>
void expect_forward_backward(Classifier<T>& t) {
    const std::vector<double> before = t.dweight.exact;
    t.forward_backward(t.cuda, t.o.accumulate), t.forward_backward(t.reference);
    const Allowed<T> allowed(t);
    t.losses.expect_close("losses", [&](int64_t n) { return allowed.losses[n]; });
    t.dinp.expect_close("dinp", [&](int64_t i) {
        double sum = 0;
        for (int64_t v = 0; v < t.V; ++v) {
            const int64_t at = i / t.C * t.V + v;
            sum += std::abs(t.weight.exact[v * t.C + i % t.C]) *
                   (allowed.errors[at] + allowed.dlogits[at] * allowed.roundings(t.V));
        }
        return sum;
    });
    t.dweight.expect_close("dweight", [&](int64_t i) {
        const int64_t v = i / t.C;
        double sum = std::abs(before[i]) * allowed.roundings(t.N);
        for (int64_t n = 0; v < t.V && n < t.N; ++n)
            sum += std::abs(t.inp.exact[n * t.C + i % t.C]) *
                   (allowed.errors[n * t.V + v] + allowed.dlogits[n * t.V + v] * allowed.roundings(t.N));
        return v < t.V ? sum : 0;  // the padding's stay as they are
    });
}

template <class T>
class CudaClassifier : public testing::Test {};
using StorageTypes = testing::Types<float, bf16>;
TYPED_TEST_SUITE(CudaClassifier, StorageTypes);

TYPED_TEST(CudaClassifier, AgreesWithReference) {
    for (const Shape& shape : shapes) {
        SCOPED_TRACE(testing::Message() << shape.N << " x " << shape.C << " x " << shape.V);
        const auto test = [&] {
            for (const bool accumulate : {true, false}) {
                Classifier<TypeParam> t(shape, {.accumulate = accumulate});
                expect_forward_backward(t);
            }
        };
        if (shape.V < 1000)
            in_every_order(test);
        else
            test();
        if (testing::Test::HasFatalFailure()) return;
    }
}

TYPED_TEST(CudaClassifier, ForwardAloneGivesTheSameLosses) {
    Classifier<TypeParam> t({5, 8, 131}), u({5, 8, 131});
    t.forward(t.cuda), u.forward_backward(u.cuda);
    EXPECT_EQ(t.losses.values(), u.losses.values());
}

// A confident and wrong model: e^x would overflow, and the softmax is 0 or 1.
TYPED_TEST(CudaClassifier, LargeLogits) {
    Classifier<TypeParam> t({5, 8, 300}, {.weight_size = 2000});
    expect_forward_backward(t);
    const std::vector<float> losses = t.losses.values();
    EXPECT_GT(*std::max_element(losses.begin(), losses.end()), 1000);
}

TYPED_TEST(CudaClassifier, LogitsOfOneRow) {
    for (const int64_t V : {5, 131}) {
        Classifier<TypeParam> t({1, 24, V});
        CudaTensor<TypeParam> logits(t.cuda, nans(V));
        CudaTensor<float> floats(t.cuda, nans(V));
        classifier_logits(t.cuda, logits.on(t.cuda), t.inp.on(t.cuda), t.weight.on(t.cuda), 1, 24, V);
        classifier_logits(t.cuda, floats.on(t.cuda), t.inp.on(t.cuda), t.weight.on(t.cuda), 1, 24, V);
        for (std::vector<double>* exact : {&logits.exact, &floats.exact})
            classifier_logits(t.reference, exact->data(), t.inp.exact.data(), t.weight.exact.data(), 1, 24, V);
        const auto allowed = [&](int64_t) { return 24 * Allowed<TypeParam>::roundings(24); };
        logits.expect_close("logits", allowed), floats.expect_close("logits", allowed);
    }
}

TYPED_TEST(CudaClassifier, TheSameBitsAtEveryRun) {
    for (const Shape& shape : {Shape{7, 24, 131}, Shape{2, 8, 4301}})
        for (const int threads : {1, 2, 3}) {
            const Threads scope(threads);
            expect_same_bits([&] {
                Classifier<TypeParam> t(shape);
                t.forward_backward(t.cuda);
                return t.results();
            });
        }
}

TYPED_TEST(CudaClassifier, NaNStaysInItsRow) {
    Classifier<TypeParam> t({5, 8, 131}, {.nan_row = 2});
    t.forward_backward(t.cuda);
    const std::vector<float> losses = t.losses.values(), dinp = t.dinp.values();
    for (int64_t n = 0; n < 5; ++n) ASSERT_EQ(std::isnan(losses[n]), n == 2) << n;
    for (int64_t i = 0; i < 5 * 8; ++i) ASSERT_EQ(std::isnan(dinp[i]), i / 8 == 2) << i;
}

TYPED_TEST(CudaClassifier, NoRows) {
    Classifier<TypeParam> t({0, 8, 131});
    t.forward_backward(t.cuda);
    t.dweight.expect_close("dweight", [](int64_t) { return 0.0; });
    t.forward_backward(t.cuda, false);
    for (const float x : t.dweight.values()) EXPECT_EQ(x, 0);
}

}  // namespace
