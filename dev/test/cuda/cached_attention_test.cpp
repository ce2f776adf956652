// Compares attention for generation on Cuda with Reference: in the emulator, with several thread orders, or on a GPU.
#include "layers/cached_attention.cuh"

#include "dev/test/cuda/cuda_check.h"
#include "dev/test/layers/cached_attention_check.h"

namespace {

using Shape = CachedShape;

template <class T>
struct Layer {
    explicit Layer(const Shape& shape)
        : s(shape),
          before(cuda, uniform(s.B * s.past * 3 * s.C(), 2)),
          qkv(cuda, uniform(s.B * s.T * 3 * s.C(), 2)),
          keys(cuda, nans(s.B * s.C() * s.capacity())),
          values(cuda, nans(s.B * s.C() * s.capacity())),
          out(cuda, nans(s.B * s.T * s.C())) {}
    template <class Device>
    void forward(Device& dev) {
        forward_after_past(*this, dev);
    }
    Shape s;
    Cuda cuda{};
    Reference<double> reference{};
    CudaTensor<T> before, qkv, keys, values, out;
};

template <class T>
class CudaCachedAttention : public testing::Test {};
using Types = testing::Types<float, bf16>;
TYPED_TEST_SUITE(CudaCachedAttention, Types);

// Scores of up to 4 sqrt(hs) lose 8 roundoffs of their terms, and so do the sums over keys, whose values are at most 2.
TYPED_TEST(CudaCachedAttention, AgreesWithReference) {
    for (const Shape& s : {Shape{1, 0, 1, 1, 1}, Shape{2, 3, 2, 3, 20}, Shape{1, 37, 1, 2, 64}, Shape{1, 5, 3, 1, 80},
                           Shape{1, 6, 1, 1, 256}})
        in_every_order([&] {
            SCOPED_TRACE(testing::PrintToString(std::vector{s.B, s.past, s.T, s.NH, s.hs}));
            Layer<TypeParam> t(s);
            t.forward(t.cuda), t.forward(t.reference);
            const double allowed = 2 * (2 * 8 * 4 * std::sqrt(static_cast<double>(s.hs)) + 16) * roundoff;
            t.out.expect_close("out", [&](int64_t) { return allowed; });
        });
}

TEST(CudaCachedAttention, HeadsThatAreTooWideAreRefused) {
    Layer<float> t({1, 1, 1, 1, 257});
    EXPECT_THROW(t.forward(t.cuda), std::invalid_argument);
}

TEST(CudaCachedAttention, NaNIsSeen) {
    Layer<float> t({1, 9, 1, 2, 16});
    std::vector<double> before = t.before.exact;
    before[4 * 3 * 32 + 32 + 3] = nan64;  // a key of the first head
    t.before = CudaTensor<float>(t.cuda, before);
    t.forward(t.cuda);
    for (int64_t c = 0; c < 32; ++c) EXPECT_EQ(std::isnan(t.out.values()[static_cast<size_t>(c)]), c < 16) << c;
}

}  // namespace
