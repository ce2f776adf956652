#include "program/pair_embedding.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "device/cpu/prefetch.h"
#include "device/device.h"

namespace {

constexpr int64_t most_tokens = 16 << 20;
// Ten products bring the columns so near to the leading eigenvectors that they have 1.2 to 1.45 times as much of the
// matrix, in squares, as after four; twenty add 4 %. Five in a row lose nothing to rounding that shows.
constexpr int rounds = 2, products = 5;
constexpr double deviation = 0.03;

// A pair at distance 1 counts twice as much as one at distance 2.
constexpr int64_t most_distance = 2;
constexpr uint32_t weight_at(int64_t distance) { return static_cast<uint32_t>(most_distance / distance); }

// A power below 1 makes rare tokens count as less rare (Levy, Goldberg & Dagan 2015): they occur in few pairs, whose
// mutual information is large by chance.
constexpr double smoothing = 0.875;

std::vector<uint32_t> first_tokens(const Dataset& dataset) {
    std::vector<uint32_t> tokens;
    tokens.reserve(static_cast<size_t>(std::min(dataset.tokens(), most_tokens)));
    for (const Shard& shard : dataset.shards) {
        const int64_t n = std::min(shard.size(), most_tokens - static_cast<int64_t>(tokens.size()));
        shard.copy(0, n, std::back_inserter(tokens));
    }
    return tokens;
}

// Calls f(j, weight) for the places j of the tokens near the one at place i, of n.
template <class F>
void each_neighbour(int64_t i, int64_t n, const F& f) {
    for (int64_t d = 1; d <= most_distance; ++d) {
        if (i >= d) f(i - d, weight_at(d));
        if (i + d < n) f(i + d, weight_at(d));
    }
}

constexpr size_t ahead = 16;  // of reads in no order that hardware foresees: so much earlier they are prefetched

struct Entry {
    uint32_t column;
    float value;
};
using SparseMatrix = std::vector<std::vector<Entry>>;  // by rows

// log(p(a, b) / (p(a) p(b))) where it is positive, with the smoothed p of single tokens.
SparseMatrix positive_mutual_information(const std::vector<uint32_t>& tokens, int64_t V) {
    const auto n = static_cast<int64_t>(tokens.size());
    const auto rows = static_cast<size_t>(V);
    std::vector<uint32_t> begin(rows + 1), places(tokens.size());
    std::vector<double> share(rows);
    for (int64_t i = 0; i < n; ++i) {
        const size_t token = tokens[static_cast<size_t>(i)];
        ++begin[token + 1];
        each_neighbour(i, n, [&](int64_t, uint32_t weight) { share[token] += weight; });
    }
    double total = 0, smoothed = 0;
    for (size_t a = 0; a < rows; ++a) {
        begin[a + 1] += begin[a];
        total += share[a];
        share[a] = std::pow(share[a], smoothing);
        smoothed += share[a];
    }
    for (double& p : share) p /= smoothed;
    std::vector<uint32_t> next(begin.begin(), begin.end() - 1);
    for (size_t i = 0; i < tokens.size(); ++i) places[next[tokens[i]]++] = static_cast<uint32_t>(i);

    SparseMatrix matrix(rows);
#pragma omp parallel
    {
        std::vector<uint32_t> weights(rows);
        std::vector<uint32_t> seen;
        std::vector<Entry> row;
#pragma omp for schedule(dynamic, 16)
        for (size_t a = 0; a < rows; ++a) {
            for (size_t p = begin[a]; p < begin[a + 1]; ++p) {
                if (p + ahead < places.size()) prefetch_line(tokens.data() + places[p + ahead]);
                each_neighbour(places[p], n, [&](int64_t j, uint32_t weight) {
                    const uint32_t b = tokens[static_cast<size_t>(j)];
                    if (weights[b] == 0) seen.push_back(b);
                    weights[b] += weight;
                });
            }
            for (const uint32_t b : seen) {
                const double information = std::log(weights[b] / total / (share[a] * share[b]));
                if (information > 0) row.push_back({b, static_cast<float>(information)});
                weights[b] = 0;
            }
            matrix[a].assign(row.begin(), row.end());  // in no more memory than it needs
            row.clear();
            seen.clear();
        }
    }
    return matrix;
}

// out (V,C) = matrix (V,V) · x (V,C)
void multiply(const SparseMatrix& matrix, const float* x, float* out, int64_t C) {
    const auto V = static_cast<int64_t>(matrix.size());
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t a = 0; a < V; ++a) {
        float* const row = out + a * C;
        std::fill_n(row, C, 0.0f);
        const std::vector<Entry>& entries = matrix[static_cast<size_t>(a)];
        for (size_t e = 0; e < entries.size(); ++e) {
            if (e + ahead < entries.size()) prefetch_range(x + entries[e + ahead].column * C, C);
            const auto& [b, value] = entries[e];
            const float* const other = x + b * C;
            for (int64_t c = 0; c < C; ++c) row[c] += value * other[c];
        }
    }
}

