// Layer normalization on the Cuda device, and RMS normalization (layers/rmsnorm.cuh), which is the same without the
// mean. T is the type of tensors, float or bf16, except that gradients of parameters are float. All arithmetic is in
// fp32.
#pragma once

#include "device/cuda/common.cuh"
#include "layers/layernorm.h"

// Calls f(k, c) for the k-th vector of a thread, of V values from column c on. A row is spread over WARPS warps: each
// of their threads takes V neighbouring values, then the V values after those of all threads, and so on. If K is not 0,
// a thread has at most K vectors and the loop is unrolled, so that x[k] is a register. If K is 0, the row is too long
// for registers, and k is always 0.
template <int WARPS, int V, int K, class F>
__device__ __forceinline__ void each_vector(int64_t C, F f) {
    const int columns = static_cast<int>(C), start = static_cast<int>(threadIdx.x) * V;
    if constexpr (K > 0) {
        UNROLL for (int k = 0; k < K; ++k) {
            const int c = k * WARPS * 32 * V + start;
            if (c < columns) f(k, c);
        }
    } else {
        for (int c = start; c < columns; c += WARPS * 32 * V) f(0, c);
    }
}

// A row of C values, spread over the threads of WARPS warps: in their registers (x) or, if K is 0, read again from
// memory each time.
template <int WARPS, int V, int K, class T>
struct NormRow {
    float x[K > 0 ? K : 1][V];
    const T* values;
    int64_t C;

    template <class F>
    __device__ __forceinline__ void each(F f) const {
        each_vector<WARPS, V, K>(C, f);
    }
    // Calls f(x[k], c) with the values of each vector.
    template <class F>
    __device__ __forceinline__ void each_value(F f) {
        each([&](int k, int c) {
            if constexpr (K == 0) load(x[k], values + c);
            f(x[k], c);
        });
    }
};

template <int WARPS, int V, int K, class T>
__device__ __forceinline__ void load_row(NormRow<WARPS, V, K, T>& row, const T* inp) {
    row.values = inp;
    if constexpr (K > 0) row.each([&](int k, int c) { load_once(row.x[k], inp + c); });
}

// Loads the row inp + branch, and stores it as residual.
template <int WARPS, int V, int K, class T>
__device__ __forceinline__ void load_sum(NormRow<WARPS, V, K, T>& row, T* residual, const T* inp, const T* branch) {
    // All loads come before the first store: residual may be inp or branch, so the compiler cannot reorder them.
    float b[K > 0 ? K : 1][V];
    const auto add = [&](int k, int c) {
        UNROLL for (int v = 0; v < V; ++v) row.x[k][v] = to_float(from_float<T>(row.x[k][v] + b[k][v]));
        store(residual + c, row.x[k]);
    };
    row.each([&](int k, int c) {
        load_once(row.x[k], inp + c);
        load_once(b[k], branch + c);
        if constexpr (K == 0) add(k, c);
    });
    if constexpr (K > 0) row.each(add);
    row.values = residual;
}

struct NormStatistics {
    float mean, reciprocal;  // 1 / sqrt(variance + eps)
};

