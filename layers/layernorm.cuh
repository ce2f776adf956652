// Layer normalisation on the Cuda device, and RMS normalisation (layers/rmsnorm.cuh), which is the same without the
// mean. T is how tensors are stored, float or bf16; all is computed in fp32.
#pragma once

#include "layers/cuda_common.cuh"
#include "layers/layernorm.h"

// A row is spread over WARPS warps. A thread takes V values next to each other at once, the next V after those of all
// the row's threads, and so on: f(k, c) for its k-th time, at column c. Where K is not 0 a thread has K times at most
// and k is a constant once unrolled, so that x[k] is a register; where K is 0, a row is too long to be kept: k is 0.
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

// out (N,C), mean (N), rstd (N) as layernorm_forward. RESIDUAL: of residual (N,C) = inp + branch, which is written too.
// CENTERED is false for RMSNorm: no mean, no bias, and norm rounded to T before it is multiplied by weight.
// Block (32 * WARPS, rows); a row's values are read from memory once if K is not 0.
template <bool CENTERED, bool RESIDUAL, int WARPS, int V, int K, class T>
__global__ void __launch_bounds__(WARPS < 4 ? 128 : 32 * WARPS)
    norm_forward_kernel(T* residual, T* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd,
                        const T* inp, const T* branch, const T* __restrict__ weight, const T* __restrict__ bias,
                        int64_t N, int64_t C, float eps) {
    __shared__ float scratch[3][WARPS];
    const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
    if (row >= N) return;  // only where WARPS is 1: whole warps, and no barrier follows
    const auto each = [&](auto f) { each_vector<WARPS, V, K>(C, f); };
    const float columns = static_cast<float>(C);
    float x[K > 0 ? K : 1][V];
    const T* source = inp + row * C;
    if constexpr (RESIDUAL) {
        // all loads before the first store: residual may be inp or branch, so the compiler cannot change their order
        float b[K > 0 ? K : 1][V];
        T* const sum = residual + row * C;
        const auto write = [&](int k, int c) {
            UNROLL for (int v = 0; v < V; ++v) x[k][v] = to_float(from_float<T>(x[k][v] + b[k][v]));
            store(sum + c, x[k]);
        };
        each([&](int k, int c) {
            load_once(x[k], source + c);
            load_once(b[k], branch + row * C + c);
            if constexpr (K == 0) write(k, c);
        });
        if constexpr (K > 0) each(write);
        source = sum;
    } else if constexpr (K > 0) {
        each([&](int k, int c) { load_once(x[k], source + c); });
    }
    const auto again = [&](int k, int c) {
        if constexpr (K == 0) load(x[k], source + c);
    };

    // As on the Cpu: a mean off by the sum's roundings, then the sum of the distances from it puts it right.
    float m = 0, shift = 0, squares = 0;
    if constexpr (CENTERED) {
        float total = 0;
        each([&](int k, int c) {
            again(k, c);
            UNROLL for (int v = 0; v < V; ++v) total += x[k][v];
        });
        m = group_sum<WARPS>(total, scratch[0]) / columns;
    }
    each([&](int k, int c) {
        again(k, c);
        UNROLL for (int v = 0; v < V; ++v) {
            const float d = x[k][v] - m;
            shift += d;
            squares += d * d;
        }
    });
    float variance = group_sum<WARPS>(squares, scratch[1]) / columns;
    if constexpr (CENTERED) {
        shift = group_sum<WARPS>(shift, scratch[2]) / columns;
        m += shift;
        variance -= shift * shift;
        variance = variance < 0 ? 0 : variance;  // NaN stays
    }
    const float r = 1 / sqrtf(variance + eps);

    each([&](int k, int c) {
        again(k, c);
        float w[V], b[V], y[V];
        load_or(w, weight, c, 1);
        load_or(b, bias, c, 0);
        UNROLL for (int v = 0; v < V; ++v) {
            y[v] = (x[k][v] - m) * r;
            if constexpr (!CENTERED) y[v] = to_float(from_float<T>(y[v]));
            y[v] = y[v] * w[v] + b[v];
        }
        store(out + row * C + c, y);
    });
    if (threadIdx.x == 0) {
        if constexpr (CENTERED) mean[row] = m;
        rstd[row] = r;
    }
}

// Up to 32 values of a row in each thread's registers.
template <bool CENTERED, bool RESIDUAL, class T>
void norm_forward(Cuda& dev, const char* name, T* residual, T* out, float* mean, float* rstd, const T* inp,
                  const T* branch, const T* weight, const T* bias, int64_t N, int64_t C, float eps) {
    const Timed timed(dev, name, 0, (RESIDUAL ? 4 : 2) * product(N, C, sizeof(T)));
    if (N == 0 || C == 0) return;
    const auto launch = [&]<int WARPS, int V, int K>() {
        const unsigned rows = WARPS < 4 ? 4 / WARPS : 1;
        LAUNCH((norm_forward_kernel<CENTERED, RESIDUAL, WARPS, V, K, T>), static_cast<unsigned>((N + rows - 1) / rows),
               dim3(32 * WARPS, rows), 0, dev.stream, residual, out, mean, rstd, inp, branch, weight, bias, N, C, eps);
    };
    const auto launch_for = [&]<int V>() {
        if (C <= 1024) return launch.template operator()<1, V, 32 / V>();
        if (C <= 4096) return launch.template operator()<4, V, 32 / V>();
        if (C <= 16384) return launch.template operator()<16, V, 32 / V>();
        launch.template operator()<16, V, 0>();
    };
    if (can_pack<T>(C, residual, out, inp, branch, weight, bias))
        launch_for.template operator()<packed<T>>();
    else
        launch_for.template operator()<1>();
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
template <class T>
void residual_layernorm_forward(Cuda& dev, T* residual, T* out, float* mean, float* rstd, const T* inp, const T* branch,
                                const std::type_identity_t<T>* weight, const std::type_identity_t<T>* bias, int64_t N,
                                int64_t C, float eps = 1e-5f) {
    norm_forward<true, true, T>(dev, "residual_layernorm_forward", residual, out, mean, rstd, inp, branch, weight, bias,
                                N, C, eps);
}
