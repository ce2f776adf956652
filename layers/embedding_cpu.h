// Token and position embedding on the Cpu.
#pragma once

#include "layers/embedding.h"
#include "device/cpu/gemm/gemm.h"
#include "device/cpu/rows.h"
#include "device/cpu/weight_rows.h"

namespace embedding {

// A function of its own: clang's lambdas do not capture what only an OpenMP region in them uses.
template <class Element>
void forward(float* out, const int32_t* tokens, const WeightRows<Element>& wte, const float* wpe, int64_t B, int64_t T,
             int64_t C) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < B * T; ++row) {
        const auto* const token = wte.row(tokens[row]);
        const auto* const next = wte.row(tokens[std::min(row + 1, B * T - 1)]);
        const float scale = wte.scale(tokens[row]);
        const float* const position = wpe + row % T * C;
        each_vector(C, [&](int64_t c, int64_t n, int k) {
            prefetch_vector<Cache::L1>(next + c, k);  // the hardware cannot predict it
            simd::store_n(out + row * C + c, scale * simd::load_n(token + c, n) + simd::load_n(position + c, n), n);
        });
    }
}

}  // namespace embedding

// out (B,T,C) = wte[tokens[b,t]] + wpe[t]
inline void embedding_forward(Cpu& dev, float* out, const int32_t* tokens, const float* wte, const float* wpe,
                              int64_t B, int64_t T, int64_t C) {
    const Timed timed(dev, "embedding_forward", 0, 8 * prod(B, T, C));
    with_rows(dev.weights, wte, C, [=](const auto& rows) { embedding::forward(out, tokens, rows, wpe, B, T, C); });
}

// dwte (Vp,C) += dout summed over the token's places        dwpe (maxT,C) += dout summed over the batch
// A thread takes a strip of channels of all rows, so no two threads add to the same place. But a core's hardware
// prefetcher reaches into the neighbouring strip. Therefore rows are added in order of position, and lines of dwte are
// prefetched for writing. (In order of sequences, lines of dwpe would move between the cores: small models took two to
// three times as long.)
inline void embedding_backward(Cpu& dev, float* dwte, float* dwpe, const float* dout, const int32_t* tokens, int64_t B,
                               int64_t T, int64_t C) {
    const Timed timed(dev, "embedding_backward", 0, 12 * prod(B, T, C));
    const int64_t strips = gemm::ceil_div(C, simd::W);
    const auto row_of = [=](int64_t i) { return i % B * T + i / B; };
#pragma omp parallel
    {
        const gemm::Range mine = gemm::part_of(strips, omp_get_num_threads(), omp_get_thread_num());
        const int64_t first = mine.begin * simd::W, channels = std::min(C, mine.end * simd::W) - first;
        for (int64_t i = 0; i < B * T; ++i) {
            const int64_t row = row_of(i), later = row_of(std::min(i + 2, B * T - 1));
            const float *const d = dout + row * C + first, *const later_d = dout + later * C + first;
            float *const token = dwte + tokens[row] * C + first, *const position = dwpe + i / B * C + first;
            float* const later_token = dwte + tokens[later] * C + first;
            each_vector(channels, [&](int64_t c, int64_t n, int k) {
                prefetch_vector<Cache::L1>(later_d + c, k);
                prefetch_line<Access::write>(later_token + c);
                const simd::vfloat x = simd::load_n(d + c, n);
                simd::store_n(token + c, simd::load_n(token + c, n) + x, n);
                simd::store_n(position + c, simd::load_n(position + c, n) + x, n);
            });
        }
    }
}
