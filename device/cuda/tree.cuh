// The sum of the ranks' gradients on the Cuda device: all parts are read once, and added as a balanced binary tree.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "device/cuda/common.cuh"

template <int COUNT>
struct TreeLeaves {
    const float* x[COUNT];
};

// sum (n) = the sum of the leaves, of which it is one.
template <int COUNT, int V>
__global__ void __launch_bounds__(elements_block) add_as_tree_kernel(float* sum, TreeLeaves<COUNT> leaves, int64_t n) {
    each_element<V>(n, [&]<int W>(int64_t i) {
        float x[COUNT][W];
        UNROLL for (int leaf = 0; leaf < COUNT; ++leaf) load_once<W>(x[leaf], leaves.x[leaf] + i);
        UNROLL for (int step = 1; step < COUNT; step *= 2) UNROLL for (int leaf = 0; leaf < COUNT; leaf += 2 * step)
            UNROLL for (int w = 0; w < W; ++w) x[leaf][w] += x[leaf + step][w];
        store(sum + i, x[0]);
    });
}

template <int COUNT>
void add_leaves(Cuda& dev, float* sum, std::span<float* const> leaves, int64_t n) {
    [&]<size_t... I>(std::index_sequence<I...>) {
        const TreeLeaves<COUNT> tree{{leaves[I]...}};
        launch_elements<float>(
            n,
            [&]<int V>(unsigned blocks) {
                LAUNCH((add_as_tree_kernel<COUNT, V>), blocks, elements_block, 0, dev.stream, sum, tree, n);
            },
            leaves[I]...);
    }
    (std::make_index_sequence<COUNT>{});
}

// Adds parts[0 … 2^n - 1], of n values each, as the leaves of a balanced binary tree, into parts[result]: up to 8 by
// one kernel, whose sums are the leaves of the next.
inline void add_as_tree(Cuda& dev, std::vector<float*> parts, size_t result, int64_t n) {
    float* const into = parts[result];
    while (parts.size() > 1) {
        const size_t count = std::min<size_t>(parts.size(), 8);
        std::vector<float*> sums;
        for (size_t first = 0; first < parts.size(); first += count) {
            const auto leaves = std::span<float* const>(parts).subspan(first, count);
            float* const sum = std::ranges::count(leaves, into) > 0 ? into : leaves[0];
            count == 8   ? add_leaves<8>(dev, sum, leaves, n)
            : count == 4 ? add_leaves<4>(dev, sum, leaves, n)
                         : add_leaves<2>(dev, sum, leaves, n);
            sums.push_back(sum);
        }
        parts = sums;
    }
}
