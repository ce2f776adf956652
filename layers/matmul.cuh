// Linear layers on the Cuda device, by cuBLASLt (device/cuda/cublaslt.cuh). T is the type of tensors, float or bf16;
// gradients of parameters are floats. If cuBLASLt cannot fuse an epilogue, because rows are not aligned for it, a
// separate kernel follows; in bf16 the result is then rounded once more.
#pragma once

#include "device/cuda/cublaslt.cuh"
#include "layers/gelu.cuh"
#include "layers/matmul.h"

// Whether dev.fuse_gelu is likely to be faster: it is on Hopper, and on Blackwell in data centres. On other chips
// cuBLASLt is reported to run GELU in a separate or in a slow kernel.
inline bool fused_gelu_pays() {
    const int major = device_attribute(cudaDevAttrComputeCapabilityMajor);
    return major == 9 || major == 10;
}

// GELU is not fused in plain fp32, because the library's tanh is an approximation.
template <class T>
bool fuses_gelu(const Cuda& dev) {
    return dev.fuse_gelu && (std::is_same_v<T, bf16> || dev.tf32);
}

// out (N,OC) += bias (OC)
template <int V, class T>
__global__ void __launch_bounds__(256) add_bias_kernel(T* out, const T* __restrict__ bias, int64_t N, int64_t OC) {
    const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * V;
    if (i >= N * OC) return;
    float x[V], b[V];
    load(x, out + i);
    load(b, bias + i % OC);
    UNROLL for (int v = 0; v < V; ++v) x[v] += b[v];
    store(out + i, x);
}
template <class T>
void add_bias(Cuda& dev, T* out, const T* bias, int64_t N, int64_t OC) {
    const auto launch = [&]<int V>() {
        LAUNCH((add_bias_kernel<V, T>), static_cast<unsigned>((N * OC / V + 255) / 256), 256, 0, dev.stream, out, bias,
               N, OC);
    };
    if (can_pack<T>(OC, out, bias))
        launch.template operator()<packed<T>>();
    else
        launch.template operator()<1>();
}

// partial[block of rows] (OC) = sum over those rows of dout (N,OC). Block (32, 8): 32 times V columns; each threadIdx.y
// adds every 8th row, then those 8 are added in order.
template <int V, class T>
__global__ void __launch_bounds__(256)
    column_sums_kernel(float* __restrict__ partial, const T* __restrict__ dout, int64_t N, int64_t OC, int64_t rows) {
    __shared__ float tile[8][32][V];
    const int64_t column = (int64_t{blockIdx.x} * 32 + threadIdx.x) * V, first = blockIdx.y * rows;
    const int64_t last = min(first + rows, N);
    float sum[V] = {};
    if (column < OC)
        for (int64_t row = first + threadIdx.y; row < last; row += 8) {
            float x[V];
            load(x, dout + row * OC + column);
            UNROLL for (int v = 0; v < V; ++v) sum[v] += x[v];
        }
    UNROLL for (int v = 0; v < V; ++v) tile[threadIdx.y][threadIdx.x][v] = sum[v];
    __syncthreads();
    if (threadIdx.y > 0 || column >= OC) return;
    UNROLL for (int v = 0; v < V; ++v) {
        UNROLL for (int y = 1; y < 8; ++y) sum[v] += tile[y][threadIdx.x][v];
        partial[blockIdx.y * OC + column + v] = sum[v];
    }
}
// sums (n) += in order, each of parts (count,n)
template <class T>
__global__ void __launch_bounds__(256) add_parts_kernel(T* sums, const T* __restrict__ parts, int count, int64_t n) {
    const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i >= n) return;
    T sum = 0;
    for (int part = 0; part < count; ++part) sum += parts[part * n + i];
    sums[i] += sum;
}
inline void add_parts(Cuda& dev, float* sums, const float* parts, int count, int64_t n) {
    LAUNCH(add_parts_kernel<float>, static_cast<unsigned>((n + 255) / 256), 256, 0, dev.stream, sums, parts, count, n);
}
// dbias (OC) += sum over rows of dout (N,OC). The shape of the sum depends only on N.
template <class T>
void add_column_sums(Cuda& dev, float* dbias, const T* dout, int64_t N, int64_t OC) {
    const int64_t rows = std::max<int64_t>(64, (N + 63) / 64), parts = (N + rows - 1) / rows;
    float* const partial = dev.scratch(parts * OC);
    const auto launch = [&]<int V>() {
        LAUNCH((column_sums_kernel<V, T>),
               dim3(static_cast<unsigned>((OC + 32 * V - 1) / (32 * V)), static_cast<unsigned>(parts)), dim3(32, 8), 0,
               dev.stream, partial, dout, N, OC, rows);
    };
    if (can_pack<T>(OC, dout))
        launch.template operator()<packed<T>>();
    else
        launch.template operator()<1>();
    add_parts(dev, dbias, partial, static_cast<int>(parts), OC);
}

// out (N,OC) = residual + inp · weightᵀ + bias; residual and bias may be null
template <class T>
void linear_forward(Cuda& dev, T* out, const T* inp, const T* weight, const T* bias, const T* residual, int64_t N,
                    int64_t C, int64_t OC) {
    Matmul<T, T> p{.out = out, .a = inp, .b = weight, .M = N, .N = OC, .K = C, .b_transposed = true};
    if (residual) p.beta = 1, p.c = residual;
    const Matmul<T, T> without_bias = p;
    if (bias) p.epilogue = CUBLASLT_EPILOGUE_BIAS, p.bias = bias;
    if (bias && try_matmul(dev, p)) return;
    matmul(dev, without_bias);
    if (bias) add_bias(dev, out, bias, N, OC);
}

