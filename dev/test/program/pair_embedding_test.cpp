// What is counted in the training data: initial token embeddings from pairs of tokens, and how often a token occurs.
#include "program/pair_embedding.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include <omp.h>

#include "dev/test/io/dataset_files.h"
#include "device/random.h"
#include "program/token_shares.h"

namespace {

constexpr double expected_deviation = 0.03;  // as the header says

using PairEmbedding = DatasetFiles;

std::vector<float> random_values(int64_t n) {
    const Random random{7, Purpose::parameters};
    std::vector<float> values(static_cast<size_t>(n));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(0.02 * random.normal(i));
    return values;
}

std::vector<float> added(const Dataset& data, int64_t V, int64_t C) {
    const std::vector<float> before = random_values(V * C);
    std::vector<float> after = before;
    add_pair_embeddings(data, V, C, after.data());
    for (size_t i = 0; i < after.size(); ++i) after[i] -= before[i];
    return after;
}

// What the header says, in plain loops and double precision, with the same start. The orthonormal columns are those of
// Gram and Schmidt, which the Cholesky factor gives too.
std::vector<double> added_by_plain_loops(const std::vector<uint16_t>& tokens, int64_t V, int64_t C) {
    const auto n = std::ssize(tokens);
    const auto rows = static_cast<size_t>(V), columns = static_cast<size_t>(C);
    std::vector matrix(rows, std::vector<double>(rows));
    std::vector<double> share(rows);
    double total = 0, smoothed = 0;
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = std::max<int64_t>(0, i - 2); j <= std::min(n - 1, i + 2); ++j) {
            if (i == j) continue;
            const int weight = std::abs(i - j) == 1 ? 2 : 1;
            matrix[tokens[static_cast<size_t>(i)]][tokens[static_cast<size_t>(j)]] += weight;
            share[tokens[static_cast<size_t>(i)]] += weight;
            total += weight;
        }
    for (double& p : share) smoothed += std::pow(p, 0.875);
    for (double& p : share) p = std::pow(p, 0.875) / smoothed;
    for (size_t a = 0; a < rows; ++a)
        for (size_t b = 0; b < rows; ++b)
            if (double& x = matrix[a][b]; x > 0) x = std::max(0.0, std::log(x / total / (share[a] * share[b])));

    const std::vector<float> start = random_values(V * C);
    std::vector<double> x(start.begin(), start.end());
    for (int round = 0; round < 2; ++round) {
        for (int i = 0; i < 5; ++i) {
            std::vector<double> product(x.size());
            for (size_t a = 0; a < rows; ++a)
                for (size_t b = 0; b < rows; ++b)
                    for (size_t c = 0; c < columns; ++c) product[a * columns + c] += matrix[a][b] * x[b * columns + c];
            x = product;
        }
        for (size_t c = 0; c < columns; ++c) {
            const auto dot_with = [&](size_t other) {
                double sum = 0;
                for (size_t a = 0; a < rows; ++a) sum += x[a * columns + c] * x[a * columns + other];
                return sum;
            };
            for (size_t before = 0; before < c; ++before) {
                const double shared = dot_with(before);
                for (size_t a = 0; a < rows; ++a) x[a * columns + c] -= shared * x[a * columns + before];
            }
            const double length = std::sqrt(dot_with(c));
            for (size_t a = 0; a < rows; ++a) x[a * columns + c] /= length;
        }
    }
    double squares = 0;
    for (size_t c = 0; c < columns; ++c) {
        double mean = 0;
        for (size_t a = 0; a < rows; ++a) mean += x[a * columns + c] / static_cast<double>(V);
        for (size_t a = 0; a < rows; ++a) squares += std::pow(x[a * columns + c] -= mean, 2);
    }
    for (double& value : x) value *= expected_deviation / std::sqrt(squares / static_cast<double>(x.size()));
    return x;
}

// Kinds of tokens follow one another in a circle. Which token of its kind comes is random.
std::vector<uint16_t> words_of_kinds(int64_t n, uint16_t of_kind, int kinds) {
    const Random random{3, Purpose::sampling};
    std::vector<uint16_t> tokens;
    for (uint64_t i = 0; std::ssize(tokens) < n; ++i) {
        const auto kind = static_cast<uint16_t>(static_cast<int64_t>(i) % kinds);
        tokens.push_back(static_cast<uint16_t>(kind * of_kind + random.below(of_kind, i)));
    }
    return tokens;
}

double cosine(const float* a, const float* b, int64_t C) {
    double ab = 0, aa = 0, bb = 0;
    for (int64_t c = 0; c < C; ++c) ab += a[c] * b[c], aa += a[c] * a[c], bb += b[c] * b[c];
    return ab / std::sqrt(aa * bb);
}

