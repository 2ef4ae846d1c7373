#include "cli/bench_flags.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace nibble::cli {
namespace {

using bench_client::BenchmarkOptions;
using bench_client::DatasetKind;
using bench_client::DatasetOptions;
using bench_client::Goals;
using bench_client::Protocol;
using bench_client::Target;

struct Backend {
  std::string_view name;  // as benchmarks of other engines call it
  Protocol protocol;
};
constexpr Backend kBackends[] = {
    {"openai-chat", Protocol::kChat},
    {"openai", Protocol::kCompletions},
    {"vllm-chat", Protocol::kChat},
    {"vllm", Protocol::kCompletions},
    {"sglang-oai-chat", Protocol::kChat},
    {"sglang-oai", Protocol::kCompletions},
};

struct DatasetName {
  std::string_view name;
  DatasetKind kind;
};
constexpr DatasetName kDatasets[] = {
    {"random", DatasetKind::kRandom},
    {"shared-prefix", DatasetKind::kSharedPrefix},
    {"generated-shared-prefix", DatasetKind::kSharedPrefix},
    {"multi-turn", DatasetKind::kMultiTurn},
    {"file", DatasetKind::kFile},
    {"custom", DatasetKind::kFile},
    {"sharegpt", DatasetKind::kFile},
};

template <class Entry, size_t kSize>
const Entry* find_named(const Entry (&entries)[kSize], std::string_view name) {
  for (const Entry& entry : entries) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

template <class Entry, size_t kSize>
std::string names_of(const Entry (&entries)[kSize]) {
  std::string names;
  for (const Entry& entry : entries) names += (names.empty() ? "" : "|") + std::string(entry.name);
  return names;
}

// One of a table's names; `assign` gets its entry.
template <class Entry, size_t kSize, class Assign>
CLI::Option* add_named(CLI::App& app,
                       const std::string& flag,
                       const Entry (&entries)[kSize],
                       const std::string& help,
                       Assign assign) {
  const auto check = [&entries](const std::string& text) {
    if (find_named(entries, text) != nullptr) return std::string();
    return fmt::format("\"{}\" is none of {}", text, names_of(entries));
  };
  const auto take = [&entries, assign](const std::string& text) {
    assign(*find_named(entries, text));
  };
  return app.add_option_function<std::string>(flag, take, help)
      ->check(check)
      ->type_name(names_of(entries))
      ->default_str(std::string(entries[0].name));
}

CLI::Option* add_count(
    CLI::App& app, const std::string& flag, int32_t& target, int32_t least, const char* help) {
  constexpr int32_t kMost = 1 << 24;
  return app.add_option(flag, target, help)
      ->check(CLI::Range(least, kMost).description(""))
      ->type_name("N")
      ->capture_default_str();
}

// A positive number of requests per second, or "inf".
bool parse_rate(const std::string& text, double& rate) {
  if (text == "inf") {
    rate = std::numeric_limits<double>::infinity();
    return true;
  }
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), rate);
  return fault == std::errc() && end == text.data() + text.size() && rate > 0 &&
         std::isfinite(rate);
}

// "ttft:200": at most 200 ms. False for anything else.
bool parse_goal(const std::string& text, Goals& goals) {
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string_view name = std::string_view(text).substr(0, colon);
  std::optional<double>* goal = name == "ttft"   ? &goals.ttft
                                : name == "tpot" ? &goals.tpot
                                : name == "e2el" ? &goals.e2el
                                                 : nullptr;
  double bound = 0;
  const char* const last = text.data() + text.size();
  const auto [end, fault] = std::from_chars(std::min(text.data() + colon + 1, last), last, bound);
  const bool is_bound = fault == std::errc() && end == last && bound > 0 && std::isfinite(bound);
  if (goal == nullptr || !is_bound) return false;
  *goal = bound;
  return true;
}

