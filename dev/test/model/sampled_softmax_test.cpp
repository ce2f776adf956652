// Sampled softmax: which tokens are drawn, that their sums have no bias, and the model that is trained with it.
#include <numeric>

#include "gpt2.h"
#include "dev/test/layers/layer_check.h"

namespace {

constexpr BatchPlace place{.seed = 5, .step = 3, .first_sequence = 7};

// By Zipf's law, but the last token never occurs.
std::vector<double> shares_of(int64_t V) {
    std::vector<double> shares;
    for (int64_t v = 0; v < V; ++v) shares.push_back(v + 1 < V ? 1 / static_cast<double>(v + 1) : 0);
    const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
    for (double& share : shares) share /= total;
    return shares;
}

std::vector<int32_t> draw_targets(const std::vector<double>& shares, int64_t N) {
    std::discrete_distribution<int32_t> token(shares.begin(), shares.end());
    std::vector<int32_t> targets;
    for (int64_t n = 0; n < N; ++n) targets.push_back(token(generator()));
    return targets;
}

TEST(SampledSoftmax, HasTheTargetsAndTokensInOrder) {
    const std::vector<double> shares = shares_of(300);
    SoftmaxSampler sampler(shares, 20);
    for (const int64_t N : {64, 1, 200}) {
        const std::vector<int32_t> targets = draw_targets(shares, N);
        const SoftmaxSample& sample = sampler.draw(targets.data(), N, place);
        EXPECT_TRUE(std::is_sorted(sample.tokens.begin(), sample.tokens.end()));
        EXPECT_EQ(std::adjacent_find(sample.tokens.begin(), sample.tokens.end()), sample.tokens.end());
        EXPECT_EQ(sample.counts.size(), sample.tokens.size());
        ASSERT_EQ(std::ssize(sample.targets), N);
        for (size_t n = 0; n < targets.size(); ++n)
            EXPECT_EQ(sample.tokens[static_cast<size_t>(sample.targets[n])], targets[n]);
    }
}

TEST(SampledSoftmax, DependsOnThePlaceOfTheBatchAlone) {
    const std::vector<int32_t> targets = {3, 4, 3};
    const auto tokens = [&](const BatchPlace& at) {
        SoftmaxSampler sampler(shares_of(1000), 50);
        sampler.draw(targets.data(), 2, {});
        return sampler.draw(targets.data(), 3, at).tokens;
    };
    EXPECT_EQ(tokens(place), tokens(place));
    for (const BatchPlace& other : {BatchPlace{6, 3, 7}, BatchPlace{5, 4, 7}, BatchPlace{5, 3, 8}})
        EXPECT_NE(tokens(place), tokens(other));
}

TEST(SampledSoftmax, DrawingAllTokensCountsEachOnce) {
    const std::vector<int32_t> targets = {3, 4, 3};
    for (const int64_t drawn : {50, 60}) {
        SoftmaxSampler sampler(shares_of(50), drawn);
        const SoftmaxSample& sample = sampler.draw(targets.data(), 3, place);
        EXPECT_EQ(std::ssize(sample.tokens), 50);
        EXPECT_EQ(sample.counts, std::vector<float>(50, 1));
        EXPECT_EQ(sampler.expected_tokens(3), 50);
    }
}

// The mean, over many batches, of the sum that a row sees, and of the sample's size, within five standard errors. The
// token that never occurs has the largest logit. The row's own target is a rare one, or a frequent one.
TEST(SampledSoftmax, SumsHaveNoBias) {
    constexpr int64_t V = 60, N = 12, batches = 20000;
    const std::vector<double> shares = shares_of(V);
    std::vector<double> terms = uniform(V, 2);
    for (double& x : terms) x = std::exp(x);
    terms[V - 1] = 10;
    for (const int32_t own : {0, 40}) {
        SoftmaxSampler sampler(shares, 5);
        double exact = 0, sum = 0, squares = 0, sizes = 0;
        for (int32_t v = 0; v < V; ++v) exact += terms[static_cast<size_t>(v)];
        for (int64_t i = 0; i < batches; ++i) {
            std::vector<int32_t> targets = draw_targets(shares, N);
            const int32_t drawn = std::exchange(targets[0], own);
            const SoftmaxSample& sample = sampler.draw(targets.data(), N, {.seed = 1, .step = i});
            double estimate = 0;
            for (size_t k = 0; k < sample.tokens.size(); ++k) {
                const int32_t v = sample.tokens[k];
                estimate += count_of(sample.counts.data(), static_cast<int64_t>(k), sample.targets[0]) *
                            terms[static_cast<size_t>(v)];
            }
            sum += estimate, squares += estimate * estimate;
            targets[0] = drawn;
            sizes += static_cast<double>(std::ssize(sampler.draw(targets.data(), N, {.seed = 2, .step = i}).tokens));
        }
        const double mean = sum / batches, deviation = std::sqrt(squares / batches - mean * mean);
        EXPECT_NEAR(mean, exact, 5 * deviation / std::sqrt(batches));
        EXPECT_GT(deviation, 0.05 * exact);  // one that is not random at all would not show a bias
        EXPECT_NEAR(sizes / batches, static_cast<double>(sampler.expected_tokens(N)), 0.6);
    }
}

// ---- The model

const GPT2Config config{.context = 7, .vocab = 23, .layers = 2, .heads = 2, .channels = 8};
constexpr int64_t B = 2, T = 5;

template <class Device>
struct Trial {
    explicit Trial(int64_t drawn = 0, int64_t shards = 1)
        : model(Device{}, config, B, T, ActivationPolicy::training, {}, {.shards = shards}) {
        if (drawn > 0) model.sample_softmax(shares_of(config.vocab), drawn);
        model.batch_place = place;
        generator().seed(3);
        for (const Parameter& p : model.table.rows) {
            const std::vector<double> values = uniform(p.copies * p.piece(), 0.3);
            for (size_t i = 0; i < values.size(); ++i)
                model.parameters.get()[static_cast<size_t>(p.offset) + i] =
                    static_cast<float>(values[i] + (p.init == Init::ones ? 1 : 0));
        }
        for (int64_t i = 0; i < B * T; ++i) {
            x.push_back(static_cast<int32_t>(i * 3 % config.vocab));
            y.push_back(static_cast<int32_t>(i * 5 % config.vocab));
        }
    }
    double step() {
        model.forward_backward(x.data(), y.data(), B, T, 0.4);
        return take(model.dev, model.status.get()).loss;
    }
    std::vector<double> gradients(const Parameter& p) const {
        return {model.gradients.get() + p.offset, model.gradients.get() + p.offset + p.copies * p.piece()};
    }
    GPT2<Device> model;
    std::vector<int32_t> x, y;
};

TEST(SampledSoftmax, OfAllTokensIsTheSoftmax) {
    Trial<Reference<double>> full, sampled(config.vocab);
    for (int batch = 1; batch <= 2; ++batch) {  // the second one's gradients are added
        EXPECT_NEAR(sampled.step(), full.step(), 1e-12);
        for (const Parameter& p : full.model.table.rows) {
            const std::vector<double> a = sampled.gradients(p), b = full.gradients(p);
            for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-12) << p.name << batch;
        }
    }
    EXPECT_EQ(sampled.model.flops_per_token(T), full.model.flops_per_token(T));
}