// Tokens of one kind have the same neighbours, and those of two kinds have not.
TEST_F(PairEmbedding, TokensWithLikeNeighboursAreAlike) {
    constexpr int kinds = 6;
    constexpr int64_t of_kind = 8, V = kinds * of_kind, C = 6;
    const std::vector<float> x = added(dataset_of({words_of_kinds(50'000, of_kind, kinds)}), V, C);
    double within = 0, between = 0, squares = 0;
    for (int64_t a = 0; a < V; ++a)
        for (int64_t b = 0; b < V; ++b)
            if (a != b) (a / of_kind == b / of_kind ? within : between) += cosine(&x[a * C], &x[b * C], C);
    within /= V * (of_kind - 1);
    between /= V * (V - of_kind);
    EXPECT_GT(within, 0.9);
    EXPECT_LT(between, 0.1);
    for (const float value : x) squares += value * value;
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(x.size())), expected_deviation, 1e-4);
    for (int64_t c = 0; c < C; ++c) {
        double sum = 0;
        for (int64_t a = 0; a < V; ++a) sum += x[a * C + c];
        EXPECT_NEAR(sum / V, 0, 1e-5) << "a column's mean would be a direction that all tokens share";
    }
}

// The program's floats are rounded to 6e-8 of themselves. Of five products in a row, rounding errors of the smallest
// eigenvectors are larger by the fifth power of the ratio of the eigenvalues, here about 5: 2e-4 of the values.
TEST_F(PairEmbedding, AgreeWithPlainLoops) {
    const std::vector<uint16_t> tokens = words_of_kinds(3000, 7, 5);
    const std::vector<float> x = added(dataset_of({tokens}), 37, 8);  // two tokens do not occur
    const std::vector<double> expected = added_by_plain_loops(tokens, 37, 8);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], expected[i], 1e-3 * expected_deviation) << i;
}

TEST_F(PairEmbedding, SameBitsForAnyNumberOfThreads) {
    const Dataset data = dataset_of({words_of_kinds(20'000, 30, 7), words_of_kinds(999, 10, 3)});
    const int before = omp_get_max_threads();
    omp_set_num_threads(1);
    const std::vector<float> one = added(data, 211, 40);
    omp_set_num_threads(3);
    EXPECT_EQ(added(data, 211, 40), one);
    omp_set_num_threads(before);
}

TEST_F(PairEmbedding, WithoutPairsNothingIsAdded) {
    for (const auto& shards : {std::vector<std::vector<uint16_t>>{{}}, {{3}}})
        for (const float value : added(dataset_of(shards), 5, 4)) EXPECT_EQ(value, 0);
}

// No more columns than tokens can be orthonormal. What rounding leaves of the others must not become a column.
TEST_F(PairEmbedding, MoreChannelsThanTokensThatOccur) {
    for (uint16_t of_kind = 1; of_kind <= 5; ++of_kind) {
        const int64_t occurring = 2 * of_kind, V = occurring + 2, C = 3 * occurring;
        const std::vector<float> x = added(dataset_of({words_of_kinds(200, of_kind, 2)}), V, C);
        int64_t columns = 0;
        for (int64_t c = 0; c < C; ++c) {
            double squares = 0;
            for (int64_t v = 0; v < V; ++v) squares += std::pow(x[static_cast<size_t>(v * C + c)], 2);
            EXPECT_TRUE(std::isfinite(squares)) << "column " << c << " of " << C;
            columns += squares > 0;
        }
        EXPECT_GE(columns, 1);
        EXPECT_LE(columns, occurring);
    }
}

TEST_F(PairEmbedding, SharesOfTokensAreThoseInAllShards) {
    const Dataset data = dataset_of({{0, 1, 1, 3}, {1, 3, 3, 1, 1, 1}});
    EXPECT_EQ(token_shares(data, 5), (std::vector<double>{0.1, 0.6, 0, 0.3, 0}));
}

// Evenly spread places, of which each token gets its share.
TEST(ZipfShares, AreThoseOfItsTokens) {
    constexpr int64_t V = 50, places = 1'000'000;
    const std::vector<double> shares = zipf_shares(V);
    std::vector<int64_t> counts(V);
    for (int64_t i = 0; i < places; ++i)
        ++counts.at(static_cast<size_t>(zipf_token((static_cast<double>(i) + 0.5) / places, V)));
    double total = 0;
    for (size_t v = 0; v < shares.size(); ++v) {
        EXPECT_NEAR(static_cast<double>(counts[v]) / places, shares[v], 2.0 / places) << v;
        total += shares[v];
    }
    EXPECT_NEAR(total, 1, 1e-12);
    EXPECT_EQ(zipf_token(1, V), V - 1) << "where rounding errors lead";
}

}  // namespace
