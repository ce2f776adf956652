// The rows of make bench: each is timed in turn with the machine's peak and with PyTorch, printed, and written as CSV.
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "dev/bench_pytorch.h"
#include "dev/harness.h"

struct BenchRow {
    std::string name;
    Unit unit = Unit::flops;
    double amount = 0;  // flops, or bytes read and written
    std::function<void()> work;
    int rounds = 7;
    double memory = 0;  // peak resident set in bytes, if the row has its own process
    MatmulKind matmul_kind = MatmulKind::fp32;
};

// A PyTorch process that has prepared the row's work, in one mode.
struct Rival {
    PyTorch* process;
    std::string mode;    // "eager", "compile"
    bool alone = false;  // it does only this work, so its memory is this work's
};

class BenchTable {
public:
    // only: time only rows whose name contains this text. csv may be null.
    BenchTable(std::string only, bool pytorch, std::FILE* csv);

    // Forks a process for `body`, which makes the rows "NAME SUFFIX", unless none of them is wanted. So a step's memory
    // can be measured, and no row affects the next.
    void group(const std::string& name, const std::vector<std::string>& suffixes, const std::function<void()>& body);

    // Times a row, if wanted, and PyTorch doing `work` ("matmul_forward 1024 768 2304").
    void layer(const BenchRow& row, const std::string& work);
    void row(const BenchRow& row, const std::vector<Rival>& rivals);

    bool wanted(const std::string& name) const { return name.find(only_) != std::string::npos; }
    bool pytorch() const { return pytorch_; }
    int groups() const { return groups_; }
    bool failed() const { return failed_; }

private:
    const std::string only_;
    const bool pytorch_;
    std::FILE* const csv_;  // shared with the forked processes
    PyTorch for_layers_;
    int groups_ = 0;
    bool failed_ = false;
};
