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
#include "layers/matmul.h"

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

// One step of the quintic iteration: X = c1 X + X (c3 A + c5 A²) with A = Xᵀ X, or of the transpose of a wide matrix,
// whose A is smaller.
constexpr double c1 = 3.4445, c3 = -4.7750, c5 = 2.0315;
constexpr int steps = 5;
constexpr double smallest_norm = 1e-7;
constexpr double normuon_eps = 1e-10;  // beside roots of mean squares of an orthogonal matrix

inline double stretch(int64_t rows, int64_t cols) {
    return std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(cols)));
}

// Drives the singular values of x (N,C), N >= C, towards 1.
template <class T>
void newton_schulz(Reference<T>& dev, T* x, int64_t N, int64_t C) {
    std::vector<T> transposed(static_cast<size_t>(N * C)), next(transposed.size());
    std::vector<T> gram(static_cast<size_t>(C * C)), squared(gram.size());
    for (int step = 0; step < steps; ++step) {
        for (int64_t i = 0; i < N; ++i)
            for (int64_t j = 0; j < C; ++j) transposed[j * N + i] = x[i * C + j];
        matmul_forward<T>(dev, gram.data(), transposed.data(), transposed.data(), nullptr, C, N, C);
        matmul_forward<T>(dev, squared.data(), gram.data(), gram.data(), nullptr, C, C, C);  // gram is symmetric
        for (size_t i = 0; i < gram.size(); ++i) gram[i] = T(c3) * gram[i] + T(c5) * squared[i];
        matmul_forward<T>(dev, next.data(), x, gram.data(), nullptr, N, C, C);
        for (size_t i = 0; i < next.size(); ++i) x[i] = T(c1) * x[i] + next[i];
    }
}

// Divides each row of x (N,C), a neuron's update, by the root of its mean square over the steps, and keeps x's norm.
template <class T>
void normalize_neurons(T* x, T* squares, T beta2, int64_t N, int64_t C) {
    T before = 0, after = 0;
    for (int64_t i = 0; i < N; ++i) {
        T sum = 0;
        for (int64_t j = 0; j < C; ++j) sum += x[i * C + j] * x[i * C + j];
        squares[i] = beta2 * squares[i] + (1 - beta2) * sum / T(C);
        before += sum;
        for (int64_t j = 0; j < C; ++j) {
            x[i * C + j] /= std::sqrt(squares[i]) + T(normuon_eps);
            after += x[i * C + j] * x[i * C + j];
        }
    }
    if (after > 0)
        for (int64_t i = 0; i < N * C; ++i) x[i] *= std::sqrt(before / after);
}

}  // namespace muon

// For each matrix, with gradient g = grad_scale * grad and lr = muon_lr, unless status says to skip the update:
//   momentum = 0.95 momentum + 0.05 g        U = 0.05 g + 0.95 momentum (Nesterov)
//   X = U / |U|, five Newton-Schulz steps        param = param (1 - lr weight_decay) - lr sqrt(max(1, rows/cols)) X
// With `squares`, X is first replaced by Y |X| / |Y|, where for each of its rows, or its columns if it is wide,
//   squares = 0.95 squares + 0.05 mean(X²)        Y = X / (sqrt(squares) + eps)
template <class T>
void muon_update(Reference<T>& dev, const std::vector<MuonMatrix<T>>& matrices, const UpdateParams* params,
                 const StepStatus* status) {
    if (!status->apply) return;
    const T grad_scale = T(status->grad_scale), momentum = T(params->momentum), rest = T(1 - params->momentum);
    for (const MuonMatrix<T>& w : matrices) {
        const int64_t size = w.rows * w.cols, N = w.neurons(), C = size / N;
        // x (N,C) is the matrix, or its transpose if it is wide.
        const auto place = [&](int64_t i) { return w.rows >= w.cols ? i : i % w.cols * C + i / w.cols; };
        std::vector<T> x(static_cast<size_t>(size));
        T squares = 0;
        for (int64_t i = 0; i < size; ++i) {
            const T g = grad_scale * w.grad[i];
            w.momentum[i] = momentum * w.momentum[i] + rest * g;
            const T u = rest * g + momentum * w.momentum[i];
            x[place(i)] = u;
            squares += u * u;
        }
        const T norm = std::max(std::sqrt(squares), T(muon::smallest_norm));
        for (T& value : x) value /= norm;
        muon::newton_schulz(dev, x.data(), N, C);
        if (w.squares) muon::normalize_neurons(x.data(), w.squares, T(params->normuon_beta2), N, C);
        const T rate = T(params->muon_lr * muon::stretch(w.rows, w.cols)),
                shrink = T(1 - params->muon_lr * params->weight_decay);
        for (int64_t i = 0; i < size; ++i) w.param[i] = w.param[i] * shrink - rate * x[place(i)];
    }
}
