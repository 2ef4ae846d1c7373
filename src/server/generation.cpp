#include "server/generation.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "server/error_response.h"

namespace nibble::server {
namespace {

// What a client that follows late gets at a time: a fraction of what may wait for it.
constexpr size_t kCatchUpBytes = 128 << 10;

const char* cause_name(Gone why) {
  switch (why) {
    case Gone::kDisconnect:
      return "disconnect";
    case Gone::kSlowReader:
      return "slow_reader";
    case Gone::kStopped:
      return "shutdown";
  }
  return "disconnect";
}

// What a client is told about a sequence that did not end by itself.
Error failure_of(const engine::Finish& finish) {
  if (finish.reason == engine::FinishReason::kCancelled) {
    return {Errc::kUnavailable, "the server is shutting down", "shutting_down", {}};
  }
  return finish.error;
}

// The engine knows a prompt; a chat client sent messages.
Error name_prompt(Error error, const std::string& prompt_param) {
  if (error.param == "prompt") error.param = prompt_param;
  return error;
}

}  // namespace

HttpResponse stream_head(std::vector<Header> headers) {
  HttpResponse head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers = std::move(headers);
  head.headers.push_back({"cache-control", "no-store"});
  head.headers.push_back({"x-accel-buffering", "no"});  // reverse proxies pass events on at once
  return head;
}

std::string_view events_after(std::string_view events, int64_t sequence_number) {
  constexpr std::string_view kEnd = "\n\n";  // JSON on one line has none of it
  for (int64_t i = 0; i <= sequence_number && !events.empty(); ++i) {
    events.remove_prefix(std::min(events.find(kEnd), events.size() - kEnd.size()) + kEnd.size());
  }
  return events;
}

// Carries outputs from the engine thread to the I/O thread. Holds at most the tokens that the
// sequences may still generate; shared by their sinks, which outlive the generation.
class Generation::Mailbox final : public std::enable_shared_from_this<Mailbox> {
 public:
  Mailbox(std::weak_ptr<Generation> owner, std::shared_ptr<IoThread> io)
      : owner_(std::move(owner)), io_(std::move(io)) {}

  // Engine thread.
  void push(int32_t sequence, engine::Output&& output) {
    bool must_wake = false;
    {
      const std::lock_guard lock(mutex_);
      must_wake = items_.empty();
      items_.push_back({sequence, std::move(output)});
    }
    if (must_wake) io_->post([self = shared_from_this()] { self->deliver(); });
  }

 private:
  struct Item {
    int32_t sequence;
    engine::Output output;
  };

  void deliver() {
    std::vector<Item> items;
    {
      const std::lock_guard lock(mutex_);
      std::swap(items, items_);
    }
    const std::shared_ptr<Generation> owner = owner_.lock();
    if (owner == nullptr) return;
    for (Item& item : items) owner->deliver(item.sequence, std::move(item.output));
  }