void add_target(CLI::App& app, BenchServeFlags& flags) {
  const char* group = "Server";
  BenchmarkOptions& options = flags.options;
  add_named(app,
            "--backend",
            kBackends,
            "Protocol: chat or text completions",
            [&](const Backend& b) {
              options.backend = std::string(b.name);
              options.target.protocol = b.protocol;
            })
      ->group(group);
  CLI::Option* base_url = app.add_option_function<std::string>(
                                 "--base-url",
                                 [&](const std::string& url) {
                                   options.target.base_url = bench_client::normalise_base_url(url);
                                 },
                                 "Server; a trailing /v1 does not count")
                              ->type_name("URL")
                              ->default_str(options.target.base_url)
                              ->group(group);
  app.add_option("--host", flags.host, "Server, when --base-url is not given")
      ->type_name("NAME")
      ->excludes(base_url)
      ->group(group);
  app.add_option("--port", flags.port, "Server, when --base-url is not given")
      ->check(CLI::Range(1, 65'535).description(""))
      ->type_name("N")
      ->excludes(base_url)
      ->group(group);
  app.add_option("--endpoint", options.target.endpoint, "Path; default: the backend's")
      ->type_name("PATH")
      ->group(group);
  app.add_option("--model", options.target.model, "Name in the API; default: the first served")
      ->type_name("NAME")
      ->group(group);
  app.add_option("--tokenizer",
                 options.tokenizer_dir,
                 "Directory with tokenizer.json; without it the server's usage tells lengths")
      ->type_name("DIR")
      ->group(group);
  app.add_flag("--profile", options.profile, "POST /start_profile and /stop_profile around a run")
      ->group(group);
  app.add_flag("--flush-cache", options.flush_cache, "POST /flush_cache before every run")
      ->group(group);
}

void add_request(CLI::App& app, BenchServeFlags& flags) {
  const char* group = "Requests";
  Target& target = flags.options.target;
  app.add_flag_callback(
         "--disable-stream", [&] { target.stream = false; }, "Whole answers: no TTFT, TPOT, ITL")
      ->group(group);
  app.add_flag_callback(
         "--disable-ignore-eos",
         [&] { target.ignore_eos = false; },
         "Let answers end before their length")
      ->group(group);
  app.add_flag_callback(
         "--ignore-eos", [&] { target.ignore_eos = true; }, "The default; other benchmarks ask")
      ->group(group);
  app.add_option("--temperature", target.temperature, "0: greedy")
      ->check(CLI::Range(0.0, 100.0).description(""))
      ->type_name("X")
      ->default_str("0")
      ->group(group);
  app.add_option_function<std::string>(
         "--extra-request-body",
         [&](const std::string& text) {
           target.extra_body = *json::parse(text).value().as_object();
         },
         "JSON object whose members every request gets")
      ->check([](const std::string& text) {
        const Result<json::Value> parsed = json::parse(text);
        const bool is_object = parsed.ok() && parsed->is_object();
        return is_object ? std::string() : fmt::format("\"{}\" is no JSON object", text);
      })
      ->type_name("JSON")
      ->group(group);
  app.add_option("--timeout", flags.timeout_seconds, "Seconds for one answer")
      ->check(CLI::Range(1, 1 << 20).description(""))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  add_count(app,
            "--max-retries",
            flags.options.max_retries,
            0,
            "Attempts after a 429 or 503, when its Retry-After has passed")
      ->group(group);
}

void add_dataset(CLI::App& app, BenchServeFlags& flags) {
  const char* group = "Prompts";
  DatasetOptions& dataset = flags.options.dataset;
  add_named(app, "--dataset-name", kDatasets, "What is asked", [&](const DatasetName& name) {
    dataset.kind = name.kind;
  })->group(group);
  app.add_option("--dataset-path", dataset.file, "JSONL or JSON with prompts, messages or ShareGPT")
      ->type_name("FILE")
      ->group(group);
  add_count(app, "--num-prompts", dataset.num_prompts, 1, "Prompts, or conversations, of a run")
      ->group(group);
  add_count(app, "--random-input-len", dataset.input_len, 1, "Tokens, chat template included")
      ->group(group);
  add_count(app, "--random-output-len", dataset.output_len, 1, "Tokens of an answer")->group(group);
  app.add_option("--random-range-ratio",
                 dataset.range_ratio,
                 "Lengths are uniform in [len * (1 - X), len * (1 + X)]")
      ->check(CLI::Range(0.0, 0.999).description(""))
      ->type_name("X")
      ->capture_default_str()
      ->group(group);
  add_count(app, "--gsp-num-groups", dataset.num_groups, 1, "Shared-prefix: prefixes")
      ->group(group);
  add_count(app,
            "--gsp-prompts-per-group",
            dataset.prompts_per_group,
            1,
            "Shared-prefix: prompts of each (instead of --num-prompts)")
      ->group(group);
  add_count(app, "--gsp-system-prompt-len", dataset.prefix_len, 1, "Shared-prefix: its tokens")
      ->group(group);
  add_count(app, "--gsp-question-len", flags.question_len, 0, "As --random-input-len")
      ->group(group);
  add_count(app, "--gsp-output-len", flags.answer_len, 0, "As --random-output-len")->group(group);
  add_count(app, "--num-turns", dataset.num_turns, 1, "Multi-turn: questions of a conversation")
      ->group(group);
  add_count(app,
            "--output-len,--sharegpt-output-len,--custom-output-len",
            dataset.file_output_len,
            0,
            "File: tokens of every answer; 0: what the file says")
      ->group(group);
}

void add_load(CLI::App& app, BenchServeFlags& flags) {
  const char* group = "Load";
  BenchmarkOptions& options = flags.options;
  app.add_option_function<std::vector<std::string>>(
         "--request-rate",
         [&](const std::vector<std::string>& texts) {
           options.request_rates.clear();
           for (const std::string& text : texts) {
             parse_rate(text, options.request_rates.emplace_back());
           }
         },
         "Requests (or conversations) per second, or inf; several, by comma, for a sweep")
      ->check([](const std::string& text) {
        double rate = 0;
        return parse_rate(text, rate) ? std::string() : fmt::format("\"{}\" is no rate", text);
      })
      ->delimiter(',')
      ->type_name("X,...")
      ->default_str("inf")
      ->group(group);
  app.add_option("--burstiness", options.burstiness, "1: Poisson; less: bursts; more: regular")
      ->check(CLI::Range(0.001, 1000.0).description(""))
      ->type_name("X")
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--max-concurrency", options.max_concurrencies, "At a time, 0: any; several for a sweep")
      ->check(CLI::Range(0, 1 << 16).description(""))
      ->delimiter(',')
      ->type_name("N,...")
      ->default_str("0")
      ->group(group);
  add_count(app,
            "--num-warmups,--warmup-requests",
            options.num_warmups,
            0,
            "Requests before the first run, not measured")
      ->group(group);
  app.add_option("--seed", options.seed, "Same seed: same prompts and arrivals")
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
}

void add_output(CLI::App& app, BenchServeFlags& flags) {
  const char* group = "Output";
  app.add_option_function<std::vector<std::string>>(
         "--goodput",
         [&](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) parse_goal(text, flags.options.goals);
         },
         "Count requests within these milliseconds: ttft, tpot, e2el")
      ->check([](const std::string& text) {
        Goals goals;
        return parse_goal(text, goals)
                   ? std::string()
                   : fmt::format("\"{}\" is none of ttft:MS, tpot:MS, e2el:MS", text);
      })
      ->type_name("NAME:MS ...")
      ->group(group);
  app.add_option("--output-file", flags.output_file, "Append a line of JSON for each run")
      ->type_name("FILE")
      ->group(group);
  app.add_flag("--output-details", flags.output_details, "There, times and lengths of each request")
      ->group(group);
  app.add_option("--plot", flags.plot, "Write an SVG image: throughput against latency")
      ->type_name("FILE")
      ->group(group);
}

// What flags say together.
void settle(BenchServeFlags& flags) {
  BenchmarkOptions& options = flags.options;
  if (!flags.host.empty() || flags.port != 0) {
    options.target.base_url = fmt::format("http://{}:{}",
                                          flags.host.empty() ? "127.0.0.1" : flags.host,
                                          flags.port == 0 ? 8000 : flags.port);
  }
  options.target.timeout = std::chrono::seconds(flags.timeout_seconds);
  if (flags.question_len > 0) options.dataset.input_len = flags.question_len;
  if (flags.answer_len > 0) options.dataset.output_len = flags.answer_len;
}

}  // namespace

CLI::App& add_bench(CLI::App& root, BenchServeFlags& serve) {
  CLI::App& bench = *root.add_subcommand(
      "bench", "Measure a server, or kernels, decoding and prefill of a model");
  bench.require_subcommand(1);
  CLI::App& app = *bench.add_subcommand(
      "serve", "Load a server that speaks the OpenAI protocol; OPENAI_API_KEY holds its key");
  add_target(app, serve);
  add_load(app, serve);
  add_dataset(app, serve);
  add_request(app, serve);
  add_output(app, serve);
  app.final_callback([&serve] { settle(serve); });
  return bench;
}

}  // namespace nibble::cli
