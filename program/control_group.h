// How much memory the control groups (cgroups, of containers and batch systems) around this process leave it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

// Of the group whose directory this is: its limit less what is used, but for files' pages, which are given up when
// memory is asked for. The most that there is where it has no limit.
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

// The least of its own group's and of those around that. Inside a container its path may mean nothing below `mount`,
// where then the root is its own.
inline int64_t control_group_memory(const std::string& membership = "/proc/self/cgroup",
                                    const std::string& mount = "/sys/fs/cgroup") {
    int64_t least = std::numeric_limits<int64_t>::max();
    std::ifstream file(membership);
    for (std::string line; std::getline(file, line);) {  // "0::/path", or of version 1 "9:cpu,memory:/path"
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const bool version2 = controllers.empty();
        if (!version2 && ("," + controllers + ",").find(",memory,") == std::string::npos) continue;
        for (std::string group = line.substr(second + 1);; group.erase(group.rfind('/'))) {
            if (group == "/") group.clear();
            least = std::min(least, control_group_leaves(mount + (version2 ? "" : "/memory") + group, version2));
            if (group.find('/') == std::string::npos) break;
        }
    }
    return least;
}
