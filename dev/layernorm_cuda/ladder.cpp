// LayerNorm's ladder on a GPU: the rungs of dev/layernorm/rungs.cuh.
#include "dev/ladder_cuda.h"
#include "dev/layernorm/rungs.cuh"

// 128 MiB: beyond any cache
const Kernel kernel{"layernorm_cuda",
                    "LayerNorm forward, with the residual's addition, and backward, on a GPU or in its emulator",
                    {{"N", on_gpu ? 32768 : 50, "rows"}, {"C", on_gpu ? 1024 : 260, "channels"}}};

namespace {

// The rungs of a pass that support rows of C values.
void climb_pass(Ladder& ladder, Cuda& dev, rungs::Pass pass, const rungs::Tensors& t) {
    for (const rungs::Rung& rung : rungs::ladder) {
        if (rung.pass != pass) continue;
        if (t.C % rung.vector != 0 || t.C > rung.most) {
            const std::string most = t.C > rung.most ? " and at most " + std::to_string(rung.most) : "";
            std::printf("left out: %s, for rows of a multiple of %d%s\n", rung.name, rung.vector, most.c_str());
            continue;
        }
        ladder.rung(
            rung.name, rung.adds, [&rung, &dev, t] { rung.run(dev, t); }, rung.run != rungs::with_atomics);
    }
}

}  // namespace

void climb(Ladder& ladder) {
    CudaLadder cuda(ladder);
    const auto shape = ladder.shape<2>();
    const int64_t N = shape[0], C = shape[1];
    const auto &inp = ladder.input({N, C}), &branch = ladder.input({N, C}), &weight = ladder.input({C}),
               &bias = ladder.input({C}), &dout = ladder.input({N, C});
    const auto &sum = ladder.output("sum", {N, C}), &out = ladder.output("out", {N, C}, C),
               &mean = ladder.output("mean", {N}, C), &rstd = ladder.output("rstd", {N}, C),
               &dinp = ladder.output("dinp", {N, C}, C);
    const auto &dweight = ladder.updated("dweight", {C}, N), &dbias = ladder.updated("dbias", {C}, N);
    const auto &saved_mean = ladder.input({N}), &saved_rstd = ladder.input({N});
    ladder.prepare({&saved_mean, &saved_rstd}, [&](Reference<double>& dev) {
        layernorm_forward(dev, out.on(dev), saved_mean.on(dev), saved_rstd.on(dev), inp.on(dev), weight.on(dev),
                          bias.on(dev), N, C);
    });
    rungs::Tensors t{cuda.memory(sum),
                     cuda.memory(out),
                     cuda.memory(mean),
                     cuda.memory(rstd),
                     cuda.memory(inp),
                     cuda.memory(branch),
                     cuda.memory(weight),
                     cuda.memory(bias),
                     cuda.memory(dinp),
                     cuda.memory(dweight),
                     cuda.memory(dbias),
                     cuda.memory(dout),
                     N,
                     C};

    ladder.pass("forward", bytes(8 * prod(N, C)), {&out, &mean, &rstd}, [&](Reference<double>& dev) {
        layernorm_forward(dev, out.on(dev), mean.on(dev), rstd.on(dev), inp.on(dev), weight.on(dev), bias.on(dev), N,
                          C);
    });
    climb_pass(ladder, cuda.dev, rungs::Pass::forward, t);

    ladder.pass("residual + layernorm", bytes(16 * prod(N, C)), {&sum, &out, &mean, &rstd},
                [&](Reference<double>& dev) {
                    residual_layernorm_forward(dev, sum.on(dev), out.on(dev), mean.on(dev), rstd.on(dev), inp.on(dev),
                                               branch.on(dev), weight.on(dev), bias.on(dev), N, C);
                });
    climb_pass(ladder, cuda.dev, rungs::Pass::fused, t);

    t.mean = cuda.memory(saved_mean), t.rstd = cuda.memory(saved_rstd);
    ladder.pass("backward", bytes(12 * prod(N, C)), {&dinp, &dweight, &dbias}, [&](Reference<double>& dev) {
        layernorm_backward(dev, dinp.on(dev), dweight.on(dev), dbias.on(dev), dout.on(dev), inp.on(dev), weight.on(dev),
                           saved_mean.on(dev), saved_rstd.on(dev), nullptr, N, C);
    });
    climb_pass(ladder, cuda.dev, rungs::Pass::backward, t);
    ladder.run();
}
