// The matmul's ladder on a GPU: the rungs of rungs.cuh.
#include "dev/ladder_cuda.h"
#include "dev/matmul_cuda/rungs.cuh"

const Kernel kernel{"matmul_cuda",
                    "a linear layer, forward and backward, on a GPU or in its emulator",
                    {{"N", on_gpu ? 8192 : 20, "rows"},
                     {"C", on_gpu ? 768 : 50, "channels in"},
                     {"OC", on_gpu ? 3072 : 70, "channels out"}}};

void climb(Ladder& ladder) {
    using rungs::rows, rungs::transposed;
    static CudaLadder cuda(ladder);
    const auto shape = ladder.shape<3>();
    const int64_t N = shape[0], C = shape[1], OC = shape[2];
    const auto &inp = ladder.input({N, C}), &weight = ladder.input({OC, C}), &bias = ladder.input({OC});
    const auto& out = ladder.output("out", {N, OC}, C);
    Cuda& dev = cuda.dev;
    float *const x = cuda.memory(inp), *const w = cuda.memory(weight), *const b = cuda.memory(bias),
                 *const y = cuda.memory(out);
    ladder.pass("forward", flops(2 * prod(N, C, OC)), {&out}, [&](Reference<double>& d) {
        matmul_forward(d, out.on(d), inp.on(d), weight.on(d), bias.on(d), N, C, OC);
    });
    const rungs::Task forward{y, rows(x, C), transposed(w, C), b, N, OC, C};
    ladder.rung("naive", "one thread per element", [&, forward] { rungs::naive(dev, forward); });
    ladder.rung("shared tiles", "values loaded once for 16 threads", [&, forward] { shared_tiles(dev, forward); });
    ladder.rung("register tiles", "values loaded once for 4 elements of a thread",
                [&, forward] { register_tiles(dev, forward); });
    ladder.rung("production", "cuBLASLt", [&, N = N, C = C, OC = OC] { matmul_forward(dev, y, x, w, b, N, C, OC); });

    const auto &dout = ladder.input({N, OC}), &dinp = ladder.output("dinp", {N, C}, OC);
    const auto &dweight = ladder.updated("dweight", {OC, C}, N), &dbias = ladder.updated("dbias", {OC}, N);
    float *const dy = cuda.memory(dout), *const dx = cuda.memory(dinp), *const dw = cuda.memory(dweight),
                 *const db = cuda.memory(dbias);
    ladder.pass("backward", flops(4 * prod(N, C, OC)), {&dinp, &dweight, &dbias}, [&](Reference<double>& d) {
        matmul_backward(d, dinp.on(d), dweight.on(d), dbias.on(d), dout.on(d), inp.on(d), weight.on(d), N, C, OC);
    });
    const auto backward = [&, N = N, C = C, OC = OC](void (*matmul)(Cuda&, const rungs::Task&)) {
        return [=, &dev] {
            matmul(dev, {dx, rows(dy, OC), rows(w, C), nullptr, N, C, OC});
            matmul(dev, {dw, transposed(dy, OC), rows(x, C), nullptr, OC, C, N, true});
            LAUNCH(rungs::dbias_kernel, rungs::blocks(OC, 256), 256, 0, dev.stream, db, dy, N, OC);
        };
    };
    ladder.rung("naive", "one thread per element", backward(rungs::naive));
    ladder.rung("shared tiles", "values loaded once for 16 threads", backward(rungs::shared_tiles));
    ladder.rung("register tiles", "values loaded once for 4 elements of a thread", backward(rungs::register_tiles));
    ladder.rung("production", "cuBLASLt, dbias with dweight",
                [&, N = N, C = C, OC = OC] { matmul_backward(dev, dx, dw, db, dy, x, w, N, C, OC); });
    ladder.run();
}
