// Compares the embedding on Cuda with Reference: in the emulator, with several thread orders, or on a GPU.
#include "layers/embedding.cuh"

#include "dev/test/cuda/cuda_check.h"

namespace {

// Random token ids, some of them rare and some frequent, which gives runs of many lengths.
std::vector<int32_t> skewed_tokens(int64_t n, int32_t vocabulary) {
    std::vector<int32_t> tokens(static_cast<size_t>(n));
    std::uniform_real_distribution<double> uniform01(0, 1);
    for (int32_t& token : tokens)
        token = static_cast<int32_t>(static_cast<double>(vocabulary) * std::pow(uniform01(generator()), 4));
    return tokens;
}

template <class T>
struct Embedding {
    Embedding(int64_t batch, int64_t sequence, int64_t channels, int32_t vocabulary, std::vector<int32_t> ids,
              bool misaligned = false)
        : B(batch), seq(sequence), C(channels), V(vocabulary), off(misaligned), tokens(std::move(ids)) {
        on_device = cuda_allocate<int32_t>(B * seq);
        to_device(cuda, on_device.get(), tokens.data(), B * seq);
    }
    const int32_t* tokens_on(Cuda&) { return on_device.get(); }
    const int32_t* tokens_on(Reference<double>&) { return tokens.data(); }
    template <class Device>
    void forward(Device& dev) {
        embedding_forward(dev, out.on(dev), tokens_on(dev), wte.on(dev), wpe.on(dev), B, seq, C);
    }
    template <class Device>
    void backward(Device& dev) {
        embedding_backward(dev, dwte.on(dev), dwpe.on(dev), dout.on(dev), tokens_on(dev), B, seq, C);
    }
    void expect_forward() {
        forward(cuda), forward(reference);
        out.expect_close("out", [&](int64_t i) { return roundoff * std::abs(out.exact[i]); });  // one addition
    }
    void expect_backward() {
        // The sums of the sizes of terms. A run's rounding errors have random signs, and grow as the root of their
        // number.
        std::vector<double> size(dwte.exact.size()), count(size.size()), position_size(dwpe.exact.size());
        for (size_t i = 0; i < size.size(); ++i) size[i] = std::abs(dwte.exact[i]);
        for (size_t i = 0; i < position_size.size(); ++i) position_size[i] = std::abs(dwpe.exact[i]);
        for (int64_t row = 0; row < B * seq; ++row)
            for (int64_t c = 0; c < C; ++c) {
                const double d = std::abs(dout.exact[row * C + c]);
                size[tokens[row] * C + c] += d, count[tokens[row] * C + c] += 1;
                position_size[row % seq * C + c] += d;
            }
        const std::vector<float> before = dwte.values();
        backward(cuda), backward(reference);
        dwte.expect_close("dwte", [&](int64_t i) { return roundoff * (2 + std::sqrt(count[i])) * size[i]; });
        dwpe.expect_close(
            "dwpe", [&](int64_t i) { return roundoff * (2 + std::sqrt(static_cast<double>(B))) * position_size[i]; });
        const std::vector<float> after = dwte.values();
        for (size_t i = 0; i < after.size(); ++i)
            ASSERT_TRUE(count[i] > 0 || after[i] == before[i]) << "token " << i / C << " is not in the batch";
    }
    std::vector<float> gradients() {
        backward(cuda);
        std::vector<float> all = dwte.values();
        const std::vector<float> positions = dwpe.values();
        all.insert(all.end(), positions.begin(), positions.end());
        return all;
    }

