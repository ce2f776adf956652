// Which part of the flat buffers each rank updates (ZeRO stage 1: Rajbhandari et al. 2020).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gpt2_tensors.h"
#include "device/parallel/slices.h"

// How a model shares its training with other processes.
struct Sharing {
    int64_t shards = 1;  // of a step, that this rank computes: end_shard() sums them
    Ranks* ranks = &alone();
    bool muon = false;  // Muon is the optimizer
};

// Slices begin at a multiple of this, but for Muon's matrices: a GPU accesses as many values at a time.
constexpr int64_t aligned_values = 8;

// A slice for each rank, one after the other. No slice ends inside a matrix that Muon updates. They take about equally
// long to update; what is expensive in Muon is left to one rank per matrix.
inline std::vector<Slice> update_slices(const ParameterTable& table, int64_t ranks, bool muon) {
    // In bytes of memory traffic: AdamW moves 28 per value. Muon computes 6 n² k + 14 n³ FLOPs for an (n,k) matrix, and
    // a CPU computes about 5 in the time of a byte.
    const auto cost = [&](const Parameter& p, int64_t values) {
        if (!muon || !p.muon()) return 28.0 * static_cast<double>(values);
        const auto n = static_cast<double>(std::min(p.shape[0], p.shape[1]));
        return static_cast<double>(values) * (6 * n + 14 * n * n * n / static_cast<double>(p.piece())) / 5;
    };
    double total = 0;
    for (const Parameter& p : table.rows) total += cost(p, p.copies * p.stride);
    std::vector<Slice> slices(1);
    double before = 0;  // the cost of all that lies before the current piece
    for (const Parameter& p : table.rows) {
        const bool whole = muon && p.muon();
        for (int64_t l = 0; l < p.copies; ++l) {
            const double of_piece = cost(p, p.stride);
            for (;;) {  // as many cuts as belong in or next to this piece
                const double wanted = total * static_cast<double>(slices.size()) / static_cast<double>(ranks) - before;
                if (std::ssize(slices) == ranks || wanted > (whole ? of_piece / 2 : of_piece)) break;
                const double part = whole ? 0 : std::max(0.0, wanted / of_piece);
                const int64_t at = p.at(l) + static_cast<int64_t>(part * static_cast<double>(p.stride)),
                              cut = std::max({slices.back().begin, p.at(l), at / aligned_values * aligned_values});
                slices.back().end = cut;
                slices.push_back({cut, cut});
            }
            before += of_piece;
        }
    }
    while (std::ssize(slices) < ranks) {
        slices.back().end = table.size;
        slices.push_back({table.size, table.size});
    }
    slices.back().end = table.size;
    return slices;
}

// The slice of the rank that shares its training so.
inline Slice own_slice(const ParameterTable& table, const Sharing& sharing) {
    return update_slices(table, sharing.ranks->count(), sharing.muon)[static_cast<size_t>(sharing.ranks->rank())];
}
