// C (M,N) = A (M,K) · B (K,N), or +=, for any storage order of A and B, on one thread: in fp32, or of factors rounded
// to bf16 with sums in fp32.
//
// A tile of MR x NR results lives in registers while K goes by; each step loads NV vectors of B and broadcasts MR
// values of A for MR * NV multiply-adds. With AVX-512, MR 8, NV 3: 24 accumulators, 3 of B and 1 of A fill 28 of 32
// registers, and 11 loads feed 24 multiply-adds, two of which start each cycle. Around the tile, following Goto & van
// de Geijn (2008) with the sides exchanged:
//   A's tile of MR x KC floats (8 * 384 * 4 B = 12 KiB) stays in L1 while all panels of B go by,
//   B's copy of KC x NC (384 * 480 * 4 B = 720 KiB), in panels of NR columns, stays in L2, and so does
//   A's, where it has to be copied: MC x KC (96 * 384 * 4 B = 144 KiB). More rows at once come faster from memory.
// Of few rows, at most FEW, A's whole FEW x KC (256 * 384 * 4 B = 384 KiB) stays in L2 instead, and B is copied a panel
// at a time: L2 has room for the next one before it is needed. C's columns are taken FEW_NC at a time, so that between
// blocks of K they go no further than L3. Tiles prefetch what comes next.
// A long KC matters more than a panel that fits in L1: between blocks of K each tile of C is read and written again,
// while panels arrive from L2 at 12 bytes a cycle, a third of what it delivers.
// An element's sum runs over K in an order that depends on K only.
//
// bf16 is multiplied in pairs of neighbours in K, two bf16 in the place of a float: all of this holds of pairs, which
// are made as A and B are copied. So A is always copied, and a block has twice the K.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "device/device.h"
#include "device/cpu/prefetch.h"
#include "device/cpu/simd.h"

namespace gemm {

using simd::vfloat;
using simd::W;

// Rows of a tile that is `vectors` wide, so that accumulators, a row of B and a value of A fit the registers.
#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int max_rows(int vectors) { return vectors == 2 ? 12 : 8; }  // 32 registers
constexpr int NV = 3;
#else
constexpr int max_rows(int) { return 6; }  // 16 registers
constexpr int NV = 2;
#endif
constexpr int MR = max_rows(NV), NR = NV * W;
constexpr int64_t KC = 384, MC = 12 * MR, NC = 10 * NR, FEW = 256, FEW_NC = 32 * NR;
constexpr int64_t block_columns(int64_t rows) { return rows <= FEW ? FEW_NC : NC; }
constexpr int64_t scratch_floats() { return KC * std::max(NC + MC, NR + FEW); }  // of each thread

// [begin, end) of part i when n items are cut into `parts` nearly equal ones.
struct Range {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
};
inline Range part_of(int64_t n, int64_t parts, int64_t i) { return {n * i / parts, n * (i + 1) / parts}; }
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

enum class Order {
    k_last,   // A[m * lda + k], B[n * ldb + k]
    k_first,  // A[k * lda + m], B[k * ldb + n]
};

// What becomes of C's old values, and where the new ones go.
enum class Store {
    set,          // C = A · B
    add,          // C += A · B
    past_caches,  // C = A · B of one block of K and without an epilogue, whole vectors, C on a vector's boundary
};

// What tiles and panels hold: words of `size` neighbours in k. along(): those of one row from p on, of which `left` k's
// are there, or in `size` vectors; across(): one of each of n rows, k_first, from p on, or of each lane of `size` rows'
// vectors. Zeros stand for what is not there.
struct Floats {
    static constexpr int64_t size = 1;
    static vfloat set1(float word) { return simd::set1(word); }
    static vfloat multiply_add(vfloat a, vfloat b, vfloat c) { return simd::fma(a, b, c); }
    static vfloat along(const float* p, int64_t left) { return simd::load_n(p, left); }
    static vfloat along(const vfloat (&x)[size]) { return x[0]; }
    static vfloat across(const float* p, int64_t, int64_t, int64_t n) { return simd::load_n(p, n); }
    static vfloat across(const vfloat (&rows)[size]) { return rows[0]; }
};
#if defined(__AVX512BF16__)
struct Bf16Pairs {
    static constexpr int64_t size = 2;
    static vfloat set1(float word) { return (vfloat)_mm512_set1_epi32(std::bit_cast<int>(word)); }
    static vfloat multiply_add(vfloat a, vfloat b, vfloat c) {
        return (vfloat)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
    }
    static vfloat along(const float* p, int64_t left) {
        const vfloat x[] = {simd::load_n(p, left), left > W ? simd::load_n(p + W, left - W) : vfloat{}};
        return along(x);
    }
    static vfloat along(const vfloat (&x)[size]) { return (vfloat)_mm512_cvtne2ps_pbh((__m512)x[1], (__m512)x[0]); }
    static vfloat across(const float* p, int64_t ld, int64_t left, int64_t n) {
        const vfloat rows[] = {simd::load_n(p, n), left > 1 ? simd::load_n(p + ld, n) : vfloat{}};
        return across(rows);
    }
    static vfloat across(const vfloat (&rows)[size]) {
        alignas(64) static constexpr uint16_t pairs[] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                         8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
        return (vfloat)_mm512_maskz_permutexvar_epi16(0xffffffff, _mm512_load_si512(pairs), (__m512i)along(rows));
    }
};
constexpr bool has_bf16 = true;
#else
constexpr bool has_bf16 = false;
#endif

// Cache lines to prefetch, spread over the k loop of a tile: issued at once they would occupy every line-fill buffer.
class PrefetchLines {
public:
    static constexpr int64_t step = 8;  // from one k, in words, to the next

