// The routes: which request may do what, and how each is answered. Requests for completions are
// parsed and encoded on parser threads, everything else on the I/O thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "engine/engine.h"
#include "server/access_policy.h"
#include "server/generation.h"
#include "server/generation_fields.h"
#include "server/generation_planner.h"
#include "server/http_server.h"
#include "server/live_requests.h"
#include "server/metrics.h"
#include "server/recent_requests.h"
#include "server/request_log.h"
#include "server/response_store.h"
#include "text/tokenizer.h"

namespace nibble::server {

class Api final {
 public:
  struct Options {
    ServedModel model;
    std::string version;
    const AccessPolicy& access;  // outlives it
    Duration heartbeat_interval = std::chrono::seconds(15);
    Duration request_timeout = Duration::zero();  // of completions, in all; 0: none
    Duration queue_timeout = Duration::zero();    // of completions, until they run; 0: none
    int32_t num_parser_threads = 1;
    size_t max_unparsed_requests = 512;
    std::vector<KernelSelection> kernels;
    double load_seconds = 0;
    RequestLog* request_log = nullptr;        // outlives it; null: none
    std::function<double()> stalled_seconds;  // of the engine; empty: not watched
    ResponseStore::Limits response_limits = {};
  };

  // Engine and tokenizer must outlive it.
  Api(Options options, engine::Engine& engine, const text::Tokenizer& tokenizer);
  ~Api();  // after the HTTP server has stopped

  HttpHandlers handlers();
  // Before the first request.
  void attach(HttpServer& server);

  // From now on: not ready, and no new completions. Any thread.
  void start_draining() { is_draining_.store(true); }

 private:
  struct Route;
  using Answer = HttpResponse (Api::*)(const HttpRequest&);
  using Serve = void (Api::*)(const HttpRequest&, Exchange);
  static constexpr std::string_view kResponsePrefix = "/v1/responses/";
  static constexpr std::string_view kCancelSuffix = "/cancel";
  static constexpr std::string_view kInputItemsSuffix = "/input_items";
  static const Route* find_route(std::string_view path);

  std::optional<HttpResponse> check_head(const HttpRequest& head);
  bool is_served_on(Listener listener, const Route& route) const;
  std::optional<HttpResponse> head_refusal(const HttpRequest& head) const;
  void handle(HttpRequest request, Exchange exchange);
  bool may_probe();
  static HttpResponse adapt(const HttpRequest& request, HttpResponse response);
  HttpResponse fault_response(int status, std::string_view text);
  void on_response(const HttpOutcome& outcome);

  HttpResponse health(const HttpRequest& request);
  HttpResponse ready(const HttpRequest& request);
  HttpResponse version(const HttpRequest& request);
  HttpResponse expose_metrics(const HttpRequest& request);
  HttpResponse status_page(const HttpRequest& request);
  HttpResponse status(const HttpRequest& request);
  HttpResponse server_info(const HttpRequest& request);
  HttpResponse model_info(const HttpRequest& request);
  HttpResponse load_report(const HttpRequest& request);
  HttpResponse flush_cache(const HttpRequest& request);
  HttpResponse abort_requests(const HttpRequest& request);
  HttpResponse tokenize_text(const HttpRequest& request);
  HttpResponse detokenize_text(const HttpRequest& request);

  HttpResponse list_models(const HttpRequest& request);
  HttpResponse show_model(const HttpRequest& request);
  // In the form that the client expects.
  json::Object model_object(const std::string& name, const HttpRequest& request) const;

  using Planner = Result<GenerationPlan> (GenerationPlanner::*)(const HttpRequest&) const;
  void parse_and_start(const HttpRequest& request, const Exchange& exchange, const Route& route);
  Result<GenerationPlan> make_plan(const HttpRequest& request, Planner planner);
  void work_and_respond(const HttpRequest& request, const Exchange& exchange, Answer work);
  void serve_response(const HttpRequest& request, Exchange exchange);
  HttpResponse forget_response(KeyId owner, const std::string& id);
  void stream_response(const HttpRequest& request,
                       const StoredResponse& stored,
                       const std::string& id,
                       Exchange exchange);
  std::shared_ptr<Generation> find_in_background(const std::string& response_id) const;
  void abort_in_background(const std::string& response_id);
  HttpResponse cancel_response(const HttpRequest& request);
  HttpResponse list_input_items(const HttpRequest& request);
  HttpResponse count_anthropic_tokens(const HttpRequest& request);
  HttpResponse error_answer(const Error& error) const;
  void refuse(const Exchange& exchange, const Route& route, const Error& error);

  int32_t retry_after_seconds() const;
  void run_parser();

  const Options options_;
  engine::Engine& engine_;
  const text::Tokenizer& tokenizer_;
  const int64_t created_;  // seconds since 1970
  Metrics metrics_;
  ResponseStore responses_;
  const GenerationPlanner planner_;
  std::atomic<bool> is_draining_ = false;
  const TimePoint started_at_ = std::chrono::steady_clock::now();
  RecentRequests recent_;  // I/O thread

  HttpServer* server_ = nullptr;
  std::optional<GenerationContext> generation_context_;
  std::optional<TimePoint> last_probe_;  // I/O thread
  LiveRequests live_;                    // I/O thread

  BoundedQueue<std::function<void()>> unparsed_;
  std::vector<std::thread> parser_threads_;
};

}  // namespace nibble::server
