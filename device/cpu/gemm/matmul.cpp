// Instantiates the GEMM once for every storage order that the layers use: nothing else takes as long to compile.
#include "device/cpu/gemm/matmul.h"

#include "device/cpu/gemm/few_rows_int8.h"
#include "device/cpu/rows.h"

namespace gemm {
namespace {

// How C is cut into nearly equal parts of whole tiles, and the cost of a thread's rows and columns: packing a value of
// B, or of A, takes as long as this many FMAs. A that is not packed still has to be brought to L1. A's rows are read
// once for each block of columns.
struct Cut {
    int64_t tile_rows, tile_columns;
    int64_t (*block_columns)(int64_t rows);
    int64_t copy_b, copy_a;
};

template <class Words>
Cut cut_of(Words, Order a, int64_t stored_size) {
    constexpr int64_t copy = 20 * Words::size;
    const bool copies_a = a == Order::k_first || Words::size > stored_size;
    return {MR, NR, block_columns, copy, copies_a ? copy : copy / 2};
}
#if defined(__AMX_BF16__)
template <int planes>
Cut cut_of(amx::Planes<planes>, Order, int64_t) {
    constexpr int64_t copy = planes == 1 ? 75 : 50;
    return {amx::block_side, amx::block_side, [](int64_t) { return int64_t{1} << 40; }, copy, copy};
}
#endif

// The number of threads across the columns of C (M,N); threads / that number share its rows. The choice minimizes the
// work of one thread: its FMAs, packing its columns of B, and packing its rows of A.
inline int64_t threads_across(int64_t threads, int64_t M, int64_t N, const Cut& cut) {
    int64_t best = 1, least = 0;
    for (int64_t across = 1; across <= threads; ++across) {
        if (threads % across) continue;
        const auto part = [](int64_t n, int64_t tile, int64_t parts) {
            return std::min(n, ceil_div(ceil_div(n, tile), parts) * tile);
        };
        const int64_t rows = part(M, cut.tile_rows, threads / across), columns = part(N, cut.tile_columns, across);
        const int64_t work =
            rows * columns + cut.copy_b * columns + cut.copy_a * rows * ceil_div(columns, cut.block_columns(rows));
        if (across == 1 || work < least) best = across, least = work;
    }
    return best;
}

template <class Words>
int64_t scratch_of(Words) {
    return scratch_floats();
}
template <class Words>
int64_t block_of_k(Words) {
    return KC * Words::size;
}
template <Order A, Order B, class StoredA, class Words, class... Arguments>
void block_of(Words, const Arguments&... arguments) {
    if constexpr (StoredA::size <= Words::size) block<Words, A, B, StoredA>(arguments...);
}
template <Order A, Order B, class Words>
void lower_part_of(Words, float* memory, int64_t n, int64_t K, const float* a, int64_t lda, const float* b, int64_t ldb,
                   float* c, int64_t ldc) {
    block<Words, A, B>(memory, {0, n}, {0, n}, K, a, lda, b, ldb, c, ldc, Store::set, {}, nullptr, Part::lower);
}
#if defined(__AMX_BF16__)
template <int planes>
int64_t scratch_of(amx::Planes<planes>) {
    return amx::scratch_floats<planes>();
}
template <int planes>
int64_t block_of_k(amx::Planes<planes>) {
    return amx::Blocks<planes>::KC;
}
template <Order A, Order B, class StoredA, int planes, class... Arguments>
void block_of(amx::Planes<planes>, const Arguments&... arguments) {
    if constexpr (StoredA::size == 1 || planes == 1) amx::block<planes, A, B, StoredA>(arguments...);
}
// Strips of rows, not narrower than this: B is packed anew for each.
template <Order A, Order B, int planes>
void lower_part_of(amx::Planes<planes>, float* memory, int64_t n, int64_t K, const float* a, int64_t lda,
                   const float* b, int64_t ldb, float* c, int64_t ldc) {
    constexpr int64_t strip = 256;
    for (int64_t begin = 0; begin < n; begin += strip) {
        const int64_t end = std::min(n, begin + strip);
        amx::block<planes, A, B>(memory, {begin, end}, {0, end}, K, a, lda, b, ldb, c, ldc, Store::set, {}, nullptr);
    }
}
#endif

// Whether C can be written by streaming stores, and is so large that it would leave the caches before it is read. With
// 64 rows, gradients of weights take 6 to 11 % less time this way, from two threads on.
inline bool worth_streaming(const float* c, int64_t M, int64_t N, int64_t K) {
    return rows_aligned(c, N) && K <= KC && M * N >= 1 << 19;
}

// Whether C = A · B is computed as the sum of two matmuls, over K's first and second half. Gradients of weights sum
// over rows, and each half of the threads has written, and will write again, one half of the rows. In a small model
// these rows stay in the caches, and a line that another core has read must be fetched from it before it is written
// again. If each half of the threads reads only its own rows, LayerNorm's backward takes half the time, and a step of
// 768 rows of 128 values 2 to 5 % less, on two threads. Where C is large, adding the halves costs more.
inline bool sums_halves(Order a, int64_t M, int64_t N, int64_t K) {
    return a == Order::k_first && K >= 2 * KC && M * N <= most_halved;
}

// The matmul of few rows on all threads. A part of B that fits in a core's caches takes less time than to wake threads.
template <class Element>
void few_rows_matmul(Cpu& cpu, int64_t M, int64_t N, int64_t K, const float* a, int64_t lda,
                     const WeightRows<Element>& b, float* c, int64_t ldc, EpilogueRef epilogue) {
    const int64_t unit = std::max(cache_line / 4, epilogue.columns_together());
    constexpr bool rounds = std::is_same_v<Element, int8_t>;
    const int64_t floats = rounds ? RoundedRows::floats(M, K) : 0;
    cpu.reserve(floats);
#pragma omp parallel if (N * b.stride >= 1 << 14)
    {
        const Range mine = part_of(ceil_div(N, unit), omp_get_num_threads(), omp_get_thread_num());
        const Range columns{mine.begin * unit, std::min(N, mine.end * unit)};
        if constexpr (rounds)
            few_rows_block(M, columns, K, round_rows(cpu.scratch(floats), M, K, a, lda), b, c, ldc, epilogue);
        else
            few_rows_block(M, columns, K, FloatRows{a, lda}, b, c, ldc, epilogue);
        simd::stream_fence();  // for streaming stores in the epilogue
    }
}

// The columns of C whose rows of B are converted to fp32 at a time. They stay in L2.
constexpr int64_t converted_columns(int64_t K) { return std::max<int64_t>(1, (1 << 16) / K / NR) * NR; }

// The same for more rows: each thread converts some rows of B at a time, for which the GEMM then runs.
template <class Element>
void converted_matmul(Cpu& cpu, int64_t M, int64_t N, int64_t K, const float* a, const WeightRows<Element>& b, float* c,
                      int64_t ldc, EpilogueRef epilogue) {
    const int64_t at_once = converted_columns(K), floats = weights_scratch_floats(cpu.matmul_kind, cpu.weights, M, K);
    const MatmulKind matmul_kind = chosen(cpu.matmul_kind, M, at_once);
    const int64_t unit = std::max<int64_t>(NR, epilogue.columns_together());
    cpu.reserve(floats);
#pragma omp parallel
    {
        float* const rows = cpu.scratch(floats);
        float* const memory = rows + at_once * K;
        const Range mine = part_of(ceil_div(N, unit), omp_get_num_threads(), omp_get_thread_num());
        const int64_t last = std::min(N, mine.end * unit);
        for (int64_t begin = mine.begin * unit; begin < last; begin += at_once) {
            const int64_t columns = std::min(at_once, last - begin);
            for (int64_t n = 0; n < columns; ++n) read_row(rows + n * K, b, begin + n, K);
            block_in<Order::k_last, Order::k_last>(matmul_kind, memory, {0, M}, {0, columns}, K, a, K, rows, K,
                                                   c + begin, ldc, Store::set, epilogue.from_column(begin), nullptr);
        }
        simd::stream_fence();
    }
}

}  // namespace

int64_t scratch_floats(MatmulKind matmul_kind) {
    if (matmul_kind == MatmulKind::fp32)
        return std::max(scratch_floats(MatmulKind::fma), scratch_floats(MatmulKind::split));
    return for_kind(matmul_kind, [](auto kind) { return scratch_of(kind); });
}

bool one_block(MatmulKind chosen_kind, int64_t K) {
    return K <= for_kind(chosen_kind, [](auto kind) { return block_of_k(kind); });
}

int64_t halves_floats(Order a, int64_t M, int64_t N, int64_t K) {
    return sums_halves(a, M, N, K) ? M * N + M : 0;  // C and row_sums of the last half
}

template <Order A, Order B, class StoredA>
void block_in(MatmulKind matmul_kind, float* memory, Range rows, Range columns, int64_t K, const float* a, int64_t lda,
              const float* b, int64_t ldb, float* c, int64_t ldc, Store store, EpilogueRef epilogue, float* row_sums) {
    // What is stored in pairs can only be multiplied as pairs.
    for_kind(StoredA::size > 1 ? MatmulKind::bf16 : matmul_kind, [&](auto kind) {
        block_of<A, B, StoredA>(kind, memory, rows, columns, K, a, lda, b, ldb, c, ldc, store, epilogue, row_sums);
    });
}

template <Order A, Order B>
void lower_part_in(MatmulKind matmul_kind, float* memory, int64_t n, int64_t K, const float* a, int64_t lda,
                   const float* b, int64_t ldb, float* c, int64_t ldc) {
    for_kind(matmul_kind, [&](auto kind) { lower_part_of<A, B>(kind, memory, n, K, a, lda, b, ldb, c, ldc); });
}

template <Order A, Order B, class StoredA>
void matmul(Cpu& cpu, int64_t M, int64_t N, int64_t K, const float* a, int64_t lda, const float* b, int64_t ldb,
            float* c, int64_t ldc, Store store, EpilogueRef epilogue, float* row_sums) {
    const MatmulKind matmul_kind = chosen(cpu.matmul_kind, M, N);
    if constexpr (A == Order::k_last && B == Order::k_last)
        if (reads_in_place(matmul_kind, M) && store != Store::add)
            return few_rows_matmul(cpu, M, N, K, a, lda, WeightRows<float>{b, ldb}, c, ldc, epilogue);
    Cut cut = for_kind(matmul_kind, [](auto kind) { return cut_of(kind, A, StoredA::size); });
    cut.tile_columns = std::max(cut.tile_columns, epilogue.columns_together());
    if (store == Store::stream && !worth_streaming(c, M, N, K)) store = Store::set;
    const int64_t thread_floats = scratch_floats(matmul_kind), floats = halves_floats(A, M, N, K);
    const bool halved = floats > 0;
    cpu.reserve(thread_floats);
    float* const second = halved ? cpu.halves(floats) : nullptr;
    float* const second_sums = halved && row_sums ? second + M * N : nullptr;
    if (second_sums) std::fill_n(second_sums, M, 0.0f);
#pragma omp parallel
    {
        const int64_t all = omp_get_num_threads(), teams = halved && all % 2 == 0 ? 2 : 1, threads = all / teams;
        const int64_t team = omp_get_thread_num() / threads, me = omp_get_thread_num() % threads;
        const int64_t across = threads_across(threads, M, N, cut);
        const Range n = part_of(ceil_div(N, cut.tile_columns), across, me % across);
        const Range m = part_of(ceil_div(M, cut.tile_rows), threads / across, me / across);
        const Range rows{m.begin * cut.tile_rows, std::min(M, m.end * cut.tile_rows)};
        const Range columns{n.begin * cut.tile_columns, std::min(N, n.end * cut.tile_columns)};
        const auto my_block = [&](Range k, float* to, int64_t ld, Store how, float* sums) {
            block_in<A, B, StoredA>(matmul_kind, cpu.scratch(thread_floats), rows, columns, k.size(),
                                    a + k.begin * (A == Order::k_last ? 1 : lda), lda,
                                    b + k.begin * (B == Order::k_last ? 1 : ldb), ldb, to, ld, how, epilogue, sums);
        };
        if (team == 0) my_block({0, halved ? K / 2 : K}, c, ldc, store, row_sums);
        simd::stream_fence();  // for streaming stores to C or in the epilogue
        if (halved) {
            if (team == teams - 1) my_block({K / 2, K}, second, N, Store::set, second_sums);
#pragma omp barrier
            const Range mine = part_of(M, all, omp_get_thread_num());
            for (int64_t i = mine.begin; i < mine.end; ++i) {
                simd::map(c + i * ldc, N, [=](simd::vfloat x, int64_t j, int64_t left) {
                    return x + simd::load_n(second + i * N + j, left);
                });
                if (row_sums) row_sums[i] += second_sums[i];
            }
        }
    }
}

int64_t weights_scratch_floats(MatmulKind matmul_kind, WeightType weights, int64_t M, int64_t K) {
    if (weights == WeightType::fp32)
        return reads_in_place(chosen(matmul_kind, M, K), M) ? 0 : scratch_floats(matmul_kind);
    if (M <= few_rows) return weights == WeightType::int8 ? RoundedRows::floats(M, K) : 0;
    return converted_columns(K) * K + scratch_floats(matmul_kind);
}

void matmul_weights(Cpu& cpu, int64_t M, int64_t N, int64_t K, const float* a, const float* weights, float* c,
                    int64_t ldc, EpilogueRef epilogue) {
    if (cpu.weights == WeightType::fp32)
        return matmul<Order::k_last, Order::k_last>(cpu, M, N, K, a, K, weights, K, c, ldc, Store::set, epilogue);
    with_rows(cpu.weights, weights, K, [&](const auto& rows) {
        if (M <= few_rows)
            few_rows_matmul(cpu, M, N, K, a, K, rows, c, ldc, epilogue);
        else
            converted_matmul(cpu, M, N, K, a, rows, c, ldc, epilogue);
    });
}

#define FOR_ORDERS(A, B)                                                                                            \
    template void block_in<Order::A, Order::B>(MatmulKind, float*, Range, Range, int64_t, const float*, int64_t,    \
                                               const float*, int64_t, float*, int64_t, Store, EpilogueRef, float*); \
    template void lower_part_in<Order::A, Order::B>(MatmulKind, float*, int64_t, int64_t, const float*, int64_t,    \
                                                    const float*, int64_t, float*, int64_t);                        \
    template void matmul<Order::A, Order::B>(Cpu&, int64_t, int64_t, int64_t, const float*, int64_t, const float*,  \
                                             int64_t, float*, int64_t, Store, EpilogueRef, float*);
FOR_ORDERS(k_last, k_last)
FOR_ORDERS(k_last, k_first)
FOR_ORDERS(k_first, k_first)
#if defined(__AVX512BF16__)
template void matmul<Order::k_last, Order::k_first, Bf16Pairs>(Cpu&, int64_t, int64_t, int64_t, const float*, int64_t,
                                                               const float*, int64_t, float*, int64_t, Store,
                                                               EpilogueRef, float*);
template void matmul<Order::k_first, Order::k_first, Bf16Pairs>(Cpu&, int64_t, int64_t, int64_t, const float*, int64_t,
                                                                const float*, int64_t, float*, int64_t, Store,
                                                                EpilogueRef, float*);
#endif
#undef FOR_ORDERS

}  // namespace gemm
