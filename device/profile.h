// Time, operations and bytes of training, by layer.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <utility>

inline double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The product of counts as a double, which does not overflow.
template <class... Count>
double prod(Count... counts) {
    return (1.0 * ... * static_cast<double>(counts));
}

class Profile {
public:
    struct Totals {
        int64_t calls = 0;
        double seconds = 0, flops = 0, bytes = 0;  // flops 0: the layer is measured by bytes read and written
    };

    // Adds a call, if between start() and stop(): evaluations and samples are not counted.
    void add(const char* name, double seconds, double flops, double bytes) {
        if (!running_) return;
        Totals& sums = totals_[name];
        ++sums.calls, sums.seconds += seconds, sums.flops += flops, sums.bytes += bytes;
    }
    void start() { running_ = true; }
    void stop() { running_ = false; }
    bool running() const { return running_; }
    const std::map<std::string, Totals>& totals() const { return totals_; }  // by name

private:
    std::map<std::string, Totals> totals_;
    bool running_ = false;
};

// Times its scope, if the device has a profile, by the device's timing_begin and timing_end.
template <class Device>
class Timed {
public:
    Timed(Device& dev, const char* name, double flops, double bytes)
        : dev_(dev), name_(name), flops_(flops), bytes_(bytes), begin_(timing_begin(dev, name)) {}
    ~Timed() { timing_end(dev_, begin_, name_, flops_, bytes_); }
    Timed(const Timed&) = delete;

private:
    Device& dev_;
    const char* name_;
    double flops_, bytes_;
    decltype(timing_begin(std::declval<Device&>(), nullptr)) begin_;
};
