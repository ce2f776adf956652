// Embedding: Cpu against Reference, Reference against differences, threads, NaN.
#include "layers/embedding_cpu.h"

#include "dev/test/layers/layer_check.h"

namespace {

struct Shape {
    int64_t B, T, C, V, context;
};
const Shape shapes[] = {{1, 1, 1, 1, 1},    {1, 1, 16, 3, 4},     {2, 3, 7, 5, 3},
                        {3, 5, 15, 2, 9},   {2, 8, 17, 300, 8},   {1, 31, 33, 7, 40},
                        {4, 16, 64, 1, 16}, {3, 13, 131, 67, 17}, {8, 64, 768, 257, 64}};

std::vector<int32_t> random_tokens(int64_t n, int64_t V) {
    std::vector<int32_t> tokens(static_cast<size_t>(n));
    for (int32_t& t : tokens) t = static_cast<int32_t>(generator()() % static_cast<uint64_t>(V));
    return tokens;
}

struct Tensors {
    explicit Tensors(const Shape& s)
        : tokens(random_tokens(s.B * s.T, s.V)),
          wte(random_values(s.V * s.C)),
          wpe(random_values(s.context * s.C)),
          out(nan_values(s.B * s.T * s.C)),
          dout(random_values(s.B * s.T * s.C)),
          dwte(random_values(s.V * s.C)),
          dwpe(random_values(s.context * s.C)) {}
    template <class Device>
    void run(Device& dev, const Shape& s) {
        embedding_forward(dev, out.on(dev), tokens.data(), wte.on(dev), wpe.on(dev), s.B, s.T, s.C);
        embedding_backward(dev, dwte.on(dev), dwpe.on(dev), dout.on(dev), tokens.data(), s.B, s.T, s.C);
    }
    std::vector<int32_t> tokens;
    Values wte, wpe, out, dout, dwte, dwpe;
};

TEST(Embedding, CpuAgreesWithReference) {
    for (const Shape& s : shapes) {
        SCOPED_TRACE(testing::PrintToString(std::vector{s.B, s.T, s.C, s.V, s.context}));
        Tensors t(s);
        Cpu cpu;
        Reference<double> reference;
        Magnitude magnitude;
        t.run(cpu, s), t.run(reference, s), t.run(magnitude, s);
        t.out.expect_close("out", roundoff);  // one addition
        // Sums over a token's places and over the batch: each partial sum, which is smaller than the magnitude, is
        // rounded once, and the signs of the rounding errors differ.
        t.dwte.expect_close("dwte", 8 * roundoff);
        t.dwpe.expect_close("dwpe", 8 * roundoff);
    }
}

TEST(Embedding, BackwardAgreesWithDifferences) {
    const Shape s{2, 5, 3, 4, 6};
    Reference<double> dev;
    const std::vector<int32_t> tokens = random_tokens(s.B * s.T, s.V);
    std::vector<double> wte = uniform(s.V * s.C), wpe = uniform(s.context * s.C), dwte(wte.size()), dwpe(wpe.size());
    const std::vector<double> dout = uniform(s.B * s.T * s.C);
    std::vector<double> out(dout.size());
    const auto f = [&] {
        embedding_forward(dev, out.data(), tokens.data(), wte.data(), wpe.data(), s.B, s.T, s.C);
        return dot(out, dout);
    };
    embedding_backward(dev, dwte.data(), dwpe.data(), dout.data(), tokens.data(), s.B, s.T, s.C);
    expect_gradient("wte", f, wte, dwte);
    expect_gradient("wpe", f, wpe, dwpe);
}

TEST(Embedding, BitsDoNotDependOnTheThreads) {
    for (const Shape& s : {Shape{3, 13, 131, 5, 17}, Shape{2, 4, 7, 5, 4}})
        expect_same_bits_for_any_thread_count([&](Cpu& dev) {
            Tensors t(s);
            t.run(dev, s);
            std::vector<float> all;
            for (const Values* v : {&t.out, &t.dwte, &t.dwpe}) append(all, *v);
            return all;
        });
}

TEST(Embedding, NaNStaysWithItsTokenPositionAndChannel) {
    const Shape s{3, 7, 19, 5, 7};
    Tensors t(s);
    t.tokens[4] = 2, t.tokens[0] = 1;
    t.wte.cpu.get()[2 * s.C + 18] = NAN;
    t.wpe.cpu.get()[6 * s.C + 3] = NAN;
    t.dout.cpu.get()[4 * s.C + 11] = NAN;
    Cpu cpu;
    t.run(cpu, s);
    const auto token = [&](int64_t row) { return t.tokens[static_cast<size_t>(row)]; };
    expect_nan_only_where("out", t.out, [&](int64_t i) {
        const int64_t row = i / s.C, c = i % s.C;
        return (token(row) == 2 && c == 18) || (row % s.T == 6 && c == 3);
    });
    expect_nan_only_where("dwte", t.dwte, [&](int64_t i) { return i == 2 * s.C + 11; });
    expect_nan_only_where("dwpe", t.dwpe, [&](int64_t i) { return i == 4 * s.C + 11; });
}

}  // namespace
