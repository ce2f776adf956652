// The `report` command: losses that compare, the options that differ, and refusals that name the file.
#include "program/comparison.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "dev/test/test_directory.h"
#include "io/file/json.h"

namespace fs = std::filesystem;

namespace {

class Comparison : public TestDirectory {
protected:
    // A run whose loss per token falls from 4 to 2; the last line is its last validation, which takes five seconds.
    void make_run(const std::string& name, const std::string& tokenizer, const std::string& more = "") const {
        fs::create_directories(at(name));
        std::string log;
        for (int step = 1; step <= 40; step++) {
            const std::string loss = std::to_string(4 - step * 0.05), seconds = std::to_string(step * 10);
            const std::string start = "{\"step\":" + std::to_string(step) + ",\"split\":\"";
            log += start + "train\",\"loss\":" + loss +
                   ",\"lr\":0.1,\"grad_norm\":1,\"tokens_per_second\":9,\"seconds\":" + seconds + "}\n";
            // The lowest loss is that of step 30.
            if (step % 10 == 0)
                log += start + "val\",\"loss\":" + (step == 30 ? "1.5" : loss) +
                       (tokenizer == "byte" || tokenizer == "gpt2"
                            ? ""
                            : ",\"nats_per_byte\":" + std::string(step == 30 ? "0.75" : "1.25")) +
                       ",\"seconds\":" + std::to_string(step * 10 + 5) + "}\n";
        }
        write_bytes(at(name + "/log.jsonl"), log);
        write_bytes(at(name + "/options.json"),
                    with_own_checksum("{\n  \"tokenizer\": \"" + tokenizer +
                                      "\",\n  \"total-batch\": 1000,\n  \"lr\": 0.001" + more + "\n}"));
    }
    std::string page(std::vector<std::string> runs) const {
        for (std::string& run : runs) run = at(run);
        fs::remove(at("page.html"));
        compare_runs(runs, at("page.html"));
        return read_bytes(at("page.html"));
    }
    std::string refusal(std::vector<std::string> runs, const std::string& out = "page.html") const {
        for (std::string& run : runs) run = at(run);
        fs::remove(at("page.html"));
        const auto before = listing(root);
        const std::string error = error_of([&] { compare_runs(runs, at(out)); });
        EXPECT_EQ(listing(root), before) << "nothing may be left behind";
        EXPECT_NE(error.find("; "), error.npos) << error << " must say what to do";
        return error;
    }
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
int64_t count(const std::string& text, const std::string& part) {
    int64_t n = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) n++;
    return n;
}

}  // namespace

TEST_F(Comparison, ShowsResultsCurvesAndTheOptionsThatDiffer) {
    make_run("a", "byte");
    make_run("b", "byte", ",\n  \"data\": \"<b>.txt\",\n  \"val\": \"\"");
    const std::string html = page({"a", "b"});
    EXPECT_TRUE(contains(html, "<h1>Comparison of 2 runs</h1>"));
    EXPECT_TRUE(contains(html,
                         "<td class=\"key run0 dash0\"><label><input type=\"checkbox\" id=\"run0-dash0\" "
                         "checked/>a</label></td><td>2.0000</td><td><b>1.5000</b> <small>step 30</small>"
                         "</td><td>40</td><td>40k</td><td>6:40</td><td>100</td>"))
        << "last and best loss, steps, tokens, time, tokens per second";
    EXPECT_EQ(count(html, "<svg"), 6) << "two losses over each of three axes";
    for (const char* axis : {">step<", ">tokens<", ">minutes<"}) EXPECT_TRUE(contains(html, axis)) << axis;
    EXPECT_TRUE(contains(html, "main:has(#run0-dash0:not(:checked)) .curves .run0.dash0 { display: none; }"));
    EXPECT_TRUE(contains(html, "<title>step 30: 1.5 (a)</title>"));
    EXPECT_TRUE(contains(html, "<title>tokens 30,000: 1.5 (a)</title>"));
    EXPECT_TRUE(contains(html, "<title>minutes 5: 1.5 (a)</title>"));
    EXPECT_TRUE(contains(html, "<th>run</th><th>data</th></tr>")) << "lr is the same, and \"\" is as if not given";
    EXPECT_TRUE(contains(html, "<td>–</td>"));
    EXPECT_TRUE(contains(html, "<td>&lt;b&gt;.txt</td>"));
    for (const char* outside : {"http:", "https:", "src=", "href=", "url(", "@import", "<script", "nan", "inf"})
        EXPECT_FALSE(contains(html, outside)) << outside;
    EXPECT_FALSE(contains(page({"a"}), "Options")) << "one run differs from none";
}

// Losses per token of different tokenizers do not compare, so they are per byte wherever all runs have that.
TEST_F(Comparison, LossesArePerByteIfAllRunsHaveThem) {
    make_run("bytes", "byte");
    make_run("learned", "bpe:300");
    make_run("none", "gpt2");
    std::string html = page({"bytes", "learned"});
    EXPECT_TRUE(contains(html, "losses in nats per byte"));
    EXPECT_TRUE(contains(html, ">learned</label></td><td>1.2500</td><td><b>0.7500</b> <small>step 30</small></td>"));
    EXPECT_TRUE(contains(html, ">bytes</label></td><td>2.0000</td><td>1.5000 <small>step 30</small></td>"));
    EXPECT_TRUE(contains(html, "learned <b>1.25</b>")) << "training: 2 per token, times 1.25 / 2 of the validation";
    html = page({"bytes", "learned", "none"});
    EXPECT_TRUE(contains(html, "losses in nats per token"));
    EXPECT_TRUE(contains(html, ">learned</label></td><td>2.0000</td><td><b>1.5000</b> <small>step 30</small></td>"));
    EXPECT_TRUE(contains(html, "none: its log has no loss per byte")) << "the reason";
    html = page({"none"});
    EXPECT_FALSE(contains(html, "loss per byte")) << "nothing to compare with";
}

