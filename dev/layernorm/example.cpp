// LayerNorm alone: the forward, the backward in two ways, a step of SGD, and BatchNorm on the same numbers.
#include <cstdio>

#include "dev/layernorm/batchnorm.h"
#include "layers/layernorm.h"

namespace {

using Values = std::vector<double>;
constexpr int64_t B = 2, T = 3, C = 4, N = B * T;

void print(const char* title, const Values& x) {
    std::printf("%s\n", title);
    for (size_t i = 0; i < x.size(); ++i) std::printf("%9.4f%s", x[i], (i + 1) % C == 0 ? "\n" : "");
}

// dinp of one row by the chain rule, through every intermediate value.
void backward_long_way(double* dinp, const double* dout, const double* inp, const double* weight, double mean,
                       double rstd) {
    const double c = static_cast<double>(C);
    double dvariance = 0, dmean = 0, sum_of_centred = 0;
    for (int64_t k = 0; k < C; ++k) {
        const double dnorm = dout[k] * weight[k], centred = inp[k] - mean;
        dvariance += dnorm * centred * -0.5 * rstd * rstd * rstd;  // norm = centred * (variance + eps)^(-1/2)
        dmean -= dnorm * rstd;                                     // centred = inp - mean
        sum_of_centred += centred;
    }
    dmean -= dvariance * 2 * sum_of_centred / c;  // variance = mean of centred²; this sum is 0
    for (int64_t k = 0; k < C; ++k)
        dinp[k] = dout[k] * weight[k] * rstd + dvariance * 2 * (inp[k] - mean) / c + dmean / c;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1) {
        std::fprintf(stderr, "layernorm_example: found %s, expected no arguments\n", argv[1]);
        return 2;
    }
    Reference<double> dev;
    Values inp(N * C), weight{1, 1.5, 0.5, 1}, bias{0, 0.1, -0.1, 0.2}, out(N * C), mean(N), rstd(N);
    for (int64_t i = 0; i < N * C; ++i) inp[static_cast<size_t>(i)] = static_cast<double>((i * 7 + i * i) % 13);
    std::printf("B = %d sequences of T = %d positions with C = %d features: value (b,t,c) is at b*T*C + t*C + c\n\n",
                int{B}, int{T}, int{C});
    print("inp", inp);
    layernorm_forward(dev, out.data(), mean.data(), rstd.data(), inp.data(), weight.data(), bias.data(), N, C);
    print("out, each row normalized separately", out);

    // A loss to minimize: half the squared distance of out from a target.
    const Values target(N * C, 0.5);
    Values dout(N * C), dinp(N * C), dweight(C), dbias(C), long_way(N * C);
    const auto loss = [&] {
        layernorm_forward(dev, out.data(), mean.data(), rstd.data(), inp.data(), weight.data(), bias.data(), N, C);
        double sum = 0;
        for (size_t i = 0; i < out.size(); ++i) dout[i] = out[i] - target[i], sum += dout[i] * dout[i] / 2;
        return sum;
    };
    const double before = loss();
    layernorm_backward(dev, dinp.data(), dweight.data(), dbias.data(), dout.data(), inp.data(), weight.data(),
                       mean.data(), rstd.data(), nullptr, N, C);
    double difference = 0;
    for (int64_t row = 0; row < N; ++row)
        backward_long_way(&long_way[static_cast<size_t>(row * C)], &dout[static_cast<size_t>(row * C)],
                          &inp[static_cast<size_t>(row * C)], weight.data(), mean[static_cast<size_t>(row)],
                          rstd[static_cast<size_t>(row)]);
    for (size_t i = 0; i < dinp.size(); ++i) difference = std::max(difference, std::abs(dinp[i] - long_way[i]));
    print("dinp", dinp);
    std::printf("the long way, through dvariance and dmean, differs by at most %.1e\n", difference);
    print("dweight", dweight), print("dbias", dbias);

    const double lr = 0.05;
    for (size_t c = 0; c < weight.size(); ++c) weight[c] -= lr * dweight[c], bias[c] -= lr * dbias[c];
    const double after = loss();
    std::printf("a step of SGD, w -= %.2f * dw and b -= %.2f * db: loss %.4f, then %.4f\n\n", lr, lr, before, after);

    Values batch(N * C), alone(N * C), one(C);
    BatchNorm bn(C);
    bn.training(batch.data(), inp.data(), N);
    print("BatchNorm of the same inp, each column over the batch", batch);
    bn.evaluation(one.data(), inp.data(), 1);
    print("its first row in evaluation, after one batch: another result", one);
    layernorm_forward(dev, alone.data(), mean.data(), rstd.data(), inp.data(), nullptr, nullptr, 1, C);
    one.assign(alone.begin(), alone.begin() + C);
    print("LayerNorm of that row alone (without weight and bias): as in any batch", one);
    return difference < 1e-12 && after < before ? 0 : 1;
}
