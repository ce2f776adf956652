// The memory plan knows the limit of the control group that the program runs in, however deep.
#include "program/control_group.h"

#include "dev/test/test_directory.h"

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
};

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
