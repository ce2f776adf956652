// Token and position embedding on the Cuda device. T is how the weights, `out` and `dout` are stored, float or bf16;
// gradients of weights are float. Tokens are in device memory.
//
// The backward adds each of dout's N = B*T rows to its token's row of dwte; a batch has between 1 and N different
// tokens. To spread the work evenly and to give sums a fixed shape, one kernel sorts the places by token, the next adds
// up the rows in each chunk of 32 sorted places, and the last adds the partial sums of tokens that continue in the next
// chunk. Cost: reading dout once, reading and writing dwte's rows once, 3 int32 per token, and a pass of one block over
// the tokens. If all tokens are the same, 1/32 of dout in fp32 is also written and read.
#pragma once

#include "device/cuda/common.cuh"
#include "layers/embedding.h"

// One warp per row, V values per thread. Block (32, rows).
template <int V, class T>
__global__ void __launch_bounds__(256)
    embedding_forward_kernel(T* __restrict__ out, const int32_t* __restrict__ tokens, const T* __restrict__ wte,
                             const T* __restrict__ wpe, int64_t N, int64_t seq, int64_t C) {
    const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
    if (row >= N) return;
    const T* const token = wte + tokens[row] * C;
    const T* const position = wpe + row % seq * C;
    for (int64_t c = threadIdx.x * V; c < C; c += 32 * V) {
        float x[V], p[V];
        load(x, token + c);
        load(p, position + c);
        UNROLL for (int v = 0; v < V; ++v) x[v] += p[v];
        store(out + row * C + c, x);
    }
}

// out (B,T,C) = wte[tokens[b,t]] + wpe[t]        wte (Vp,C), wpe (maxT,C), tokens (B,T)
template <class T>
void embedding_forward(Cuda& dev, T* out, const int32_t* tokens, const T* wte, const T* wpe, int64_t B, int64_t seq,
                       int64_t C) {
    const int64_t N = B * seq;
    const Timed timed(dev, "embedding_forward", 0, 3 * prod(N, C, sizeof(T)));
    if (N == 0 || C == 0) return;
    constexpr unsigned rows = 8;
    const auto launch = [&]<int V>() {
        LAUNCH((embedding_forward_kernel<V, T>), static_cast<unsigned>((N + rows - 1) / rows), dim3(32, rows), 0,
               dev.stream, out, tokens, wte, wpe, N, seq, C);
    };
    if (can_pack<T>(C, out, wte, wpe))
        launch.template operator()<packed<T>>();
    else
        launch.template operator()<1>();
}

constexpr int sort_warps = 32, sort_digits = 256;

// Turns next (warp, digit) from the number of the warp's tokens with that digit into the place of the first of them: a
// prefix sum over the digits' totals, then over the warps. All threads of the block call it, after a barrier; it ends
// with one.
__device__ __forceinline__ void digit_starts(int (&next)[sort_warps][sort_digits], int (&total)[sort_digits]) {
    const int thread = static_cast<int>(threadIdx.x);
    int sum = 0;
    if (thread < sort_digits) {
        for (int w = 0; w < sort_warps; ++w) sum += next[w][thread];
        total[thread] = sum;
    }
    __syncthreads();
    for (int distance = 1; distance < sort_digits; distance *= 2) {
        const int before = thread < sort_digits && thread >= distance ? total[thread - distance] : 0;
        __syncthreads();
        if (thread < sort_digits) total[thread] += before;
        __syncthreads();
    }
    if (thread < sort_digits) {
        int start = total[thread] - sum;
        for (int w = 0; w < sort_warps; ++w) {
            const int count = next[w][thread];
            next[w][thread] = start;
            start += count;
        }
    }
    __syncthreads();
}