// The sample is the same each time, as for a batch of the same place.
TEST(SampledSoftmax, GradientsAgreeWithDifferences) {
    Trial<Reference<double>> t(4);
    GPT2<Reference<double>>& model = t.model;
    EXPECT_LT(model.flops_per_token(T), Trial<Reference<double>>().model.flops_per_token(T));
    t.step();
    for (const Parameter& p : model.table.rows) {
        double* const values = model.parameters.get() + p.offset;
        std::vector<double> x(values, values + p.copies * p.piece());
        const auto loss = [&] {
            std::copy(x.begin(), x.end(), values);
            return t.step();
        };
        zero(model.dev, model.gradients.get(), model.table.size);
        loss();
        expect_gradient(p.name.c_str(), loss, x, t.gradients(p), 1e-6);
        loss();  // x is back at its place
    }
}

TEST(SampledSoftmax, CpuAgreesWithReference) {
    Trial<Reference<double>> exact(4);
    Trial<Cpu> cpu(4);
    for (int batch = 1; batch <= 2; ++batch) {
        EXPECT_NEAR(cpu.step(), exact.step(), 2e-5);
        for (const Parameter& p : exact.model.table.rows) {
            const std::vector<double> a = cpu.gradients(p), b = exact.gradients(p);
            double largest = 0;
            for (const double value : b) largest = std::max(largest, std::abs(value));
            for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 2e-5 * largest) << p.name << i;
        }
    }
}

