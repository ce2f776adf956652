// Checks of a LayerNorm backward that need no other backward: finite differences of the forward, and two properties of
// dx. They need a weight that is not 1 everywhere, or a backward that ignores it would pass.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "layers/layernorm.h"

namespace backward_checks {

using Numbers = std::vector<double>;
// As faulty_backward in dev/layernorm/faulty.h.
using Backward = void(double* dinp, double* dweight, double* dbias, const double* dout, const double* inp,
                      const double* weight, const double* mean, const double* rstd, int64_t N, int64_t C);

constexpr int64_t N = 4, C = 6;

struct Check {
    std::string name;
    double error;
    bool ok() const { return error <= 1e-7; }  // gradients are about 1; finite differences are within 1e-9 of them
};

// Values from low to high in a fixed order that looks random: multiples of the golden ratio without their integers.
inline Numbers spread(int64_t count, double low, double high) {
    Numbers x;
    for (int64_t i = 1; i <= count; ++i) {
        const double multiple = static_cast<double>(i) * 0.6180339887498949;
        x.push_back(low + (high - low) * (multiple - std::floor(multiple)));
    }
    return x;
}

// eps is 0: otherwise dx would be orthogonal to norm only up to eps.
inline void forward(Numbers& out, Numbers& mean, Numbers& rstd, const Numbers& inp, const Numbers& weight,
                    const Numbers& bias) {
    Reference<double> dev;
    layernorm_forward(dev, out.data(), mean.data(), rstd.data(), inp.data(), weight.data(), bias.data(), N, C, 0);
}

// The larger of two errors, or NaN if one of them is.
inline double larger(double error, double other) { return std::isnan(other) || other > error ? other : error; }

// The largest error of `gradient` with respect to x, an input of loss(): a central difference for each value.
template <class Loss>
double error_of(const Numbers& gradient, Numbers& x, const Loss& loss) {
    constexpr double h = 1e-5;
    double error = 0;
    for (size_t i = 0; i < x.size(); ++i) {
        const double value = x[i];
        x[i] = value + h;
        const double above = loss();
        x[i] = value - h;
        const double below = loss();
        x[i] = value;
        error = larger(error, std::abs((above - below) / (2 * h) - gradient[i]));
    }
    return error;
}

inline std::vector<Check> check(Backward* backward) {
    Numbers inp = spread(N * C, -2, 3), weight = spread(C, 0.5, 2), bias = spread(C, -1, 1);
    const Numbers dout = spread(N * C + 7, -1, 1);
    Numbers out(N * C), mean(N), rstd(N), dinp(N * C), dweight(C), dbias(C);
    forward(out, mean, rstd, inp, weight, bias);
    backward(dinp.data(), dweight.data(), dbias.data(), dout.data(), inp.data(), weight.data(), mean.data(),
             rstd.data(), N, C);

    double sum = 0, along = 0;
    for (size_t row = 0; row < N; ++row) {
        double s = 0, a = 0;
        for (size_t i = row * C; i < (row + 1) * C; ++i) s += dinp[i], a += dinp[i] * (inp[i] - mean[row]) * rstd[row];
        sum = larger(sum, std::abs(s)), along = larger(along, std::abs(a));
    }
    const auto loss = [&] {  // made up, so that its gradient with respect to out is dout
        forward(out, mean, rstd, inp, weight, bias);
        double total = 0;
        for (size_t i = 0; i < out.size(); ++i) total += out[i] * dout[i];
        return total;
    };
    return {{"dweight against finite differences", error_of(dweight, weight, loss)},
            {"dbias against finite differences", error_of(dbias, bias, loss)},
            {"dx against finite differences", error_of(dinp, inp, loss)},
            {"sum of dx over a row (0)", sum},
            {"sum of dx * norm over a row (0)", along}};
}

}  // namespace backward_checks