// Makes two passes, as on the Cpu. The first gives a mean with the rounding errors of the sum; the second corrects it
// by the sum of the distances from it. CENTERED is false for RMSNorm, whose mean is 0.
template <bool CENTERED, int WARPS, int V, int K, class T>
__device__ __forceinline__ NormStatistics statistics(NormRow<WARPS, V, K, T>& row, float eps,
                                                     float (&shared1)[1][WARPS], float (&shared2)[2][WARPS]) {
    const float columns = static_cast<float>(row.C);
    float m = 0;
    if constexpr (CENTERED) {
        float total[1] = {};
        row.each_value([&](const float(&x)[V], int) { UNROLL for (int v = 0; v < V; ++v) total[0] += x[v]; });
        group_sum(total, shared1);
        m = total[0] / columns;
    }
    float sums[2] = {};  // of the distances and of their squares
    row.each_value([&](const float(&x)[V], int) {
        UNROLL for (int v = 0; v < V; ++v) {
            const float d = x[v] - m;
            sums[0] += d;
            sums[1] += d * d;
        }
    });
    group_sum(sums, shared2);
    float variance = sums[1] / columns;
    if constexpr (CENTERED) {
        const float shift = sums[0] / columns;
        m += shift;
        variance -= shift * shift;
        variance = variance < 0 ? 0 : variance;  // NaN stays
    }
    if (variance < INFINITY) return {m, 1 / sqrtf(variance + eps)};
    // The squares overflow, so the values are scaled down; eps is negligible compared with them.
    constexpr float down = 0x1p-64f;
    float squares[1] = {};
    row.each_value([&](const float(&x)[V], int) {
        UNROLL for (int v = 0; v < V; ++v) {
            const float d = x[v] * down - m * down;
            squares[0] += d * d;
        }
    });
    group_sum(squares, shared1);
    return {m, down / sqrtf(squares[0] / columns)};
}

// out (C) = norm * weight + bias. RMSNorm rounds norm to T first, as torch.nn.RMSNorm does.
template <bool CENTERED, int WARPS, int V, int K, class T>
__device__ __forceinline__ void write_row(T* __restrict__ out, NormRow<WARPS, V, K, T>& row, NormStatistics s,
                                          const T* __restrict__ weight, const T* __restrict__ bias) {
    row.each_value([&](const float(&x)[V], int c) {
        float w[V], b[V], y[V];
        load_or(w, weight, c, 1);
        load_or(b, bias, c, 0);
        UNROLL for (int v = 0; v < V; ++v) {
            y[v] = (x[v] - s.mean) * s.reciprocal;
            if constexpr (!CENTERED) y[v] = to_float(from_float<T>(y[v]));
            y[v] = y[v] * w[v] + b[v];
        }
        store(out + c, y);
    });
}

// out (N,C), mean (N), rstd (N) as layernorm_forward; with RESIDUAL, of residual (N,C) = inp + branch, which is written
// too. CENTERED is false for RMSNorm, which has no mean and no bias. Block (32 * WARPS, rows); a row's values are read
// from memory once if K is not 0.
template <bool CENTERED, bool RESIDUAL, int WARPS, int V, int K, class T>
__global__ void __launch_bounds__(WARPS < 4 ? 128 : 32 * WARPS)
    norm_forward_kernel(T* residual, T* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd,
                        const T* inp, const T* branch, const T* __restrict__ weight, const T* __restrict__ bias,
                        int64_t N, int64_t C, float eps) {
    __shared__ float shared1[1][WARPS];
    __shared__ float shared2[2][WARPS];
    const int64_t n = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
    if (n >= N) return;  // only if WARPS is 1: whole warps return, and no barrier follows
    NormRow<WARPS, V, K, T> row;
    row.C = C;
    if constexpr (RESIDUAL)
        load_sum(row, residual + n * C, inp + n * C, branch + n * C);
    else
        load_row(row, inp + n * C);
    const NormStatistics s = statistics<CENTERED>(row, eps, shared1, shared2);
    write_row<CENTERED>(out + n * C, row, s, weight, bias);
    if (threadIdx.x == 0) {
        if constexpr (CENTERED) mean[n] = s.mean;
        rstd[n] = s.reciprocal;
    }
}

