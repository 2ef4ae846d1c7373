#include "bench_client/load.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace nibble::bench_client {
namespace {

constexpr Duration kLongestWait = std::chrono::milliseconds(100);
constexpr size_t kMaxErrorBytes = 64 << 10;
constexpr int32_t kMaxBackoffShift = 6;

TimePoint now() { return std::chrono::steady_clock::now(); }

// A conversation in flight, at one of its turns.
struct Flight {
  Flight(const Conversation& whole, bool is_stream)
      : conversation(whole), messages(whole.opening), reader(is_stream) {}

  const Turn& current() const { return conversation.turns[static_cast<size_t>(turn)]; }

  const Conversation& conversation;
  std::vector<Message> messages;  // of the request
  int32_t turn = 0;
  TimePoint due_at;
  TimePoint sent_at;
  int32_t num_retries = 0;
  ReplyReader reader;
  std::string error_body;
};

class Run final {
 public:
  Run(HttpClient& client,
      const Target& target,
      const std::vector<Conversation>& conversations,
      const LoadOptions& options,
      const LoadEvents& events)
      : client_(client),
        target_(target),
        conversations_(conversations),
        options_(options),
        events_(events),
        num_total_(count_turns(conversations)) {
    Random random(options.seed);
    arrivals_ = schedule_arrivals(conversations.size(), options.arrivals, random);
  }

  Result<RunRecord> execute() {
    record_.start = now();
    while (next_ < conversations_.size() || num_flights_ > 0) {
      if (events_.is_interrupted && events_.is_interrupted()) {
        return Error{Errc::kCancelled, "the benchmark was interrupted", {}, {}};
      }
      start_due();
      resend_due();
      client_.wait(time_to_next());
    }
    record_.end = now();
    return std::move(record_);
  }

 private:
  using FlightPtr = std::shared_ptr<Flight>;

  TimePoint due(size_t index) const { return record_.start + arrivals_[index]; }
  bool has_room() const {
    return options_.max_concurrency == 0 || num_flights_ < options_.max_concurrency;
  }

  void start_due() {
    while (next_ < conversations_.size() && has_room() && due(next_) <= now()) {
      const auto flight = std::make_shared<Flight>(conversations_[next_], target_.stream);
      flight->due_at = due(next_++);
      record_.peak_concurrency = std::max(record_.peak_concurrency, ++num_flights_);
      begin_turn(flight);
    }
  }

  void resend_due() {
    const auto is_due = [at = now()](const auto& waiting) { return waiting.first <= at; };
    const auto begin = std::stable_partition(
        waiting_.begin(), waiting_.end(), [&](const auto& waiting) { return !is_due(waiting); });
    const std::vector<std::pair<TimePoint, FlightPtr>> due_now(begin, waiting_.end());
    waiting_.erase(begin, waiting_.end());
    for (const auto& [at, flight] : due_now) send(flight);
  }

  Duration time_to_next() const {
    TimePoint next = now() + kLongestWait;
    if (next_ < conversations_.size() && has_room()) next = std::min(next, due(next_));
    for (const auto& [at, flight] : waiting_) next = std::min(next, at);
    return std::max<Duration>(next - now(), Duration::zero());
  }

  void begin_turn(const FlightPtr& flight) {
    flight->messages.push_back({"user", flight->current().text});
    flight->sent_at = now();
    flight->num_retries = 0;
    send(flight);
  }

  void send(const FlightPtr& flight) {
    flight->reader = ReplyReader(target_.stream);
    flight->error_body.clear();
    client_.start(
        generation_call(target_, flight->messages, flight->current().output_tokens),
        [flight](int32_t status, std::string_view bytes) {
          if (status == 200) return flight->reader.feed(bytes, now());
          flight->error_body += bytes;
          return flight->error_body.size() <= kMaxErrorBytes;
        },
        [this, flight](const HttpOutcome& outcome) { on_done(flight, outcome); });
  }

  void on_done(const FlightPtr& flight, const HttpOutcome& outcome) {
    const bool is_refused = outcome.status == 429 || outcome.status == 503;
    if (is_refused && flight->num_retries < options_.max_retries) {
      const int32_t shift = std::min(flight->num_retries++, kMaxBackoffShift);
      const int32_t seconds = outcome.retry_after_seconds.value_or(1 << shift);
      waiting_.emplace_back(now() + std::chrono::seconds(seconds), flight);
      return;
    }
    finish_turn(flight, outcome);
  }

  void finish_turn(const FlightPtr& flight, const HttpOutcome& outcome) {
    RequestRecord request{.due_at = flight->due_at,
                          .sent_at = flight->sent_at,
                          .finished_at = now(),
                          .asked_prompt_tokens = flight->current().prompt_tokens,
                          .asked_output_tokens = flight->current().output_tokens,
                          .turn = flight->turn,
                          .num_retries = flight->num_retries,
                          .reply = flight->reader.finish(now())};
    if (auto failure = failure_of(outcome, flight->error_body)) {
      request.reply.failure = std::move(failure);
    }
    const bool has_failed = request.reply.failure.has_value();
    flight->messages.push_back({"assistant", request.reply.text});
    record_.requests.push_back(std::move(request));
    next_turn(flight, has_failed);
    if (events_.progress) {
      events_.progress(static_cast<int64_t>(record_.requests.size()) + record_.num_unsent,
                       num_total_);
    }
  }

  void next_turn(const FlightPtr& flight, bool has_failed) {
    const auto num_turns = static_cast<int32_t>(flight->conversation.turns.size());
    const int32_t num_left = num_turns - flight->turn - 1;
    if (has_failed || num_left == 0) {
      record_.num_unsent += num_left;
      --num_flights_;
      return;
    }
    ++flight->turn;
    flight->due_at = now();
    begin_turn(flight);
  }

  HttpClient& client_;
  const Target& target_;
  const std::vector<Conversation>& conversations_;
  const LoadOptions& options_;
  const LoadEvents& events_;
  const int64_t num_total_;

  std::vector<Duration> arrivals_;
  size_t next_ = 0;          // conversation to start
  int32_t num_flights_ = 0;  // those that wait to be sent again included
  std::vector<std::pair<TimePoint, FlightPtr>> waiting_;  // at most one entry per flight
  RunRecord record_;
};

}  // namespace

Result<RunRecord> run_load(HttpClient& client,
                           const Target& target,
                           const std::vector<Conversation>& conversations,
                           const LoadOptions& options,
                           const LoadEvents& events) {
  return Run(client, target, conversations, options, events).execute();
}

}  // namespace nibble::bench_client
