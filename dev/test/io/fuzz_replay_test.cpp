// Runs every fuzzed reader (dev/fuzz) on its seeds, on inputs that once crashed it, and on a fixed series of mutations.
// This works with any compiler; `make fuzz` runs libFuzzer for any time. With SANITIZE=address,undefined the sanitizers
// check it.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "dev/fuzz/targets.h"
#include "dev/test/test_directory.h"

namespace {

// Words to which the formats are sensitive.
const std::vector<std::string> words = {"[",
                                        "]",
                                        "{",
                                        "}",
                                        "\"",
                                        ",",
                                        ":",
                                        "null",
                                        "-1",
                                        "1e999",
                                        "18446744073709551615",
                                        "9223372036854775808",
                                        "\\u0000",
                                        "../",
                                        "\n",
                                        "\n%%%\n",
                                        " ",
                                        "\xC4\xA0",
                                        "\xFF",
                                        "\x7F",
                                        std::string(4, '\xFF'),
                                        std::string(8, '\0'),
                                        std::string("\0\0\0\x80", 4),
                                        std::string(100, '[')};

class Mutator {
public:
    explicit Mutator(unsigned seed) : random_(seed) {}
    std::string operator()(const std::vector<std::string>& seeds) {
        std::string s = seeds[below(seeds.size())];
        for (size_t i = 0, n = 1 + below(4); i < n; i++) change(s, seeds);
        return s;
    }

private:
    size_t below(size_t n) { return random_() % n; }
    void change(std::string& s, const std::vector<std::string>& seeds) {
        const size_t place = below(s.size() + 1), length = std::min(1 + below(16), s.size() - place);
        switch (below(7)) {
            case 0:
                if (length > 0) s[place] ^= static_cast<char>(1 << below(8));
                return;
            case 1:
                if (length > 0) s[place] = static_cast<char>(random_());
                return;
            case 2:
                s.erase(place, length);
                return;
            case 3:
                s.insert(place, s.substr(place, length));
                return;
            case 4:
                s.insert(place, words[below(words.size())]);
                return;
            case 5: {
                const std::string& word = words[below(words.size())];
                s.replace(place, std::min(word.size(), s.size() - place), word);
                return;
            }
            default: {
                const std::string& other = seeds[below(seeds.size())];
                const size_t from = below(other.size() + 1);
                s.replace(place, s.size() - place, other.substr(from));
            }
        }
    }
    std::mt19937 random_;
};

class FuzzReplay : public ::testing::TestWithParam<const FuzzTarget*> {};

TEST_P(FuzzReplay, OnlyInputErrorsComeOut) {
    omp_set_num_threads(1);  // a few bytes of text are not worth several threads
    const FuzzTarget& target = *GetParam();
    std::vector<std::string> inputs = target.seeds();
    ASSERT_FALSE(inputs.empty());
    const std::string found = std::string("dev/fuzz/found/") + target.name;
    if (std::filesystem::exists(found))
        for (const auto& item : std::filesystem::directory_iterator(found))
            inputs.push_back(read_bytes(item.path().string()));
    std::sort(inputs.begin(), inputs.end());  // a directory has no fixed order
    Mutator mutate(1);
    double slowest = 0;
    const auto run = [&](const std::string& input) {
        const auto start = std::chrono::steady_clock::now();
        run_target(target, input);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        slowest = std::max(slowest, seconds.count());
    };
    for (const std::string& input : inputs) run(input);
    for (int i = 0; i < 1500; i++) run(mutate(inputs));
    EXPECT_LE(slowest, 1.0) << "no input of a few hundred bytes may take a second";
}

INSTANTIATE_TEST_SUITE_P(Readers, FuzzReplay, ::testing::ValuesIn(fuzz_targets()),
                         [](const auto& of) { return std::string(of.param->name); });

}  // namespace