  const std::weak_ptr<Generation> owner_;
  const std::shared_ptr<IoThread> io_;
  std::mutex mutex_;
  std::vector<Item> items_;
};

std::shared_ptr<Generation> Generation::start(GenerationContext& context,
                                              GenerationPlan plan,
                                              Exchange exchange,
                                              TimePoint received_at) {
  auto self =
      std::make_shared<Generation>(context, std::move(plan), std::move(exchange), received_at);
  if (self->plan_.is_background) {
    context.in_background.insert(self);
  } else {
    self->exchange_.on_gone([self](Gone why) { self->abandon(why); });
  }
  if (!self->is_over_) self->begin();
  return self;
}

void Generation::begin() {
  const Result<void> submitted = submit_all();
  if (!submitted.ok()) return fail(submitted.error());
  if (plan_.deadline) {
    exchange_.at_deadline(*plan_.deadline, [self = shared_from_this()] { self->expire(); });
  }
  if (plan_.is_background) answer_early();
  if (plan_.stream) begin_stream(exchange_);
  if (plan_.stream && plan_.is_background) followers_.push_back({.exchange = exchange_});
  if (has_events()) emit(visit_reply([](auto& reply) { return reply.begin_events(); }));
}

void Generation::begin_stream(Exchange& exchange) {
  Exchange::Heartbeat heartbeat = context_.heartbeat;
  if (!plan_.ping.empty()) heartbeat.text = plan_.ping;
  exchange.start_stream(stream_head(plan_.headers), std::move(heartbeat));
}

void Generation::follow(Exchange exchange, int64_t starting_after) {
  CHECK(plan_.is_background && !is_over_);
  exchange.on_gone([](Gone) {});  // a client that left is noticed
  begin_stream(exchange);
  const size_t num_wanted = events_after(event_log_, starting_after).size();
  Follower& follower = followers_.emplace_back(
      Follower{.exchange = std::move(exchange), .num_sent = event_log_.size() - num_wanted});
  feed(follower, kCatchUpBytes);
}

void Generation::feed(Follower& follower, size_t bytes_max) {
  const std::string_view piece = std::string_view(event_log_).substr(follower.num_sent, bytes_max);
  follower.exchange.write(piece);
  follower.num_sent += piece.size();
}

void Generation::emit(std::string_view events) {
  if (!plan_.is_background) return exchange_.write(events);
  event_log_ += events;
  std::erase_if(followers_, [](const Follower& f) { return !f.exchange.is_open(); });
  for (Follower& follower : followers_) feed(follower, kCatchUpBytes);
}

void Generation::end_streams() {
  if (!plan_.is_background) return exchange_.finish_stream();
  for (Follower& follower : followers_) {
    feed(follower, event_log_.size());
    follower.exchange.finish_stream();
  }
}

Generation::Generation(GenerationContext& context,
                       GenerationPlan plan,
                       Exchange exchange,
                       TimePoint received_at)
    : context_(context),
      plan_(std::move(plan)),
      exchange_(std::move(exchange)),
      received_at_(received_at),
      choices_(plan_.sequences.size()),
      record_{.stream = plan_.stream, .num_choices = static_cast<int32_t>(plan_.sequences.size())},
      crash_scope_(exchange_.request_id()) {}

Result<void> Generation::submit_all() {
  const auto mailbox = std::make_shared<Mailbox>(weak_from_this(), context_.io);
  for (size_t i = 0; i < plan_.sequences.size(); ++i) {
    std::string id = plan_.sequences[i].id;
    const auto num_prompt = static_cast<int64_t>(plan_.sequences[i].prompt_ids.size());
    plan_.sequences[i].joins_accepted = i > 0;
    auto sink = [mailbox, index = static_cast<int32_t>(i)](engine::Output&& output) {
      mailbox->push(index, std::move(output));
    };
    Result<void> submitted = context_.engine.submit(std::move(plan_.sequences[i]), std::move(sink));
    if (!submitted.ok()) return name_prompt(std::move(submitted).error(), plan_.prompt_param);
    ids_.push_back(std::move(id));
    choices_[i].prompt_tokens = num_prompt;
  }
  return {};
}

void Generation::answer_early() {
  keep_reply();
  if (plan_.stream) return;
  HttpResponse response = json_response(visit_reply([](auto& reply) { return reply.body(); }));
  response.headers = plan_.headers;
  exchange_.respond(response);
}

void Generation::keep_reply() {
  if (!plan_.keep) return;
  visit_reply([this](auto& reply) {
    if constexpr (requires { reply.stored(); }) {
      StoredResponse stored = reply.stored();
      if (is_over_) stored.events = event_log_;
      plan_.keep(std::move(stored));
    }
  });
}

void Generation::leave_background() {
  if (plan_.is_background) context_.in_background.erase(shared_from_this());
}

void Generation::deliver(int32_t sequence, engine::Output&& output) {
  if (is_over_) return;
  observe(sequence, output);
  const bool is_failed = output.finish && output.finish->reason != engine::FinishReason::kStop &&
                         output.finish->reason != engine::FinishReason::kLength;
  if (is_failed) return fail(failure_of(*output.finish));
  events_.clear();
  const bool is_finished = visit_reply([&](auto& reply) {
    reply.add(sequence, std::move(output), has_events() ? &events_ : nullptr);
    return reply.is_finished();
  });
  if (is_finished) return finish();
  if (has_events()) emit(events_);
}

void Generation::observe(int32_t sequence, const engine::Output& output) {
  const TimePoint now = std::chrono::steady_clock::now();
  ChoiceProgress& choice = choices_[static_cast<size_t>(sequence)];
  if (!output.token_ids.empty()) {
    if (choice.last_output) {
      context_.metrics.on_token_gap(to_seconds(now - *choice.last_output));
    } else {
      const double seconds = to_seconds(now - received_at_);
      context_.metrics.on_first_token(seconds);
      record_.first_token_seconds = std::max(record_.first_token_seconds, seconds);
    }
    choice.note_output(static_cast<int64_t>(output.token_ids.size()), now);
  }
  choice.has_ended = output.finish.has_value();
  if (output.finish) record_finish(*output.finish, now);
}

void Generation::record_finish(const engine::Finish& finish, TimePoint now) {
  const double total_seconds = to_seconds(now - received_at_);
  context_.metrics.on_finish(finish, total_seconds);
  context_.recent.add({.owner = plan_.owner,
                       .ended_at = now,
                       .outcome = finish_reason_name(finish.reason),
                       .usage = finish.usage,
                       .queue_seconds = finish.queue_seconds,
                       .prefill_seconds = finish.prefill_seconds,
                       .decode_seconds = finish.decode_seconds,
                       .total_seconds = total_seconds});
  record_.add(finish);
}

void Generation::note_end(std::string_view end) {
  for (const ChoiceProgress& choice : choices_) {
    if (!choice.has_ended) record_.add(choice);
  }
  record_.end = end;
  exchange_.set_note(to_json_members(record_));
}

void Generation::finish() {
  is_over_ = true;
  note_end(record_.is_cut ? "length" : "stop");
  if (has_events()) {
    events_ += visit_reply([](auto& reply) { return reply.end_events(); });
    emit(events_);
    end_streams();
  }
  keep_reply();
  leave_background();
  if (has_events()) return;
  HttpResponse response =
      json_response(visit_reply([](const auto& reply) { return reply.body(); }));
  response.headers = std::move(plan_.headers);
  exchange_.respond(response);
}

// Before the stream began the status tells; afterwards only an event can, and the status stays 200.
void Generation::fail(const Error& error) {
  is_over_ = true;
  cancel_all();
  note_end(error_name(error));
  const int status = http_status(error);
  if (status >= 500) log_warning("{}: {}", exchange_.request_id(), error.message);
  const bool has_begun = ids_.size() == plan_.sequences.size();
  const std::string events = visit_reply([&](auto& reply) { return reply.error_events(error); });
  if (has_begun && has_events()) {
    emit(events);
    end_streams();
  }
  if (has_begun && plan_.is_background) keep_reply();
  leave_background();
  if (has_begun && has_events()) return;
  const bool is_temporary = status == 429 || status == 503;
  context_.metrics.on_rejected(error_name(error));
  HttpResponse response =
      is_temporary ? error_response(error, context_.retry_after()) : error_response(error);
  if (plan_.adapt_error != nullptr) {
    response = plan_.adapt_error(std::move(response), exchange_.request_id());
  }
  exchange_.respond(response);
}

void Generation::abandon(Gone why) {
  if (is_over_) return;
  is_over_ = true;
  context_.metrics.on_aborted(cause_name(why));
  const TimePoint now = std::chrono::steady_clock::now();
  context_.recent.add({.owner = plan_.owner,
                       .ended_at = now,
                       .outcome = cause_name(why),
                       .total_seconds = to_seconds(now - received_at_)});
  note_end(cause_name(why));
  cancel_all();
}

void Generation::abort() {
  if (is_over_) return;
  context_.metrics.on_aborted("abort");
  fail({Errc::kCancelled, "the request was aborted", "aborted", {}});
}

void Generation::expire() {
  if (is_over_) return;
  context_.metrics.on_aborted("deadline");
  fail({Errc::kCancelled, "the request took longer than it may", "deadline_exceeded", {}});
}

void Generation::cancel_all() {
  for (const std::string& id : ids_) context_.engine.cancel(id);
}

}  // namespace nibble::server
