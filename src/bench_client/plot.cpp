#include "bench_client/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <string_view>

namespace nibble::bench_client {
namespace {

constexpr double kWidth = 960;
constexpr double kHeight = 440;
constexpr double kPanelWidth = 380;
constexpr double kPanelHeight = 270;
constexpr double kTop = 84;
constexpr double kLeft = 76;
constexpr double kPanelDistance = 456;

constexpr std::string_view kStyle = R"css(
  svg { background: #ffffff; font: 13px system-ui, sans-serif; }
  text { fill: #3a4048; }
  .title { font-size: 17px; font-weight: 600; fill: #1c2026; }
  .small { font-size: 12px; fill: #626a75; }
  .grid { stroke: #e4e7eb; stroke-width: 1; }
  .axis { stroke: #9aa2ad; stroke-width: 1; }
  .median { stroke: #2563a8; fill: none; stroke-width: 2; }
  .p99 { stroke: #b4622d; fill: none; stroke-width: 2; stroke-dasharray: 5 4; }
  .median-dot { fill: #2563a8; }
  .p99-dot { fill: #b4622d; }
  @media (prefers-color-scheme: dark) {
    svg { background: #16191d; }
    text { fill: #c6ccd4; }
    .title { fill: #eceff3; }
    .small { fill: #949ca7; }
    .grid { stroke: #2a2f36; }
    .axis { stroke: #5b636e; }
    .median { stroke: #6ea8e6; }
    .p99 { stroke: #e0975f; }
    .median-dot { fill: #6ea8e6; }
    .p99-dot { fill: #e0975f; }
  }
)css";

std::string escape_xml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
  }
  return out;
}

// From 0 to at least `largest` in four to eight steps of 1, 2 or 5 times a power of ten.
struct Scale {
  double step = 1;
  int num_steps = 4;

  double end() const { return step * num_steps; }
};

Scale scale_for(double largest) {
  if (!(largest > 0)) return {};
  const double power = std::pow(10.0, std::floor(std::log10(largest / 4)));
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    const double step = factor * power;
    const int num_steps = static_cast<int>(std::ceil(largest / step - 1e-9));
    if (num_steps <= 8) return {step, std::max(num_steps, 1)};
  }
  return {power * 10, 8};
}

using Member = double PlotPoint::*;

double largest(const std::vector<PlotPoint>& points, std::initializer_list<Member> members) {
  double value = 0;
  for (const PlotPoint& point : points) {
    for (const Member member : members) value = std::max(value, point.*member);
  }
  return value;
}

class Panel final {
 public:
  Panel(std::string& out, double left, Scale x, Scale y) : out_(out), left_(left), x_(x), y_(y) {}

  void frame(std::string_view x_title, std::string_view y_title) {
    for (int i = 0; i <= y_.num_steps; ++i) {
      const double value = y_.step * i;
      line("grid", left_, at_y(value), left_ + kPanelWidth, at_y(value));
      text("small", left_ - 8, at_y(value) + 4, "end", fmt::format("{:.6g}", value));
    }
    for (int i = 0; i <= x_.num_steps; ++i) {
      const double value = x_.step * i;
      line("grid", at_x(value), kTop, at_x(value), kTop + kPanelHeight);
      text("small", at_x(value), kTop + kPanelHeight + 18, "middle", fmt::format("{:.6g}", value));
    }
    line("axis", left_, kTop + kPanelHeight, left_ + kPanelWidth, kTop + kPanelHeight);
    line("axis", left_, kTop, left_, kTop + kPanelHeight);
    text("", left_ + kPanelWidth / 2, kTop + kPanelHeight + 40, "middle", x_title);
    text("small", left_, kTop - 12, "start", y_title);
  }

  void series(const std::vector<PlotPoint>& points,
              Member latency,
              std::string_view name,
              bool has_labels) {
    std::string path;
    for (const PlotPoint& point : points) {
      fmt::format_to(std::back_inserter(path),
                     "{}{:.1f} {:.1f}",
                     path.empty() ? "M" : " L",
                     at_x(point.*latency),
                     at_y(point.throughput));
    }
    append("<path class=\"{}\" d=\"{}\"/>\n", name, path);
    for (const PlotPoint& point : points) {
      append("<circle class=\"{}-dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"/>\n",
             name,
             at_x(point.*latency),
             at_y(point.throughput));
      if (has_labels) {
        text("small", at_x(point.*latency) - 7, at_y(point.throughput) - 7, "end", point.label);
      }
    }
  }

 private:
  template <class... Args>
  void append(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }
  void line(std::string_view name, double x1, double y1, double x2, double y2) {
    append("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
           name,
           x1,
           y1,
           x2,
           y2);
  }
  void text(
      std::string_view name, double x, double y, std::string_view anchor, std::string_view words) {
    append("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n",
           name,
           x,
           y,
           anchor,
           escape_xml(words));
  }
  double at_x(double value) const { return left_ + kPanelWidth * value / x_.end(); }
  double at_y(double value) const { return kTop + kPanelHeight * (1 - value / y_.end()); }

  std::string& out_;
  const double left_;
  const Scale x_;
  const Scale y_;
};

void add_legend(std::string& out) {
  const auto entry = [&out](double x, std::string_view name, std::string_view words) {
    fmt::format_to(std::back_inserter(out),
                   "<path class=\"{0}\" d=\"M{1} 56 h28\"/>\n"
                   "<text class=\"small\" x=\"{2}\" y=\"60\">{3}</text>\n",
                   name,
                   x,
                   x + 36,
                   words);
  };
  entry(kWidth - 200, "median", "median");
  entry(kWidth - 100, "p99", "P99");
}

}  // namespace

std::string render_plot(const std::string& title,
                        const std::string& point_name,
                        const std::vector<PlotPoint>& points) {
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" role=\"img\">\n<title>{2}</title>\n<style>{3}</style>\n"
      "<text class=\"title\" x=\"{4}\" y=\"34\">{2}</text>\n"
      "<text class=\"small\" x=\"{4}\" y=\"{5}\">labels: {6}</text>\n",
      kWidth,
      kHeight,
      escape_xml(title),
      kStyle,
      kLeft,
      kHeight - 10,
      escape_xml(point_name));
  add_legend(out);
  constexpr double kHeadroom = 1.05;  // for the labels
  const Scale y = scale_for(kHeadroom * largest(points, {&PlotPoint::throughput}));
  const auto panel = [&](double left, std::string_view x_title, Member median, Member p99) {
    Panel drawn(out, left, scale_for(largest(points, {median, p99})), y);
    drawn.frame(x_title, "output tokens per second");
    drawn.series(points, p99, "p99", false);
    drawn.series(points, median, "median", true);
  };
  panel(kLeft, "time per output token (ms)", &PlotPoint::median_tpot_ms, &PlotPoint::p99_tpot_ms);
  panel(kLeft + kPanelDistance,
        "time to first token (ms)",
        &PlotPoint::median_ttft_ms,
        &PlotPoint::p99_ttft_ms);
  out += "</svg>\n";
  return out;
}

}  // namespace nibble::bench_client
