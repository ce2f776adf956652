// Measures the numbers of dev/layernorm/README.md: layernorm_measure > dev/layernorm/results.csv
// It times several widths, each in turn with a streaming copy of the same size, and the cost of saving more or less for
// the backward. Arrays have 128 MiB: with smaller ones, caches would make the copy look faster. The columns of the CSV
// are work, rows, channels, median milliseconds, GB/s, MiB saved.
#include <cstdio>
#include <functional>

#include "dev/layernorm/trade.h"
#include "device/cpu/peak.h"
#include "layers/rmsnorm_cpu.h"

namespace {

struct Measured {
    const char* name;
    double bytes;  // to read and write, per value
    std::function<void()> run;
    double kept_mib = 0;
};

void report(const std::vector<Measured>& all, int64_t N, int64_t C) {
    std::vector<std::vector<double>> seconds(all.size());
    for (int round = 0; round < 60; ++round)
        for (size_t i = 0; i < all.size(); ++i) {
            const double start = seconds_now();
            all[i].run();
            if (round > 0) seconds[i].push_back(seconds_now() - start);
        }
    for (size_t i = 0; i < all.size(); ++i)
        std::printf("%s,%lld,%lld,%.4f,%.2f,%.2f\n", all[i].name, static_cast<long long>(N), static_cast<long long>(C),
                    median(seconds[i]) * 1e3, all[i].bytes * prod(N, C) / median(seconds[i]) / 1e9, all[i].kept_mib);
    std::fflush(stdout);
}

void measure(int64_t N, int64_t C) {
    const auto make = [](int64_t n) {
        auto x = host_allocate<float>(n + 1024);  // arrays exactly a power of two apart conflict in memory's banks
        for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(i * 7919 % 1009) / 500 - 1;
        return x;
    };
    const auto inp = make(N * C), branch = make(N * C), dout = make(N * C), out = make(N * C), second = make(N * C);
    const auto weight = make(C), bias = make(C), dweight = make(C), dbias = make(C), mean = make(N), rstd = make(N);
    Cpu dev;
    const Measured copy{"copy", 8, [&] {
                            parallel_for(simd::vectors(N * C), [&](int64_t i) {
                                simd::stream(out.get() + i * simd::W, simd::load(inp.get() + i * simd::W));
                            });
                        }};
    report({copy,
            {"layernorm forward", 8,
             [&] {
                 layernorm_forward(dev, out.get(), mean.get(), rstd.get(), inp.get(), weight.get(), bias.get(), N, C);
             }},
            {"layernorm backward", 12,
             [&] {
                 layernorm_backward(dev, out.get(), dweight.get(), dbias.get(), dout.get(), inp.get(), weight.get(),
                                    mean.get(), rstd.get(), nullptr, N, C);
             }},
            {"residual + layernorm forward", 16,
             [&] {
                 residual_layernorm_forward(dev, second.get(), out.get(), mean.get(), rstd.get(), inp.get(),
                                            branch.get(), weight.get(), bias.get(), N, C);
             }},
            {"rmsnorm forward", 8, [&] { rmsnorm_forward(dev, out.get(), rstd.get(), inp.get(), weight.get(), N, C); }},
            {"rmsnorm backward", 12,
             [&] {
                 rmsnorm_backward(dev, out.get(), dweight.get(), dout.get(), inp.get(), weight.get(), rstd.get(),
                                  nullptr, N, C);
             }}},
           N, C);
    if (C != 768) return;

    using namespace layernorm_trade;
    using enum Saved;
    const double rows = static_cast<double>(N) * 4 / (1 << 20), all = rows * static_cast<double>(C);
    const auto both_passes = [&]<Saved saved>(const char* forwards, const char* backwards, double mib) {
        return std::vector<Measured>{{forwards, saved == norm ? 12.0 : 8.0,
                                      [&] {
                                          forward<saved>(out.get(), second.get(), mean.get(), rstd.get(), inp.get(),
                                                         weight.get(), bias.get(), N, C);
                                      },
                                      mib},
                                     {backwards, 12.0,
                                      [&] {
                                          backward<saved>(dev, out.get(), dweight.get(), dbias.get(), dout.get(),
                                                          saved == norm ? second.get() : inp.get(), weight.get(),
                                                          mean.get(), rstd.get(), N, C);
                                      },
                                      mib}};
    };
    std::vector<Measured> trade;
    for (const auto& some :
         {both_passes.operator()<norm>("keep norm forward", "keep norm backward", all + rows),
          both_passes.operator()<statistics>("keep statistics forward", "keep statistics backward", 2 * rows),
          both_passes.operator()<nothing>("keep nothing forward", "keep nothing backward", 0)})
        trade.insert(trade.end(), some.begin(), some.end());
    report(trade, N, C);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1) {
        std::fprintf(stderr, "layernorm_measure: found %s, expected no arguments\n", argv[1]);
        return 2;
    }
    std::printf("work,rows,channels,ms,GB/s,MiB kept\n");
    for (const int64_t C : {256, 512, 768, 1024, 2048, 4096, 8192}) measure((int64_t{32} << 20) / C, C);
}
