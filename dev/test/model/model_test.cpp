// The whole model: its gradients, its devices compared with each other, and properties on which training relies.
#include <map>

#include "gpt2.h"
#include "dev/test/layers/layer_check.h"

namespace {

struct Case {
    GPT2Config config;
    int64_t B, T;
    int64_t N() const { return B * T; }
};
const Case small{{.context = 7, .vocab = 11, .layers = 2, .heads = 2, .channels = 8}, 2, 5};
const Case tiny{{.context = 40, .vocab = 256, .layers = 4, .heads = 4, .channels = 128}, 2, 33};

constexpr BatchPlace place{.seed = 5, .step = 3, .first_sequence = 7};
Case with_dropout(Case c) {
    c.config.dropout = 0.2;
    return c;
}

// The same for both devices: floats.
std::vector<float> random_parameters(const GPT2Config& config) {
    const ParameterTable table(config);
    std::vector<float> values(static_cast<size_t>(table.size));
    for (const Parameter& p : table.rows) {
        const std::vector<double> x = uniform(p.copies * p.piece(), p.decay() ? 0.15 : 0.3);
        for (size_t i = 0; i < x.size(); ++i)
            values[static_cast<size_t>(p.offset) + i] = static_cast<float>(x[i] + (p.init == Init::ones ? 1 : 0));
    }
    const int64_t C = config.channels;  // the padding rows of wte
    std::fill(values.begin() + config.vocab * C, values.begin() + config.padded_vocab() * C, 0.0f);
    return values;
}

struct Batch {
    explicit Batch(const Case& c) {
        const auto token = [&] { return static_cast<int32_t>(generator()() % static_cast<uint64_t>(c.config.vocab)); };
        for (int64_t i = 0; i < c.N(); ++i) x.push_back(token()), y.push_back(token());
        x.back() = static_cast<int32_t>(c.config.vocab - 1), x[0] = 0;
    }
    std::vector<int32_t> x, y;
};

template <class Device>
struct Trial {
    explicit Trial(const Case& c, const std::vector<float>& parameters,
                   ActivationPolicy policy = ActivationPolicy::training, CacheSize cache = {}, int64_t shards = 1)
        : model(Device{}, c.config, c.B, c.T, policy, cache, {.shards = shards}) {
        std::copy(parameters.begin(), parameters.end(), model.parameters.get());
        model.batch_place = place;
    }
    std::vector<double> gradients(const Parameter& p) const {
        return {model.gradients.get() + p.offset, model.gradients.get() + p.offset + p.copies * p.piece()};
    }
    // The loss of one more batch; its gradients are added.
    double loss(const int32_t* x, const int32_t* y, int64_t B, int64_t T, double scale) {
        model.forward_backward(x, y, B, T, scale);
        return model.loss();
    }
    std::vector<typename Device::scalar> all_gradients() const {
        return {model.gradients.get(), model.gradients.get() + model.table.size};
    }
    GPT2<Device> model;
};
using Exact = Reference<double>;

double largest(const std::vector<double>& x) {
    double size = 0;
    for (const double value : x) size = std::max(size, std::abs(value));
    return size;
}
// Every |a - b| at most `tolerance` of the largest |b|, so that NaN fails.
void expect_near(const std::string& name, const std::vector<double>& a, const std::vector<double>& b,
                 double tolerance) {
    double worst = 0;
    for (size_t i = 0; i < a.size(); ++i)
        if (!(std::abs(a[i] - b[i]) <= worst)) worst = std::abs(a[i] - b[i]);
    EXPECT_LE(worst, tolerance * largest(b)) << name << ", of at most " << largest(b);
}

TEST(Model, GradientsAgreeWithDifferences) {
    const Batch batch(small);
    Trial<Exact> t(small, random_parameters(small.config));
    GPT2<Exact>& model = t.model;
    const double scale = 0.4;
    model.forward_backward(batch.x.data(), batch.y.data(), small.B, small.T, scale);
    for (const Parameter& p : model.table.rows) {
        double* const values = model.parameters.get() + p.offset;
        std::vector<double> x(values, values + p.copies * p.piece());
        const auto loss = [&] {
            std::copy(x.begin(), x.end(), values);
            return scale * model.evaluate(batch.x.data(), batch.y.data(), small.B, small.T);
        };
        expect_gradient(p.name.c_str(), loss, x, t.gradients(p), 1e-6);
        loss();  // x is back at its place
    }
}

// The masks are the same each time, as for a batch of the same place.
TEST(Model, GradientsAgreeWithDifferencesWithDropout) {
    const Batch batch(small);
    Trial<Exact> t(with_dropout(small), random_parameters(small.config));
    GPT2<Exact>& model = t.model;
    const auto loss_of_batch = [&] {
        model.forward_backward(batch.x.data(), batch.y.data(), small.B, small.T, 0.4);
        return take(model.dev, model.status.get()).loss;
    };
    loss_of_batch();
    for (const Parameter& p : model.table.rows) {
        double* const values = model.parameters.get() + p.offset;
        std::vector<double> x(values, values + p.copies * p.piece());
        const auto loss = [&] {
            std::copy(x.begin(), x.end(), values);
            return loss_of_batch();
        };
        zero(model.dev, model.gradients.get(), model.table.size);
        loss();
        expect_gradient(p.name.c_str(), loss, x, t.gradients(p), 1e-6);
        loss();  // x is back at its place
    }
}

TEST(Model, CpuAgreesWithReference) {
    for (const Case& c : {small, tiny, with_dropout(small), with_dropout(tiny),
                          Case{{.context = 33, .vocab = 256, .layers = 2, .heads = 2, .channels = 128}, 2, 33},
                          Case{{.context = 70, .vocab = 301, .layers = 3, .heads = 3, .channels = 51}, 1, 67},
                          Case{{.context = 1, .vocab = 3, .layers = 1, .heads = 1, .channels = 3}, 1, 1}}) {
        SCOPED_TRACE(testing::Message() << c.config.layers << " layers of " << c.config.channels << ", T " << c.T);
        const std::vector<float> parameters = random_parameters(c.config);
        const Batch batch(c);
        Trial<Cpu> cpu(c, parameters);
        Trial<Exact> exact(c, parameters);
        const auto run = [&](auto& t) {
            return t.loss(batch.x.data(), batch.y.data(), c.B, c.T, 1.0 / static_cast<double>(c.N()));
        };
        const double loss = run(cpu), exact_loss = run(exact);
        // as test_gpt2: some 40 roundings in a row to the loss, and twice that and sums over the rows for gradients
        EXPECT_NEAR(loss, exact_loss, 5e-6 * exact_loss);
        for (const Parameter& p : cpu.model.table.rows) expect_near(p.name, cpu.gradients(p), exact.gradients(p), 2e-5);
        const double norm = cpu.model.update(at_step({}, 1)).grad_norm,
                     exact_norm = exact.model.update(at_step({}, 1)).grad_norm;
        EXPECT_NEAR(norm, exact_norm, 1e-5 * exact_norm);
    }
}

std::vector<float> train(const Case& c, int steps) {
    Trial<Cpu> t(c, random_parameters(c.config));
    std::vector<float> result;
    for (int step = 1; step <= steps; ++step) {
        const Batch batch(c);
        t.model.forward_backward(batch.x.data(), batch.y.data(), c.B, c.T, 1.0 / static_cast<double>(c.N()));
        const StepResult r = t.model.update(at_step({.lr = 1e-2, .weight_decay = 0.1, .clip = 1}, step));
        result.push_back(static_cast<float>(r.loss)), result.push_back(static_cast<float>(r.grad_norm));
    }
    const Model::HostState state = t.model.download();
    for (const float* part : {state.parameters, state.m, state.v})
        result.insert(result.end(), part, part + t.model.table.size);
    return result;
}

TEST(Model, TrainingsBitsDoNotDependOnTheThreads) {
    for (const Case& c : {small, tiny, with_dropout(tiny),
                          Case{{.context = 70, .vocab = 301, .layers = 2, .heads = 3, .channels = 51}, 3, 21}})
        expect_same_bits_for_any_thread_count([&](Cpu&) { return train(c, 4); });
}

template <class Device>
void expect_accumulation(Case c, double tolerance) {
    c.B = 4;
    const std::vector<float> parameters = random_parameters(c.config);
    const Batch batch(c);
    Trial<Device> whole(c, parameters), parts(c, parameters);
    const double scale = 1.0 / static_cast<double>(c.N());
    const int64_t half = c.N() / 2;
    const double loss = whole.loss(batch.x.data(), batch.y.data(), 4, c.T, scale);
    parts.model.forward_backward(batch.x.data(), batch.y.data(), 2, c.T, scale);
    parts.model.batch_place.first_sequence += 2;
    parts.model.forward_backward(batch.x.data() + half, batch.y.data() + half, 2, c.T, scale);
    EXPECT_NEAR(parts.model.loss(), loss, tolerance * loss);
    for (const Parameter& p : whole.model.table.rows)
        expect_near(p.name, parts.gradients(p), whole.gradients(p), tolerance);
}
TEST(Model, AccumulatedGradientsAreTheLargeBatchs) {
    for (const Case& c : {tiny, with_dropout(tiny)}) {
        expect_accumulation<Exact>(c, 1e-13);
        expect_accumulation<Cpu>(c, 1e-6);  // the same terms in another order: some roundings of the largest
    }
}

template <class Device>
void expect_tree() {
    Case c = small;
    c.B = 8;
    const std::vector<float> parameters = random_parameters(c.config);
    const Batch batch(c);
    const auto add_batch = [&](Trial<Device>& t, int64_t b) {
        t.model.forward_backward(batch.x.data() + b * c.T, batch.y.data() + b * c.T, 1, c.T, 0.1);
    };
    for (const int64_t shards : {1, 2, 4}) {
        Trial<Device> tree(c, parameters, ActivationPolicy::training, {}, shards);
        for (int step = 1; step <= 2; ++step) {  // the second one begins with what the first has left
            std::vector<std::vector<typename Device::scalar>> sums;
            for (int64_t shard = 0; shard < shards; ++shard) {
                Trial<Device> alone(c, parameters);
                for (int64_t b = shard * 8 / shards; b < (shard + 1) * 8 / shards; ++b)
                    add_batch(tree, b), add_batch(alone, b);
                tree.model.end_shard(shard);
                sums.push_back(alone.all_gradients());
            }
            for (; sums.size() > 1; sums.resize(sums.size() / 2))
                for (size_t i = 0; i < sums.size() / 2; ++i)
                    for (size_t j = 0; j < sums[i].size(); ++j) {
                        const auto left = sums[2 * i][j], right = sums[2 * i + 1][j];
                        sums[i][j] = left + right;
                    }
            EXPECT_EQ(tree.all_gradients(), sums[0]) << shards << " shards, step " << step;
            tree.model.update(at_step({.lr = 0}, step));
        }
    }
}
TEST(Model, ShardsAreSummedOverABalancedTree) {
    expect_tree<Exact>();
    expect_tree<Cpu>();
}

TEST(Model, TheFirstBatchAfterAnUpdateOverwritesGradients) {
    const std::vector<float> parameters = random_parameters(tiny.config);
    const Batch batch(tiny);
    Trial<Cpu> added(tiny, parameters), written(tiny, parameters);
    for (const Parameter& p : written.model.table.rows)
        if (p.matmul_weight)  // but for wte's padding, which nothing writes
            std::fill_n(written.model.gradients.get() + p.offset,
                        p.per_layer ? p.copies * p.stride : tiny.config.vocab * tiny.config.channels, NAN);
    added.model.accumulate = true;
    for (Trial<Cpu>* t : {&added, &written}) t->loss(batch.x.data(), batch.y.data(), tiny.B, tiny.T, 0.1);
    EXPECT_EQ(added.all_gradients(), written.all_gradients());
    EXPECT_TRUE(written.model.accumulate);
}

TEST(Model, ABatchSmallerThanPlannedGivesTheSameBits) {
    Case large = tiny;
    large.B = 5, large.T = 40;
    const std::vector<float> parameters = random_parameters(tiny.config);
    const Batch batch(tiny), other(large);
    Trial<Cpu> planned(tiny, parameters), roomy(large, parameters);
    roomy.model.forward_backward(other.x.data(), other.y.data(), large.B, large.T, 1);  // leaves its values behind
    zero(roomy.model.dev, roomy.model.gradients.get(), roomy.model.table.size);
    take(roomy.model.dev, roomy.model.status.get());
    const auto run = [&](Trial<Cpu>& t) { return t.loss(batch.x.data(), batch.y.data(), tiny.B, tiny.T, 0.1); };
    EXPECT_EQ(run(planned), run(roomy));
    EXPECT_EQ(planned.all_gradients(), roomy.all_gradients());
}

TEST(Model, WhatIsKeptChangesNothing) {
    for (const Case& c : {tiny, with_dropout(tiny)}) {
        const std::vector<float> parameters = random_parameters(c.config);
        const Batch batch(c);
        const auto run = [&](Trial<Cpu>& t) { return t.loss(batch.x.data(), batch.y.data(), c.B, c.T, 1); };
        Trial<Cpu> training(c, parameters), inference(c, parameters, ActivationPolicy::inference);
        const double loss = run(training);
        int64_t less = training.model.acts.size;
        for (const ActivationPolicy policy :
             {ActivationPolicy::recompute_gelu, ActivationPolicy::recompute_ln, ActivationPolicy::recompute_block}) {
            Trial<Cpu> recomputing(c, parameters, policy);
            EXPECT_LT(recomputing.model.acts.size, less);
            less = recomputing.model.acts.size;
            EXPECT_EQ(run(recomputing), loss);
            EXPECT_EQ(recomputing.all_gradients(), training.all_gradients());
        }
        Trial<Cpu> all(c, parameters, ActivationPolicy::all);
        EXPECT_EQ(run(all), loss);
        EXPECT_EQ(training.all_gradients(), all.all_gradients());
        // An evaluation drops nothing.
        Trial<Cpu> without(tiny, parameters);
        const double evaluated = run(without);
        EXPECT_EQ(evaluated == loss, c.config.dropout == 0);
        for (Trial<Cpu>* t : {&training, &all, &inference})
            EXPECT_EQ(t->model.evaluate(batch.x.data(), batch.y.data(), tiny.B, tiny.T), evaluated);
    }
}

// The logits that append() computes for pieces of random lengths are those of one forward over all tokens.
template <class Device>
void expect_appended_logits(double tolerance) {
    using scalar = typename Device::scalar;
    const std::vector<float> parameters = random_parameters(tiny.config);
    const Batch batch(tiny);
    const int64_t B = tiny.B, C = tiny.config.channels, V = tiny.config.vocab;
    Trial<Device> whole(tiny, parameters);
    whole.model.forward(batch.x.data(), B, tiny.T);
    for (const ActivationPolicy policy : {ActivationPolicy::inference, ActivationPolicy::training}) {
        Trial<Device> t(tiny, parameters, policy, {B, tiny.T});
        std::vector<float> logits(static_cast<size_t>(B * V));
        for (int run = 0; run < 6; ++run) {
            t.model.truncate(0);
            for (int64_t n = 0; n < tiny.T;) {
                const int64_t most = run == 0 ? tiny.T : run == 1 ? 1 : 9;
                const int64_t length =
                    std::min(tiny.T - n, run < 2 ? most : 1 + static_cast<int64_t>(generator()() % 9));
                std::vector<int32_t> piece;
                for (int64_t b = 0; b < B; ++b)
                    piece.insert(piece.end(), batch.x.begin() + b * tiny.T + n,
                                 batch.x.begin() + b * tiny.T + n + length);
                std::ranges::fill(logits, NAN);
                t.model.append(logits.data(), piece.data(), B, length);
                n += length;
                ASSERT_EQ(t.model.appended(), n);
                for (int64_t b = 0; b < B; ++b) {
                    std::vector<scalar> row(static_cast<size_t>(V));
                    classifier_logits(
                        whole.model.dev, row.data(),
                        whole.model.activations.get() + whole.model.acts.lnf.offset + (b * tiny.T + n - 1) * C,
                        whole.model.parameters.get() + whole.model.table.wte.offset, 1, C, V);
                    const scalar* const appended = t.model.activations.get() + t.model.acts.logits.offset + b * V;
                    expect_near("logits", {appended, appended + V}, {row.begin(), row.end()}, tolerance);
                    for (int64_t v = 0; v < V; ++v)
                        ASSERT_EQ(logits[static_cast<size_t>(b * V + v)], static_cast<float>(appended[v]));
                }
            }
        }
        EXPECT_THROW(t.model.append(logits.data(), batch.x.data(), 1, 1), std::logic_error) << "the cache is full";
        t.model.truncate(0);
        EXPECT_THROW(t.model.append(logits.data(), batch.x.data(), B + 1, 1), std::logic_error);
    }
}
TEST(Model, AppendedPiecesHaveTheLogitsOfTheWhole) {
    expect_appended_logits<Exact>(1e-10);
    expect_appended_logits<Cpu>(1e-5);
}

// A model whose activations hold two tokens takes a longer prompt in pieces.
TEST(Model, AppendTakesMoreTokensThanTheActivationsHold) {
    const std::vector<float> parameters = random_parameters(tiny.config);
    const Batch batch(tiny);
    Case few = tiny;
    few.B = 1, few.T = 2;
    Trial<Cpu> small_buffers(few, parameters, ActivationPolicy::inference, {1, tiny.T});
    Trial<Cpu> large(tiny, parameters, ActivationPolicy::inference, {1, tiny.T});
    std::vector<float> a(static_cast<size_t>(tiny.config.vocab)), b = a;
    small_buffers.model.append(a.data(), batch.x.data(), 1, tiny.T);
    large.model.append(b.data(), batch.x.data(), 1, tiny.T);
    expect_near("logits", {a.begin(), a.end()}, {b.begin(), b.end()}, 1e-5);
}

// A model with bf16 or int8 weights is the same as one whose fp32 weights have these values, takes less memory, and
// keeps the vectors and the position embeddings in fp32.
TEST(Model, StoredWeightsComputeWithTheirValues) {
    const std::vector<float> parameters = random_parameters(tiny.config);
    const Batch batch(tiny);
    const CacheSize cache{1, tiny.T};
    for (const WeightType type : {WeightType::bf16, WeightType::int8}) {
        Cpu cpu;
        cpu.weights = type;
        GPT2<Cpu> stored(std::move(cpu), tiny.config, tiny.B, tiny.T, ActivationPolicy::inference, cache);
        const Model::HostState host = stored.download();
        std::ranges::copy(parameters, host.parameters);
        stored.upload(host);
        EXPECT_EQ(stored.parameters.get_deleter().bytes, host_bytes<float>(stored.table.size));
        EXPECT_LT(100 * stored.table.size, std::ssize(parameters) * (type == WeightType::bf16 ? 52 : 28));

        std::vector<float> values = parameters;
        for (const Parameter& p : ParameterTable(tiny.config).rows) {
            if (!p.matmul_weight) continue;
            const int64_t N = p.copies * p.shape[0], K = p.shape[1];
            std::vector<float> converted(static_cast<size_t>(N * weight_floats(type, K)));
            store_weights(type, converted.data(), parameters.data() + p.offset, N, K);
            with_rows(type, converted.data(), K, [&](const auto& rows) {
                for (int64_t n = 0; n < N; ++n) read_row(values.data() + p.offset + n * K, rows, n, K);
            });
        }
        Trial<Cpu> fp32(tiny, values, ActivationPolicy::inference, cache);
        EXPECT_NEAR(stored.evaluate(batch.x.data(), batch.y.data(), tiny.B, tiny.T),
                    fp32.model.evaluate(batch.x.data(), batch.y.data(), tiny.B, tiny.T), 1e-5 * 5 * double(tiny.N()));
        std::vector<float> a(static_cast<size_t>(tiny.config.vocab)), b = a;
        for (int64_t n = 0; n < tiny.T;) {
            const int64_t length = n == 0 ? 20 : 1;  // more rows than are read in place, then one
            stored.append(a.data(), batch.x.data() + n, 1, length);
            fp32.model.append(b.data(), batch.x.data() + n, 1, length);
            // Beside int8, a row of activations is rounded to multiples of 1/32767 = 3e-5 of its largest magnitude.
            expect_near("logits", {a.begin(), a.end()}, {b.begin(), b.end()}, type == WeightType::int8 ? 2e-4 : 1e-5);
            n += length;
        }
    }
}

TEST(Model, UpdateDecaysMatricesOnlyAndClearsGradients) {
    const std::vector<float> parameters = random_parameters(small.config);
    Trial<Cpu> t(small, parameters);
    t.model.update(at_step({.lr = 0.5, .weight_decay = 0.5}, 1));  // no gradients: nothing but decay
    for (const Parameter& p : t.model.table.rows)
        for (int64_t i = p.offset; i < p.offset + p.copies * p.piece(); ++i)
            ASSERT_EQ(t.model.parameters.get()[i],
                      parameters[static_cast<size_t>(i)] * (p.shape.size() == 2 ? 0.75f : 1.0f))
                << p.name;
    const Batch batch(small);
    t.model.forward_backward(batch.x.data(), batch.y.data(), small.B, small.T, 1);
    EXPECT_GT(t.model.update(at_step({}, 2)).grad_norm, 0);
    EXPECT_EQ(t.model.update(at_step({}, 3)).grad_norm, 0);
}

// Compares the update with one from each matrix's own gradient and moments: in the model the matrices are slices of
// three flat buffers.
void expect_own_updates(Optimizer optimizer) {
    Trial<Exact> t(small, random_parameters(small.config));
    GPT2<Exact>& model = t.model;
    const Batch batch(small);
    const UpdateParams params{.lr = 0.01, .weight_decay = 0.1, .optimizer = optimizer, .muon_lr = 0.05};
    const StepStatus unclipped{.grad_scale = 1, .apply = 1};
    for (int64_t step = 1; step <= 2; ++step) {  // the second has momentum from the first
        model.forward_backward(batch.x.data(), batch.y.data(), small.B, small.T, 1);
        const auto values = [&](const double* x, const Parameter& p, int64_t l) {
            return std::vector<double>(x + p.at(l), x + p.at(l) + p.shape[0] * p.shape[1]);
        };
        std::map<std::string, std::vector<double>> expected;
        for (const Parameter& p : model.table.rows)
            for (int64_t l = 0; p.muon() && l < p.copies; ++l) {
                std::vector<double> weight = values(model.parameters.get(), p, l), m = values(model.m.get(), p, l),
                                    squares = values(model.v.get(), p, l),
                                    gradient = values(model.gradients.get(), p, l);
                Exact dev;
                double* const own_squares = optimizer == Optimizer::normuon ? squares.data() : nullptr;
                muon_update(dev, {{weight.data(), m.data(), gradient.data(), p.shape[0], p.shape[1], own_squares}},
                            &params, &unclipped);
                expected[p.name + std::to_string(l)] = weight;
            }
        EXPECT_EQ(expected.size(), 4 * small.config.layers);
        model.update(at_step(params, step));
        for (const Parameter& p : model.table.rows)
            for (int64_t l = 0; p.muon() && l < p.copies; ++l)
                EXPECT_EQ(values(model.parameters.get(), p, l), expected[p.name + std::to_string(l)])
                    << p.name << ", layer " << l << ", step " << step;
    }
}
TEST(Model, MuonUpdatesEachMatrixFromItsOwnGradient) { expect_own_updates(Optimizer::muon); }
TEST(Model, NorMuonUpdatesEachMatrixFromItsOwnGradientAndSquares) { expect_own_updates(Optimizer::normuon); }

TEST(Model, PaddingOfTheVocabularyStaysZero) {
    Trial<Cpu> t(small, random_parameters(small.config));
    const int64_t begin = small.config.vocab * small.config.channels,
                  end = small.config.padded_vocab() * small.config.channels;
    for (int step = 1; step <= 3; ++step) {
        const Batch batch(small);
        t.model.forward_backward(batch.x.data(), batch.y.data(), small.B, small.T, 0.1);
        for (int64_t i = begin; i < end; ++i) ASSERT_EQ(t.model.gradients.get()[i], 0) << step;
        t.model.update(at_step({.lr = 0.1, .weight_decay = 0.1}, step));
        for (const float* x : {t.model.parameters.get(), t.model.m.get(), t.model.v.get()})
            for (int64_t i = begin; i < end; ++i) ASSERT_EQ(x[i], 0) << step;
    }
}

TEST(Model, NaNInAnyParameterShowsAndIsNotApplied) {
    const std::vector<float> parameters = random_parameters(small.config);
    const Batch batch(small);
    for (const Parameter& p : ParameterTable(small.config).rows) {
        Trial<Cpu> t(small, parameters);
        t.model.parameters.get()[p.offset] = NAN;  // of token 0, position 0, channel 0: all of them are used
        EXPECT_TRUE(std::isnan(t.model.evaluate(batch.x.data(), batch.y.data(), small.B, small.T))) << p.name;
        EXPECT_TRUE(std::isnan(t.loss(batch.x.data(), batch.y.data(), small.B, small.T, 1))) << p.name;
        for (const Parameter& q : t.model.table.rows)
            EXPECT_TRUE(std::isnan(t.model.gradients.get()[q.offset])) << p.name << " did not reach " << q.name;
        const StepResult result = t.model.update(at_step({.clip = 1}, 1));
        EXPECT_TRUE(std::isnan(result.loss) && std::isnan(result.grad_norm) && !result.applied) << p.name;
        std::vector<float> after(t.model.parameters.get(), t.model.parameters.get() + t.model.table.size);
        after[static_cast<size_t>(p.offset)] = parameters[static_cast<size_t>(p.offset)];
        EXPECT_EQ(after, parameters) << p.name;
    }
}

}  // namespace
