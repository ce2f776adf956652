// PyTorch, to be timed in turn with ours: a child process that runs scripts/bench_pytorch.py and works on demand.
#pragma once

#include <string>

class PyTorch {
public:
    PyTorch() = default;            // none: prepare() says no
    explicit PyTorch(int threads);  // starts the script; throws if that fails
    PyTorch(PyTorch&& other) noexcept { *this = std::move(other); }
    PyTorch& operator=(PyTorch&& other) noexcept;
    ~PyTorch();

    // Makes `work` ("matmul_forward 1024 768 2304") ready in `mode` ("eager", "compile"), untimed. False if that mode
    // does not exist or fails for it; why is printed, once for each reason.
    bool prepare(const std::string& mode, const std::string& work);
    // Seconds a call, over as many as take 20 ms.
    double run(const std::string& mode);
    // The process's largest resident set, bytes.
    double memory();

private:
    std::string ask(const std::string& line);

    int to_ = -1, from_ = -1, pid_ = -1;
};
