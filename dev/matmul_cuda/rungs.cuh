// The ladder of the matmul on a GPU, in fp32: N·OC·C FMAs on far fewer floats. The question is how often a value is
// used each time it is loaded, from memory into shared memory, and from there into registers.
#pragma once

#include "layers/matmul.cuh"

namespace rungs {

// Element (i,j) is data[i * row + j * column], so that one kernel multiplies by matrices and by their transposes.
struct View {
    const float* data;
    int64_t row, column;
    __device__ float at(int64_t i, int64_t j) const { return data[i * row + j * column]; }
};
inline View rows(const float* data, int64_t columns) { return {data, columns, 1}; }
inline View transposed(const float* data, int64_t columns) { return {data, 1, columns}; }

// out (M,N) = a (M,K) · b (K,N) + bias (N), which may be null; += if accumulate.
struct Task {
    float* out;
    View a, b;
    const float* bias;
    int64_t M, N, K;
    bool accumulate = false;
    __device__ void finish(int64_t i, int64_t j, float sum) const {
        if (i >= M || j >= N) return;
        if (bias) sum += bias[j];
        out[i * N + j] = accumulate ? out[i * N + j] + sum : sum;
    }
};
inline unsigned blocks(int64_t n, int64_t each) { return static_cast<unsigned>((n + each - 1) / each); }

// 1. One thread per element. It loads two floats for each FMA. Neighbours in a warp share one of them, but if b is a
// transpose, the other lies in 32 different cache lines.
__global__ void __launch_bounds__(256) naive_kernel(Task t) {
    const int64_t i = int64_t{blockIdx.y} * 16 + threadIdx.y, j = int64_t{blockIdx.x} * 16 + threadIdx.x;
    if (i >= t.M || j >= t.N) return;
    float sum = 0;
    for (int64_t k = 0; k < t.K; ++k) sum += t.a.at(i, k) * t.b.at(k, j);
    t.finish(i, j, sum);
}
inline void naive(Cuda& dev, const Task& t) {
    LAUNCH(naive_kernel, dim3(blocks(t.N, 16), blocks(t.M, 16)), dim3(16, 16), 0, dev.stream, t);
}

// Copies size_i x size_k elements of x from (i0,k0) on to tile[k][i]; elements beyond x are zeros. Neighbouring threads
// copy elements that are neighbours in memory, for either storage order of x.
template <int size_i, int size_k, int stride>
__device__ void load_tile(float (&tile)[size_k][stride], const View& x, int64_t i0, int64_t k0, int64_t last_i,
                          int64_t last_k) {
    for (int n = static_cast<int>(threadIdx.y * 16 + threadIdx.x); n < size_i * size_k; n += 256) {
        const int i = x.row == 1 ? n % size_i : n / size_k, k = x.row == 1 ? n / size_i : n % size_k;
        tile[k][i] = i0 + i < last_i && k0 + k < last_k ? x.at(i0 + i, k0 + k) : 0;
    }
}
__device__ inline View transpose(const View& x) { return {x.data, x.column, x.row}; }

// 2. A block of 16 x 16 threads loads 16 x 16 tiles of a and b into shared memory, where each value is used 16 times.
// Rows are 17 floats apart, so that the elements of a column are in 16 different banks.
__global__ void __launch_bounds__(256) shared_kernel(Task t) {
    __shared__ float a[16][17];
    __shared__ float b[16][17];
    const int64_t i0 = int64_t{blockIdx.y} * 16, j0 = int64_t{blockIdx.x} * 16;
    const unsigned y = threadIdx.y, x = threadIdx.x;
    float sum = 0;
    for (int64_t k0 = 0; k0 < t.K; k0 += 16) {
        load_tile<16, 16>(a, t.a, i0, k0, t.M, t.K);
        load_tile<16, 16>(b, transpose(t.b), j0, k0, t.N, t.K);
        __syncthreads();
        UNROLL for (int k = 0; k < 16; ++k) sum += a[k][y] * b[k][x];
        __syncthreads();
    }
    t.finish(i0 + y, j0 + x, sum);
}
inline void shared_tiles(Cuda& dev, const Task& t) {
    LAUNCH(shared_kernel, dim3(blocks(t.N, 16), blocks(t.M, 16)), dim3(16, 16), 0, dev.stream, t);
}

// 3. A thread computes 4 x 4 elements, 16 apart, in registers: 8 loads from shared memory feed 16 FMAs, where before 2
// fed 1, and each value from memory is used 64 times.
__global__ void __launch_bounds__(256) register_kernel(Task t) {
    __shared__ float a[16][65];
    __shared__ float b[16][65];
    const int64_t i0 = int64_t{blockIdx.y} * 64, j0 = int64_t{blockIdx.x} * 64;
    const unsigned y = threadIdx.y, x = threadIdx.x;
    float sum[4][4] = {};
    for (int64_t k0 = 0; k0 < t.K; k0 += 16) {
        load_tile<64, 16>(a, t.a, i0, k0, t.M, t.K);
        load_tile<64, 16>(b, transpose(t.b), j0, k0, t.N, t.K);
        __syncthreads();
        UNROLL for (int k = 0; k < 16; ++k) {
            float left[4], right[4];
            UNROLL for (int r = 0; r < 4; ++r) left[r] = a[k][y + 16 * r], right[r] = b[k][x + 16 * r];
            UNROLL for (int r = 0; r < 4; ++r) UNROLL for (int c = 0; c < 4; ++c) sum[r][c] += left[r] * right[c];
        }
        __syncthreads();
    }
    UNROLL for (int r = 0; r < 4; ++r) UNROLL for (int c = 0; c < 4; ++c)
        t.finish(i0 + y + 16 * r, j0 + x + 16 * c, sum[r][c]);
}
inline void register_tiles(Cuda& dev, const Task& t) {
    LAUNCH(register_kernel, dim3(blocks(t.N, 64), blocks(t.M, 64)), dim3(16, 16), 0, dev.stream, t);
}

// dbias (OC) += sum over rows of dout (N,OC): the same in all of the backward's rungs but the last.
__global__ void dbias_kernel(float* dbias, const float* dout, int64_t N, int64_t OC) {
    const int64_t o = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (o >= OC) return;
    float sum = 0;
    for (int64_t n = 0; n < N; ++n) sum += dout[n * OC + o];
    dbias[o] += sum;
}

}  // namespace rungs
