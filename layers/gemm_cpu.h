// C (M,N) = A (M,K) · B (K,N), or +=, for any storage order of A and B: the one matrix product of the Cpu device.
//
// A tile of MR x NR results lives in registers while K goes by; each step loads NV vectors of B and broadcasts MR
// values of A for MR * NV multiply-adds. With AVX-512, MR 12, NV 2: 24 accumulators, 2 of B and 1 of A fill 27 of 32
// registers, and 14 loads feed 24 multiply-adds, two of each a cycle. Around the tile, following Goto & van de Geijn
// (2008):
//   B is copied into panels of NR columns; one panel's KC rows (256 * 32 floats, 32 KiB) stay in L1,
//   A's block of MC x KC (240 KiB), C's of MC x NC (240 KiB) and B's copy of KG * KC x NC (768 KiB) stay in L2.
// Each thread computes its own rectangle of C with its own copies: nothing is shared, there are no barriers. An
// element's sum runs over K in an order that depends on K only, so its bits do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "layers/device.h"
#include "layers/simd.h"

namespace gemm {

using simd::vfloat;
using simd::W;

#if defined(__AVX512F__)
constexpr int MR = 12, NV = 2;  // 32 registers
#elif defined(__ARM_NEON)
constexpr int MR = 8, NV = 3;  // 32 registers
#else
constexpr int MR = 6, NV = 2;  // 16 registers
#endif
constexpr int NR = NV * W;
constexpr int64_t KC = 256, MC = 20 * MR, NC = 8 * NR;
constexpr int64_t KG = 3;  // blocks of KC rows of B that are copied at a time
constexpr int64_t scratch_floats() { return KG * KC * NC + MC * KC; }  // of each thread

// [begin, end) of part i when n items are cut into `parts` nearly equal ones.
struct Range {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
};
inline Range part_of(int64_t n, int64_t parts, int64_t i) { return {n * i / parts, n * (i + 1) / parts}; }
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

enum class Order {
    k_last,   // A[m * lda + k], B[n * ldb + k]
    k_first,  // A[k * lda + m], B[k * ldb + n]
};

// c (M,NR) [+]= A (M,K) · panel (K,NR); c_ld is c's row length; only the first `lanes` columns are touched.
template <int M, Order A>
void multiply_tile(int64_t K, const float* a, int64_t lda, const float* panel, float* c, int64_t ldc, bool accumulate,
                   int64_t lanes) {
    vfloat acc[M][NV];
    for (int i = 0; i < M; ++i) __builtin_prefetch(c + i * ldc, 1), __builtin_prefetch(c + i * ldc + NR - 1, 1);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) acc[i][j] = vfloat{};
    for (int64_t k = 0; k < K; ++k) {
        vfloat b[NV];
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) b[j] = simd::load(panel + k * NR + j * W);
#pragma GCC unroll 16
        for (int i = 0; i < M; ++i) {
            const vfloat x = simd::set1(A == Order::k_last ? a[i * lda + k] : a[k * lda + i]);
#pragma GCC unroll 4
            for (int j = 0; j < NV; ++j) acc[i][j] = simd::fma(x, b[j], acc[i][j]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) {
            float* p = c + i * ldc + j * W;
            const int64_t n = lanes - j * W;
            if (n >= W)
                simd::store(p, accumulate ? simd::load(p) + acc[i][j] : acc[i][j]);
            else if (n > 0)
                simd::store_n(p, accumulate ? simd::load_n(p, n) + acc[i][j] : acc[i][j], n);
        }
}

using Tile = void (*)(int64_t, const float*, int64_t, const float*, float*, int64_t, bool, int64_t);

template <Order A, size_t... I>
constexpr std::array<Tile, MR> tiles(std::index_sequence<I...>) {
    return {multiply_tile<static_cast<int>(I) + 1, A>...};
}
// The tile function for M rows, 1 <= M <= MR.
template <Order A>
Tile tile(int64_t M) {
    static constexpr std::array<Tile, MR> table = tiles<A>(std::make_index_sequence<MR>());
    return table[static_cast<size_t>(M - 1)];
}

// panel[k * NR + j] = B[k][n + j] for 0 <= k < K; columns from `lanes` on are zero.
template <Order B>
void pack_panel(float* panel, const float* b, int64_t ldb, int64_t K, int64_t lanes) {
    if constexpr (B == Order::k_first) {
        for (int64_t k = 0; k < K; ++k)
            for (int j = 0; j < NR; j += W)
                simd::store(panel + k * NR + j, lanes - j >= W  ? simd::load(b + k * ldb + j)
                                                : lanes - j > 0 ? simd::load_n(b + k * ldb + j, lanes - j)
                                                                : vfloat{});
    } else {
        int64_t j = 0;
        for (; j + W <= lanes; j += W) {
            int64_t k = 0;
            for (; k + W <= K; k += W) simd::transpose(panel + k * NR + j, NR, b + j * ldb + k, ldb);
            for (; k < K; ++k)
                for (int i = 0; i < W; ++i) panel[k * NR + j + i] = b[(j + i) * ldb + k];
        }
        for (; j < NR; ++j)
            for (int64_t k = 0; k < K; ++k) panel[k * NR + j] = j < lanes ? b[j * ldb + k] : 0.0f;
    }
}

// The `tiles` nearly equal parts of A's rows (k_first), each packed by itself: packed[begin * K + k * size + i] =
// A[k * lda + begin + i]. row_sums (rows) += sum over k, if not null. Four tiles go together: 48 floats are three
// whole cache lines, and the lines of a strided matrix have to be asked for ahead.
inline void pack_rows(float* packed, const float* a, int64_t lda, int64_t K, int64_t rows, int64_t tiles,
                      float* row_sums) {
    constexpr int64_t together = 4, vectors = (MR + W - 1) / W, ahead = 8;
    for (int64_t first = 0; first < tiles; first += together) {
        const int64_t count = std::min(together, tiles - first);
        Range part[together];
        for (int64_t t = 0; t < count; ++t) part[t] = part_of(rows, tiles, first + t);
        vfloat sums[together][vectors] = {};
        for (int64_t k = 0; k < K; ++k) {
            const float* const row = a + k * lda;
            if (k + ahead < K)
                for (int64_t i = part[0].begin; i < part[count - 1].end; i += 16)
                    __builtin_prefetch(row + ahead * lda + i);
            for (int64_t t = 0; t < count; ++t)
                for (int64_t i = 0, v = 0; i < part[t].size(); i += W, ++v) {
                    const int64_t n = part[t].size() - i;
                    const vfloat x = simd::load_n(row + part[t].begin + i, n);
                    simd::store_n(packed + part[t].begin * K + k * part[t].size() + i, x, n);
                    sums[t][v] += x;
                }
        }
        if (!row_sums) continue;
        for (int64_t t = 0; t < count; ++t)
            for (int64_t i = 0; i < part[t].size(); i += W) {
                float* const sum = row_sums + part[t].begin + i;
                const int64_t n = part[t].size() - i;
                simd::store_n(sum, simd::load_n(sum, n) + sums[t][i / W], n);
            }
    }
}

// C's rectangle [rows) x [columns) on the calling thread. `epilogue(m, n, lanes)` is called for each row of each
// finished tile, while it is in L1: C[m][n … n + lanes) holds the product. `panels`: scratch_floats() of memory.
template <Order A, Order B, class Epilogue>
void block(float* panels, Range rows, Range columns, int64_t K, const float* a, int64_t lda, const float* b,
           int64_t ldb, float* c, int64_t ldc, bool accumulate, const Epilogue& epilogue, float* row_sums) {
    const int64_t k_blocks = ceil_div(K, KC), m_blocks = ceil_div(rows.size(), MC);
    float* const packed_a = panels + KG * KC * NC;
    for (int64_t n0 = columns.begin; n0 < columns.end; n0 += NC)
        for (int64_t group = 0; group < k_blocks; group += KG) {
            const int64_t n1 = std::min(n0 + NC, columns.end), group_end = std::min(group + KG, k_blocks);
            for (int64_t kb = group; kb < group_end; ++kb) {
                const Range k = part_of(K, k_blocks, kb);
                for (int64_t n = n0; n < n1; n += NR)
                    pack_panel<B>(panels + (kb - group) * KC * NC + (n - n0) * k.size(),
                                  b + (B == Order::k_last ? n * ldb + k.begin : k.begin * ldb + n), ldb, k.size(),
                                  std::min<int64_t>(NR, n1 - n));
            }
            for (int64_t mb = 0; mb < m_blocks; ++mb) {
                const Range part = part_of(rows.size(), m_blocks, mb);
                const int64_t tiles = ceil_div(part.size(), MR);
                for (int64_t kb = group; kb < group_end; ++kb) {
                    const Range k = part_of(K, k_blocks, kb);
                    if constexpr (A == Order::k_first)
                        pack_rows(packed_a, a + k.begin * lda + rows.begin + part.begin, lda, k.size(), part.size(),
                                  tiles, row_sums && n0 == 0 ? row_sums + rows.begin + part.begin : nullptr);
                    for (int64_t n = n0; n < n1; n += NR) {
                        const float* const panel = panels + (kb - group) * KC * NC + (n - n0) * k.size();
                        const int64_t lanes = std::min<int64_t>(NR, n1 - n);
                        for (int64_t i = 0; i < tiles; ++i) {
                            const Range t = part_of(part.size(), tiles, i);
                            const int64_t m = rows.begin + part.begin + t.begin;
                            const bool packed = A == Order::k_first;
                            tile<A>(t.size())(k.size(), packed ? packed_a + t.begin * k.size() : a + m * lda + k.begin,
                                              packed ? t.size() : lda, panel, c + m * ldc + n, ldc,
                                              accumulate || kb > 0, lanes);
                            if (kb == k_blocks - 1)
                                for (int64_t r = m; r < m + t.size(); ++r) epilogue(r, n, lanes);
                        }
                    }
                }
            }
        }
}

struct NoEpilogue {
    void operator()(int64_t, int64_t, int64_t) const {}
};

// How many threads C (M, panels * NR) is cut among across its columns; the others, threads / across of them, go down
// its rows. The least of what one thread has to do: its products, and copying its columns of B and, for a k_first A,
// its rows of A, where copying a value takes as long as some 8 multiply-adds of a vector lane.
inline int64_t threads_across(int64_t threads, int64_t M, int64_t panels, bool copies_a) {
    int64_t best = 1, least = 0;
    for (int64_t across = 1; across <= threads; ++across) {
        if (threads % across) continue;
        const int64_t rows = ceil_div(M, threads / across), columns = ceil_div(panels, across) * NR;
        const int64_t work = rows * columns + 8 * (columns + (copies_a ? rows : 0));
        if (across == 1 || work < least) best = across, least = work;
    }
    return best;
}

// C (M,N) = A · B, += with `accumulate`; then the epilogue. row_sums (M) += A's sums over k (k_first only), if not
// null.
template <Order A, Order B, class Epilogue = NoEpilogue>
void multiply(Cpu& cpu, int64_t M, int64_t N, int64_t K, const float* a, int64_t lda, const float* b, int64_t ldb,
              float* c, int64_t ldc, bool accumulate, const Epilogue& epilogue = {}, float* row_sums = nullptr) {
    const int64_t panels = ceil_div(N, NR);
#pragma omp parallel
    {
        const int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
        const int64_t across = threads_across(threads, M, panels, A == Order::k_first);
        const Range p = part_of(panels, across, me % across);
        const Range m = part_of(M, threads / across, me / across);
        block<A, B>(cpu.scratch(scratch_floats()), m, {p.begin * NR, std::min(N, p.end * NR)}, K, a, lda, b, ldb, c,
                    ldc, accumulate, epilogue, row_sums);
    }
}

}  // namespace gemm