// dweight (OC,C) += doutᵀ · inp, = unless accumulate        dbias (OC) += sum over rows of dout; may be null
template <class T>
void linear_parameters_backward(Cuda& dev, float* dweight, float* dbias, const T* dout, const T* inp, int64_t N,
                                int64_t C, int64_t OC, bool accumulate) {
    const Timed timed(dev, "matmul_backward_weight", 2 * prod(N, C, OC), 0);
    if (N == 0) return accumulate ? void() : zero(dev, dweight, OC * C);
    Matmul<T, float> p{.out = dweight,
                       .a = dout,
                       .b = inp,
                       .M = OC,
                       .N = C,
                       .K = N,
                       .a_transposed = true,
                       .beta = accumulate ? 1.0f : 0.0f};
    if (!dbias) return matmul(dev, p);
    const Matmul<T, float> weight_alone = p;
    float* const sums = dev.scratch(OC);
    // dout is an operand of this matmul, so its sums cost no memory access, and fusing them before (DGELU_BGRAD) would
    // save none.
    p.epilogue = CUBLASLT_EPILOGUE_BGRADB, p.a_sums = sums;
    if (try_matmul(dev, p)) return add_parts(dev, dbias, sums, 1, OC);
    matmul(dev, weight_alone);
    add_column_sums(dev, dbias, dout, N, OC);
}

// out (N,OC) = inp (N,C) · weight (OC,C)ᵀ + bias (OC), which may be null
template <class T>
void matmul_forward(Cuda& dev, T* out, const T* inp, const T* weight, const std::type_identity_t<T>* bias, int64_t N,
                    int64_t C, int64_t OC) {
    const Timed timed(dev, "matmul_forward", 2 * prod(N, C, OC), 0);
    if (N > 0) linear_forward<T>(dev, out, inp, weight, bias, nullptr, N, C, OC);
}

// forward: out = inp · weightᵀ + bias
// dinp (N,C) = dout · weight      dweight (OC,C) += doutᵀ · inp      dbias (OC) += sum over rows of dout; may be null
// Without `accumulate`, dweight is set, not added to; dbias is always +=.
template <class T>
void matmul_backward(Cuda& dev, T* dinp, float* dweight, float* dbias, const T* dout, const T* inp, const T* weight,
                     int64_t N, int64_t C, int64_t OC, bool accumulate = true) {
    linear_parameters_backward(dev, dweight, dbias, dout, inp, N, C, OC, accumulate);
    if (N == 0) return;
    const Timed timed(dev, "matmul_backward_input", 2 * prod(N, C, OC), 0);
    matmul(dev, Matmul<T, T>{.out = dinp, .a = dout, .b = weight, .M = N, .N = C, .K = OC});
}

// pre (N,OC) = inp · weightᵀ + bias        out (N,OC) = gelu(pre); if fused, of pre before it is rounded
template <class T>
void matmul_gelu_forward(Cuda& dev, T* out, T* pre, const T* inp, const T* weight, const T* bias, int64_t N, int64_t C,
                         int64_t OC) {
    if (N == 0) return;
    {
        const Timed timed(dev, "matmul_gelu_forward", 2 * prod(N, C, OC), 0);
        Matmul<T, T> fused{.out = out, .a = inp, .b = weight, .M = N, .N = OC, .K = C, .b_transposed = true};
        fused.epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS, fused.bias = bias, fused.aux = pre;
        if (fuses_gelu<T>(dev) && try_matmul(dev, fused)) return;
        linear_forward<T>(dev, pre, inp, weight, bias, nullptr, N, C, OC);
    }
    gelu_forward(dev, out, pre, N * OC);
}

// dpre (N,C) = (dout · weight) * gelu'(pre)
template <class T>
void linear_gelu_input_backward(Cuda& dev, T* dpre, const T* dout, const T* pre, const T* weight, int64_t N, int64_t C,
                                int64_t OC) {
    if (N == 0) return;
    {
        const Timed timed(dev, "matmul_gelu_backward_input", 2 * prod(N, C, OC), 0);
        const Matmul<T, T> plain{.out = dpre, .a = dout, .b = weight, .M = N, .N = C, .K = OC};
        Matmul<T, T> fused = plain;
        fused.epilogue = CUBLASLT_EPILOGUE_DGELU, fused.aux = pre;
        if (fuses_gelu<T>(dev) && try_matmul(dev, fused)) return;
        matmul(dev, plain);
    }
    gelu_backward(dev, dpre, pre, dpre, N * C);
}

// The backward of a linear layer whose input was inp = gelu(pre); dpre, pre (N,C).
// dpre = (dout · weight) * gelu'(pre)        dweight, dbias as matmul_backward's
// If inp is null it is recomputed from the rounded pre, which it overwrites.
template <class T>
void matmul_gelu_backward(Cuda& dev, T* dpre, float* dweight, float* dbias, const T* dout, const T* inp, T* pre,
                          const T* weight, int64_t N, int64_t C, int64_t OC, bool accumulate = true) {
    linear_gelu_input_backward(dev, dpre, dout, pre, weight, N, C, OC);
    if (!inp && N > 0) gelu_forward(dev, pre, pre, N * C);
    linear_parameters_backward(dev, dweight, dbias, dout, inp ? inp : pre, N, C, OC, accumulate);
}

// out (N,OC) = residual (N,OC) + inp · weightᵀ + bias; out may be residual. Its backward is matmul_backward.
template <class T>
void matmul_residual_forward(Cuda& dev, T* out, const T* inp, const T* weight, const T* bias, const T* residual,
                             int64_t N, int64_t C, int64_t OC) {
    const Timed timed(dev, "matmul_residual_forward", 2 * prod(N, C, OC), 0);
    if (N > 0) linear_forward<T>(dev, out, inp, weight, bias, residual, N, C, OC);
}