// A step begins without the gradients of the one before, also in rows that it does not use itself.
template <class Device>
void expect_own_gradients() {
    Trial<Device> second(4), alone(4);
    second.step();
    second.model.update(at_step({.lr = 0, .weight_decay = 0}, 1));
    for (Trial<Device>* t : {&second, &alone}) {
        std::ranges::fill(t->x, 1);
        std::ranges::fill(t->y, 2);
        t->step();
    }
    for (const Parameter& p : alone.model.table.rows) EXPECT_EQ(second.gradients(p), alone.gradients(p)) << p.name;
}

TEST(SampledSoftmax, GradientsAreThoseOfOneStep) {
    expect_own_gradients<Cpu>();
    expect_own_gradients<Reference<double>>();
}

// The norm is that of all gradients, though unused rows are not read.
TEST(SampledSoftmax, TheNormIsThatOfAllGradients) {
    Trial<Cpu> t(4);
    for (int step = 1; step <= 2; ++step) {
        t.step();
        const double squares = global_norm_squared(t.model.dev, t.model.gradients.get(), t.model.table.size);
        EXPECT_EQ(t.model.update(at_step({.lr = 0.1}, step)).grad_norm, std::sqrt(squares));
        std::ranges::fill(t.x, 5);
    }
}

// The shards of a step use different rows. All of them are in the norm, are updated, and are 0 before the next step.
TEST(SampledSoftmax, ShardsAddTheirRows) {
    constexpr int64_t shards = 4;
    Trial<Cpu> t(4, shards), alone(4);
    for (int64_t shard = 0; shard < shards; ++shard) {
        std::ranges::fill(t.x, static_cast<int32_t>(4 * shard));
        t.step();
        t.model.end_shard(shard);
    }
    const int64_t C = config.channels;
    const std::vector<double> gradients = t.gradients(t.model.table.wte);
    const double squares = global_norm_squared(t.model.dev, t.model.gradients.get(), t.model.table.size);
    EXPECT_EQ(t.model.update(at_step({.lr = 0.1, .weight_decay = 0}, 1)).grad_norm, std::sqrt(squares));
    for (int64_t i = 0; i < config.vocab * C; ++i)
        EXPECT_EQ(t.model.v.get()[t.model.table.wte.offset + i] != 0, gradients[static_cast<size_t>(i)] != 0) << i;

    const auto parameters = t.model.parameters.get();
    std::copy_n(parameters, t.model.table.size, alone.model.parameters.get());
    for (Trial<Cpu>* each : {&t, &alone}) {
        std::ranges::fill(each->x, 1);
        each->step();
    }
    EXPECT_EQ(t.gradients(t.model.table.wte), alone.gradients(t.model.table.wte));
}

// A row of the embedding that is neither an input nor in the sample keeps its moments. Without weight decay it stays.
TEST(SampledSoftmax, UpdatesTheRowsThatABatchUses) {
    Trial<Cpu> t(4);
    const int64_t C = config.channels, wte = t.model.table.wte.offset;
    const auto row = [&](const auto& buffer, int64_t v) {
        return std::vector<float>(buffer.get() + wte + v * C, buffer.get() + wte + (v + 1) * C);
    };
    t.step();
    std::vector<std::vector<float>> gradients, before;
    for (int64_t v = 0; v < config.vocab; ++v)
        gradients.push_back(row(t.model.gradients, v)), before.push_back(row(t.model.parameters, v));
    t.model.update(at_step({.lr = 0.1, .weight_decay = 0}, 1));
    const std::vector<float> zeros(static_cast<size_t>(C));
    int64_t used = 0;
    for (int64_t v = 0; v < config.vocab; ++v) {
        const bool has_gradient = gradients[static_cast<size_t>(v)] != zeros;
        used += has_gradient;
        EXPECT_EQ(row(t.model.parameters, v) != before[static_cast<size_t>(v)], has_gradient) << v;
        EXPECT_EQ(row(t.model.v, v) != zeros, has_gradient) << v;
        EXPECT_EQ(row(t.model.m, v), zeros) << v << ": no momentum";
    }
    EXPECT_TRUE(0 < used && used < config.vocab) << used;
}

TEST(SampledSoftmax, BitsDoNotDependOnTheThreads) {
    expect_same_bits_for_any_thread_count([&](Cpu&) {
        Trial<Cpu> t(4);
        t.step(), t.step();
        return std::vector<float>(t.model.gradients.get(), t.model.gradients.get() + t.model.table.size);
    });
}

}  // namespace
