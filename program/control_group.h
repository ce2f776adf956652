// The memory and CPU limits of the control groups (cgroups, of containers and batch systems) around this process.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

// Memory left in the group with this directory: its limit minus its usage, except pages of files, which are released
// when memory is needed. INT64_MAX without a limit.
inline int64_t control_group_leaves(const std::string& directory, bool version2) {
    const auto number = [&](const char* name) {
        int64_t value = -1;
        std::ifstream(directory + "/" + name) >> value;
        return value;
    };
    const int64_t limit = number(version2 ? "memory.max" : "memory.limit_in_bytes"),
                  used = number(version2 ? "memory.current" : "memory.usage_in_bytes");
    if (limit <= 0 || used < 0) return std::numeric_limits<int64_t>::max();
    int64_t cached = 0, bytes = 0;
    std::ifstream stat(directory + "/memory.stat");
    const std::string prefix = version2 ? "" : "total_";
    for (std::string name; stat >> name >> bytes;)
        if (name == prefix + "active_file" || name == prefix + "inactive_file") cached += bytes;
    return limit - std::max<int64_t>(used - cached, 0);
}

// The group's quota in CPUs: its run time per period, divided by the period. Infinity without a quota.
inline double control_group_quota(const std::string& directory, bool version2) {
    double quota = -1, period = -1;  // no quota is written as "max", which cannot be read as a number
    if (version2) {
        std::ifstream(directory + "/cpu.max") >> quota >> period;
    } else {
        std::ifstream(directory + "/cpu.cfs_quota_us") >> quota;
        std::ifstream(directory + "/cpu.cfs_period_us") >> period;
    }
    return quota > 0 && period > 0 ? quota / period : std::numeric_limits<double>::infinity();
}

// The smallest of `unlimited` and limit(directory, version2) for the process's own group and the groups around it.
// Inside a container the group's path may not exist below `mount`; the root of `mount` is then its own group.
template <class Number, class Limit>
Number least_of_control_groups(const std::string& controller, const std::string& membership, const std::string& mount,
                               Number unlimited, const Limit& limit) {
    Number least = unlimited;
    std::ifstream file(membership);
    for (std::string line; std::getline(file, line);) {  // "0::/path", or of version 1 "9:cpu,memory:/path"
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const bool version2 = controllers.empty();
        if (!version2 && ("," + controllers + ",").find("," + controller + ",") == std::string::npos) continue;
        for (std::string group = line.substr(second + 1);; group.erase(group.rfind('/'))) {
            if (group == "/") group.clear();
            least = std::min(least, limit(mount + (version2 ? "" : "/" + controller) + group, version2));
            if (group.find('/') == std::string::npos) break;
        }
    }
    return least;
}

// Bytes that this process can still allocate; INT64_MAX without a limit.
inline int64_t control_group_memory(const std::string& membership = "/proc/self/cgroup",
                                    const std::string& mount = "/sys/fs/cgroup") {
    return least_of_control_groups("memory", membership, mount, std::numeric_limits<int64_t>::max(),
                                   control_group_leaves);
}

// The CPUs that this process may use; infinity without a quota. Containers' --cpus sets one: the process still sees all
// cores of the machine, but all its threads stop once the quota is used up.
inline double control_group_processors(const std::string& membership = "/proc/self/cgroup",
                                       const std::string& mount = "/sys/fs/cgroup") {
    return least_of_control_groups("cpu", membership, mount, std::numeric_limits<double>::infinity(),
                                   control_group_quota);
}