// sorted (N) = tokens (N) in ascending order; place (N) = the original index of each, in ascending order for equal
// tokens. spare (2,N) is for the kernel's own use. One block of 32 warps; each takes a run of consecutive places.
static __global__ void __launch_bounds__(32 * sort_warps, 1)
    sort_tokens_kernel(int32_t* sorted, int32_t* place, int32_t* spare, const int32_t* tokens, int N) {
    __shared__ int next[sort_warps][sort_digits];  // a warp's tokens of a digit, then the place of its next one
    __shared__ int total[sort_digits];
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int share = (N + 32 * sort_warps - 1) / (32 * sort_warps) * 32;  // of a warp
    const int begin = min(warp * share, N), end = min(begin + share, N);
    unsigned all_bits = 0;
    for (int i = begin + lane; i < end; i += 32) all_bits |= static_cast<unsigned>(tokens[i]);
    int passes = 1;
    while (passes < 4 && __syncthreads_or(all_bits >> (8 * passes) != 0)) ++passes;

    const int32_t *from = tokens, *from_place = nullptr;  // null: places are 0 … N-1
    for (int pass = 0; pass < passes; ++pass) {
        const bool into_spare = (passes - pass) % 2 == 0;  // so that the last pass ends in `sorted`
        int32_t *const to = into_spare ? spare : sorted, *const to_place = into_spare ? spare + N : place;
        const auto digit = [&](int32_t token) { return static_cast<unsigned>(token) >> 8 * pass & (sort_digits - 1); };
        for (int d = lane; d < sort_digits; d += 32) next[warp][d] = 0;
        __syncwarp();
        for (int i = begin + lane; i < end; i += 32) atomicAdd(&next[warp][digit(from[i])], 1);
        __syncthreads();
        digit_starts(next, total);
        int32_t token = 0, p = 0;
        const auto read = [&](int i) {
            if (i < end) token = from[i], p = from_place ? from_place[i] : i;
        };
        read(begin + lane);
        for (int i = begin + lane; i - lane < end; i += 32) {
            const bool valid = i < end;
            const int32_t my_token = token, my_place = p;
            read(i + 32);  // the load completes while the warp counts
            const unsigned valid_lanes = __ballot_sync(0xffffffff, valid);
            if (valid) {
                const unsigned d = digit(my_token), same = __match_any_sync(valid_lanes, d);
                const int rank = __popc(same & ((1u << lane) - 1));
                const int start = next[warp][d];
                __syncwarp(valid_lanes);
                if (rank == 0) next[warp][d] = start + __popc(same);
                to[start + rank] = my_token;
                to_place[start + rank] = my_place;
            }
            __syncwarp();
        }
        __syncthreads();
        from = to, from_place = to_place;
    }
}

// Sums the rows of dout in a chunk for each token. The sum is added to dwte's row if all places of the token are in
// this chunk. Otherwise it is written to partial (chunks,2,C): [0] if the token began in an earlier chunk, [1] if it
// begins here and continues. One warp per chunk and slice of 32 * V channels. Grid (chunks / warps, slices), block (32,
// warps).
constexpr int chunk_rows = 32, chunk_warps = 4;
template <int V, class T>
__global__ void __launch_bounds__(32 * chunk_warps)
    embedding_chunks_kernel(float* dwte, float* __restrict__ partial, const T* __restrict__ dout,
                            const int32_t* __restrict__ sorted, const int32_t* __restrict__ place, int64_t N,
                            int64_t C) {
    constexpr int AHEAD = 4;  // rows that are loaded at once
    const int64_t chunk = int64_t{blockIdx.x} * chunk_warps + threadIdx.y;
    const int64_t begin = chunk * chunk_rows, end = min(begin + chunk_rows, N);
    const int64_t c = (int64_t{blockIdx.y} * 32 + threadIdx.x) * V;
    if (begin >= N || c >= C) return;
    bool began_before = begin > 0 && sorted[begin - 1] == sorted[begin];
    float sum[V] = {}, x[AHEAD][V];
    for (int64_t first = begin; first < end; first += AHEAD) {
        UNROLL for (int a = 0; a < AHEAD; ++a) if (first + a < end) load(x[a], dout + place[first + a] * C + c);
        UNROLL for (int a = 0; a < AHEAD; ++a) {
            const int64_t i = first + a;
            if (i >= end) break;
            UNROLL for (int v = 0; v < V; ++v) sum[v] += x[a][v];
            const bool goes_on = i + 1 < N && sorted[i + 1] == sorted[i];
            if (goes_on && i + 1 < end) continue;
            if (goes_on || began_before) {
                store(partial + (2 * chunk + (began_before ? 0 : 1)) * C + c, sum);
            } else {
                float* const target = dwte + sorted[i] * C + c;
                float before[V];
                load(before, target);
                UNROLL for (int v = 0; v < V; ++v) before[v] += sum[v];
                store(target, before);
            }
            began_before = false;
            UNROLL for (int v = 0; v < V; ++v) sum[v] = 0;
        }
    }
}