TEST_F(Comparison, TwentyRunsHaveDifferentLines) {
    std::vector<std::string> runs;
    for (int i = 0; i < 20; i++)
        make_run("run " + std::to_string(i), "byte"), runs.push_back("run " + std::to_string(i));
    const std::string html = page(runs);
    std::set<std::string> lines;
    for (size_t at = 0; (at = html.find("<td class=\"key ", at)) != std::string::npos; at++)
        lines.insert(html.substr(at, html.find('>', at) - at));
    EXPECT_EQ(lines.size(), 20u);
    for (const char* style : {".run0 {", ".run6 {", ".dash1 {", ".dash2 {"})
        EXPECT_TRUE(contains(html, style)) << style;
    make_run("run 20", "byte");
    runs.push_back("run 20");
    EXPECT_TRUE(contains(refusal(runs), "21 runs; give at most 20"));
}

TEST_F(Comparison, RunsThatEndAlikeHaveTheirWholePaths) {
    for (const char* name : {"x/run", "y/run"}) make_run(name, "byte");
    const std::string html = page({"x/run", "y/run"});
    EXPECT_TRUE(contains(html, ">" + at("x/run") + "</label></td>"));
    EXPECT_TRUE(contains(page({"x/run/"}), "<h1>run</h1>"));
}

TEST_F(Comparison, ADivergedRunSaysSo) {
    make_run("a", "byte");
    write_bytes(at("a/log.jsonl"), read_bytes(at("a/log.jsonl")) +
                                       "{\"step\":41,\"split\":\"train\",\"loss\":null,\"lr\":0.1,"
                                       "\"grad_norm\":null,\"tokens_per_second\":9,\"seconds\":500}\n");
    EXPECT_TRUE(contains(page({"a"}), "a: the loss was not a number at step 41"));
}

// A log or options that someone has edited may hold any numbers, and a path that is not UTF-8 is an array.
TEST_F(Comparison, StrangeValuesAreShown) {
    make_run("a", "byte", ",\n  \"val\": [255, 60]");
    make_run("b", "byte");
    const std::string far = std::to_string(INT64_MAX), rest = ",\"lr\":0,\"grad_norm\":0,\"tokens_per_second\":0,";
    write_bytes(at("b/log.jsonl"),
                "{\"step\":" + far + ",\"split\":\"train\",\"loss\":-1e308" + rest + "\"seconds\":1e308}\n" +
                    "{\"step\":1,\"split\":\"val\",\"loss\":0,\"nats_per_byte\":0,\"seconds\":null}\n" +
                    "{\"step\":2,\"split\":\"train\",\"loss\":1e308" + rest + "\"seconds\":-5}\n");
    const std::string html = page({"a", "b"});
    EXPECT_TRUE(contains(html, "<td>\ufffd&lt;</td>"));
    EXPECT_TRUE(contains(html, "<td>9,223,372,036,854,775,807</td>"));
    EXPECT_EQ(count(html, "nan"), 0);
}

TEST_F(Comparison, RefusalsNameTheFile) {
    make_run("run", "byte");
    write_bytes(at("file"), "mine");
    fs::create_directory(at("empty"));
    EXPECT_TRUE(contains(refusal({"missing"}), "missing: no such directory; "));
    EXPECT_TRUE(contains(refusal({"file"}), "file: not a directory; "));
    EXPECT_TRUE(contains(refusal({"empty"}), "empty: not the directory of a run"));
    EXPECT_TRUE(contains(refusal({"run"}, "file"), "file: exists already; "));
    EXPECT_EQ(read_bytes(at("file")), "mine");
    EXPECT_TRUE(contains(refusal({"run"}, "no/page.html"), "no/page.html"));
    fs::create_directory_symlink(at("run"), at("link"));
    for (const char* again : {"run", "run/", "link", "empty/../run"})
        EXPECT_TRUE(contains(refusal({"run", again}), "the same run as ")) << again;

    const std::string log = read_bytes(at("run/log.jsonl")), options = read_bytes(at("run/options.json"));
    write_bytes(at("run/log.jsonl"), "{\"step\":0,\"split\":\"val\",\"loss\":5,\"seconds\":1}\n");
    EXPECT_TRUE(contains(refusal({"run"}), "run: its log.jsonl has no training step yet; "));
    for (const char* damage :
         {"", "{}", "{\"step\":1}", "\x80", "[[[[", "{\"step\":1,\"split\":7,\"loss\":1,\"seconds\":1}"}) {
        write_bytes(at("run/log.jsonl"), log + damage + "\n" + log);
        EXPECT_TRUE(contains(refusal({"run"}), "run/log.jsonl: line 45: not a log entry")) << damage;
    }
    write_bytes(at("run/log.jsonl"), log + "{\"step\":41,\"spl");
    EXPECT_TRUE(contains(page({"run"}), "<td>40</td>")) << "a line that is being written is no damage";
    for (const auto& [from, to] : {std::pair{"0.001", "0.002"}, {"1000", "0"}, {"{", ""}}) {
        std::string damaged = options;
        damaged.replace(damaged.find(from), std::string(from).size(), to);
        write_bytes(at("run/options.json"), damaged);
        EXPECT_TRUE(contains(refusal({"run"}), "run/options.json")) << from;
    }
    write_bytes(at("run/options.json"), with_own_checksum("{\n  \"lr\": 1\n}"));
    EXPECT_TRUE(contains(refusal({"run"}), "total-batch"));
    fs::remove(at("run/options.json"));
    EXPECT_TRUE(contains(refusal({"run"}), "run: has neither options.json nor a checkpoint; "));
}