    // x + k * stride for k = 0, step, …; what does not fit is left out.
    void add(const float* x, int64_t stride) {
        if (count_ < most) lines_[count_++] = {x, stride};
    }
    void issue(int64_t k) const {
        for (int i = 0; i < count_; ++i) prefetch_line(lines_[i].x + k * lines_[i].stride);
    }

private:
    static constexpr int most = 64;
    struct {
        const float* x;
        int64_t stride;
    } lines_[most];
    int count_ = 0;
};

// Prefetch schedule for the data that the next `tiles` tiles will leave to the ones after them: n rows of A or columns
// of B from x on, in words of `size` k's, for as many k's as these tiles have. Each tile prefetches its share.
class PrefetchSchedule {
public:
    PrefetchSchedule() = default;
    PrefetchSchedule(Order order, const float* x, int64_t ld, int64_t n, int64_t size, int64_t tiles)
        : x_(x),
          ld_(ld),
          stride_(order == Order::k_last ? size : size * ld),
          across_(order == Order::k_last ? 1 : ceil_div(n, line)),
          lines_(order == Order::k_last ? n : across_ * PrefetchLines::step * size),
          tiles_(tiles) {}

    void add_share(PrefetchLines& lines) {
        for (due_ += lines_; due_ >= tiles_; due_ -= tiles_) {
            lines.add(x_ + i_ * line, stride_);
            if (++i_ == across_) i_ = 0, x_ += ld_;
        }
    }

private:
    static constexpr int64_t line = 16;
    const float* x_ = nullptr;
    int64_t ld_ = 0, stride_ = 0, across_ = 0, lines_ = 0, tiles_ = 1, i_ = 0, due_ = 0;
};

// c (M,lanes) [+]= A (M,K) · panel (K,NV vectors), K in words; ldc is c's row length. c's lines are prefetched
// as well, unless its stores bypass the caches.
template <class Words, int M, int NV, Order A>
void multiply_tile(int64_t K, const float* a, int64_t lda, const float* panel, float* c, int64_t ldc, Store how,
                   int64_t lanes, const PrefetchLines& prefetches) {
    vfloat acc[M][NV];
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) acc[i][j] = vfloat{};
    const auto step = [&](int64_t k) __attribute__((always_inline)) {
        vfloat b[NV];
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) b[j] = simd::load(panel + (k * NV + j) * W);
#pragma GCC unroll 16
        for (int i = 0; i < M; ++i) {
            const vfloat x = Words::set1(A == Order::k_last ? a[i * lda + k] : a[k * lda + i]);
#pragma GCC unroll 4
            for (int j = 0; j < NV; ++j) acc[i][j] = Words::multiply_add(x, b[j], acc[i][j]);
        }
    };
    int64_t k = 0;
    for (int row = how == Store::past_caches ? M : 0; k + PrefetchLines::step <= K; k += PrefetchLines::step) {
        for (const int two = row + 2; row < std::min(two, M); ++row)
            for (int j = 0; j < NV; ++j) prefetch_line<Access::write>(c + row * ldc + j * W);
        prefetches.issue(k);
#pragma GCC unroll 8
        for (int u = 0; u < PrefetchLines::step; ++u) step(k + u);
    }
    for (int u = 1; u < PrefetchLines::step && k < K; ++u, ++k) step(k);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) {
            float* p = c + i * ldc + j * W;
            const int64_t n = lanes - j * W;
            if (n >= W && how == Store::past_caches)
                simd::stream(p, acc[i][j]);
            else if (n >= W)
                simd::store(p, how == Store::add ? simd::load(p) + acc[i][j] : acc[i][j]);
            else if (n > 0)
                simd::store_n(p, how == Store::add ? simd::load_n(p, n) + acc[i][j] : acc[i][j], n);
        }
}

