#include "program/report_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>

namespace {

// The drawing is 1000 × 1000 and stretched to its box. Strokes keep their width, and labels are HTML on top of it, so
// that text has the same size on a phone.
constexpr double side = 1000;
constexpr int64_t columns = 700;  // about what a screen shows; longer series are thinned to this many columns

std::string format(const char* pattern, double value) {
    char text[64];
    std::snprintf(text, sizeof text, pattern, value);
    return text;
}

struct Scale {
    double low, high;
    bool log = false;
    double share(double v) const { return log ? std::log(v / low) / std::log(high / low) : (v - low) / (high - low); }
};

std::vector<double> linear_ticks(double low, double high, int64_t most) {
    const double rough = (high - low) / static_cast<double>(most), power = std::pow(10, std::floor(std::log10(rough)));
    double step = 10 * power;
    for (const double nice : {5.0, 2.0, 1.0})
        if (nice * power >= rough) step = nice * power;
    std::vector<double> ticks;
    for (double i = std::ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9); i++)
        ticks.push_back(i * step + 0.0);  // no "-0"
    return ticks;
}

// Ticks from the densest of the usual sets that gives at most `most` ticks.
std::vector<double> log_ticks(double low, double high, size_t most) {
    const std::vector<std::vector<double>> sets = {
        {1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9},
        {1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8},
        {1, 1.5, 2, 3, 5, 7},
        {1, 2, 5},
        {1, 3},
        {1}};
    std::vector<double> ticks;
    for (const auto& set : sets) {
        ticks.clear();
        for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10)
            for (const double digit : set)
                if (digit * power >= low && digit * power <= high) ticks.push_back(digit * power);
        if (ticks.size() <= most) break;
    }
    return ticks;
}

double percentile(std::vector<double> values, double share) {
    const auto at = values.begin() + static_cast<int64_t>(share * static_cast<double>(values.size() - 1));
    std::nth_element(values.begin(), at, values.end());
    return *at;
}

// The range of all lines and points, and of noise without its rarest spikes (0.2 % at each end).
Scale y_scale(const Chart& chart) {
    double low = INFINITY, high = -INFINITY;
    for (const Series& series : chart.series) {
        std::vector<double> finite;
        const auto start = std::llround(chart.cropped * static_cast<double>(series.y.size()));
        std::copy_if(series.y.begin() + start, series.y.end(), std::back_inserter(finite),
                     [](double v) { return std::abs(v) < 1e30; });
        if (finite.empty()) continue;
        const bool noise = series.style == Series::Style::thin && finite.size() > 20;
        low = std::min(low, percentile(finite, noise ? 0.002 : 0));
        high = std::max(high, percentile(finite, noise ? 0.998 : 1));
    }
    if (!(low <= high)) low = 0, high = 1;
    if (chart.log_scale && low > 0 && high > 1.8 * low) return {low / 1.05, high * 1.05, true};
    if (chart.from_zero && low >= 0) low = 0;
    const double room = high > low ? 0.08 * (high - low) : std::max(std::abs(high), 1.0) * 0.1;
    return {low == 0 ? 0 : low - room, high + room};
}

// Thins out a long series: keeps the lowest and the highest point of each column of noise, or the first point of a
// smooth line.
void thin_out(Series& series) {
    const int64_t size = std::ssize(series.x);
    if (size <= 2 * columns) return;
    Series out{series.name, series.color, series.style, {}, {}};
    const auto add_point = [&](int64_t i) { out.x.push_back(series.x[i]), out.y.push_back(series.y[i]); };
    for (int64_t c = 0; c < columns; c++) {
        const int64_t begin = c * size / columns, end = (c + 1) * size / columns;
        if (series.style != Series::Style::thin) {
            add_point(begin);
            continue;
        }
        const auto less = [](double p, double q) {
            return (std::isnan(p) ? -INFINITY : p) < (std::isnan(q) ? -INFINITY : q);
        };
        const auto [low, high] = std::minmax_element(series.y.begin() + begin, series.y.begin() + end, less);
        const int64_t a = low - series.y.begin(), b = high - series.y.begin();
        add_point(std::min(a, b)), add_point(std::max(a, b));
    }
    add_point(size - 1);
    series = std::move(out);
}

std::string coordinates(const Series& s, size_t i, const Scale& x, const Scale& y) {
    const auto inside = [](double v) { return std::clamp(v, -side, 2 * side); };
    return format("%.1f ", inside(side * x.share(s.x[i]))) + format("%.1f", inside(side * (1 - y.share(s.y[i]))));
}