// Makes the columns of x (V,C) orthonormal, by the Cholesky factor of xᵀx. A column that depends on those before it
// becomes 0.
void orthonormalize(float* x, int64_t V, int64_t C) {
    std::vector<double> gram(static_cast<size_t>(C * C)), diagonal(static_cast<size_t>(C));
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < C; ++i) {
        double* const row = gram.data() + i * C;
        for (int64_t v = 0; v < V; ++v) {
            const float *const values = x + v * C, value = values[i];
            for (int64_t j = i; j < C; ++j) row[j] += static_cast<double>(value) * static_cast<double>(values[j]);
        }
        diagonal[static_cast<size_t>(i)] = row[i];
    }
    for (int64_t i = 0; i < C; ++i) {  // gram becomes its upper factor
        double* const row = gram.data() + i * C;
        const bool depends = row[i] <= 1e-8 * diagonal[static_cast<size_t>(i)];
        const double root = depends ? 0 : 1 / std::sqrt(row[i]);
        for (int64_t j = i; j < C; ++j) row[j] *= root;
        for (int64_t k = i + 1; k < C; ++k)
            for (int64_t j = k; j < C; ++j) gram[static_cast<size_t>(k * C + j)] -= row[k] * row[j];
    }
#pragma omp parallel for schedule(static)
    for (int64_t v = 0; v < V; ++v) {
        float* const values = x + v * C;
        for (int64_t i = 0; i < C; ++i) {
            const double* const row = gram.data() + i * C;
            values[i] = row[i] > 0 ? static_cast<float>(values[i] / row[i]) : 0;
            for (int64_t j = i + 1; j < C; ++j) values[j] -= static_cast<float>(row[j]) * values[i];
        }
    }
}

}  // namespace

void add_pair_embeddings(const Dataset& dataset, int64_t V, int64_t C, float* wte) {
    const SparseMatrix matrix = positive_mutual_information(first_tokens(dataset), V);
    const int64_t size = V * C;
    HostBuffer<float> x = host_allocate<float>(size), product = host_allocate<float>(size);
    std::copy_n(wte, size, x.get());
    for (int round = 0; round < rounds; ++round) {
        for (int i = 0; i < products; ++i) {
            multiply(matrix, x.get(), product.get(), C);
            std::swap(x, product);
        }
        orthonormalize(x.get(), V, C);
    }
    std::vector<double> mean(static_cast<size_t>(C));
    for (int64_t v = 0; v < V; ++v)
        for (int64_t c = 0; c < C; ++c) mean[static_cast<size_t>(c)] += x[v * C + c] / static_cast<double>(V);
    double squares = 0;
    for (int64_t v = 0; v < V; ++v)
        for (int64_t c = 0; c < C; ++c) {
            float& value = x[v * C + c];
            value -= static_cast<float>(mean[static_cast<size_t>(c)]);
            squares += value * value;
        }
    if (squares == 0) return;  // no two tokens
    const double scale = deviation / std::sqrt(squares / static_cast<double>(size));
    for (int64_t i = 0; i < size; ++i) wte[i] += static_cast<float>(scale * x[i]);
}
