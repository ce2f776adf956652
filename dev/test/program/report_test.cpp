// The report: complete, self-contained, and safe against any text that a model may generate.
#include "program/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "dev/test/test_directory.h"
#include "program/report_chart.h"

namespace fs = std::filesystem;

namespace {

class ReportTest : public TestDirectory {
protected:
    std::string page(const Report& report) const {
        write_report(out + "/report.html", report);
        std::ifstream in(out + "/report.html", std::ios::binary);
        return {std::istreambuf_iterator<char>(in), {}};
    }
    const std::string& out = root;
};

Report run(int64_t steps, int64_t eval_every) {
    Report report{.title = "a <title> & more", .loss_unit = "nats per byte"};
    for (int64_t step = 1; step <= steps; step++) {
        const double loss =
            1.3 + 4 / (1 + 0.01 * static_cast<double>(step)) + 0.05 * std::sin(7.0 * static_cast<double>(step));
        report.log.push_back({step, "train", loss, 1e-3, 0.5, 4e4, 0.1 * static_cast<double>(step)});
        if (step % eval_every == 0)
            report.log.push_back({step, "val", loss + 0.1, 0, 0, 0, 0.1 * static_cast<double>(step)});
    }
    report.samples = {{100, "first"}, {200, "second"}};
    report.configuration = {{"lr", "0.003"}, {"val", ""}};
    report.facts = {{"parameters", "0.8 M"}};
    return report;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
int64_t count(const std::string& text, const std::string& part) {
    int64_t n = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) n++;
    return n;
}

// Expects that every tag is closed, and that no text of the log or the model is read as a tag.
void expect_well_formed(const std::string& html) {
    std::vector<std::string> open;
    for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
        const std::string tag = html.substr(at + 1, html.find('>', at) - at - 1);
        if (tag[0] == '!' || tag.starts_with("meta") || tag.ends_with("/")) continue;
        if (tag[0] != '/') {
            open.push_back(tag.substr(0, tag.find_first_of(" \n")));
            continue;
        }
        ASSERT_FALSE(open.empty());
        ASSERT_EQ(open.back(), tag.substr(1)) << "at byte " << at;
        open.pop_back();
    }
    EXPECT_TRUE(open.empty());
    EXPECT_EQ(count(html, "nan"), 0);
    EXPECT_EQ(count(html, "inf"), 0);
}

TEST_F(ReportTest, ShowsARunAndNeedsNothingElse) {
    const std::string html = page(run(1000, 250));
    expect_well_formed(html);
    EXPECT_TRUE(contains(html, "<h1>a &lt;title&gt; &amp; more</h1>"));
    EXPECT_TRUE(contains(html, "nats per byte"));
    EXPECT_TRUE(contains(html, "<dt>parameters</dt><dd>0.8 M</dd>"));
    EXPECT_TRUE(contains(html, "<dt>lr</dt><dd>0.003</dd>"));
    EXPECT_TRUE(contains(html, "<dt>val</dt><dd>–</dd>"));
    EXPECT_EQ(count(html, "<svg"), 4) << "loss, speed, learning rate, gradient norm";
    EXPECT_EQ(count(html, "<path class=\"dot val\""), 4) << "validations";
    EXPECT_TRUE(contains(html, "<title>step 250: "));
    EXPECT_LT(html.find("second"), html.find("first")) << "the newest sample comes first";
    for (const char* outside : {"http:", "https:", "src=", "href=", "url(", "@import", "<script"})
        EXPECT_FALSE(contains(html, outside)) << outside;
}

TEST_F(ReportTest, DrawsTheAccuracyOfChoices) {
    Report report = run(1000, 250);
    for (LogEntry& entry : report.log)
        if (entry.split == "val") entry.choices_accuracy = 0.25;
    const std::string html = page(report);
    expect_well_formed(html);
    EXPECT_TRUE(contains(html, "Accuracy of --choices"));
    EXPECT_EQ(count(html, "<svg"), 5);
    EXPECT_EQ(count(html, "<path class=\"dot val\""), 8) << "a loss and an accuracy for each validation";
}

TEST_F(ReportTest, SamplesOfAnyBytesAreOnlyText) {
    Report report = run(10, 5);
    std::string every;
    for (int i = 0; i < 256; i++) every.push_back(static_cast<char>(i));
    report.samples = {{1, every}, {2, "</pre><script>alert(1)</script>"}, {3, "\nline"}};
    report.configuration = {{"data\xff", "<b>\"&"}};
    report.title = "\xc3";
    report.facts = {{"<i>", "<u>"}, {"long", "<s> of more than fourteen bytes"}};
    const std::string html = page(report);
    expect_well_formed(html);
    EXPECT_TRUE(contains(html, "&lt;/pre&gt;&lt;script&gt;"));
    EXPECT_TRUE(contains(html, "<pre dir=\"auto\">\n\nline</pre>")) << "the first line break after <pre> is not shown";
}

