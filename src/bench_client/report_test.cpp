#include "bench_client/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"
#include "bench_client/plot.h"

namespace nibble::bench_client {
namespace {

using testing::HasSubstr;
using testing::Not;

TimePoint at(double milliseconds) {
  return TimePoint(std::chrono::microseconds(std::llround(milliseconds * 1000)));
}

// Sent at `sent` ms, first token 10 ms later, then `num_tokens` - 1 more every 2 ms.
RequestRecord answered(double sent, int32_t num_tokens) {
  RequestRecord request{.due_at = at(sent - 1), .sent_at = at(sent), .asked_prompt_tokens = 100};
  request.asked_output_tokens = num_tokens;
  for (int32_t i = 0; i < num_tokens; ++i) {
    request.reply.token_times.push_back(at(sent + 10 + 2 * i));
  }
  request.finished_at = at(sent + 10 + 2 * num_tokens);
  request.reply.prompt_tokens = 100;
  request.reply.completion_tokens = num_tokens;
  return request;
}

RequestRecord refused(std::string message) {
  RequestRecord request{.due_at = at(0), .sent_at = at(0), .finished_at = at(1)};
  request.reply.failure = Failure{"http_429", std::move(message)};
  return request;
}

RunReport report_of(std::vector<RequestRecord> requests) {
  RunReport report{.request_rate = 4, .max_concurrency = 8, .model = "m"};
  report.record = {.start = at(0), .end = at(2000), .requests = std::move(requests)};
  report.summary = summarise(report.record);
  return report;
}

TEST(Distribution, InterpolatesBetweenOrderStatistics) {
  const Distribution values = distribution_of({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(values.mean, 2.5);
  EXPECT_DOUBLE_EQ(values.median, 2.5);
  EXPECT_DOUBLE_EQ(values.p90, 3.7);
  EXPECT_DOUBLE_EQ(values.p99, 3.97);
  EXPECT_DOUBLE_EQ(values.max, 4);
  EXPECT_DOUBLE_EQ(values.deviation, std::sqrt(1.25));
  EXPECT_EQ(distribution_of({}).count, 0);
}

TEST(Summary, LatenciesAreThoseOfTheTokens) {
  const Summary summary = report_of({answered(0, 6), answered(500, 11)}).summary;
  EXPECT_EQ(summary.num_completed, 2);
  EXPECT_EQ(summary.input_tokens, 200);
  EXPECT_EQ(summary.output_tokens, 17);
  EXPECT_DOUBLE_EQ(summary.request_throughput, 1.0);
  EXPECT_DOUBLE_EQ(summary.output_throughput, 8.5);
  EXPECT_DOUBLE_EQ(summary.total_throughput, 108.5);
  EXPECT_DOUBLE_EQ(summary.peak_output_throughput, 17);
  EXPECT_NEAR(summary.ttft.mean, 10, 1e-9);
  EXPECT_NEAR(summary.tpot.mean, 2, 1e-9);
  EXPECT_NEAR(summary.itl.max, 2, 1e-9);
  EXPECT_EQ(summary.itl.count, 15);
  EXPECT_NEAR(summary.e2el.max, 32, 1e-9);
  EXPECT_NEAR(summary.mean_concurrency, (22 + 32) / 2000.0, 1e-9);
  EXPECT_NEAR(summary.max_client_delay_ms, 1, 1e-9);
}

// Three tokens in one event: the time per token is that of tokens, the gap that of events.
TEST(Summary, AnEventMayHoldSeveralTokens) {
  RequestRecord request = answered(0, 3);
  request.reply.completion_tokens = 7;
  const Summary summary = report_of({request}).summary;
  EXPECT_NEAR(summary.tpot.mean, 4.0 / 6, 1e-9);
  EXPECT_NEAR(summary.itl.mean, 2, 1e-9);
  EXPECT_NEAR(summary.peak_output_throughput, 7, 1e-9);
}

TEST(Summary, FailuresAreCountedByKindAndKeepOutOfTheLatencies) {
  const Summary summary = report_of({refused("full"), answered(0, 6), refused("again")}).summary;
  EXPECT_EQ(summary.num_completed, 1);
  EXPECT_EQ(summary.num_failed, 2);
  ASSERT_EQ(summary.failures.count("http_429"), 1U);
  EXPECT_EQ(summary.failures.at("http_429").count, 2);
  EXPECT_EQ(summary.failures.at("http_429").example, "full");
  EXPECT_EQ(summary.e2el.count, 1);
}

// Tokens after 10 ms and every 2 ms, the end 2 ms after the last.
TEST(Summary, GoodputCountsRequestsThatKeepEveryGoal) {
  RequestRecord slow = answered(100, 6);
  for (TimePoint& time : slow.reply.token_times) time += std::chrono::milliseconds(90);
  slow.finished_at += std::chrono::milliseconds(90);
  const RunRecord run{.start = at(0),
                      .end = at(2000),
                      .requests = {answered(0, 6), answered(50, 21), slow, refused("full")}};
  const auto goodput = [&](const Goals& goals) { return *summarise(run, goals).request_goodput; };
  EXPECT_DOUBLE_EQ(goodput({.ttft = 10}), 1.0);
  EXPECT_DOUBLE_EQ(goodput({.ttft = 9}), 0.0);
  EXPECT_DOUBLE_EQ(goodput({.tpot = 2}), 1.5);
  EXPECT_DOUBLE_EQ(goodput({.ttft = 10, .e2el = 30}), 0.5);
  EXPECT_FALSE(summarise(run).request_goodput.has_value());
}

TEST(Summary, GoodputNeedsToSeeWhatItCounts) {
  RequestRecord one_token = answered(0, 1);
  RequestRecord whole = answered(0, 6);
  whole.reply.token_times.clear();
  const RunRecord run{.start = at(0), .end = at(1000), .requests = {one_token, whole}};
  EXPECT_DOUBLE_EQ(*summarise(run, {.tpot = 1}).request_goodput, 1.0);
  EXPECT_DOUBLE_EQ(*summarise(run, {.e2el = 100}).request_goodput, 2.0);
}

TEST(Report, TheTableHasTheRowsThatParsersLookFor) {
  const std::string table = render_table({}, report_of({answered(0, 6), refused("full")}));
  EXPECT_THAT(table, HasSubstr("============ Serving Benchmark Result ============\n"));
  EXPECT_THAT(table, HasSubstr("Successful requests:                     1         \n"));
  EXPECT_THAT(table, HasSubstr("Request throughput (req/s):              0.50      \n"));
  EXPECT_THAT(table, HasSubstr("Output token throughput (tok/s):         3.00      \n"));
  EXPECT_THAT(table, HasSubstr("---------------Time to First Token----------------\n"));
  EXPECT_THAT(table, HasSubstr("Median TTFT (ms):                        10.00     \n"));
  EXPECT_THAT(table, HasSubstr("-----Time per Output Token (excl. 1st token)------\n"));
  EXPECT_THAT(table, HasSubstr("P99 TPOT (ms):                           2.00      \n"));
  EXPECT_THAT(table, HasSubstr("---------------Inter-token Latency----------------\n"));
  EXPECT_THAT(table, HasSubstr("----------------End-to-end Latency----------------\n"));
  EXPECT_THAT(table, HasSubstr("failed: 1 x http_429: full\n"));
}

TEST(Report, TheGoodputIsShownWhereGoalsAreSet) {
  BenchmarkOptions options{.goals = {.ttft = 10.5, .tpot = 3}};
  RunReport report = report_of({answered(0, 6)});
  EXPECT_THAT(render_table(options, report), Not(HasSubstr("goodput")));
  report.summary = summarise(report.record, options.goals);
  EXPECT_THAT(render_table(options, report),
              HasSubstr("Request goodput (req/s):                 0.50      \n"));
  const json::Value line = json::parse(render_json(options, report, {}, Detail::kSummary)).value();
  EXPECT_EQ(line.find("request_goodput")->as_double(), 0.5);
  EXPECT_EQ(line.find("goodput")->find("ttft")->as_double(), 10.5);
  EXPECT_EQ(line.find("goodput")->find("e2el"), nullptr);
}

TEST(Report, ATableWithoutTokenTimesHasNoTimeToFirstToken) {
  RequestRecord whole = answered(0, 6);
  whole.reply.token_times.clear();
  const std::string table = render_table({}, report_of({whole}));
  EXPECT_THAT(table, Not(HasSubstr("TTFT")));
  EXPECT_THAT(table, HasSubstr("Mean E2EL (ms):"));
}

TEST(Report, TheLineOfJsonHoldsSettingsFiguresAndProvenance) {
  BenchmarkOptions options;
  options.seed = 7;
  const RunReport report = report_of({answered(0, 6), refused("full")});
  const Provenance provenance{.version = "1.2", .commit = "abc", .machine = "a \"box\""};
  const std::string line = render_json(options, report, provenance, Detail::kRequests);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const json::Value parsed = json::parse(line).value();
  EXPECT_EQ(*parsed.find("commit")->as_string(), "abc");
  EXPECT_EQ(*parsed.find("machine")->as_string(), "a \"box\"");
  EXPECT_EQ(parsed.find("seed")->as_int64(), 7);
  EXPECT_EQ(parsed.find("request_rate")->as_double(), 4);
  EXPECT_EQ(parsed.find("completed")->as_int64(), 1);
  EXPECT_EQ(parsed.find("median_ttft_ms")->as_double(), 10);
  EXPECT_EQ(parsed.find("failures")->find("http_429")->find("count")->as_int64(), 1);
  EXPECT_EQ(parsed.find("requests")->as_array()->size(), 2U);
  const std::string brief = render_json(options, report, provenance, Detail::kSummary);
  EXPECT_EQ(json::parse(brief)->find("requests"), nullptr);
}

TEST(Plot, HasAPointPerRunAndEscapesText) {
  const std::string svg = render_plot("<m> & \"n\"",
                                      "requests at a time",
                                      {{.label = "1",
                                        .throughput = 100,
                                        .median_tpot_ms = 10,
                                        .p99_tpot_ms = 12,
                                        .median_ttft_ms = 20,
                                        .p99_ttft_ms = 30},
                                       {.label = "4", .throughput = 300, .median_tpot_ms = 13}});
  EXPECT_THAT(svg, testing::StartsWith("<svg "));
  EXPECT_THAT(svg, HasSubstr("&lt;m&gt; &amp; &quot;n&quot;"));
  EXPECT_THAT(svg, HasSubstr(">4</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  size_t num_dots = 0;
  for (size_t at = 0; (at = svg.find("<circle", at)) != std::string::npos; ++at) ++num_dots;
  EXPECT_EQ(num_dots, 8U);  // two points, two panels, median and P99
}

TEST(Plot, NoThroughputAtAllIsStillAnImage) {
  const std::string svg = render_plot("m", "x", {{.label = "1"}});
  EXPECT_THAT(svg, HasSubstr("</svg>"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace nibble::bench_client
