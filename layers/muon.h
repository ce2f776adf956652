// Muon (Jordan et al. 2024), an optimizer for matrices, as torch.optim.Muon: it makes the momentum nearly orthogonal by
// Newton-Schulz steps. NorMuon (Li et al. 2025) then divides each neuron's part of the update by the root of a mean of
// its past squares. A neuron's part is a row, or a column where there are more columns than rows: its weights, or its
// effect on the residual stream. As the update's norm stays what it was, Muon's learning rates are right for it too.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "device/device.h"
#include "device/update.h"

// A matrix to update: param, grad, momentum (rows,cols); squares (max(rows,cols)): NorMuon's mean for each row or
// column, null for Muon.
template <class T>
struct MuonMatrix {
    T *param, *momentum;
    const T* grad;
    int64_t rows, cols;
    T* squares = nullptr;
    int64_t neurons() const { return std::max(rows, cols); }
};

namespace muon {

// One step of the quintic iteration: X = c1 X + (c3 A + c5 A²) X with A = X Xᵀ drives all singular values towards 1.
constexpr double c1 = 3.4445, c3 = -4.7750, c5 = 2.0315;
constexpr int steps = 5;
constexpr double smallest_norm = 1e-7;
constexpr double normuon_eps = 1e-10;  // beside roots of mean squares of an orthogonal matrix

inline double stretch(int64_t rows, int64_t cols) {
    return std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(cols)));
}

}  // namespace muon

// For each matrix, with gradient g = grad_scale * grad and lr = muon_lr, unless status says to skip the update:
//   momentum = 0.95 momentum + 0.05 g        U = 0.05 g + 0.95 momentum (Nesterov)
//   X = U / |U|, five Newton-Schulz steps        param = param (1 - lr weight_decay) - lr sqrt(max(1, rows/cols)) X
// With `squares`, X is first replaced by Y |X| / |Y|, where for each of its rows, or its columns if it is wide,
//   squares = 0.95 squares + 0.05 mean(X²)        Y = X / (sqrt(squares) + eps)
// The Gram matrix A is taken on the shorter side; on a tall X the step reads X = c1 X + X (c3 A + c5 A²), A = Xᵀ X.
template <class T>
void muon_update(Reference<T>&, const std::vector<MuonMatrix<T>>& matrices, const UpdateParams* params,
                 const StepStatus* status) {
    if (!status->apply) return;
    const T grad_scale = T(status->grad_scale);
    for (const MuonMatrix<T>& w : matrices) {
        const int64_t size = w.rows * w.cols, n = std::min(w.rows, w.cols), k = std::max(w.rows, w.cols);
        const T momentum = T(params->momentum), rest = T(1 - params->momentum);
        // x (n,k): the matrix with its shorter side first.
        const auto place = [&](int64_t i) { return w.rows <= w.cols ? i : i % w.cols * k + i / w.cols; };
        std::vector<T> x(static_cast<size_t>(size)), next(x.size()), gram(static_cast<size_t>(n * n)),
            poly(gram.size());
        T squares = 0;
        for (int64_t i = 0; i < size; ++i) {
            const T g = grad_scale * w.grad[i];
            w.momentum[i] = momentum * w.momentum[i] + rest * g;
            const T u = rest * g + momentum * w.momentum[i];
            x[static_cast<size_t>(place(i))] = u;
            squares += u * u;
        }
        const T norm = std::max(std::sqrt(squares), T(muon::smallest_norm));
        for (T& value : x) value /= norm;
        for (int step = 0; step < muon::steps; ++step) {
            const auto matmul = [&](std::vector<T>& out, const std::vector<T>& p, const std::vector<T>& q, int64_t K,
                                    bool q_transposed, int64_t columns) {
                for (int64_t i = 0; i < n; ++i)
                    for (int64_t j = 0; j < columns; ++j) {
                        T sum = 0;
                        for (int64_t l = 0; l < K; ++l)
                            sum += p[static_cast<size_t>(i * K + l)] *
                                   q[static_cast<size_t>(q_transposed ? j * K + l : l * columns + j)];
                        out[static_cast<size_t>(i * columns + j)] = sum;
                    }
            };
            matmul(gram, x, x, k, true, n);
            matmul(poly, gram, gram, n, false, n);
            for (size_t i = 0; i < poly.size(); ++i) poly[i] = T(muon::c3) * gram[i] + T(muon::c5) * poly[i];
            matmul(next, poly, x, n, false, k);
            for (size_t i = 0; i < x.size(); ++i) x[i] = T(muon::c1) * x[i] + next[i];
        }
        if (w.squares) {
            const auto row_or_column = [&](int64_t i) { return w.rows >= w.cols ? i / w.cols : i % w.cols; };
            const T beta2 = T(params->normuon_beta2);
            std::vector<T> means(static_cast<size_t>(w.neurons()));
            T before = 0, after = 0;
            for (int64_t i = 0; i < size; ++i) {
                const T value = x[static_cast<size_t>(place(i))];
                means[static_cast<size_t>(row_or_column(i))] += value * value / T(n);
            }
            for (int64_t j = 0; j < w.neurons(); ++j)
                w.squares[j] = beta2 * w.squares[j] + (1 - beta2) * means[static_cast<size_t>(j)];
            for (int64_t i = 0; i < size; ++i) {
                T& value = x[static_cast<size_t>(place(i))];
                before += value * value;
                value /= std::sqrt(w.squares[row_or_column(i)]) + T(muon::normuon_eps);
                after += value * value;
            }
            if (after > 0)
                for (T& value : x) value *= std::sqrt(before / after);
        }
        const T rate = T(params->muon_lr * muon::stretch(w.rows, w.cols)),
                shrink = T(1 - params->muon_lr * params->weight_decay);
        for (int64_t i = 0; i < size; ++i) w.param[i] = w.param[i] * shrink - rate * x[static_cast<size_t>(place(i))];
    }
}
