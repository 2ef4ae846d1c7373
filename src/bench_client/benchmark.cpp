#include "bench_client/benchmark.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <utility>

#include "text/tokenizer.h"

namespace nibble::bench_client {
namespace {

std::string utc_now() {
  const std::time_t seconds =
      std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(seconds));
}

class Benchmark final {
 public:
  Benchmark(BenchmarkOptions options, const BenchmarkEvents& events)
      : options_(std::move(options)), events_(events) {}

  Result<void> execute() {
    if (options_.tokenizer_dir) {
      TRY_ASSIGN(tokenizer_, text::load_tokenizer(*options_.tokenizer_dir));
    }
    TRY(check_target(client_, options_.target));
    server_version_ = server_version(client_, options_.target);
    TRY(find_words());
    TRY(warm_up());
    uint64_t index = 0;
    for (const double rate : options_.request_rates) {
      for (const int32_t concurrency : options_.max_concurrencies) {
        TRY(run_one(rate, concurrency, index++));
      }
    }
    return {};
  }

 private:
  bool makes_prompts() const { return options_.dataset.kind != DatasetKind::kFile; }

  Result<void> find_words() {
    if (!makes_prompts()) return {};
    if (tokenizer_ != nullptr) {
      TRY_ASSIGN(words_.words, one_token_words(*tokenizer_));
    } else {
      TRY_ASSIGN(words_.words, probe_one_token_words(client_, options_.target));
    }
    TRY_ASSIGN(words_.template_tokens,
               probe_template_tokens(client_, options_.target, words_.words));
    return {};
  }

  Result<std::vector<Conversation>> make_conversations(uint64_t seed) const {
    Random random(seed);
    return makes_prompts() ? make_dataset(options_.dataset, words_, random)
                           : read_dataset(options_.dataset, tokenizer_.get(), random);
  }

  // Every run draws its own prompts, so that none finds those of another in a cache.
  uint64_t run_seed(uint64_t index) const { return Random(options_.seed + (index << 32)).next(); }

  // With prompts of their own, too.
  Result<void> warm_up() {
    if (options_.num_warmups == 0) return {};
    TRY_ASSIGN(std::vector<Conversation> conversations,
               make_conversations(run_seed((uint64_t{1} << 31) - 1)));
    const auto count = static_cast<size_t>(options_.num_warmups);
    if (conversations.size() > count) conversations.resize(count);
    for (Conversation& conversation : conversations) conversation.turns.resize(1);
    const LoadEvents quiet{.is_interrupted = events_.load.is_interrupted};
    TRY_ASSIGN(const RunRecord run, run_load(client_, options_.target, conversations, {}, quiet));
    for (const RequestRecord& request : run.requests) {
      if (!request.reply.failure) continue;
      Error error = describe_failure(options_.target, *request.reply.failure);
      error.message = "warm-up: " + error.message;
      return error;
    }
    return {};
  }

  Result<void> run_one(double rate, int32_t concurrency, uint64_t index) {
    if (options_.flush_cache) TRY(order("/flush_cache", "--flush-cache"));
    RunReport report{.request_rate = rate,
                     .max_concurrency = concurrency,
                     .seed = run_seed(index),
                     .template_tokens = words_.template_tokens,
                     .model = options_.target.model,
                     .server_version = server_version_,
                     .started_at = utc_now()};
    TRY_ASSIGN(const std::vector<Conversation> conversations, make_conversations(report.seed));
    report.num_requests = count_turns(conversations);
    report.dataset_hash = dataset_hash(conversations);
    const LoadOptions load{.arrivals = {.request_rate = rate, .burstiness = options_.burstiness},
                           .max_concurrency = concurrency,
                           .max_retries = options_.max_retries,
                           .seed = report.seed};
    if (options_.profile) TRY(order("/start_profile", "--profile"));
    TRY_ASSIGN(report.record,
               run_load(client_, options_.target, conversations, load, events_.load));
    if (options_.profile) TRY(order("/stop_profile", "--profile"));
    report.summary = summarise(report.record, options_.goals);
    TRY(events_.on_run(report));
    return none_completed(report.summary);
  }

  Result<void> order(std::string_view route, std::string_view flag) {
    return post_order(client_, options_.target, route, flag);
  }

  Result<void> none_completed(const Summary& summary) const {
    if (summary.num_completed > 0 || summary.failures.empty()) return {};
    const auto& [kind, failure] = *summary.failures.begin();
    Error error = describe_failure(options_.target, {kind, failure.example});
    error.code = Errc::kUnavailable;
    error.message = fmt::format("no request succeeded: {}", error.message);
    return error;
  }

  BenchmarkOptions options_;
  const BenchmarkEvents& events_;
  HttpClient client_;
  std::unique_ptr<text::Tokenizer> tokenizer_;  // null without --tokenizer
  PromptWords words_;
  std::string server_version_;
};

}  // namespace

Result<void> run_benchmark(BenchmarkOptions options, const BenchmarkEvents& events) {
  return Benchmark(std::move(options), events).execute();
}

}  // namespace nibble::bench_client
