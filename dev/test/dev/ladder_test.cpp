// The ladders of dev/, run as readers run them: correct rungs are OK, wrong ones are not, and the steps in
// dev/README.md work as written.
#include <sys/wait.h>

#include <cstdlib>
#include <map>

#include "dev/test/test_directory.h"

namespace fs = std::filesystem;

namespace {

struct Result {
    int status;
    std::string out, err;
};

// Sizes that are not multiples of a vector, a tile or a block of rows, and are larger than each of them.
const std::map<std::string, std::string> odd_shapes = {
    {"adamw", "1003"},
    {"attention", "2x77x3x20"},
    {"classifier", "13x1501"},
    {"embedding", "3x17x45x61"},
    {"gelu", "13x77"},
    {"global_norm", "10007"},
    {"layernorm", "139x77"},
    {"matmul", "29x267x45"},
    {"rmsnorm", "139x77"},
    {"layernorm_cuda", "11x260"},
    {"matmul_cuda", "29x267x45"},
    {"attention_cuda", "2x77x1x64"},
    {"classifier_cuda", "13x1501"},
    {"gelu_cuda", "13x77"},
    {"adamw_cuda", "1003"},
    {"embedding_cuda", "3x17x45x61"},
    {"global_norm_cuda", "10007"},
};

class Ladders : public TestDirectory {
protected:
    // In a shell, as one would type it.
    Result run(const std::string& command) const {
        const std::string out = at("stdout"), err = at("stderr");
        const int status = std::system(("{ " + command + "\n} >'" + out + "' 2>'" + err + "'").c_str());
        return {WEXITSTATUS(status), read_bytes(out), read_bytes(err)};
    }
    static fs::path built() { return fs::read_symlink("/proc/self/exe").parent_path().parent_path().parent_path(); }
    // Then there are no CUDA ladders, whose accesses the emulator checks in the plain build, and times mean nothing.
    static bool is_sanitized() { return built().filename().string().ends_with("-sanitize"); }
    static std::vector<std::string> names() {
        std::vector<std::string> names;
        for (const auto& directory : fs::directory_iterator("dev"))
            if (const std::string name = directory.path().filename().string();
                fs::exists(directory.path() / "ladder.cpp") && !(is_sanitized() && name.ends_with("_cuda")))
                names.push_back(name);
        return names;
    }
    Result ladder(const std::string& name, const std::string& options) const {
        return run("'" + (built() / "ladder" / name).string() + "' " + options);
    }
    Result one_thread(const std::string& name, const std::string& options) const {
        return run("OMP_NUM_THREADS=1 '" + (built() / "ladder" / name).string() + "' " + options);
    }
    std::vector<std::vector<std::string>> csv(const std::string& name) const {
        std::vector<std::vector<std::string>> rows;
        std::istringstream lines(read_bytes(at(name)));
        for (std::string line; std::getline(lines, line);) {
            std::istringstream fields(line);
            rows.emplace_back();
            for (std::string field; std::getline(fields, field, ',');) rows.back().push_back(field);
        }
        return rows;
    }
};

TEST_F(Ladders, EveryRungIsCorrectOnOddShapes) {
    for (const std::string& name : names()) {
        ASSERT_TRUE(odd_shapes.contains(name)) << name << " is not tested";
        const Result result = ladder(name, "--check --shape " + odd_shapes.at(name) + " --csv '" + at("csv") + "'");
        EXPECT_EQ(result.status, 0) << result.out << result.err;
        const auto rows = csv("csv");
        bool production = false;
        for (size_t i = 1; i < rows.size(); ++i) {
            EXPECT_EQ(rows[i].back(), "OK") << name;
            production = rows[i][3] == "\"production\"";
        }
        EXPECT_TRUE(production) << name << ": the last rung is the layer itself";
        EXPECT_GE(rows.size(), 5u) << name << ": a heading, naive, two more, production";
    }
}

TEST_F(Ladders, EveryRungIsCorrectOnTheSmallestShape) {
    for (const std::string& name : names()) {
        std::string ones = "1";
        for (const char c : odd_shapes.at(name))
            if (c == 'x') ones += "x1";
        // One row's mean, dinp of one channel, or GELU of one value near -5 may be 0 except for rounding.
        if (name.starts_with("layernorm") || name == "rmsnorm" || name.starts_with("gelu")) ones = "40x3";
        const Result result = ladder(name, "--check --shape " + ones);
        EXPECT_EQ(result.status, 0) << result.out << result.err;
    }
}

// In the emulator rungs are checked, but not timed; on a GPU they are both.
TEST_F(Ladders, CudaRungsAreAllThereAndTheEmulatorSaysThatItHasNoTimes) {
    if (is_sanitized()) GTEST_SKIP() << "built without CUDA's ladders";
    const Result result = ladder("layernorm_cuda", "--shape 11x260 --csv '" + at("csv") + "'");
    EXPECT_EQ(result.status, 0) << result.out << result.err;
    EXPECT_EQ(csv("csv").size(), 1 + 5 + 2 + 2u) << result.out;
    const bool emulated = result.out.find("in the emulator") != std::string::npos;
    EXPECT_NE(emulated, result.out.find("on the GPU") != std::string::npos) << result.out;
    EXPECT_EQ(csv("csv")[0].size(), emulated ? 6u : 12u) << "times";
    EXPECT_EQ(result.out.find(" ms ") == std::string::npos, emulated) << result.out;
}

// Shapes that a rung does not support are reported.
TEST_F(Ladders, CudaRungsThatCannotDoAShapeAreNamed) {
    if (is_sanitized()) GTEST_SKIP() << "built without CUDA's ladders";
    const Result result = ladder("layernorm_cuda", "--check --shape 5x33");
    EXPECT_EQ(result.status, 0) << result.out << result.err;
    for (const char* name : {"warp per row", "registers"})
        EXPECT_NE(result.out.find("left out: " + std::string(name)), std::string::npos) << result.out;
}

// Seconds, rate, peak and share must be consistent, and a single rung has no gain.
TEST_F(Ladders, ATimingIsItsWorkByItsTime) {
    if (is_sanitized()) GTEST_SKIP() << "with the sanitizers times mean nothing";
    const Result result = ladder("gelu", "--shape 64x64 --rung simd --csv '" + at("csv") + "'");
    EXPECT_EQ(result.status, 0) << result.out << result.err;
    const auto rows = csv("csv");
    ASSERT_EQ(rows.size(), 2u);
    ASSERT_EQ(rows[0].size(), rows[1].size());
    std::map<std::string, std::string> row;
    for (size_t i = 0; i < rows[0].size(); ++i) row[rows[0][i]] = rows[1][i];
    EXPECT_EQ(row["kernel"] + row["pass"] + row["rung"] + row["name"], "gelu\"forward\"4\"simd\"");
    const double rate = 8 * 64 * 64 / std::stod(row["seconds"]) / 1e9;
    EXPECT_NEAR(std::stod(row["rate"]), rate, 1e-4 * rate);
    EXPECT_NEAR(std::stod(row["share"]), rate / std::stod(row["peak"]), 1e-4);
    EXPECT_EQ(row["gain"], "1");
}

// The line after each pass says from which rung on all reach 80 % of the peak.
TEST_F(Ladders, TheVerdictFollowsFromTheShares) {
    if (is_sanitized()) GTEST_SKIP() << "with the sanitizers times mean nothing";
    for (const auto& [name, options] :
         std::map<std::string, std::string>{{"adamw", "--shape 1003"}, {"attention", "--shape 1x16x1x16"}}) {
        SCOPED_TRACE(name);
        const Result result = one_thread(name, options + " --csv '" + at("csv") + "'");
        ASSERT_EQ(result.status, 0) << result.out << result.err;
        const auto rows = csv("csv");
        std::map<std::string, std::vector<std::pair<std::string, double>>> passes;  // name and share of each rung
        std::string unit;
        for (size_t i = 1; i < rows.size(); ++i) {
            passes[rows[i][1]].emplace_back(rows[i][3].substr(1, rows[i][3].size() - 2), std::stod(rows[i][10]));
            unit = rows[i][8];
        }
        const std::string bound = unit == "GB/s" ? "memory-bound" : "compute-bound",
                          peak = unit == "GB/s" ? " % of a copy\n" : " % of the FMA peak\n";
        for (const auto& [pass, rungs] : passes) {
            size_t first = rungs.size();
            while (first > 0 && rungs[first - 1].second >= 0.8) --first;
            const std::string& last = rungs.back().first;
            const std::string verdict = first + 1 < rungs.size()
                                            ? bound + " from " + rungs[first].first + " on; " + last + " reaches "
                                        : first < rungs.size() ? "only " + last + " is " + bound + "; it reaches "
                                                               : last + " is not " + bound + "; it reaches ";
            EXPECT_NE(result.out.find("verdict: " + verdict), std::string::npos) << verdict << "\n" << result.out;
        }
        EXPECT_NE(result.out.find(peak), std::string::npos) << result.out;
    }
    const Result check = ladder("gelu", "--check --shape 64x64"), one = one_thread("gelu", "--shape 64x64 --rung simd");
    EXPECT_EQ(check.out.find("verdict"), std::string::npos) << check.out;
    EXPECT_EQ(one.out.find("verdict"), std::string::npos) << one.out;
}

TEST_F(Ladders, SourceIsTheLineThatAddsTheRung) {
    std::vector<std::string> lines{""};  // from 1
    std::istringstream file(read_bytes("dev/gelu/ladder.cpp"));
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    const Result result = ladder("gelu", "--check --source --shape 3x4");
    std::istringstream rows(result.out);
    int found = 0;
    for (std::string row; std::getline(rows, row);)
        if (const size_t at = row.find("  dev/gelu/ladder.cpp:"); at != std::string::npos) {
            const std::string name = row.substr(3, row.find("  ", 3) - 3);
            const std::string& line = lines.at(std::stoul(row.substr(row.rfind(':') + 1)));
            const bool production = name == "production";
            EXPECT_NE(line.find(production ? "ladder.production(" : "ladder.rung(\"" + name), std::string::npos) << row;
            ++found;
        }
    EXPECT_EQ(found, 6 + 4) << result.out;
    EXPECT_EQ(ladder("gelu", "--check --shape 3x4").out.find("ladder.cpp"), std::string::npos);
}

TEST_F(Ladders, AMistypedLadderListsTheLadders) {
    const Result result = run("unset MAKEFLAGS MAKELEVEL MFLAGS; make -C dev layernorn");
    EXPECT_EQ(result.status, 2);
    EXPECT_NE(result.err.find("no ladder 'layernorn'; the ladders are: adamw "), std::string::npos) << result.err;
    for (const auto& [name, shape] : odd_shapes)
        EXPECT_NE(result.err.find(" " + name), std::string::npos) << name << ": " << result.err;
}

TEST_F(Ladders, BadInputIsOneLineAndStatusTwo) {
    const std::map<std::string, std::string> wanted = {
        {"--shap 3x4", "--shap: unknown option"},
        {"13x77", "13x77: unknown option"},
        {"--shape", "--shape: expected a value"},
        {"--shape 13", "found '13', expected NxC as in"},
        {"--shape 13x77x1", "found '13x77x1', expected NxC"},
        {"--shape 0x77", "found '0x77'"},
        {"--shape=13x77", "unknown option"},
        {"--shape -1x77", "found '-1x77'"},
        {"--shape 13x", "found '13x'"},
        {"--shape ''", "found ''"},
        {"--shape 1e3x77", "found '1e3x77'"},
        {"--shape 99999999999999999999x1", "found '99999999999999999999x1'"},
        {"--shape 4000000000x4000000000", "needs more than the"},
        {"--shape 400000000x400000000", "needs more than the"},
        {"--check --shape 3x4 --rung 99", "--rung: found '99', expected a number from 1 to 6 or one of: naive, exp,"},
        {"--check --shape 3x4 --rung 0", "--rung: found '0', expected a number from 1 to 6 or one of: naive, exp,"},
        {"--check --shape 3x4 --rung SIMD", "--rung: found 'SIMD'"},
        {"--check --shape 3x4 --csv /nowhere/table.csv", "/nowhere/table.csv: cannot be written"},
    };
    for (const auto& [options, part] : wanted) {
        SCOPED_TRACE(options);
        const Result result = ladder("gelu", options);
        EXPECT_EQ(result.status, 2);
        EXPECT_EQ(result.out, "");
        EXPECT_TRUE(result.err.starts_with("gelu: ")) << result.err;
        EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
        EXPECT_EQ(result.err.find('\n') + 1, result.err.size()) << result.err;
    }
}

TEST_F(Ladders, HelpNamesEveryOption) {
    for (const std::string& name : names()) {
        const Result result = ladder(name, "--help");
        EXPECT_EQ(result.status, 0);
        EXPECT_TRUE(result.out.starts_with(name + ": ")) << result.out;
        for (const char* option : {"--shape", "--rung", "--csv", "--check", "--source"})
            EXPECT_NE(result.out.find(option), std::string::npos) << result.out;
    }
}

// The text of the first fenced block in that language after `heading`.
std::string fenced(const std::string& text, const std::string& heading, const std::string& language) {
    const size_t section = text.find(heading), fence = text.find("```" + language + "\n", section);
    const size_t begin = text.find('\n', fence) + 1, end = text.find("```", begin);
    return section == std::string::npos || fence == std::string::npos ? "" : text.substr(begin, end - begin);
}

// A copy of this tree with its own gelu ladder and build directories.
TEST_F(Ladders, TheReadmesRungIsAddedAndWrongRungsAreNotOk) {
    if (is_sanitized()) GTEST_SKIP() << "what it builds is not sanitized";
    const fs::path here = fs::current_path(), tree = at("tree");
    fs::create_directories(tree / "dev" / "gelu");
    for (const auto& item : fs::directory_iterator(here))
        if (const std::string name = item.path().filename().string();
            name != "dev" && name != "build" && name[0] != '.')
            fs::create_symlink(item.path(), tree / name);
    for (const auto& item : fs::directory_iterator(here / "dev"))
        if (const std::string name = item.path().filename().string(); name != "gelu" && name != "build")
            fs::create_symlink(item.path(), tree / "dev" / name);
    const fs::path objects = tree / "build" / built().filename();  // as the make below would compile them
    fs::create_directories(objects / "dev");
    for (const char* kept : {"layers", "device", "dev/ladder.o", "dev/ladder.d"})
        fs::copy(built() / kept, objects / kept, fs::copy_options::recursive);

    const std::string readme = read_bytes("dev/README.md"), ladder_file = read_bytes("dev/gelu/ladder.cpp");
    const std::string rung = fenced(readme, "## Adding a rung", "cpp");
    EXPECT_EQ(std::count(rung.begin(), rung.end(), '\n'), 7) << rung;
    const std::string wrong = R"(
        ladder.rung("a little wrong", "", [&] { forward_simd(out, inp, n); out[n - 1] += 1e-4f; });
        ladder.rung("leaves one out", "", [&] { forward_simd(out, inp, n - 1); });
        ladder.rung("other bits", "", [&] {
            forward_simd(out, inp, n);
            if (omp_get_max_threads() > 1) out[0] = std::nextafter(out[0], 9.0f);
        });
        ladder.rung("throws", "", [] { throw std::runtime_error("a report of its own"); });
)";
    const size_t production = ladder_file.rfind('\n', ladder_file.find("ladder.production")) + 1;
    write_bytes((tree / "dev/gelu/ladder.cpp").string(),
                ladder_file.substr(0, production) + rung + wrong + ladder_file.substr(production));