TEST(EscapeHtml, KeepsUtf8AndReplacesTheRest) {
    EXPECT_EQ(escape_html("a\u00e9\u4e2d\U0001f600\t\n"), "a\u00e9\u4e2d\U0001f600\t\n");
    EXPECT_EQ(escape_html("<a href=\"x\">&</a>"), "&lt;a href=&quot;x&quot;&gt;&amp;&lt;/a&gt;");
    EXPECT_EQ(escape_html(std::string("\0\x1b\x7f", 3)), "\u2400\u241b\u2421");
    const std::string bad = "\ufffd";
    EXPECT_EQ(escape_html("\xff"), bad);
    EXPECT_EQ(escape_html("\x80"
                          "a"),
              bad + "a");
    EXPECT_EQ(escape_html("\xe4\xb8"), bad + bad) << "cut short";
    EXPECT_EQ(escape_html("\xe4<"), bad + "&lt;") << "what follows a bad byte is still escaped";
    EXPECT_EQ(escape_html("\xc0\xaf"), bad + bad) << "overlong";
    EXPECT_EQ(escape_html("\xe0\x9f\xbf"), bad + bad + bad) << "overlong";
    EXPECT_EQ(escape_html("\xf0\x8f\xbf\xbf"), bad + bad + bad + bad) << "overlong";
    EXPECT_EQ(escape_html("\xed\xa0\x80"), bad + bad + bad) << "a surrogate";
    EXPECT_EQ(escape_html("\xf4\x90\x80\x80"), bad + bad + bad + bad) << "beyond U+10FFFF";
    EXPECT_EQ(escape_html("\xc2\x85"), bad) << "a C1 control";
}

TEST_F(ReportTest, WorksBeforeTheFirstStepAndWithOne) {
    const std::string empty = page(Report{.title = "empty"});
    expect_well_formed(empty);
    EXPECT_EQ(count(empty, "nothing logged yet"), 4);
    const std::string one = page(run(1, 1));
    expect_well_formed(one);
    EXPECT_FALSE(contains(one, "left:20.00%")) << "steps are whole";
    Report zeros = run(3, 1);
    for (LogEntry& entry : zeros.log) entry = {entry.step, entry.split};
    expect_well_formed(page(zeros));
}

TEST_F(ReportTest, ADivergedRunSaysSo) {
    Report report = run(5000, 100);
    EXPECT_FALSE(contains(page(report), "class=\"notice\""));
    for (LogEntry& entry : report.log)
        if (entry.step > 3000) entry.loss = entry.grad_norm = entry.step % 2 ? NAN : INFINITY;
    report.log[7].loss = 1e300;
    const std::string html = page(report);
    expect_well_formed(html);
    EXPECT_TRUE(contains(html, "not a number at step 3,001"));
}

TEST_F(ReportTest, ManyStepsMakeNoLargePage) {
    EXPECT_LT(page(run(200'000, 100)).size(), 400'000u);
    EXPECT_LT(page(run(2000, 1)).size(), 400'000u);
}

TEST(Chart, ASpikeSurvivesThinning) {
    Chart chart{.title = "t"};
    Series noise{"", "train", Series::Style::thin, {}, {}};
    for (int i = 0; i < 100'000; i++) noise.x.push_back(i), noise.y.push_back(i == 54'321 ? 3.0 : 1.0 + i % 2);
    chart.series = {noise};
    const std::string html = draw_chart(chart);
    EXPECT_TRUE(contains(html, "L543.2 -")) << "above the frame, at its step";
}

TEST(Chart, AxesHaveRoundNumbers) {
    Chart chart{.title = "t", .log_scale = true};
    chart.series = {{"loss", "train", Series::Style::line, {1, 3000}, {5.5, 1.3}}};
    std::string html = draw_chart(chart);
    for (const char* tick : {">1.5<", ">2<", ">3<", ">4<", ">5<", ">0<", ">500<", ">3,000<"})
        EXPECT_TRUE(contains(html, tick)) << tick;
    chart = {.title = "t", .from_zero = true};
    chart.series = {{"speed", "speed", Series::Style::line, {1, 700'000}, {39'000, 41'000}}};
    html = draw_chart(chart);
    for (const char* tick : {">0<", ">10k<", ">40k<", ">200k<"}) EXPECT_TRUE(contains(html, tick)) << tick;
    EXPECT_FALSE(contains(html, ">-0<"));
}

TEST(Smooth, FollowsAFallAndAveragesNoise) {
    std::vector<double> line, noise;
    for (int i = 0; i < 100; i++) line.push_back(100 - i), noise.push_back(i % 2 ? 1 : -1);
    line[50] = noise[50] = NAN;
    EXPECT_DOUBLE_EQ(smooth(line, 20)[0], 100) << "no lag where it falls";
    EXPECT_DOUBLE_EQ(smooth(line, 20)[5], 95);
    EXPECT_TRUE(std::isnan(smooth(line, 20)[50]));
    EXPECT_FALSE(std::isnan(smooth(line, 20)[51]));
    EXPECT_LT(std::abs(smooth(noise, 20)[30]), 0.1);
    EXPECT_LT(std::abs(smooth(noise, 20)[99]), 0.1);
    EXPECT_EQ(smooth({}, 5).size(), 0u);
    EXPECT_EQ(smooth({3.0}, 0), std::vector<double>{3.0});
}

TEST(Numbers, AreShort) {
    EXPECT_EQ(short_number(1.5469), "1.547");
    EXPECT_EQ(short_number(0.0003), "0.0003");
    EXPECT_EQ(short_number(0.00003), "3e-5");
    EXPECT_EQ(short_number(999.4), "999.4");
    EXPECT_EQ(short_number(3000), "3,000");
    EXPECT_EQ(short_number(98765), "98.8k");
    EXPECT_EQ(short_number(999'900), "1M");
    EXPECT_EQ(short_number(2.5e9), "2.5G");
    EXPECT_EQ(grouped_number(999), "999");
    EXPECT_EQ(grouped_number(-1234567), "-1,234,567");
    EXPECT_EQ(grouped_number(-123), "-123");
}

TEST_F(ReportTest, ReplacesTheLastOneWhole) {
    page(run(10, 5));
    EXPECT_TRUE(contains(page(Report{.title = "second"}), "<h1>second</h1>"));
    EXPECT_EQ(std::distance(fs::directory_iterator(out), {}), 1) << "a temporary file was left";
    EXPECT_THROW(write_report(out + "/absent/report.html", Report{}), InputError);
}

}  // namespace