// Each thread keeps up to 32 values of a row in registers. Single values (V = 1) need more registers, for their
// addresses: with 16 warps they would spill, so long rows are read again instead.
template <bool CENTERED, bool RESIDUAL, class T>
void norm_forward(Cuda& dev, const char* name, T* residual, T* out, float* mean, float* rstd, const T* inp,
                  const T* branch, const T* weight, const T* bias, int64_t N, int64_t C, float eps) {
    const Timed timed(dev, name, 0, (RESIDUAL ? 4 : 2) * prod(N, C, sizeof(T)));
    if (N == 0 || C == 0) return;
    const auto launch = [&]<int WARPS, int V, int K>() {
        const unsigned rows = WARPS < 4 ? 4 / WARPS : 1;
        LAUNCH((norm_forward_kernel<CENTERED, RESIDUAL, WARPS, V, K, T>), static_cast<unsigned>((N + rows - 1) / rows),
               dim3(32 * WARPS, rows), 0, dev.stream, residual, out, mean, rstd, inp, branch, weight, bias, N, C, eps);
    };
    const auto launch_for = [&]<int V>() {
        if (C <= 1024) return launch.template operator()<1, V, 32 / V>();
        if (C <= 4096) return launch.template operator()<4, V, 32 / V>();
        constexpr int K = V > 1 ? 32 / V : 0;
        if (C <= 512 * V * K) return launch.template operator()<16, V, K>();
        launch.template operator()<16, V, 0>();
    };
    if (can_pack<T>(C, residual, out, inp, branch, weight, bias))
        launch_for.template operator()<packed<T>>();
    else
        launch_for.template operator()<1>();
}

// sums (2,C) = the sums of dw and of db over a block's groups of WARPS warps, added in order.
template <int WARPS, int V, int K, int GROUPS>
__device__ __forceinline__ void write_sums(float* sums, const float (&dw)[K][V], const float (&db)[K][V], int64_t C) {
    const auto each = [&](auto f) { each_vector<WARPS, V, K>(C, f); };
    if constexpr (GROUPS == 1) {
        each([&](int k, int c) { store(sums + c, dw[k]), store(sums + C + c, db[k]); });
    } else {
        __shared__ float total[2][32 * WARPS * V * K];
        for (int group = 0; group < GROUPS; ++group) {
            if (group == static_cast<int>(threadIdx.y))
                each([&](int k, int c) {
                    UNROLL for (int v = 0; v < V; ++v) {
                        total[0][c + v] = group == 0 ? dw[k][v] : total[0][c + v] + dw[k][v];
                        total[1][c + v] = group == 0 ? db[k][v] : total[1][c + v] + db[k][v];
                    }
                });
            __syncthreads();
        }
        const int threads = static_cast<int>(blockDim.x * blockDim.y), columns_of_both = 2 * static_cast<int>(C);
        for (int i = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); i < columns_of_both; i += threads)
            sums[i] = i < C ? total[0][i] : total[1][i - C];
    }
}

