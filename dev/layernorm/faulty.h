// A LayerNorm backward with three planted faults, for an exercise of dev/layernorm/README.md: layernorm_faulty checks
// it, and the reader repairs it.
#pragma once

#include <cstdint>

// dinp (N,C) =, dweight (C) +=, dbias (C) +=, from dout (N,C), inp (N,C), weight (C), mean (N) and rstd (N)
inline void faulty_backward(double* dinp, double* dweight, double* dbias, const double* dout, const double* inp,
                            const double* weight, const double* mean, const double* rstd, int64_t N, int64_t C) {
    for (int64_t row = 0; row < N; ++row) {
        const double *x = inp + row * C, *dy = dout + row * C;
        double mean_dnorm = 0, mean_dnorm_norm = 0;
        for (int64_t c = 0; c < C; ++c) {
            mean_dnorm += dy[c];
            mean_dnorm_norm += dy[c] * x[c];
            dweight[c] += dy[c] * (x[c] - mean[row]) * rstd[row];
            dbias[c] += dy[c];
        }
        for (int64_t c = 0; c < C; ++c) {
            const double norm = (x[c] - mean[row]) * rstd[row];
            dinp[row * C + c] = rstd[row] * (dy[c] * weight[c] - mean_dnorm - norm * mean_dnorm_norm);
        }
    }
}
