// A small GPT whose norm can be before each sublayer, after it, or nowhere; everything else is equal.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <vector>

#include "layers/layers.h"
#include "layers/rmsnorm_cpu.h"

namespace norm_experiment {

//   pre   x + f(LN(x)), and another LN before the classifier          (GPT-2)
//   post  LN(x + f(x))                                                (the first transformer, GPT-1)
//   rms   as pre, with RMSNorm
//   none  x + f(x)
enum class Norm { pre, post, rms, none };
constexpr const char* norm_names[] = {"pre", "post", "rms", "none"};

struct Shape {
    int64_t layers = 4, channels = 64, heads = 4, seq = 64, batch = 8, vocab = 256;
    int64_t rows() const { return batch * seq; }
};

using Buffer = std::vector<float>;

// A number in (0,1) that depends on (seed, index) only: splitmix64 (Steele, Lea & Flood 2014), with which results.csv
// was made.
inline double uniform(uint64_t seed, uint64_t index) {
    uint64_t z = seed * 0xd1342543de82ef95u + (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (static_cast<double>(z >> 11) + 0.5) * 0x1p-53;
}

// A range of the flat parameters.
struct Part {
    int64_t at = 0, size = 0;
    double std = 0, fill = 0;  // drawn from N(fill, std²)
    bool decay = false;
};

// Computes x + f(norm(x)) or norm(x + f(x)) from x (N,C), where f is attention or the MLP. Keeps all that its backward
// reads.
struct Sublayer {
    bool attention = false;
    Part normw, normb, inw, inb, outw, outb;
    Buffer x, normed, mean, rstd, hidden, mixed, sum;  // mixed: attention's output, or gelu(hidden)
    Buffer logsumexp;
};

class Model {
public:
    Model(Norm n, const Shape& s, uint64_t seed) : norm(n), shape(s) {
        const int64_t C = shape.channels, N = shape.rows();
        const double residual = 0.02 / std::sqrt(2.0 * static_cast<double>(shape.layers));
        wte = part(shape.vocab * C, 0.02, 0, true), wpe = part(shape.seq * C, 0.02, 0, true);
        for (int64_t i = 0; i < 2 * shape.layers; ++i) {
            Sublayer sub;
            sub.attention = i % 2 == 0;
            const int64_t H = sub.attention ? 3 * C : 4 * C, M = sub.attention ? C : 4 * C;
            sub.normw = part(C, 0, 1), sub.normb = part(C, 0, 0);
            sub.inw = part(H * C, 0.02, 0, true), sub.inb = part(H, 0, 0);
            sub.outw = part(C * M, residual, 0, true), sub.outb = part(C, 0, 0);
            for (Buffer* b : {&sub.x, &sub.normed, &sub.sum}) b->resize(static_cast<size_t>(N * C));
            sub.mean.resize(static_cast<size_t>(N)), sub.rstd.resize(static_cast<size_t>(N));
            sub.hidden.resize(static_cast<size_t>(N * H)), sub.mixed.resize(static_cast<size_t>(N * M));
            sub.logsumexp.resize(static_cast<size_t>(N * shape.heads));
            sublayers.push_back(std::move(sub));
        }
        finalw = part(C, 0, 1), finalb = part(C, 0, 0);
        for (Buffer* b : {&last, &final_normed, &dx, &dnormed}) b->resize(static_cast<size_t>(N * C));
        for (Buffer* b : {&dhidden, &dmixed}) b->resize(static_cast<size_t>(4 * N * C));
        for (Buffer* b : {&final_mean, &final_rstd, &losses}) b->resize(static_cast<size_t>(N));

        for (Buffer* b : {&parameters, &gradients, &m, &v}) b->resize(static_cast<size_t>(size));
        for (const Part& p : parts)
            for (int64_t i = p.at; i < p.at + p.size; ++i) {
                const uint64_t k = 2 * static_cast<uint64_t>(i);  // Box-Muller
                parameters[static_cast<size_t>(i)] =
                    static_cast<float>(p.fill + p.std * std::sqrt(-2 * std::log(uniform(seed, k))) *
                                                    std::cos(2 * std::numbers::pi * uniform(seed, k + 1)));
            }
    }

    // The mean loss of tokens (B,T) with targets (B,T), in nats.
    double evaluate(const int32_t* tokens, const int32_t* targets) {
        forward(tokens);
        classifier_forward(dev, losses.data(), final_output(), w(wte), targets, shape.rows(), shape.channels,
                           shape.vocab);
        return mean_loss();
    }

    // The mean loss, and its gradients.
    double forward_backward(const int32_t* tokens, const int32_t* targets) {
        const int64_t N = shape.rows(), C = shape.channels;
        std::fill(gradients.begin(), gradients.end(), 0.0f);
        forward(tokens);
        classifier_forward_backward(dev, losses.data(), dx.data(), g(wte), final_output(), w(wte), targets, N, C,
                                    shape.vocab, 1 / static_cast<float>(N));
        if (before()) norm_backward(dx.data(), finalw, finalb, dx, last, final_mean, final_rstd, nullptr);
        for (auto sub = sublayers.rbegin(); sub != sublayers.rend(); ++sub) backward(*sub);
        embedding_backward(dev, g(wte), g(wpe), dx.data(), tokens, shape.batch, shape.seq, C);
        return mean_loss();
    }

    // One step of AdamW, with gradients clipped to a norm of 1; step counts from 1.
    void update(double lr, int64_t step) {
        const double length = std::sqrt(global_norm_squared(dev, gradients.data(), size));
        const StepStatus clipped{.grad_scale = length > 1 ? 1 / length : 1, .apply = 1};
        const UpdateParams params = at_step({.lr = lr, .weight_decay = 0.1}, step);
        for (const Part& p : parts)
            adamw_update(dev, w(p), g(p), m.data() + p.at, v.data() + p.at, p.size, &params, p.decay, &clipped);
    }

    Buffer parameters, gradients;

private:
    Part part(int64_t count, double std, double fill, bool decay = false) {
        parts.push_back({size, count, std, fill, decay});
        size += count;
        return parts.back();
    }
    float* w(const Part& p) { return parameters.data() + p.at; }
    float* g(const Part& p) { return gradients.data() + p.at; }
    bool before() const { return norm == Norm::pre || norm == Norm::rms; }
    const float* final_output() const { return before() ? final_normed.data() : last.data(); }
    double mean_loss() { return sum(dev, losses.data(), shape.rows()) / static_cast<double>(shape.rows()); }

    void norm_forward(float* out, Buffer& mean, Buffer& rstd, const Buffer& inp, const Part& weight, const Part& bias) {
        if (norm == Norm::rms)
            rmsnorm_forward(dev, out, rstd.data(), inp.data(), w(weight), shape.rows(), shape.channels);
        else
            layernorm_forward(dev, out, mean.data(), rstd.data(), inp.data(), w(weight), w(bias), shape.rows(),
                              shape.channels);
    }
    // dinp = dresidual + the gradient through the norm; dinp may be dout's memory or dresidual.
    void norm_backward(float* dinp, const Part& weight, const Part& bias, const Buffer& dout, const Buffer& inp,
                       const Buffer& mean, const Buffer& rstd, const float* dresidual) {
        if (norm == Norm::rms)
            rmsnorm_backward(dev, dinp, g(weight), dout.data(), inp.data(), w(weight), rstd.data(), dresidual,
                             shape.rows(), shape.channels);
        else
            layernorm_backward(dev, dinp, g(weight), g(bias), dout.data(), inp.data(), w(weight), mean.data(),
                               rstd.data(), dresidual, shape.rows(), shape.channels);
    }

    void forward(const int32_t* tokens) {
        const int64_t N = shape.rows(), C = shape.channels;
        embedding_forward(dev, sublayers[0].x.data(), tokens, w(wte), w(wpe), shape.batch, shape.seq, C);
        for (size_t i = 0; i < sublayers.size(); ++i) {
            Sublayer& s = sublayers[i];
            Buffer& next = i + 1 < sublayers.size() ? sublayers[i + 1].x : last;
            if (before()) norm_forward(s.normed.data(), s.mean, s.rstd, s.x, s.normw, s.normb);
            const float* const inp = before() ? s.normed.data() : s.x.data();
            float* const out = norm == Norm::post ? s.sum.data() : next.data();
            if (s.attention) {
                matmul_forward(dev, s.hidden.data(), inp, w(s.inw), w(s.inb), N, C, 3 * C);
                attention_forward(dev, s.mixed.data(), s.logsumexp.data(), s.hidden.data(), shape.batch, shape.seq, C,
                                  shape.heads);
            } else {
                matmul_gelu_forward(dev, s.mixed.data(), s.hidden.data(), inp, w(s.inw), w(s.inb), N, C, 4 * C);
            }
            matmul_residual_forward(dev, out, s.mixed.data(), w(s.outw), w(s.outb), s.x.data(), N,
                                    s.attention ? C : 4 * C, C);
            if (norm == Norm::post) norm_forward(next.data(), s.mean, s.rstd, s.sum, s.normw, s.normb);
        }
        if (before()) norm_forward(final_normed.data(), final_mean, final_rstd, last, finalw, finalb);
    }

    // Turns dx, the gradient of the sublayer's output, into that of its input.
    void backward(Sublayer& s) {
        const int64_t N = shape.rows(), C = shape.channels;
        if (norm == Norm::post)  // through the norm to x + f(x)
            norm_backward(dx.data(), s.normw, s.normb, dx, s.sum, s.mean, s.rstd, nullptr);
        const float* const inp = before() ? s.normed.data() : s.x.data();
        if (s.attention) {
            matmul_backward(dev, dmixed.data(), g(s.outw), g(s.outb), dx.data(), s.mixed.data(), w(s.outw), N, C, C);
            attention_backward(dev, dhidden.data(), dmixed.data(), s.mixed.data(), s.hidden.data(), s.logsumexp.data(),
                               shape.batch, shape.seq, C, shape.heads);
        } else {
            matmul_gelu_backward(dev, dhidden.data(), g(s.outw), g(s.outb), dx.data(), s.mixed.data(), s.hidden.data(),
                                 w(s.outw), N, 4 * C, C);
        }
        matmul_backward(dev, dnormed.data(), g(s.inw), g(s.inb), dhidden.data(), inp, w(s.inw), N, C,
                        s.attention ? 3 * C : 4 * C);
        if (before()) return norm_backward(dx.data(), s.normw, s.normb, dnormed, s.x, s.mean, s.rstd, dx.data());
        for (size_t i = 0; i < dx.size(); ++i) dx[i] += dnormed[i];
    }

    const Norm norm;
    const Shape shape;
    Cpu dev;
    int64_t size = 0;
    std::vector<Part> parts;
    Part wte, wpe, finalw, finalb;
    std::vector<Sublayer> sublayers;
    Buffer m, v;
    Buffer last, final_normed, final_mean, final_rstd, losses, dx, dnormed, dhidden, dmixed;
};

}  // namespace norm_experiment
