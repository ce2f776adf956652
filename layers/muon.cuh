// Muon on the Cuda device, one matrix after the other. The Newton-Schulz steps are cuBLASLt matmuls in fp32, or with
// bf16 matrices, as in torch.optim.Muon, if dev.bf16_matmuls is set.
#pragma once

#include "device/cuda/cublaslt.cuh"
#include "layers/global_norm.cuh"
#include "layers/muon.h"

namespace muon {

constexpr int most_blocks = 256;
constexpr int64_t rows_of_part = 64;  // of a wide matrix, whose squares a thread adds for one column

// momentum (n) = beta momentum + (1 - beta) g,  beta = params->momentum, g = grad_scale * grad; partial (blocks): each
// block's share of |U|².
template <int V>
__global__ void __launch_bounds__(norm_threads)
    momentum_kernel(double* __restrict__ partial, float* __restrict__ momentum, const float* __restrict__ grad,
                    int64_t n, const UpdateParams* __restrict__ params, const StepStatus* __restrict__ status) {
    if (!status->apply) return;
    const float beta = static_cast<float>(params->momentum), rest = static_cast<float>(1 - params->momentum);
    const float scale = static_cast<float>(status->grad_scale);
    double squares = 0;
    const auto update = [&]<int W>(int64_t i) {
        float g[W], m[W];
        load_once<W>(g, grad + i);
        load<W>(m, momentum + i);
        UNROLL for (int v = 0; v < W; ++v) {
            g[v] *= scale;
            m[v] = beta * m[v] + rest * g[v];
            const float u = rest * g[v] + beta * m[v];
            squares += static_cast<double>(u) * static_cast<double>(u);
        }
        store(momentum + i, m);
    };
    const int64_t vectors = n / V, threads = int64_t{gridDim.x} * norm_threads;
    const int64_t thread = int64_t{blockIdx.x} * norm_threads + threadIdx.x;
    for (int64_t i = thread; i < vectors; i += threads) update.template operator()<V>(i * V);
    if (vectors * V + thread < n) update.template operator()<1>(vectors * V + thread);
    squares = block_sum(squares);
    if (threadIdx.x == 0) partial[blockIdx.x] = squares;
}

// inverse[0] = 1 / |U|, or 0 if the update is skipped. One block.
static __global__ void __launch_bounds__(norm_threads)
    inverse_norm_kernel(float* inverse, const double* __restrict__ partial, int blocks, const StepStatus* status) {
    double squares = 0;
    if (status->apply)
        for (int i = static_cast<int>(threadIdx.x); i < blocks; i += norm_threads) squares += partial[i];
    squares = block_sum(squares);
    if (threadIdx.x > 0) return;
    const double norm = sqrt(squares);
    *inverse = status->apply ? static_cast<float>(1 / (norm < smallest_norm ? smallest_norm : norm)) : 0.0f;
}

// x (n) = U / |U|,  U = (1 - beta) g + beta momentum (Nesterov)
template <int V, class T>
__global__ void __launch_bounds__(elements_block)
    direction_kernel(T* __restrict__ x, const float* __restrict__ momentum, const float* __restrict__ grad, int64_t n,
                     const UpdateParams* __restrict__ params, const float* __restrict__ inverse,
                     const StepStatus* __restrict__ status) {
    const float beta = static_cast<float>(params->momentum), rest = static_cast<float>(1 - params->momentum);
    const float scale = static_cast<float>(status->grad_scale), r = *inverse;
    each_element<V>(n, [&]<int W>(int64_t i) {
        float g[W], m[W];
        load_once<W>(g, grad + i);
        load_once<W>(m, momentum + i);
        UNROLL for (int v = 0; v < W; ++v) m[v] = (rest * (scale * g[v]) + beta * m[v]) * r;
        store(x + i, m);
    });
}

// param (n) = param (1 - lr weight_decay) - lr stretch x, unless the update is skipped
template <int V, class T>
__global__ void __launch_bounds__(elements_block)
    step_kernel(float* __restrict__ param, const T* __restrict__ x, int64_t n, double stretch,
                const UpdateParams* __restrict__ params, const StepStatus* __restrict__ status) {
    if (!status->apply) return;
    const float shrink = static_cast<float>(1 - params->muon_lr * params->weight_decay);
    const float rate = static_cast<float>(params->muon_lr * stretch);
    each_element<V>(n, [&]<int W>(int64_t i) {
        float p[W], d[W];
        load<W>(p, param + i);
        load_once<W>(d, x + i);
        UNROLL for (int v = 0; v < W; ++v) p[v] = p[v] * shrink - rate * d[v];
        store(param + i, p);
    });
}

// sums (rows): of the squares of each row of x (rows,cols). A block for each row.
template <class T>
__global__ void __launch_bounds__(norm_threads)
    row_squares_kernel(float* __restrict__ sums, const T* __restrict__ x, int64_t cols) {
    const T* const row = x + blockIdx.x * cols;
    double sum = 0;
    for (int64_t c = threadIdx.x; c < cols; c += norm_threads) {
        const double value = static_cast<double>(to_float(row[c]));
        sum += value * value;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = static_cast<float>(sum);
}

// sums (parts,cols): of the squares of each column of x (rows,cols), in parts of rows. blockIdx.y is the part.
template <class T>
__global__ void __launch_bounds__(elements_block)
    column_squares_kernel(float* __restrict__ sums, const T* __restrict__ x, int64_t rows, int64_t cols) {
    const int64_t c = int64_t{blockIdx.x} * elements_block + threadIdx.x;
    if (c >= cols) return;
    const int64_t begin = blockIdx.y * rows_of_part, end = min(rows, begin + rows_of_part);
    float sum = 0;
    for (int64_t r = begin; r < end; ++r) {
        const float value = to_float(x[r * cols + c]);
        sum += value * value;
    }
    sums[blockIdx.y * cols + c] = sum;
}

// From sums (parts,neurons) of an (n,neurons) matrix's squares: squares are updated, and sums[j] = 1 /
// (sqrt(squares[j])
// + eps) times |X| / |Y|. One block.
static __global__ void __launch_bounds__(norm_threads)
    normuon_factors_kernel(float* __restrict__ sums, float* __restrict__ squares, int64_t parts, int64_t neurons,
                           int64_t n, const UpdateParams* __restrict__ params, const StepStatus* __restrict__ status) {
    if (!status->apply) return;
    const float beta2 = static_cast<float>(params->normuon_beta2);
    const float in_mean = static_cast<float>((1 - params->normuon_beta2) / static_cast<double>(n));
    double before = 0, after = 0;
    for (int64_t j = threadIdx.x; j < neurons; j += norm_threads) {
        float sum = 0;
        for (int64_t part = 0; part < parts; ++part) sum += sums[part * neurons + j];
        squares[j] = beta2 * squares[j] + in_mean * sum;
        const float factor = 1 / (sqrtf(squares[j]) + static_cast<float>(normuon_eps));
        sums[j] = factor;
        before += static_cast<double>(sum);
        after += static_cast<double>(sum) * static_cast<double>(factor) * static_cast<double>(factor);
    }
    __shared__ float scale;
    before = block_sum(before);
    __syncthreads();  // block_sum's memory is used again
    after = block_sum(after);
    if (threadIdx.x == 0) scale = before == 0 ? 0.0f : static_cast<float>(sqrt(before / after));
    __syncthreads();
    for (int64_t j = threadIdx.x; j < neurons; j += norm_threads) sums[j] *= scale;
}

// x (rows,cols): row r *= factors[r] or, if the matrix is wide, column c *= factors[c]. A block for each row.
template <class T>
__global__ void __launch_bounds__(norm_threads)
    scale_neurons_kernel(T* __restrict__ x, const float* __restrict__ factors, int64_t rows, int64_t cols,
                         const StepStatus* __restrict__ status) {
    if (!status->apply) return;
    T* const row = x + blockIdx.x * cols;
    for (int64_t c = threadIdx.x; c < cols; c += norm_threads) {
        const float factor = factors[rows >= cols ? blockIdx.x : c];
        row[c] = from_float<T>(to_float(row[c]) * factor);
    }
}

// The parts in which the squares of a row, or of a column of a wide matrix, are added.
inline int64_t parts_of(int64_t rows, int64_t cols) {
    return rows >= cols ? 1 : (rows + rows_of_part - 1) / rows_of_part;
}

// Replaces x by Y |X| / |Y| and updates squares (the formulas are muon_update's). sums holds parts_of * neurons floats.
template <class T>
void normalize_neurons(Cuda& dev, T* x, const MuonMatrix<float>& w, float* sums, const UpdateParams* params,
                       const StepStatus* status) {
    const int64_t parts = parts_of(w.rows, w.cols);
    const auto rows = static_cast<unsigned>(w.rows);
    if (w.rows >= w.cols)
        LAUNCH(row_squares_kernel<T>, rows, norm_threads, 0, dev.stream, sums, x, w.cols);
    else
        LAUNCH(column_squares_kernel<T>,
               (dim3{static_cast<unsigned>((w.cols + elements_block - 1) / elements_block),
                     static_cast<unsigned>(parts), 1}),
               elements_block, 0, dev.stream, sums, x, w.rows, w.cols);
    LAUNCH(normuon_factors_kernel, 1, norm_threads, 0, dev.stream, sums, w.squares, parts, w.neurons(),
           std::min(w.rows, w.cols), params, status);
    LAUNCH(scale_neurons_kernel<T>, rows, norm_threads, 0, dev.stream, x, sums, w.rows, w.cols, status);
}

// momentum is updated, and x = U / |U|, the direction before orthogonalization (the formulas are muon_update's).
// partial holds most_blocks doubles, inverse one float.
template <class T>
void normalized_direction(Cuda& dev, T* x, const MuonMatrix<float>& w, double* partial, float* inverse,
                          const UpdateParams* params, const StepStatus* status) {
    const int64_t size = w.rows * w.cols;
    const int blocks = static_cast<int>(std::clamp<int64_t>(size / (16 * norm_threads), 1, most_blocks));
    if (can_pack<float>(packed<float>, w.momentum, w.grad))
        LAUNCH(momentum_kernel<packed<float>>, blocks, norm_threads, 0, dev.stream, partial, w.momentum, w.grad, size,
               params, status);
    else
        LAUNCH(momentum_kernel<1>, blocks, norm_threads, 0, dev.stream, partial, w.momentum, w.grad, size, params,
               status);
    LAUNCH(inverse_norm_kernel, 1, norm_threads, 0, dev.stream, inverse, partial, blocks, status);
    launch_elements<T>(
        size,
        [&]<int V>(unsigned grid) {
            LAUNCH((direction_kernel<V, T>), grid, elements_block, 0, dev.stream, x, w.momentum, w.grad, size, params,
                   inverse, status);
        },
        x, w.momentum, w.grad);
}

// A Newton-Schulz step, next (rows,cols) from x:
//   A = X Xᵀ, or Xᵀ X        P = c3 A + c5 A²        X = c1 X + P X, or c1 X + X P
// gram and poly hold n*n elements, n being the shorter side.
template <class T>
void newton_schulz_step(Cuda& dev, T* next, const T* x, int64_t rows, int64_t cols, T* gram, T* poly) {
    const int64_t n = std::min(rows, cols);
    const bool tall = rows > cols;
    matmul(dev, Matmul<T, T>{.out = gram,
                             .a = x,
                             .b = x,
                             .M = n,
                             .N = n,
                             .K = rows * cols / n,
                             .a_transposed = tall,
                             .b_transposed = !tall});
    matmul(dev, Matmul<T, T>{.out = poly,
                             .a = gram,
                             .b = gram,
                             .M = n,
                             .N = n,
                             .K = n,
                             .alpha = static_cast<float>(c5),
                             .beta = static_cast<float>(c3),
                             .c = gram});
    matmul(dev, Matmul<T, T>{.out = next,
                             .a = tall ? x : poly,
                             .b = tall ? poly : x,
                             .M = rows,
                             .N = cols,
                             .K = n,
                             .beta = static_cast<float>(c1),
                             .c = x});
}

// T is the element type of the steps' matrices.
template <class T>
void update(Cuda& dev, const MuonMatrix<float>& w, const UpdateParams* params, const StepStatus* status) {
    const int64_t size = w.rows * w.cols, n = std::min(w.rows, w.cols);
    // matrices begin at multiples of 16 bytes
    const auto floats = [](int64_t count) { return (count * static_cast<int64_t>(sizeof(T)) + 15) / 16 * 4; };
    const int64_t neuron_floats = w.squares ? parts_of(w.rows, w.cols) * w.neurons() : 0;
    float* memory = dev.scratch(2 * most_blocks + 4 + 2 * floats(size) + 2 * floats(n * n) + neuron_floats);
    const auto take = [&](int64_t count) {
        float* const p = memory;
        memory += count;
        return p;
    };
    double* const partial = reinterpret_cast<double*>(take(2 * most_blocks));
    float* const inverse = take(4);
    T *x = reinterpret_cast<T*>(take(floats(size))), *next = reinterpret_cast<T*>(take(floats(size)));
    T *const gram = reinterpret_cast<T*>(take(floats(n * n))), *const poly = reinterpret_cast<T*>(take(floats(n * n)));

    normalized_direction(dev, x, w, partial, inverse, params, status);
    for (int step = 0; step < steps; ++step) {
        newton_schulz_step(dev, next, x, w.rows, w.cols, gram, poly);
        std::swap(x, next);
    }
    if (w.squares) normalize_neurons(dev, x, w, take(neuron_floats), params, status);
    launch_elements<T>(
        size,
        [&]<int V>(unsigned grid) {
            LAUNCH((step_kernel<V, T>), grid, elements_block, 0, dev.stream, w.param, x, size, stretch(w.rows, w.cols),
                   params, status);
        },
        w.param, x);
}

}  // namespace muon

// For each matrix, with gradient g = grad_scale * grad and lr = muon_lr, unless status says to skip the update; params
// and status are in device memory:
//   momentum = 0.95 momentum + 0.05 g        U = 0.05 g + 0.95 momentum (Nesterov)
//   X = U / |U|, five Newton-Schulz steps        param = param (1 - lr weight_decay) - lr sqrt(max(1, rows/cols)) X
// With `squares`, X is first replaced by Y |X| / |Y|, where for each of its rows, or its columns if it is wide,
//   squares = 0.95 squares + 0.05 mean(X²)        Y = X / (sqrt(squares) + eps)
inline void muon_update(Cuda& dev, const std::vector<MuonMatrix<float>>& matrices, const UpdateParams* params,
                        const StepStatus* status) {
    double flops = 0;  // per step: the Gram matrix, its square, the matmul with X
    for (const auto& w : matrices) {
        const double n = prod(std::min(w.rows, w.cols)), k = prod(std::max(w.rows, w.cols));
        flops += muon::steps * 2 * (2 * n * n * k + n * n * n);
    }
    const Timed timed(dev, "muon_update", flops, 0);
    for (const auto& w : matrices)
        dev.bf16_matmuls ? muon::update<bf16>(dev, w, params, status) : muon::update<float>(dev, w, params, status);
}
