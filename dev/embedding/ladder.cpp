// The ladder of the embedding. There is hardly any arithmetic: rows of C floats are looked up, and added to in the
// backward. The question is how threads divide additions when many go to the same place.
#include "dev/ladder.h"
#include "layers/embedding_cpu.h"

const Kernel kernel{
    "embedding",
    "token and position embedding, forward and backward",
    {{"B", 8, "sequences"}, {"T", 1024, "tokens each"}, {"C", 768, "channels"}, {"V", 50257, "in the vocabulary"}}};

namespace {

// forward: out (B,T,C) = wte[tokens[b,t]] + wpe[t]

// 1. The formula with c as the outermost loop: every value of out comes from another row.
void forward_naive(float* out, const int32_t* tokens, const float* wte, const float* wpe, int64_t B, int64_t T,
                   int64_t C) {
    for (int64_t c = 0; c < C; ++c)
        for (int64_t b = 0; b < B; ++b)
            for (int64_t t = 0; t < T; ++t) out[(b * T + t) * C + c] = wte[tokens[b * T + t] * C + c] + wpe[t * C + c];
}

// 2. Channels innermost: rows are read and written from end to end, and the compiler uses vectors.
void forward_rows(float* out, const int32_t* tokens, const float* wte, const float* wpe, int64_t B, int64_t T,
                  int64_t C) {
    for (int64_t b = 0; b < B; ++b)
        for (int64_t t = 0; t < T; ++t) {
            const float *token = wte + tokens[b * T + t] * C, *position = wpe + t * C;
            for (int64_t c = 0; c < C; ++c) out[(b * T + t) * C + c] = token[c] + position[c];
        }
}

// 3. Rows are distributed over threads.
void forward_threads(float* out, const int32_t* tokens, const float* wte, const float* wpe, int64_t B, int64_t T,
                     int64_t C) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < B * T; ++row) {
        const float *token = wte + tokens[row] * C, *position = wpe + row % T * C;
        for (int64_t c = 0; c < C; ++c) out[row * C + c] = token[c] + position[c];
    }
}

// backward: dwte[tokens[b,t]] += dout[b,t]        dwpe[t] += dout[b,t]

// 1. Two loops, one for each gradient: dout is read from memory twice.
void backward_naive(float* dwte, float* dwpe, const float* dout, const int32_t* tokens, int64_t B, int64_t T,
                    int64_t C) {
    for (int64_t row = 0; row < B * T; ++row)
        for (int64_t c = 0; c < C; ++c) dwte[tokens[row] * C + c] += dout[row * C + c];
    for (int64_t row = 0; row < B * T; ++row)
        for (int64_t c = 0; c < C; ++c) dwpe[row % T * C + c] += dout[row * C + c];
}

// 2. One loop.
void backward_fused(float* dwte, float* dwpe, const float* dout, const int32_t* tokens, int64_t B, int64_t T,
                    int64_t C) {
    for (int64_t row = 0; row < B * T; ++row) {
        float *token = dwte + tokens[row] * C, *position = dwpe + row % T * C;
        for (int64_t c = 0; c < C; ++c) token[c] += dout[row * C + c], position[c] += dout[row * C + c];
    }
}

// 3. If rows were distributed over threads, two threads could add to the same token at once. Here each thread looks at
// all rows and adds those whose token, or position, is its own: without locks, and in the order of a single thread. But
// dout is read from memory twice again, and a text's tokens are not evenly distributed.
void backward_owners(float* dwte, float* dwpe, const float* dout, const int32_t* tokens, int64_t B, int64_t T,
                     int64_t C) {
#pragma omp parallel
    {
        const int64_t me = omp_get_thread_num(), threads = omp_get_num_threads();
        for (int64_t row = 0; row < B * T; ++row) {
            const float* d = dout + row * C;
            float *token = dwte + tokens[row] * C, *position = dwpe + row % T * C;
            if (tokens[row] % threads == me)
                for (int64_t c = 0; c < C; ++c) token[c] += d[c];
            if (row % T % threads == me)
                for (int64_t c = 0; c < C; ++c) position[c] += d[c];
        }
    }
}

}  // namespace

void climb(Ladder& ladder) {
    const auto shape = ladder.shape<4>();
    const int64_t B = shape[0], T = shape[1], C = shape[2], V = shape[3];
    const auto &wte = ladder.input({V, C}), &wpe = ladder.input({T, C}), &out = ladder.output("out", {B, T, C});
    const std::vector<int32_t> random = ladder.tokens(B * T, V);
    const int32_t* const tokens = random.data();
    ladder.pass("forward", bytes(8 * prod(B, T, C)), {&out},
                [&](auto& dev) { embedding_forward(dev, out.on(dev), tokens, wte.on(dev), wpe.on(dev), B, T, C); });
    ladder.rung("naive", "channels outermost", [&] { forward_naive(out, tokens, wte, wpe, B, T, C); });
    ladder.rung("rows", "channels innermost: whole rows", [&] { forward_rows(out, tokens, wte, wpe, B, T, C); });
    ladder.rung("threads", "rows are distributed over the cores",
                [&] { forward_threads(out, tokens, wte, wpe, B, T, C); });
    ladder.production("layers/embedding_cpu.h");

    const auto& dout = ladder.input({B, T, C});
    const auto &dwte = ladder.updated("dwte", {V, C}, B), &dwpe = ladder.updated("dwpe", {T, C}, B);
    ladder.pass("backward", bytes(12 * prod(B, T, C)), {&dwte, &dwpe},
                [&](auto& dev) { embedding_backward(dev, dwte.on(dev), dwpe.on(dev), dout.on(dev), tokens, B, T, C); });
    ladder.rung("naive", "a loop for each gradient", [&] { backward_naive(dwte, dwpe, dout, tokens, B, T, C); });
    ladder.rung("fused", "one loop: dout is read once", [&] { backward_fused(dwte, dwpe, dout, tokens, B, T, C); });
    ladder.rung("owners", "each thread adds only its own tokens",
                [&] { backward_owners(dwte, dwpe, dout, tokens, B, T, C); });
    ladder.production("layers/embedding_cpu.h: a strip of channels per thread");
    ladder.run();
}
