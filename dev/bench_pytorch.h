// PyTorch, timed in turn with this program's layers: a child process that runs scripts/bench_pytorch.py and works on
// demand.
#pragma once

#include <string>

class PyTorch {
public:
    PyTorch() = default;            // no PyTorch: prepare() returns false
    explicit PyTorch(int threads);  // starts the script; throws if that fails
    PyTorch(PyTorch&& other) noexcept { *this = std::move(other); }
    PyTorch& operator=(PyTorch&& other) noexcept;
    ~PyTorch();

    // Prepares `work` ("matmul_forward 1024 768 2304") in `mode` ("eager", "compile"), untimed. Returns false if the
    // mode does not exist or fails for this work; each reason is printed once.
    bool prepare(const std::string& mode, const std::string& work);
    // Seconds per call, over as many calls as take 20 ms.
    double run(const std::string& mode);
    // The peak resident set of the process, in bytes.
    double memory();

private:
    std::string ask(const std::string& line);

    int to_ = -1, from_ = -1, pid_ = -1;
};
