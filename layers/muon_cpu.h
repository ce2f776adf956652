// Muon on the Cpu: one thread takes a matrix through all five Newton-Schulz steps. With bf16 matmuls the operands are
// rounded to bf16; torch.optim.Muon keeps all its intermediate matrices in bf16.
//
// A step is X = P X with P = c1 + c3 A + c5 A² and A = X Xᵀ, so the next step's A is P A P. All these matrices are
// polynomials in the first A: symmetric, and of the shorter side. A stage of several steps multiplies them together and
// applies the result to X once. Rounding errors in A's smallest eigenvalues grow by c1² = 12 per step; each stage
// recomputes A from X before they matter.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <numeric>
#include <vector>

#include "device/cpu/gemm/matmul.h"
#include "layers/muon.h"
#include "device/cpu/simd.h"

namespace muon {

using gemm::Order;
using simd::vfloat;

constexpr int stages[] = {2, 3};  // steps of each stage
static_assert(stages[0] + stages[1] == steps);

// c (n,n) = A (n,K) · B (K,n), known to be symmetric: computes the lower part and mirrors it.
template <Order A, Order B>
void multiply_symmetric(MatmulKind matmul_kind, float* scratch, int64_t n, int64_t K, const float* a, int64_t lda,
                        const float* b, int64_t ldb, float* c) {
    gemm::lower_part_in<A, B>(matmul_kind, scratch, n, K, a, lda, b, ldb, c, n);
    int64_t i = simd::W;
    for (; i + simd::W <= n; i += simd::W)
        for (int64_t j = 0; j < i; j += simd::W)
            simd::transpose(c + j * n + i, n, simd::W, [=](int64_t r) { return simd::load(c + (i + r) * n + j); });
    for (i = n / simd::W * simd::W; i < n; ++i)
        for (int64_t j = 0; j < n / simd::W * simd::W; ++j) c[j * n + i] = c[i * n + j];
}

// FLOPs of one matrix's update; a symmetric matmul counts half.
inline double flops(int64_t rows, int64_t cols) {
    const double n = prod(std::min(rows, cols)), k = prod(std::max(rows, cols));
    double sum = 0;
    for (const int stage : stages) sum += 3 * n * n * k + (4 * stage - 3) * n * n * n;
    return sum;
}

// Floats of scratch memory for one matrix.
inline int64_t scratch_floats(MatmulKind matmul_kind, int64_t rows, int64_t cols) {
    const int64_t n = std::min(rows, cols);
    return gemm::scratch_floats(matmul_kind) + 2 * rows * cols + 4 * n * n + std::max(rows, cols);
}

// Floats of scratch memory for each thread, given the floats for each matrix: thread t begins with the t-th largest
// matrix. There may be more threads than matrices.
inline std::vector<int64_t> thread_floats(std::vector<int64_t> of_matrices, int64_t threads) {
    std::ranges::sort(of_matrices, std::greater());
    of_matrices.resize(static_cast<size_t>(std::min<int64_t>(threads, std::ssize(of_matrices))));
    return of_matrices;
}

// momentum is updated, and x = U / |U|, the direction before orthogonalization (the formulas are muon_update's).
inline void normalized_direction(float* x, const MuonMatrix<float>& w, const UpdateParams& params, float grad_scale) {
    const int64_t size = w.rows * w.cols;
    const vfloat momentum = simd::set1(static_cast<float>(params.momentum)),
                 rest = simd::set1(static_cast<float>(1 - params.momentum));
    vfloat squares{};
    for (int64_t i = 0; i < size; i += simd::W) {
        const int64_t left = size - i;
        const vfloat g = simd::load_n(w.grad + i, left) * grad_scale;
        const vfloat m = simd::fma(momentum, simd::load_n(w.momentum + i, left), rest * g);
        const vfloat u = simd::fma(momentum, m, rest * g);
        simd::store_n(w.momentum + i, m, left);
        simd::store_n(x + i, u, left);
        squares = simd::fma(u, u, squares);
    }
    const float inverse = 1 / std::max(std::sqrt(simd::sum(squares)), static_cast<float>(smallest_norm));
    simd::map(x, size, [=](vfloat u, int64_t, int64_t) { return u * inverse; });
}

// The (n,n) matrices of a stage: A, the P of a step, the product of the steps' P so far, and one for results.
struct StageMatrices {
    float *gram, *poly, *total, *temporary;
};

// total (n,n) = the product of the P of `stage` steps, from A in gram, which changes.
inline void multiply_steps(MatmulKind matmul_kind, float* scratch, int64_t n, int stage, StageMatrices& s) {
    const auto square = [&](float* out, const float* a, const float* b) {  // (n,n) = a · b
        multiply_symmetric<Order::k_last, Order::k_first>(matmul_kind, scratch, n, n, a, n, b, n, out);
    };
    for (int step = 0; step < stage; ++step) {
        if (step > 0) {  // A = P A P
            square(s.temporary, s.poly, s.gram);
            square(s.gram, s.temporary, s.poly);
        }
        square(s.poly, s.gram, s.gram);
        const float* const gram = s.gram;
        simd::map(s.poly, n * n, [=](vfloat p, int64_t i, int64_t left) {
            return simd::fma(simd::set1(static_cast<float>(c3)), simd::load_n(gram + i, left),
                             p * static_cast<float>(c5));
        });
        for (int64_t i = 0; i < n; ++i) s.poly[i * n + i] += static_cast<float>(c1);
        if (step == 0) {
            std::copy_n(s.poly, n * n, s.total);
        } else {
            square(s.temporary, s.poly, s.total);
            std::swap(s.total, s.temporary);
        }
    }
}

// factors (neurons) = what NorMuon multiplies each row of x, or column if it is wide, by: |X| / |Y| / (sqrt(squares) +
// eps); squares are updated (the formulas are muon_update's).
inline void normuon_factors(float* factors, const MuonMatrix<float>& w, const float* x, double beta2) {
    std::fill_n(factors, w.neurons(), 0.0f);  // first the sums of squares
    for (int64_t r = 0; r < w.rows; ++r) {
        const float* const row = x + r * w.cols;
        if (w.rows < w.cols) {
            simd::map(factors, w.cols, [=](vfloat sums, int64_t c, int64_t left) {
                const vfloat v = simd::load_n(row + c, left);
                return simd::fma(v, v, sums);
            });
            continue;
        }
        vfloat sum{};
        for (int64_t c = 0; c < w.cols; c += simd::W) {
            const vfloat v = simd::load_n(row + c, w.cols - c);
            sum = simd::fma(v, v, sum);
        }
        factors[r] = simd::sum(sum);
    }
    const float in_mean = static_cast<float>((1 - beta2) / static_cast<double>(std::min(w.rows, w.cols)));
    double before = 0, after = 0;
    for (int64_t j = 0; j < w.neurons(); ++j) {
        const float sum = factors[j];
        w.squares[j] = static_cast<float>(beta2) * w.squares[j] + in_mean * sum;
        factors[j] = 1 / (std::sqrt(w.squares[j]) + static_cast<float>(normuon_eps));
        before += static_cast<double>(sum);
        after += static_cast<double>(sum) * static_cast<double>(factors[j]) * static_cast<double>(factors[j]);
    }
    const float scale = before == 0 ? 0 : static_cast<float>(std::sqrt(before / after));
    simd::map(factors, w.neurons(), [=](vfloat factor, int64_t, int64_t) { return factor * scale; });
}

// param = param (1 - lr weight_decay) - lr stretch * factors * x; factors are those of rows or columns, or null.
inline void step_along(const MuonMatrix<float>& w, const float* x, const float* factors, const UpdateParams& params) {
    const float shrink = static_cast<float>(1 - params.muon_lr * params.weight_decay);
    const float rate = static_cast<float>(-params.muon_lr * stretch(w.rows, w.cols));
    for (int64_t r = 0; r < w.rows; ++r) {
        const float* const row = x + r * w.cols;
        const vfloat of_row = simd::set1(factors && w.rows >= w.cols ? rate * factors[r] : rate);
        const float* const of_columns = factors && w.rows < w.cols ? factors : nullptr;
        simd::map(w.param + r * w.cols, w.cols, [=](vfloat p, int64_t c, int64_t left) {
            const vfloat along = simd::load_n(row + c, left);
            return simd::fma(of_row, of_columns ? along * simd::load_n(of_columns + c, left) : along, p * shrink);
        });
    }
}

inline void update(MatmulKind asked, float* memory, const MuonMatrix<float>& w, const UpdateParams& params,
                   float grad_scale) {
    const int64_t size = w.rows * w.cols, n = std::min(w.rows, w.cols);
    const bool tall = w.rows > w.cols;
    const MatmulKind matmul_kind = gemm::chosen(asked, n, n);
    float* const scratch = memory;
    float* x = memory + gemm::scratch_floats(matmul_kind);
    float* next = x + size;
    float* const square = next + size;
    StageMatrices s{square, square + n * n, square + 2 * n * n, square + 3 * n * n};

    normalized_direction(x, w, params, grad_scale);
    for (const int stage : stages) {
        if (tall)  // A = Xᵀ X
            multiply_symmetric<Order::k_first, Order::k_first>(matmul_kind, scratch, n, w.rows, x, n, x, n, s.gram);
        else  // A = X Xᵀ
            multiply_symmetric<Order::k_last, Order::k_last>(matmul_kind, scratch, n, w.cols, x, w.cols, x, w.cols,
                                                             s.gram);
        multiply_steps(matmul_kind, scratch, n, stage, s);
        const float *const left_factor = tall ? x : s.total, *const right = tall ? s.total : x;
        gemm::block_in<Order::k_last, Order::k_first>(matmul_kind, scratch, gemm::Range{0, w.rows},
                                                      gemm::Range{0, w.cols}, n, left_factor, n, right, w.cols, next,
                                                      w.cols, gemm::Store::set, {}, nullptr);
        std::swap(x, next);
    }
    float* const factors = w.squares ? square + 4 * n * n : nullptr;
    if (factors) normuon_factors(factors, w, x, params.normuon_beta2);
    step_along(w, x, factors, params);
}

}  // namespace muon