// dinp (N,C) as layernorm_backward. If partial is not null, block b writes its rows' contribution to dweight to
// partial[b][0] (C), and that to dbias to partial[b][1] (C). Block (32 * WARPS, GROUPS): each group of WARPS warps goes
// through rows of its own and keeps its sums for dweight and dbias in registers; at the end the groups' sums are added
// in order. If K is 0, the sums are kept in `partial`. A thread keeps V * K values each of norm, dnorm, dw and db. By
// ptxas of CUDA 13.0 for sm_80 and sm_90 that takes at most 77 registers for C <= 4096 (8 values), and 97 to 128 for C
// <= 8192 (16 values), without a spill. 128 is all that 512 threads can have, with one block per multiprocessor. K = 0
// takes at most 62.
constexpr int backward_warps = 16;  // in a block
template <bool CENTERED, int WARPS, int V, int K, class T>
__global__ void __launch_bounds__(32 * backward_warps)
    norm_backward_kernel(T* dinp, float* __restrict__ partial, const T* __restrict__ dout, const T* __restrict__ inp,
                         const T* __restrict__ weight, const float* __restrict__ mean, const float* __restrict__ rstd,
                         const T* dresidual, int64_t N, int64_t C) {
    constexpr int GROUPS = backward_warps / WARPS, KEPT = K > 0 ? K : 1;
    __shared__ float scratch[2][GROUPS][2][WARPS];  // used in turns: a barrier lies between two uses of each half
    const auto each = [&](auto f) { each_vector<WARPS, V, K>(C, f); };
    const float columns = static_cast<float>(C);
    float norm[KEPT][V], dnorm[KEPT][V], dw[KEPT][V] = {}, db[KEPT][V] = {};
    float* const sums = partial ? partial + blockIdx.x * 2 * C : nullptr;
    if constexpr (K == 0) {
        if (sums) each([&](int k, int c) { store(sums + c, dw[k]), store(sums + C + c, db[k]); });
    }
    int turn = 0;
    for (int64_t first = int64_t{blockIdx.x} * GROUPS; first < N; first += int64_t{gridDim.x} * GROUPS, turn ^= 1) {
        const int64_t row = first + threadIdx.y;
        const bool valid = row < N;  // all groups take part in the barriers
        const float m = CENTERED && valid ? mean[row] : 0, r = valid ? rstd[row] : 0;
        const auto read = [&](int k, int c, float(&dy)[V]) {
            float w[V];
            load_or(w, weight, c, 1);
            load_once(dy, dout + row * C + c);
            load_once(norm[k], inp + row * C + c);
            UNROLL for (int v = 0; v < V; ++v) {
                norm[k][v] = (norm[k][v] - m) * r;
                dnorm[k][v] = dy[v] * w[v];
            }
        };
        float means[2] = {};  // of dnorm and dnorm * norm
        if (valid)
            each([&](int k, int c) {
                float dy[V];
                read(k, c, dy);
                if constexpr (K == 0) {
                    if (sums) load(dw[k], sums + c), load(db[k], sums + C + c);
                }
                UNROLL for (int v = 0; v < V; ++v) {
                    means[0] += dnorm[k][v];
                    means[1] += dnorm[k][v] * norm[k][v];
                    dw[k][v] += dy[v] * norm[k][v];
                    db[k][v] += dy[v];
                }
                if constexpr (K == 0) {
                    if (sums) store(sums + c, dw[k]), store(sums + C + c, db[k]);
                }
            });
        if (!dinp) continue;
        group_sum(means, scratch[turn][threadIdx.y]);
        UNROLL for (int i = 0; i < 2; ++i) means[i] /= columns;
        if (!CENTERED) means[0] = 0;
        if (valid)
            each([&](int k, int c) {
                float dy[V], dx[V];
                if constexpr (K == 0) read(k, c, dy);
                load_or(dx, dresidual, row * C + c, 0);
                UNROLL for (int v = 0; v < V; ++v) dx[v] += r * (dnorm[k][v] - means[0] - norm[k][v] * means[1]);
                store(dinp + row * C + c, dx);
            });
    }
    if constexpr (K > 0) {
        if (sums) write_sums<WARPS, V, K, GROUPS>(sums, dw, db, C);
    }
}

// dweight (C) += sum over b of partial[b][0], dbias (C) += sum over b of partial[b][1]; either may be null.
// Block (32, 8): 32 columns; each threadIdx.y adds every 8th of the blocks' sums, then those 8 are added. Grid
// (columns, 2).
static __global__ void __launch_bounds__(256)
    norm_parameters_kernel(float* dweight, float* dbias, const float* __restrict__ partial, int blocks, int64_t C) {
    __shared__ float tile[8][32];
    float* const gradient = blockIdx.y == 0 ? dweight : dbias;
    if (!gradient) return;
    const int64_t column = int64_t{blockIdx.x} * 32 + threadIdx.x;
    float sum = 0;
    if (column < C)
        for (int b = static_cast<int>(threadIdx.y); b < blocks; b += 8)
            sum += partial[(2 * b + blockIdx.y) * C + column];
    tile[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= C) return;
    UNROLL for (int y = 1; y < 8; ++y) sum += tile[y][threadIdx.x];
    gradient[column] += sum;
}