using Tile = void (*)(int64_t, const float*, int64_t, const float*, float*, int64_t, Store, int64_t,
                      const PrefetchLines&);

template <class Words, Order A, int NV, size_t... I>
constexpr std::array<Tile, sizeof...(I)> tiles(std::index_sequence<I...>) {
    return {multiply_tile<Words, static_cast<int>(I) + 1, NV, A>...};
}
// The tile function for M rows, 1 <= M <= max_rows(NV), and panels of NV vectors.
template <Order A, int NV, class Words = Floats>
Tile tile(int64_t M) {
    static constexpr auto table = tiles<Words, A, NV>(std::make_index_sequence<max_rows(NV)>());
    return table[static_cast<size_t>(M - 1)];
}

// panel[w * NV * W + j] = word w of B's column j for all K k's; columns from `lanes` on are zero. Columns that lie
// apart are read a vector's at a time: with three vectors' at once weights came up to 15 % slower from memory.
template <Order B, int NV, class Words = Floats>
void pack_panel(float* panel, const float* b, int64_t ldb, int64_t K, int64_t lanes) {
    constexpr int64_t width = NV * W, at_once = W * Words::size;
    if constexpr (B == Order::k_first) {
        for (int64_t k = 0; k < K; k += Words::size, panel += width)
            for (int64_t j = 0; j < width; j += W)
                simd::store(panel + j,
                            Words::across(b + k * ldb + j, ldb, K - k, std::clamp<int64_t>(lanes - j, 0, W)));
        return;
    }
    for (int64_t j = 0; j < width; j += W) {
        const int64_t n = std::clamp<int64_t>(lanes - j, 0, W);
        float* words = panel + j;
        for (int64_t k = 0; k < K; k += at_once, words += W * width) {
            const float* const columns = b + j * ldb + k;
            if (n == W && K - k >= at_once)
                simd::transpose(words, width, W, [=](int64_t i) { return Words::along(columns + i * ldb, at_once); });
            else
                simd::transpose(words, width, ceil_div(K - k, Words::size),
                                [=](int64_t i) { return i < n ? Words::along(columns + i * ldb, K - k) : vfloat{}; });
        }
    }
}

// f with the number of vectors that a panel of so many lanes takes, as a constant: the last panel may be narrower.
template <class F>
auto for_width(int64_t lanes, const F& f) {
    static_assert(NV == 2 || NV == 3);
    if (lanes > 2 * W) return f(std::integral_constant<int, NV>());
    return lanes > W ? f(std::integral_constant<int, 2>()) : f(std::integral_constant<int, 1>());
}

