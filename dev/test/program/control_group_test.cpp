// The memory plan and the number of threads respect the limits of the program's control group, at any depth.
#include "program/control_group.h"

#include "dev/test/test_directory.h"
#include "program/threads.h"

namespace fs = std::filesystem;

namespace {

constexpr int64_t none = std::numeric_limits<int64_t>::max();

class ControlGroup : public TestDirectory {
protected:
    void group(const std::string& name, const std::string& limit, const std::string& used, bool version2) const {
        const std::string directory = at("mount" + name);
        fs::create_directories(directory);
        write_bytes(directory + (version2 ? "/memory.max" : "/memory.limit_in_bytes"), limit + "\n");
        write_bytes(directory + (version2 ? "/memory.current" : "/memory.usage_in_bytes"), used + "\n");
        const std::string t = version2 ? "" : "total_";
        write_bytes(directory + "/memory.stat", "anon 5\n" + t + "inactive_file 30\n" + t + "active_file 20\n");
    }
    int64_t memory(const std::string& membership) const {
        write_bytes(at("cgroup"), membership);
        return control_group_memory(at("cgroup"), at("mount"));
    }
    void cpu_max(const std::string& name, const std::string& text) const {
        std::filesystem::create_directories(at("mount" + name));
        write_bytes(at("mount" + name) + "/cpu.max", text);
    }
    void cfs(const std::string& name, const std::string& quota, const std::string& period) const {
        std::filesystem::create_directories(at("mount" + name));
        write_bytes(at("mount" + name) + "/cpu.cfs_quota_us", quota);
        write_bytes(at("mount" + name) + "/cpu.cfs_period_us", period);
    }
    double processors(const std::string& membership) const {
        write_bytes(at("cgroup"), membership);
        return control_group_processors(at("cgroup"), at("mount"));
    }
};

constexpr double no_quota = std::numeric_limits<double>::infinity();

}  // namespace

TEST_F(ControlGroup, TheTightestOfAllAroundItCounts) {
    group("/slice", "1000", "250", true);  // 50 of the 250 are files' pages
    group("/slice/job", "700", "100", true);
    group("/slice/job/step", "max", "100", true);
    EXPECT_EQ(memory("0::/slice/job/step\n"), 650);
    group("/slice", "500", "250", true);
    EXPECT_EQ(memory("0::/slice/job/step\n"), 300);
    EXPECT_EQ(memory("0::/slice\n"), 300);
    EXPECT_EQ(memory("0::/\n"), none);
    group("", "400", "60", true);
    EXPECT_EQ(memory("0::/\n"), 390);
    EXPECT_EQ(memory("0::/a/path/of/the/host\n"), 390) << "in a container whose root is mounted";
}

TEST_F(ControlGroup, OfVersion1Too) {
    group("/memory/docker/abc", "900", "100", false);
    EXPECT_EQ(memory("12:cpuset:/x\n9:cpu,memory:/docker/abc\n0::/elsewhere\n"), 850);
    EXPECT_EQ(memory("9:cpu:/docker/abc\n"), none);
}

TEST_F(ControlGroup, NoneIsNoLimit) {
    EXPECT_EQ(memory(""), none);
    EXPECT_EQ(memory("nonsense\n0::relative"), none);
    EXPECT_EQ(control_group_memory(at("absent"), at("absent")), none);
}

TEST_F(ControlGroup, TheTightestCpuQuotaOfAllAroundItCounts) {
    EXPECT_EQ(processors("0::/slice/job\n"), no_quota);
    cpu_max("/slice", "200000 100000\n");
    cpu_max("/slice/job", "max 100000\n");
    EXPECT_EQ(processors("0::/slice/job\n"), 2);
    cpu_max("/slice/job", "50000 100000\n");
    EXPECT_EQ(processors("0::/slice/job\n"), 0.5);
    EXPECT_EQ(processors("0::/\n"), no_quota);
    cpu_max("", "37500 25000\n");
    EXPECT_EQ(processors("0::/a/path/of/the/host\n"), 1.5) << "in a container whose root is mounted";
    cpu_max("", "0 0\n");
    EXPECT_EQ(processors("0::/\n"), no_quota) << "nonsense";
}

TEST_F(ControlGroup, CpuQuotaOfVersion1Too) {
    const std::string membership = "9:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n3:cpuset:/\n0::/\n";
    cfs("/cpu/docker/abc", "-1\n", "100000\n");
    EXPECT_EQ(processors(membership), no_quota);
    cfs("/cpu/docker/abc", "100000\n", "100000\n");
    EXPECT_EQ(processors(membership), 1);
    cfs("/cpu", "50000\n", "100000\n");
    EXPECT_EQ(processors(membership), 0.5);
    EXPECT_EQ(processors("3:cpuset:/docker/abc\n"), no_quota);
}

TEST_F(ControlGroup, TheQuotaDecidesWhereNothingElseDoes) {
    EXPECT_EQ(deciding_quota(0, nullptr, 8, 0.5), 0.5);
    EXPECT_EQ(deciding_quota(0, nullptr, 8, 7.5), 7.5);
    EXPECT_EQ(deciding_quota(0, nullptr, 8, 8), no_quota) << "no more cores than that";
    EXPECT_EQ(deciding_quota(0, nullptr, 1, 1.5), no_quota) << "by affinity";
    EXPECT_EQ(deciding_quota(0, nullptr, 8, no_quota), no_quota);
    EXPECT_EQ(deciding_quota(4, nullptr, 8, 0.5), no_quota) << "--threads 4";
    EXPECT_EQ(deciding_quota(0, "8", 8, 0.5), no_quota) << "OMP_NUM_THREADS=8";
    EXPECT_EQ(threads_for(0.5), 1);
    EXPECT_EQ(threads_for(1), 1);
    EXPECT_EQ(threads_for(1.01), 2);
    EXPECT_EQ(threads_text(1, 0.5), "1 thread (CPU quota 0.5)");
    EXPECT_EQ(threads_text(2, 1.25), "2 threads (CPU quota 1.25)");
    EXPECT_EQ(threads_text(3, no_quota), "3 threads");
}
