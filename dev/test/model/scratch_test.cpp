// Scratch memory of the Cpu: the plan counts exactly what a model takes, all of it is allocated before the first step,
// and a layer that takes more than it reserved ends the program.
#include <gtest/gtest.h>

#include <omp.h>

#include "gpt2.h"
#include "gpt2_init.h"
#include "gpt2_scratch.h"

namespace {

struct Case {
    GPT2Config config;
    int64_t B, T;
    bool muon;
    int threads;
};

const Case cases[] = {
    {{.context = 16, .vocab = 50, .layers = 1, .heads = 2, .channels = 16}, 1, 16, true, 1},
    {{.context = 200, .vocab = 300, .layers = 2, .heads = 1, .channels = 48}, 5, 200, true, 3},  // halves of K
    {{.context = 16, .vocab = 300, .layers = 3, .heads = 2, .channels = 64}, 2, 16, true, 6},    // of 12 matrices
    {{.context = 64, .vocab = 50257, .layers = 1, .heads = 2, .channels = 8}, 6, 64, false, 2},  // two chunks of logits
    {{.context = 300, .vocab = 50, .layers = 1, .heads = 3, .channels = 96}, 1, 300, false, 5},
};

// A step of training, an evaluation of a smaller batch, and logits.
void use(GPT2<Cpu>& model, const Case& c) {
    const std::vector<int32_t> x(static_cast<size_t>(c.B * c.T), 3);
    if (model.policy != ActivationPolicy::inference) {
        model.forward_backward(x.data(), x.data(), c.B, c.T, 1);
        model.update(at_step({.optimizer = c.muon ? Optimizer::normuon : Optimizer::adamw, .clip = 1}, 1));
    }
    model.evaluate(x.data(), x.data(), c.B, c.T);
    model.evaluate(x.data(), x.data(), std::max<int64_t>(1, c.B - 1), c.T - 1);
    std::vector<float> logits(static_cast<size_t>(c.config.vocab));
    model.append(logits.data(), x.data(), 1, c.T - 1);
    model.append(logits.data(), x.data(), 1, 1);
}

}  // namespace

TEST(Scratch, WhatIsPlannedIsWhatAModelTakes) {
    const int threads_before = omp_get_max_threads();
    for (const Case& c : cases)
        for (const MatmulKind matmul_kind : {MatmulKind::fp32, MatmulKind::bf16})
            for (const ActivationPolicy policy : {ActivationPolicy::inference, ActivationPolicy::training}) {
                if (matmul_kind == MatmulKind::bf16 && (!gemm::has_bf16 || c.config.vocab > 1000)) continue;
                SCOPED_TRACE(testing::Message() << c.config.channels << " channels, " << c.threads << " threads");
                omp_set_num_threads(c.threads);
                const CpuScratch plan =
                    gpt2_scratch(c.config, {.B = c.B, .T = c.T, .policy = policy, .muon = c.muon, .cache = {1, c.T}},
                                 matmul_kind, c.threads);

                Cpu reserved(matmul_kind);
                reserved.reserve(plan);
                EXPECT_EQ(reserved.scratch_bytes(), plan.bytes());
                GPT2<Cpu> model(std::move(reserved), c.config, c.B, c.T, policy, {1, c.T});
                initialize_parameters(c.config, model.table, 1, model.parameters.get());
                use(model, c);
                EXPECT_EQ(model.dev.scratch_bytes(), plan.bytes());

                GPT2<Cpu> without_plan(Cpu(matmul_kind), c.config, c.B, c.T, policy, {1, c.T});
                initialize_parameters(c.config, without_plan.table, 1, without_plan.parameters.get());
                use(without_plan, c);
                EXPECT_EQ(without_plan.dev.scratch_bytes(), plan.bytes());
            }
    omp_set_num_threads(threads_before);
}

// Its plan is an upper bound, since a sample has another size each time. A sample of some 60 tokens has one chunk of
// rows where all tokens have two; in 48 channels its gradient is a sum of halves.
TEST(Scratch, OfASampledSoftmaxIsReserved) {
    const int64_t B = 6, T = 64;
    for (const int64_t vocab : {50257, 200})
        for (const int64_t drawn : {60, 200}) {
            const GPT2Config config{.context = T, .vocab = vocab, .layers = 1, .heads = 2, .channels = 48};
            const CpuScratch plan =
                gpt2_scratch(config, {.B = B, .T = T, .policy = ActivationPolicy::training, .sampled_softmax = true},
                             MatmulKind::fp32, 2);
            Cpu cpu;
            cpu.reserve(plan);
            GPT2<Cpu> model(std::move(cpu), config, B, T, ActivationPolicy::training);
            initialize_parameters(config, model.table, 1, model.parameters.get());
            model.sample_softmax(std::vector(static_cast<size_t>(vocab), 1 / static_cast<double>(vocab)), drawn);
            const std::vector<int32_t> x(static_cast<size_t>(B * T), 3);
            model.forward_backward(x.data(), x.data(), B, T, 1);
            EXPECT_EQ(model.dev.scratch_bytes(), plan.bytes());
        }
}

// A thread takes scratch memory in a region of `threads`, after 1000 floats were reserved for each of two threads.
template <class Take>
void take_in_region(int threads, const Take& take) {
    omp_set_num_threads(2);
    Cpu cpu;
    cpu.reserve(1000);
#pragma omp parallel num_threads(threads)
    if (omp_get_thread_num() == threads - 1) take(cpu);
}

TEST(ScratchDeathTest, ParallelRegionsTakeOnlyWhatIsReserved) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    take_in_region(2, [](Cpu& cpu) { cpu.scratch(1000); });
    EXPECT_DEATH(take_in_region(2, [](Cpu& cpu) { cpu.scratch(1001); }),
                 "Cpu::scratch: thread 1 needs 1001 floats.*reserve");
    EXPECT_DEATH(take_in_region(3, [](Cpu& cpu) { cpu.scratch(10); }), "Cpu::scratch: thread 2 needs 10 floats");
    EXPECT_DEATH(take_in_region(2, [](Cpu& cpu) { cpu.shared(10); }), "Cpu::shared: thread 1 needs 10 floats");
    EXPECT_DEATH(take_in_region(2, [](Cpu& cpu) { cpu.halves(10); }), "Cpu::halves: thread 1 needs 10 floats");
}

TEST(Scratch, HasRoomForAsManyThreadsAsThereWillBe) {
    const int threads_before = omp_get_max_threads();
    Cpu cpu;
    for (const int threads : {1, 4, 2}) {
        omp_set_num_threads(threads);
        cpu.reserve(10 * threads);
        int without = 0;
#pragma omp parallel reduction(+ : without)
        without += cpu.scratch(10 * threads) == nullptr;
        EXPECT_EQ(without, 0);
    }
    omp_set_num_threads(threads_before);
}