// Rows of A (k_first, at most MC) in tiles of MR: packed[m * K + k * MR + i] = A[k * lda + m + i] for m = 0, MR, …,
// with K and k in words; the last tile is as wide as what is left. row_sums (rows) += sum over k, if not null. The
// lines of a strided matrix have to be prefetched. A cache line of each tile is written at once: tiles lie whole
// pages apart, so that L1 has forgotten the first tile's line when the last one's is written.
template <class Words>
void pack_rows(float* packed, const float* a, int64_t lda, int64_t K, int64_t rows, float* row_sums) {
    constexpr int64_t ahead = 8, line = 2;
    const int64_t full = rows - rows % MR, K_words = ceil_div(K, Words::size);
    vfloat sums[MC / W + 1] = {};
    for (int64_t w = 0; w < K_words; w += line) {
        const int64_t n = std::min(line, K_words - w);
        const float* words[line];
        float made[line][MC + W];
        for (int64_t u = 0; u < n; ++u) {
            const int64_t k = (w + u) * Words::size;
            const float* const row = words[u] = a + k * lda;
            for (int64_t r = ahead; r < ahead + Words::size && k + r < K; ++r) prefetch_range(row + r * lda, rows);
            if constexpr (Words::size > 1) {
                for (int64_t m = 0; m < rows; m += W)
                    simd::store(made[u] + m, Words::across(row + m, lda, K - k, rows - m));
                words[u] = made[u];
            }
            for (int64_t r = 0; row_sums && r < Words::size && k + r < K; ++r)
                for (int64_t m = 0; m < rows; m += W) sums[m / W] += simd::load_n(row + r * lda + m, rows - m);
        }
        for (int64_t m = 0; m < full; m += MR)
            for (int64_t u = 0; u < n; ++u)
                std::memcpy(packed + m * K_words + (w + u) * MR, words[u] + m, MR * sizeof(float));
        for (int64_t u = 0; u < n; ++u)
            for (int64_t m = full; m < rows; ++m)
                packed[full * K_words + (w + u) * (rows - full) + m - full] = words[u][m];
    }
    if (!row_sums) return;
    for (int64_t m = 0; m < rows; m += W)
        simd::store_n(row_sums + m, simd::load_n(row_sums + m, rows - m) + sums[m / W], rows - m);
}

// The same of a k_last A: rows of words.
template <class Words>
void pack_rows(float* packed, const float* a, int64_t lda, int64_t K, int64_t rows) {
    const int64_t K_words = ceil_div(K, Words::size);
    for (int64_t m = 0; m < rows; ++m)
        for (int64_t w = 0; w < K_words; w += W)
            simd::store_n(packed + m * K_words + w, Words::along(a + m * lda + w * Words::size, K - w * Words::size),
                          K_words - w);
}

// What follows a product: f(m, n, lanes) is called for each row of each finished tile, while it is in L1:
// C[m][n … n + lanes) holds the product. f itself stays where it is, and must outlive the product.
class EpilogueRef {
public:
    EpilogueRef() = default;
    template <class F>
    EpilogueRef(const F& f)
        : f_(&f), call_([](const void* p, Range rows, int64_t n, int64_t lanes) {
              for (int64_t m = rows.begin; m < rows.end; ++m) (*static_cast<const F*>(p))(m, n, lanes);
          }) {}
    void operator()(Range rows, int64_t n, int64_t lanes) const {
        if (f_) call_(f_, rows, n, lanes);
    }

private:
    const void* f_ = nullptr;
    void (*call_)(const void*, Range, int64_t, int64_t) = nullptr;
};

// The order in which a product takes its columns and k's: blocks of columns; in each of them blocks of words of k; with
// each of these groups of columns, whose copies of B are made at once.
class Place {
public:
    Place(Range columns, int64_t words, int64_t block_panels, int64_t group_panels)
        : columns_(columns),
          words_(words),
          group_panels_(group_panels),
          k_blocks_(ceil_div(words, KC)),
          panels_(ceil_div(columns.size(), NR)),
          n_blocks_(words > 0 ? ceil_div(panels_, block_panels) : 0) {}

    bool is_end() const { return nb_ >= n_blocks_; }
    Range columns() const {
        const Range p = part_of(panels_, n_blocks_, nb_);
        const int64_t first = p.begin + group_ * group_panels_, last = std::min(p.end, first + group_panels_);
        return {columns_.begin + first * NR, std::min(columns_.end, columns_.begin + last * NR)};
    }
    Range words() const { return part_of(words_, k_blocks_, kb_); }
    int64_t groups() const { return ceil_div(part_of(panels_, n_blocks_, nb_).size(), group_panels_); }
    bool is_first_group() const { return group_ == 0; }
    bool is_first_k() const { return kb_ == 0; }
    bool is_last_k() const { return kb_ == k_blocks_ - 1; }

    void to_next_group() {
        if (++group_ == groups()) to_next_k();
    }
    void to_next_k() {
        group_ = 0;
        if (++kb_ == k_blocks_) kb_ = 0, ++nb_;
    }

private:
    Range columns_;
    int64_t words_, group_panels_, k_blocks_, panels_, n_blocks_, nb_ = 0, kb_ = 0, group_ = 0;
};

