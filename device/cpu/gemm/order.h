// How matrices are stored, cut into parts and written back: the types that all parts of the GEMM share.
#pragma once

#include <cstdint>

namespace gemm {

// [begin, end) of part i when n items are cut into `parts` nearly equal ones.
struct Range {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
};
inline Range part_of(int64_t n, int64_t parts, int64_t i) { return {n * i / parts, n * (i + 1) / parts}; }
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

enum class Order {
    k_last,   // A[m * lda + k], B[n * ldb + k]
    k_first,  // A[k * lda + m], B[k * ldb + n]
};

// Whether C's old values are kept, and how the new ones are stored.
enum class Store {
    set,     // C = A · B
    add,     // C += A · B
    stream,  // C = A · B by streaming stores: for one block of K, no epilogue, whole vectors, C on a vector
             // boundary
};

// Which elements of C are needed.
enum class Part {
    whole,
    lower,  // C is square: row i is computed at least up to the end of the vector of W columns that has column i
};

}  // namespace gemm