// For each matrix, unless status says to skip the update; lr is muon_lr:
// momentum = 0.95 momentum + 0.05 g        U = 0.05 g + 0.95 momentum,  g = grad_scale * grad
// X = U / |U|, five Newton-Schulz steps        param = param (1 - lr weight_decay) - lr sqrt(max(1, rows/cols)) X
// With `squares`, X is first replaced by Y |X| / |Y|, where for each of its rows, or its columns if it is wide,
// squares = 0.95 squares + 0.05 mean(X²)        Y = X / (sqrt(squares) + eps)
inline void muon_update(Cpu& dev, const std::vector<MuonMatrix<float>>& matrices, const UpdateParams* params,
                        const StepStatus* status) {
    if (!status->apply) return;
    const float grad_scale = static_cast<float>(status->grad_scale);
    double flops = 0;
    for (const auto& w : matrices) flops += muon::flops(w.rows, w.cols);
    const Timed timed(dev, "muon_update", flops, 0);
    std::vector<int64_t> floats;
    for (const auto& w : matrices) floats.push_back(muon::scratch_floats(dev.matmul_kind, w.rows, w.cols));
    dev.reserve(CpuScratch{muon::thread_floats(floats, omp_get_max_threads())});
    std::vector<size_t> largest_first(matrices.size());
    std::iota(largest_first.begin(), largest_first.end(), size_t{0});
    std::ranges::stable_sort(largest_first, std::greater(), [&](size_t i) { return floats[i]; });
    // After its first matrix a thread takes the next one that no thread has taken. None of those is larger.
    std::atomic<size_t> taken = 0;
#pragma omp parallel
    for (size_t i = static_cast<size_t>(omp_get_thread_num()); i < matrices.size();
         i = static_cast<size_t>(omp_get_num_threads()) + taken++) {
        const size_t matrix = largest_first[i];
        muon::update(dev.matmul_kind, dev.scratch(floats[matrix]), matrices[matrix], *params, grad_scale);
    }
}