    // The make that runs this test must not influence the one below.
    const std::string enter =
        "unset MAKEFLAGS MAKELEVEL MFLAGS SANITIZE WIDTHS; export OMP_NUM_THREADS=2; cd '" + tree.string() + "' && ";
    std::string command = fenced(readme, "## Adding a rung", "sh");
    ASSERT_TRUE(command.ends_with("dev/build/gelu\n")) << command;
    command.insert(command.size() - 1, " --rung prefetch");  // the wrong rungs are there too
    const Result added = run(enter + command);
    ASSERT_EQ(added.status, 0) << added.out << added.err;
    EXPECT_NE(added.out.find(" 6 prefetch       streaming stores as in production, and prefetches "), std::string::npos)
        << added.out;
    EXPECT_EQ(added.out.find("NOT OK"), std::string::npos) << added.out;

    const std::map<std::string, std::string> reasons = {
        {"a little wrong", "out[1000] is "},
        {"leaves one out", "out[1000] is nan instead of "},
        {"other bits", "out has other bits with one thread than with 2"},
        {"throws", "a report of its own"},
    };
    for (const auto& [name, reason] : reasons) {
        const Result result = run(enter + "dev/build/gelu --check --shape 7x143 --rung '" + name + "'");
        EXPECT_EQ(result.status, 1) << name;
        EXPECT_NE(result.out.find("NOT OK"), std::string::npos) << result.out;
        EXPECT_NE(result.out.find(reason), std::string::npos) << result.out;
    }
}

}  // namespace
