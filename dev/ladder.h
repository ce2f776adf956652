// A ladder: several versions of one kernel, from plain loops to the program's own. Each version is a rung, which adds
// one idea to the rung before it; dev/ladder.cpp checks it against Reference<double>, times it and prints a row.
// dev/NAME/ladder.cpp defines `kernel` (name, sizes) and climb(ladder), which declares inputs and outputs, passes
// (forward, backward) and their rungs. dev/README.md has an example.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "dev/harness.h"
#include "device/device.h"

struct Dimension {
    const char* name;
    int64_t size;  // the default of --shape
    const char* what;
};

struct Kernel {
    const char *name, *what;
    std::vector<Dimension> shape;
};

// The minimal work of a call: floating-point operations, or bytes to and from memory.
struct Work {
    Unit unit;
    double amount;
};
inline Work flops(double amount) { return {Unit::flops, amount}; }
inline Work bytes(double amount) { return {Unit::bytes, amount}; }

// Floats for the rungs, and the same numbers in double for the reference.
class Values {
public:
    operator float*() const { return values.get(); }
    float* on(Cpu&) const { return values.get(); }
    double* on(Reference<double>&) const { return exact.get(); }
    int64_t count() const { return size; }

private:
    friend class Ladder;
    std::string name;
    int64_t size = 0;
    double tolerance = 0;             // share of the largest value
    HostBuffer<float> values, start;  // start: the initial values of an updated tensor; otherwise null
    HostBuffer<double> exact;
};

// A device with its own memory on which rungs run: dev/ladder_cuda.h.
class Accelerator {
public:
    virtual ~Accelerator() = default;
    virtual const char* name() const = 0;
    virtual bool has_clock() const = 0;  // false: rungs are checked, but not timed
    virtual void upload(const Values& t) = 0;
    virtual void download(const Values& t) = 0;  // after everything that was launched
    virtual void reorder() = 0;                  // from now on, runs threads in another order, if it can
    virtual double seconds_a_call(const std::function<void()>& run) = 0;
    virtual double peak(Unit unit) = 0;  // bytes/s of a copy, FLOP/s of FMAs in fp32
};

class Ladder {
public:
    using Results = std::vector<const Values*>;

    Ladder(int argc, char** argv);

    // Makes the rungs run on this device, not on the CPU.
    void on(Accelerator& accelerator) { accelerator_ = &accelerator; }

    // The sizes, in the order of kernel.shape.
    template <size_t D>
    std::array<int64_t, D> shape() const {
        std::array<int64_t, D> sizes;
        for (size_t i = 0; i < D; ++i) sizes[i] = shape_.at(i);
        return sizes;
    }

    // Random values in [low, high).
    const Values& input(std::initializer_list<int64_t> sizes, double low = -1, double high = 1);
    // A tensor that a pass overwrites. `terms`: how many numbers are summed for one value; its tolerance grows with it.
    const Values& output(const char* name, std::initializer_list<int64_t> sizes, int64_t terms = 1);
    // A tensor that a pass adds to or changes in place.
    const Values& updated(const char* name, std::initializer_list<int64_t> sizes, int64_t terms = 1, double low = -1,
                          double high = 1);
    // Memory for rungs to work in, zeroed.
    float* scratch(std::initializer_list<int64_t> sizes);
    std::vector<int32_t> tokens(int64_t count, int64_t vocabulary);

    // Computes inputs that come from an earlier layer by the reference.
    template <class Layer>
    void prepare(const Results& inputs, const Layer& layer) {
        Reference<double> exact;
        layer(exact);
        for (const Values* t : inputs) round(*t);
    }

    // A pass of the kernel: the work of one call, its outputs, and layer(dev), which computes them on Reference and, if
    // it accepts any device, on Cpu. The rungs that follow belong to it.
    template <class Layer>
    void pass(const char* name, Work work, const Results& results, const Layer& layer) {
        std::function<void()> production;
        if constexpr (std::is_invocable_v<const Layer&, Cpu&>) production = [layer, this] { layer(cpu_); };
        passes_.push_back({name,
                           work,
                           results,
                           [layer] {
                               Reference<double> exact;
                               layer(exact);
                           },
                           production,
                           {}});
    }
    // same_bits: the result has the same bits with any number or order of threads. file and line: where rung() is
    // called.
    void rung(const char* name, const char* adds, std::function<void()> run, bool same_bits = true,
              const char* file = __builtin_FILE(), int line = __builtin_LINE());
    void production(const char* adds, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
        rung("production", adds, passes_.back().production, true, file, line);  // layer(Cpu)
    }

    void run();
    bool all_correct() const { return all_correct_; }

private:
    struct Rung {
        std::string name, adds;
        std::function<void()> run;
        bool same_bits;
        std::string source;  // file:line
    };
    struct Pass {
        std::string name;
        Work work;
        Results results;
        std::function<void()> reference, production;
        std::vector<Rung> rungs;
    };

    Values& tensor(const char* name, std::initializer_list<int64_t> sizes);
    [[noreturn]] void refuse_shape() const;
    int64_t count(std::initializer_list<int64_t> sizes, double bytes_each);
    void fill(Values& t, double low, double high);
    static void round(const Values& t);
    bool selected(const Pass& pass, const Rung& rung) const;
    void run_pass(const Pass& pass);
    static void print_verdict(const std::vector<const Rung*>& rungs, const std::vector<double>& shares, Unit unit);
    std::string fault(const Pass& pass, const Rung& rung);
    bool timed() const { return !check_only_ && (!accelerator_ || accelerator_->has_clock()); }

    std::vector<int64_t> shape_;
    std::string shape_text_, rung_, csv_;
    bool check_only_ = false, source_ = false, all_correct_ = true;
    std::deque<Values> tensors_;  // a deque, so that addresses do not change
    std::deque<HostBuffer<float>> scratch_;
    const int64_t available_;
    double memory_ = 0;  // bytes used, of those that were available at the start
    uint64_t seed_ = 0;
    Cpu cpu_;
    Accelerator* accelerator_ = nullptr;
    std::vector<Pass> passes_;
    std::string csv_rows_;
};

// Defined by each dev/NAME/ladder.cpp.
extern const Kernel kernel;
void climb(Ladder& ladder);