    int seeded = (generator().seed(1234), 0);
    int64_t B, seq, C, V;
    bool off;
    std::vector<int32_t> tokens;
    CudaBuffer<int32_t> on_device;
    Cuda cuda{};
    Reference<double> reference{};
    CudaTensor<T> wte{cuda, uniform(V*C), off}, wpe{cuda, uniform(seq*C), off}, out{cuda, nans(B*seq*C), off},
        dout{cuda, uniform(B*seq*C), off};
    CudaTensor<float> dwte{cuda, uniform(V*C), off}, dwpe{cuda, uniform(seq*C), off};
};

template <class T>
class CudaEmbedding : public testing::Test {};
using StorageTypes = testing::Types<float, bf16>;
TYPED_TEST_SUITE(CudaEmbedding, StorageTypes);

// Rows that are not whole chunks or blocks, channels that are not whole vectors and more than a slice; ids of more than
// 8 and 16 bits.
TYPED_TEST(CudaEmbedding, AgreesWithReference) {
    struct Shape {
        int64_t B, seq, C;
        int32_t V;
    };
    for (const auto& [B, seq, C, V] : std::vector<Shape>{
             {1, 1, 1, 1}, {1, 7, 40, 5}, {2, 33, 24, 30}, {3, 50, 37, 7}, {2, 40, 264, 100}, {1, 70, 1, 70000}})
        in_every_order([&, B = B, seq = seq, C = C, V = V] {
            SCOPED_TRACE(testing::Message() << B << " x " << seq << " x " << C << ", " << V << " tokens");
            for (const bool misaligned : {false, true}) {
                generator().seed(7);
                Embedding<TypeParam> t(B, seq, C, V, skewed_tokens(B * seq, V), misaligned);
                t.expect_forward();
                t.expect_backward();
            }
        });
}

// Runs of a token over a whole batch, up to a chunk's end, over two ends, one in each chunk; and no repeated token.
TYPED_TEST(CudaEmbedding, TokensInRunsOfAnyLength) {
    constexpr int64_t N = 1100, C = 40;
    const auto batch = [&](const std::function<int64_t(int64_t)>& token) {
        std::vector<int32_t> tokens;
        for (int64_t i = 0; i < N; ++i) tokens.push_back(static_cast<int32_t>(token(i)));
        return tokens;
    };
    for (const auto& tokens :
         {batch([](int64_t) { return 3; }), batch([](int64_t) { return 0; }), batch([](int64_t i) { return i / 32; }),
          batch([](int64_t i) { return i / 31; }), batch([](int64_t i) { return i / 65; }),
          batch([](int64_t i) { return i % 3; }), batch([](int64_t i) { return N - 1 - i; }), batch([](int64_t i) {
              return i < 40 ? 0 : i < 41 ? 1 : 2;
          })}) {
        Embedding<TypeParam> t(2, N / 2, C, N, tokens);
        t.expect_backward();
    }
}

// The bits do not depend on the order, as the sums have a fixed shape.
TYPED_TEST(CudaEmbedding, TheSameBitsInEveryOrder) {
    for (const int32_t V : {1, 20, 900})
        expect_same_bits([&] {
            generator().seed(5);
            Embedding<TypeParam> t(2, 300, 40, V, skewed_tokens(600, V));
            return t.gradients();
        });
}

// The sort, on ids that need one to four passes, is ascending and stable.
TEST(CudaEmbeddingSort, IsStable) {
    Cuda dev;
    for (const int64_t N : {1, 31, 1024, 1025, 3000})
        for (const int32_t largest : {0, 1, 255, 256, 65536, 1 << 24, std::numeric_limits<int32_t>::max()}) {
            std::vector<int32_t> tokens(static_cast<size_t>(N)), order(tokens.size());
            std::uniform_int_distribution<int32_t> any(std::max(0, largest - 300), largest);
            for (int32_t& token : tokens) token = generator()() % 2 ? any(generator()) : any(generator()) % 256;
            const auto on_device = cuda_allocate<int32_t>(5 * N);
            int32_t* const p = on_device.get();
            to_device(dev, p, tokens.data(), N);
            LAUNCH(sort_tokens_kernel, 1, 32 * sort_warps, 0, dev.stream, p + N, p + 2 * N, p + 3 * N, p,
                   static_cast<int>(N));
            for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
            std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return tokens[a] < tokens[b]; });
            EXPECT_EQ(to_host(dev, p + 2 * N, N), order) << N << " up to " << largest;
            for (int32_t& i : order) i = tokens[i];
            EXPECT_EQ(to_host(dev, p + N, N), order) << N << " up to " << largest;
        }
}

TYPED_TEST(CudaEmbedding, NaNStaysWithItsTokenAndPosition) {
    Embedding<TypeParam> t(2, 40, 40, 4, skewed_tokens(80, 4));
    std::vector<double> dout = t.dout.exact;
    dout[5 * 40 + 7] = nan64;
    const CudaTensor<TypeParam> with_nan(t.cuda, dout);
    embedding_backward(t.cuda, t.dwte.on(t.cuda), t.dwpe.on(t.cuda), with_nan.memory.get(), t.on_device.get(), 2, 40,
                       40);
    const std::vector<float> dwte = t.dwte.values(), dwpe = t.dwpe.values();
    for (int64_t i = 0; i < 4 * 40; ++i) ASSERT_EQ(std::isnan(dwte[i]), i == t.tokens[5] * 40 + 7) << i;
    for (int64_t i = 0; i < 40 * 40; ++i) ASSERT_EQ(std::isnan(dwpe[i]), i == 5 * 40 + 7) << i;
}

}  // namespace