// Launches as many blocks as can run at once, or fewer: the shape of the sums depends only on the GPU's size, N and C.
template <bool CENTERED, class T>
void norm_backward(Cuda& dev, const char* name, T* dinp, float* dweight, float* dbias, const T* dout, const T* inp,
                   const T* weight, const float* mean, const float* rstd, const T* dresidual, int64_t N, int64_t C) {
    const Timed timed(dev, name, 0, (dresidual ? 4 : 3) * prod(N, C, sizeof(T)));
    if (N == 0 || C == 0) return;
    const bool parameters = dweight || dbias;
    int64_t blocks = 0;
    float* partial = nullptr;
    const auto launch = [&]<int WARPS, int V, int K>() {
        constexpr int GROUPS = backward_warps / WARPS;
        blocks = std::min<int64_t>((N + GROUPS - 1) / GROUPS, 2 * dev.multiprocessors);
        if (parameters) partial = dev.scratch(blocks * 2 * C);
        LAUNCH((norm_backward_kernel<CENTERED, WARPS, V, K, T>), static_cast<unsigned>(blocks),
               dim3(32 * WARPS, GROUPS), 0, dev.stream, dinp, partial, dout, inp, weight, mean, rstd, dresidual, N, C);
    };
    const auto launch_for = [&]<int V>() {
        if (C <= 256) return launch.template operator()<1, V, 8 / V>();
        if (C <= 1024) return launch.template operator()<4, V, 8 / V>();
        if (C <= 4096) return launch.template operator()<16, V, 8 / V>();
        if (C <= 8192) return launch.template operator()<16, V, 16 / V>();
        launch.template operator()<16, V, 0>();
    };
    if (can_pack<T>(C, dinp, dout, inp, weight, dresidual))
        launch_for.template operator()<packed<T>>();
    else
        launch_for.template operator()<1>();
    if (parameters)
        LAUNCH(norm_parameters_kernel, dim3(static_cast<unsigned>((C + 31) / 32), 2), dim3(32, 8), 0, dev.stream,
               dweight, dbias, partial, static_cast<int>(blocks), C);
}

// out (N,C) = (inp - mean) * rstd * weight + bias        mean (N), rstd (N)        weight, bias (C) may be null
template <class T>
void layernorm_forward(Cuda& dev, T* out, float* mean, float* rstd, const T* inp, const std::type_identity_t<T>* weight,
                       const std::type_identity_t<T>* bias, int64_t N, int64_t C, float eps = 1e-5f) {
    norm_forward<true, false, T>(dev, "layernorm_forward", nullptr, out, mean, rstd, inp, nullptr, weight, bias, N, C,
                                 eps);
}

// residual (N,C) = inp + branch        out, mean, rstd: layernorm_forward of residual, which may be inp or branch
// itself
// GPT-2 adds the residual in the matmul instead (matmul_residual_forward): in bf16, matmul and norm then move 8 C bytes
// per token (inp in, residual out; residual in, out). With this function it would be 10 C (branch out; inp and branch
// in, residual and out).
template <class T>
void residual_layernorm_forward(Cuda& dev, T* residual, T* out, float* mean, float* rstd, const T* inp, const T* branch,
                                const std::type_identity_t<T>* weight, const std::type_identity_t<T>* bias, int64_t N,
                                int64_t C, float eps = 1e-5f) {
    norm_forward<true, true, T>(dev, "residual_layernorm_forward", residual, out, mean, rstd, inp, branch, weight, bias,
                                N, C, eps);
}

// forward: out = norm * weight + bias
// dinp (N,C) = dresidual + rstd * (dnorm - mean(dnorm) - norm * mean(dnorm * norm)),  dnorm = dout * weight
// dweight (C) += sum over rows of dout * norm        dbias (C) += sum over rows of dout
// dresidual may be dinp itself or null; any of dinp, dweight, dbias may be null.
template <class T>
void layernorm_backward(Cuda& dev, std::type_identity_t<T>* dinp, float* dweight, float* dbias, const T* dout,
                        const T* inp, const std::type_identity_t<T>* weight, const float* mean, const float* rstd,
                        const std::type_identity_t<T>* dresidual, int64_t N, int64_t C) {
    norm_backward<true, T>(dev, "layernorm_backward", dinp, dweight, dbias, dout, inp, weight, mean, rstd, dresidual, N,
                           C);
}