std::string draw_series(const Series& s, const std::string& x_name, const Scale& x, const Scale& y) {
    const auto drawable = [&](double v) { return std::isfinite(v) && (!y.log || v > 0); };
    std::string path, dots;
    bool pen_down = false;
    for (size_t i = 0; i < s.x.size(); i++) {
        if (!drawable(s.y[i])) {
            pen_down = false;
            continue;
        }
        const std::string at = coordinates(s, i, x, y);
        path += (pen_down ? "L" : "M") + at;
        pen_down = true;
        if (s.style == Series::Style::points && s.x.size() <= 100)  // a line of length zero with a round cap is a dot
            dots += "<path class=\"dot " + s.color + "\" d=\"M" + at + "h.01\"><title>" + x_name + " " +
                    grouped_number(static_cast<int64_t>(s.x[i])) + ": " + short_number(s.y[i]) + " (" +
                    escape_html(s.name) + ")</title></path>\n";
    }
    if (path.empty()) return "";
    const char* style = s.style == Series::Style::thin ? "thin " : "line ";
    return "<path class=\"" + (style + s.color) + "\" d=\"" + path + "\"/>\n" + dots;
}

std::string last_value(const Series& s) {
    for (auto v = s.y.rbegin(); v != s.y.rend(); v++)
        if (std::isfinite(*v)) return short_number(*v);
    return "–";
}

std::string draw_plot(const Chart& chart) {
    double last = 1;
    for (const Series& s : chart.series)
        if (!s.x.empty()) last = std::max(last, s.x.back());
    const Scale x{0, last}, y = y_scale(chart);
    std::vector<double> y_ticks = y.log ? log_ticks(y.low, y.high, 8) : linear_ticks(y.low, y.high, 5);
    std::vector<double> x_ticks = linear_ticks(0, last, 6);
    std::erase_if(x_ticks, [](double tick) { return tick != std::floor(tick); });

    std::string grid, labels, lines;
    for (const double tick : y_ticks) {
        const double top = 1 - y.share(tick);
        grid += "M0 " + format("%.1f", side * top) + format("H%.0f", side);
        labels +=
            "<span class=\"y\" style=\"top:" + format("%.2f", 100 * top) + "%\">" + short_number(tick) + "</span>";
    }
    for (size_t i = 0; i < x_ticks.size(); i++)  // a phone shows every other one
        labels += std::string("<span class=\"x") + (i % 2 ? " odd" : "") +
                  "\" style=\"left:" + format("%.2f", 100 * x.share(x_ticks[i])) + "%\">" + short_number(x_ticks[i]) +
                  "</span>";
    for (Series s : chart.series) {
        thin_out(s);
        lines += draw_series(s, chart.x_name, x, y);
    }
    return "<div class=\"plot\">\n<svg viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" role=\"img\" "
           "aria-label=\"" +
           escape_html(chart.title) + " by " + chart.x_name + "\">\n<path class=\"grid\" d=\"" + grid + "\"/>\n" +
           lines + "</svg>\n" + labels + "\n</div>\n<p class=\"axis\">" + chart.x_name + "</p>\n";
}

}  // namespace

std::string draw_chart(const Chart& chart) {
    std::string legend;
    bool empty = true;
    for (const Series& s : chart.series) {
        if (s.y.empty()) continue;
        empty = false;
        if (!s.name.empty())
            legend += "<li class=\"" + s.color + "\">" + escape_html(s.name) + " <b>" + last_value(s) + "</b></li>";
    }
    return "<figure class=\"card chart\">\n<figcaption><h2>" + escape_html(chart.title) + " <small>" +
           escape_html(chart.unit) + "</small></h2><ul class=\"legend\">" + legend + "</ul></figcaption>\n" +
           (empty ? "<p class=\"empty\">nothing logged yet</p>\n" : draw_plot(chart)) + "</figure>\n";
}

std::vector<double> smooth(const std::vector<double>& y, int64_t window) {
    const int64_t size = std::ssize(y);
    std::vector<double> sum(size + 1), count(size + 1), out(size);
    for (int64_t i = 0; i < size; i++) {
        const bool finite = std::isfinite(y[i]);
        sum[i + 1] = sum[i] + (finite ? y[i] : 0);
        count[i + 1] = count[i] + finite;
    }
    for (int64_t i = 0; i < size; i++) {
        const int64_t before = std::min(i, window / 2), after = std::min(before, size - 1 - i);
        const int64_t begin = i - before, end = i + after + 1;
        out[i] = std::isfinite(y[i]) ? (sum[end] - sum[begin]) / (count[end] - count[begin]) : NAN;
    }
    return out;
}

std::string short_number(double value) {
    const double size = std::abs(value);
    if (size >= 999.5e6) return format("%.3g", value / 1e9) + "G";
    if (size >= 999.5e3) return format("%.3g", value / 1e6) + "M";
    if (size >= 9999.5) return format("%.3g", value / 1e3) + "k";
    if (size >= 999.5) return grouped_number(std::llround(value));
    std::string text = format("%.4g", value);
    if (const size_t e = text.find("e-0"); e != std::string::npos) text.erase(e + 2, 1);
    return text;
}

std::string grouped_number(int64_t value) {
    std::string digits = std::to_string(value);
    for (int64_t at = std::ssize(digits) - 3; at > (value < 0 ? 1 : 0); at -= 3) digits.insert(at, ",");
    return digits;
}
