// Rows of a matrix by index, on both devices.
#include "layers/index_rows.h"

#include "dev/test/layers/layer_check.h"

namespace {

template <class Device>
void expect_rows(int64_t V, int64_t C, const std::vector<int32_t>& index) {
    using T = typename Device::scalar;
    Device dev;
    const auto S = std::ssize(index);
    std::vector<T> matrix, sums(static_cast<size_t>(V * C), T(100));
    for (int64_t i = 0; i < V * C; ++i) matrix.push_back(static_cast<T>(i));
    std::vector<T> rows(static_cast<size_t>(S * C + 1), T(-1));
    index_select(dev, rows.data(), matrix.data(), index.data(), S, C);
    for (int64_t i = 0; i < S * C; ++i)
        EXPECT_EQ(rows[static_cast<size_t>(i)], static_cast<T>(index[static_cast<size_t>(i / C)] * C + i % C)) << i;
    EXPECT_EQ(rows.back(), T(-1));

    index_add(dev, sums.data(), rows.data(), index.data(), S, C);
    for (int64_t i = 0; i < V * C; ++i) {
        const bool named = std::find(index.begin(), index.end(), i / C) != index.end();
        EXPECT_EQ(sums[static_cast<size_t>(i)], T(100) + (named ? static_cast<T>(i) : 0)) << i;
    }
}

template <class Device>
void expect_zeros(int64_t V, int64_t C) {
    using T = typename Device::scalar;
    Device dev;
    std::vector<uint8_t> used;
    for (int64_t v = 0; v < V; ++v) used.push_back(v % 4 == 0 || v == V - 1);
    std::vector<T> x(static_cast<size_t>(V * C + 1), T(3));
    zero_used(dev, x.data(), {.used = used.data(), .rows = V, .columns = C});
    for (int64_t i = 0; i < V * C; ++i)
        EXPECT_EQ(x[static_cast<size_t>(i)], used[static_cast<size_t>(i / C)] ? T(0) : T(3)) << i;
    EXPECT_EQ(x.back(), T(3));
}

TEST(IndexRows, UsedOnesBecomeZero) {
    for (const int64_t C : {1, 7, 33}) expect_zeros<Cpu>(11, C), expect_zeros<Reference<double>>(11, C);
}

TEST(IndexRows, AreSelectedAndAddedTo) {
    for (const int64_t C : {1, 7, 16, 33})
        for (const std::vector<int32_t>& index :
             {std::vector<int32_t>{}, {0}, {8}, {3, 1, 8}, {0, 1, 2, 3, 4, 5, 6, 7, 8}}) {
            expect_rows<Cpu>(9, C, index);
            expect_rows<Reference<double>>(9, C, index);
        }
}

}  // namespace