// dwte's rows of the tokens that begin in one chunk and continue in the next += their partial sums. One block (32, 8)
// per chunk and 32 channels: each threadIdx.y adds every 8th partial sum, then those 8 are added. Grid (chunks,
// slices).
static __global__ void __launch_bounds__(256)
    embedding_partial_kernel(float* dwte, const float* __restrict__ partial, const int32_t* __restrict__ sorted,
                             int64_t N, int64_t C) {
    __shared__ float tile[8][32];
    const int64_t chunk = blockIdx.x, begin = chunk * chunk_rows, end = begin + chunk_rows;
    if (end >= N) return;
    const int32_t token = sorted[end - 1];
    const bool began_before = begin > 0 && sorted[begin - 1] == token;
    if (began_before || sorted[end] != token) return;
    const int64_t c = int64_t{blockIdx.y} * 32 + threadIdx.x;
    float sum = 0;
    if (c < C) {
        if (threadIdx.y == 0) sum = partial[(2 * chunk + 1) * C + c];
        for (int64_t k = chunk + 1 + threadIdx.y; k * chunk_rows < N && sorted[k * chunk_rows] == token; k += 8)
            sum += partial[2 * k * C + c];
    }
    tile[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || c >= C) return;
    UNROLL for (int y = 1; y < 8; ++y) sum += tile[y][threadIdx.x];
    dwte[token * C + c] += sum;
}

// dwpe (seq,C) += dout summed over the batch, in order. One thread per V channels of a position; block (32, positions),
// grid (positions, slices of 32 * V channels).
template <int V, class T>
__global__ void __launch_bounds__(256)
    embedding_positions_kernel(float* dwpe, const T* __restrict__ dout, int64_t B, int64_t seq, int64_t C) {
    const int64_t t = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
    const int64_t c = (int64_t{blockIdx.y} * 32 + threadIdx.x) * V;
    if (t >= seq || c >= C) return;
    float sum[V] = {}, before[V];
    for (int64_t b = 0; b < B; ++b) {
        float x[V];
        load_once(x, dout + (b * seq + t) * C + c);
        UNROLL for (int v = 0; v < V; ++v) sum[v] += x[v];
    }
    load(before, dwpe + t * C + c);
    UNROLL for (int v = 0; v < V; ++v) before[v] += sum[v];
    store(dwpe + t * C + c, before);
}

// dwte (Vp,C) += dout summed over the token's places        dwpe (maxT,C) += dout summed over the batch
template <class T>
void embedding_backward(Cuda& dev, float* dwte, float* dwpe, const T* dout, const int32_t* tokens, int64_t B,
                        int64_t seq, int64_t C) {
    const int64_t N = B * seq, chunks = (N + chunk_rows - 1) / chunk_rows;
    const Timed timed(dev, "embedding_backward", 0, 2 * prod(N, C, sizeof(T)) + 2 * prod(N + seq, C, 4));
    if (N == 0 || C == 0) return;
    const int64_t list = (N + 3) / 4 * 4;  // the partial sums after the lists stay aligned
    int32_t* const sorted = reinterpret_cast<int32_t*>(dev.scratch(4 * list + chunks * 2 * C));
    int32_t *const place = sorted + list, *const spare = place + list;
    float* const partial = reinterpret_cast<float*>(spare + 2 * list);
    LAUNCH(sort_tokens_kernel, 1, 32 * sort_warps, 0, dev.stream, sorted, place, spare, tokens, static_cast<int>(N));
    const auto launch = [&]<int V>() {
        const auto slices = static_cast<unsigned>((C + 32 * V - 1) / (32 * V));
        LAUNCH((embedding_chunks_kernel<V, T>),
               dim3(static_cast<unsigned>((chunks + chunk_warps - 1) / chunk_warps), slices), dim3(32, chunk_warps), 0,
               dev.stream, dwte, partial, dout, sorted, place, N, C);
        constexpr unsigned positions = 8;
        LAUNCH((embedding_positions_kernel<V, T>),
               dim3(static_cast<unsigned>((seq + positions - 1) / positions), slices), dim3(32, positions), 0,
               dev.stream, dwpe, dout, B, seq, C);
    };
    if (can_pack<T>(C, dout) && can_pack<float>(C, dwte, dwpe))
        launch.template operator()<packed<T>>();
    else
        launch.template operator()<1>();
    LAUNCH(embedding_partial_kernel, dim3(static_cast<unsigned>(chunks), static_cast<unsigned>((C + 31) / 32)),
           dim3(32, 8), 0, dev.stream, dwte, partial, sorted, N, C);
}