// C's rectangle [rows) x [columns) on the calling thread. `panels`: scratch_floats() of memory.
template <class Words, Order A, Order B>
void block(float* panels, Range rows, Range columns, int64_t K, const float* a, int64_t lda, const float* b,
           int64_t ldb, float* c, int64_t ldc, Store store, EpilogueRef epilogue, float* row_sums) {
    constexpr int64_t size = Words::size;
    constexpr bool packs_a = A == Order::k_first || size > 1;
    const bool few = rows.size() <= FEW;
    const int64_t m_tiles = ceil_div(rows.size(), MR), a_at_once = packs_a ? MC : MR;
    float* const packed_a = panels + KC * (few ? NR : NC);
    const auto a_from = [=](int64_t m, int64_t word) {
        return a + (A == Order::k_last ? m * lda + word * size : word * size * lda + m);
    };
    const auto b_from = [=](int64_t word, int64_t n) {
        return b + (B == Order::k_last ? n * ldb + word * size : word * size * ldb + n);
    };
    Place place(columns, ceil_div(K, size), block_columns(rows.size()) / NR, few ? 1 : NC / NR), next = place;
    PrefetchSchedule of_a;
    for (; !place.is_end() && m_tiles > 0; place = next) {
        next.to_next_group();
        const Range group = place.columns(), w = place.words();
        const int64_t ks = std::min(K, w.end * size) - w.begin * size, n_panels = ceil_div(group.size(), NR);
        for (int64_t n = group.begin; n < group.end; n += NR) {
            const int64_t lanes = std::min<int64_t>(NR, group.end - n);
            for_width(lanes, [&](auto vectors) {
                pack_panel<B, vectors, Words>(panels + (n - group.begin) * w.size(), b_from(w.begin, n), ldb, ks,
                                              lanes);
            });
        }
        if (few && place.is_first_group()) {
            Place after = place;
            after.to_next_k();
            of_a = after.is_end() ? PrefetchSchedule()
                                  : PrefetchSchedule(A, a_from(rows.begin, after.words().begin), lda, rows.size(), size,
                                                     m_tiles * place.groups());
        }
        PrefetchSchedule of_b;
        for (int64_t m = rows.begin; m < rows.end; m += MR) {
            const int64_t done = m - rows.begin, left = rows.end - m, strip = done % MC,
                          tile_rows = std::min<int64_t>(MR, left), tiles_left = ceil_div(left, MR);
            if (!next.is_end() && tiles_left == std::min(m_tiles, FEW / MR))
                of_b = {B,    b_from(next.words().begin, next.columns().begin),
                        ldb,  next.columns().size(),
                        size, tiles_left * n_panels};
            float* const strip_a = packed_a + (few ? (done - strip) * w.size() : 0);
            if (packs_a && strip == 0 && (!few || place.is_first_group())) {
                const int64_t count = std::min(MC, left);
                if constexpr (A == Order::k_first)
                    pack_rows<Words>(strip_a, a_from(m, w.begin), lda, ks, count,
                                     row_sums && group.begin == 0 ? row_sums + m : nullptr);
                else
                    pack_rows<Words>(strip_a, a_from(m, w.begin), lda, ks, count);
            }
            if (!few && done % a_at_once == 0)
                of_a = left <= a_at_once
                           ? PrefetchSchedule()
                           : PrefetchSchedule(A, a_from(m + a_at_once, w.begin), lda,
                                              std::min(a_at_once, left - a_at_once), size, a_at_once / MR * n_panels);
            const float* const tile_a = packs_a ? strip_a + strip * w.size() : a_from(m, w.begin);
            const int64_t tile_lda = A == Order::k_first ? tile_rows : packs_a ? w.size() : lda;
            for (int64_t n = group.begin; n < group.end; n += NR) {
                const int64_t lanes = std::min<int64_t>(NR, group.end - n);
                PrefetchLines prefetches;
                of_a.add_share(prefetches);
                of_b.add_share(prefetches);
                const Tile multiply =
                    for_width(lanes, [&](auto vectors) { return tile<A, vectors, Words>(tile_rows); });
                multiply(w.size(), tile_a, tile_lda, panels + (n - group.begin) * w.size(), c + m * ldc + n, ldc,
                         place.is_first_k() ? store : Store::add, lanes, prefetches);
                if (place.is_last_k()) epilogue({m, m + tile_rows}, n, lanes);
            }
        }
    }
}

}  // namespace gemm
