// Batch normalization (Ioffe & Szegedy 2015), to compare with LayerNorm on the same input. It normalizes each feature
// over the rows; LayerNorm normalizes each row over its features. Plain loops, in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

struct BatchNorm {
    explicit BatchNorm(int64_t C) : running_mean(static_cast<size_t>(C)), running_variance(static_cast<size_t>(C), 1) {}

    // out (N,C) = (inp - mean) / sqrt(variance + eps), mean (C) and variance (C, biased) over the N rows of this batch.
    // running_mean (C), running_variance (C, unbiased) move towards them by `momentum`, as torch.nn.BatchNorm1d's.
    void training(double* out, const double* inp, int64_t N, double momentum = 0.1) {
        for (size_t c = 0; c < running_mean.size(); ++c) {
            const size_t C = running_mean.size();
            double mean = 0, squares = 0;
            for (size_t row = 0; row < static_cast<size_t>(N); ++row) mean += inp[row * C + c];
            mean /= static_cast<double>(N);
            for (size_t row = 0; row < static_cast<size_t>(N); ++row)
                squares += (inp[row * C + c] - mean) * (inp[row * C + c] - mean);
            normalise(out, inp, N, c, mean, squares / static_cast<double>(N));
            running_mean[c] += momentum * (mean - running_mean[c]);
            running_variance[c] += momentum * (squares / static_cast<double>(N - 1) - running_variance[c]);
        }
    }

    // The same with the running statistics from training: a row's result no longer depends on the other rows, but it
    // differs from the result in training.
    void evaluation(double* out, const double* inp, int64_t N) const {
        for (size_t c = 0; c < running_mean.size(); ++c)
            normalise(out, inp, N, c, running_mean[c], running_variance[c]);
    }

    std::vector<double> running_mean, running_variance;
    double eps = 1e-5;

private:
    void normalise(double* out, const double* inp, int64_t N, size_t c, double mean, double variance) const {
        const size_t C = running_mean.size();
        for (size_t row = 0; row < static_cast<size_t>(N); ++row)
            out[row * C + c] = (inp[row * C + c] - mean) / std::sqrt(variance + eps);
    }
};
