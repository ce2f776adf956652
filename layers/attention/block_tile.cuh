// Which head, and which of its positions, a block of an attention kernel computes.
#pragma once

#include "device/cuda/common.cuh"

struct BlockTile {
    int64_t head, qkv, out;  // the head, and the offsets of its elements in qkv (B,T,3C) and in out (B,T,C)
    int first;               // position
};
// Tiles of `rows` positions. Those with most of the triangle's work start first: with last_first, the last positions.
__device__ __forceinline__ BlockTile block_tile(bool last_first, int rows, int seq, int64_t C, int NH, int hs,
                                                int64_t heads) {
    const int64_t head = blockIdx.x % heads, b = head / NH, h = head % NH;
    const int tile = static_cast<int>(blockIdx.x / heads), tiles = (seq + rows - 1) / rows;
    return {head, b * seq * 3 * C + h * hs, b * seq * C + h * hs, (last_first ? tiles - 1 - tile : tile) * rows};
}
