// One accepted completion request at work: its sequences in the engine, its exchange with the
// client, and what to do when either ends first. Owner: the I/O thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/crash_report.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "server/anthropic_reply.h"
#include "server/chat_reply.h"
#include "server/completion_reply.h"
#include "server/error_response.h"
#include "server/http_server.h"
#include "server/key_id.h"
#include "server/metrics.h"
#include "server/recent_requests.h"
#include "server/request_record.h"
#include "server/responses_reply.h"

namespace nibble::server {

// Everything that parsing made of a request.
struct GenerationPlan {
  std::vector<engine::Request> sequences;  // one per choice, in their order
  std::variant<ChatReply, CompletionReply, AnthropicReply, ResponsesReply> reply;
  std::string prompt_param;  // the field that is at fault when the context is too small
  bool stream = false;
  std::vector<Header> headers;  // of the response
  std::optional<TimePoint> deadline;
  KeyId owner = {};
  std::string_view ping = {};  // keeps a silent stream alive; empty: the context's
  ErrorAdapter adapt_error = nullptr;
  // Puts a reply that can be stored where later requests find it: once it ended well, and of work
  // in the background also when it begins and when it fails. May be empty.
  std::function<void(StoredResponse)> keep = {};
  // The work goes on without its client, who, unless it streams, gets the reply as it begins. Its
  // events are kept, for clients that follow it later.
  bool is_background = false;
  std::string response_id = {};  // of a reply that is kept
  std::string client_id = {};    // what the body calls the request; often empty
};

// The events of a stream behind the one with that sequence number; events count from 0.
std::string_view events_after(std::string_view events, int64_t sequence_number);
// What precedes a stream of events.
HttpResponse stream_head(std::vector<Header> headers);

class Generation;

// Longer-lived than every generation.
struct GenerationContext {
  engine::Engine& engine;
  Metrics& metrics;
  RecentRequests& recent;
  std::shared_ptr<IoThread> io;
  Exchange::Heartbeat heartbeat;
  // Seconds until a refused client should try again.
  std::function<int32_t()> retry_after;
  // What nobody waits for; the others live as long as their exchanges. At most as many as the
  // engine takes.
  std::unordered_set<std::shared_ptr<Generation>> in_background = {};
};

class Generation final : public std::enable_shared_from_this<Generation> {
 public:
  // Submits the sequences, all or none, and answers the exchange in time. It lives as long as the
  // exchange is open; a client that leaves takes its sequences along.
  static std::shared_ptr<Generation> start(GenerationContext& context,
                                           GenerationPlan plan,
                                           Exchange exchange,
                                           TimePoint received_at);

  Generation(GenerationContext& context,
             GenerationPlan plan,
             Exchange exchange,
             TimePoint received_at);

  bool is_over() const { return is_over_; }
  const std::string& response_id() const { return plan_.response_id; }
  const std::string& client_id() const { return plan_.client_id; }
  // Work in the background: streams its events to one more client, those up to the sequence number
  // `starting_after` left out.
  void follow(Exchange exchange, int64_t starting_after);
  // Ends it with an error that says so, on behalf of its client or an administrator.
  void abort();

 private:
  class Mailbox;
  struct Follower {
    Exchange exchange;
    size_t num_sent = 0;  // bytes of the log, or left out
  };

  void begin();
  void begin_stream(Exchange& exchange);
  bool has_events() const { return plan_.stream || plan_.is_background; }
  void emit(std::string_view events);
  void feed(Follower& follower, size_t bytes_max);
  void end_streams();
  void answer_early();
  void keep_reply();
  void leave_background();
  Result<void> submit_all();
  void deliver(int32_t sequence, engine::Output&& output);
  void observe(int32_t sequence, const engine::Output& output);
  void record_finish(const engine::Finish& finish, TimePoint now);
  void finish();
  void fail(const Error& error);
  void abandon(Gone why);
  void expire();
  void note_end(std::string_view end);
  void cancel_all();
  template <class Visitor>
  decltype(auto) visit_reply(Visitor&& visitor) {
    return std::visit(std::forward<Visitor>(visitor), plan_.reply);
  }

  GenerationContext& context_;
  GenerationPlan plan_;
  Exchange exchange_;
  const TimePoint received_at_;
  std::vector<std::string> ids_;         // of the submitted sequences
  std::vector<ChoiceProgress> choices_;  // per sequence
  RequestRecord record_;
  const CrashScope crash_scope_;
  std::string events_;  // of one delivery; kept for its capacity
  // Of work in the background: all events so far, at most those of max_tokens tokens, and the
  // clients that follow it. Who is behind catches up in pieces, as a client's buffer is bounded.
  std::string event_log_;
  std::vector<Follower> followers_;
  bool is_over_ = false;
};

}  // namespace nibble::server
