#include "server/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/log.h"
#include "base/thread_name.h"
#include "server/error_response.h"
#include "server/field_reader.h"
#include "server/open_metrics.h"
#include "server/status_page.h"

namespace nibble::server {
namespace {

constexpr std::string_view kModelPrefix = "/v1/models/";
constexpr std::string_view kProfileFromOutside =
    "this server has no profiler of its own; profile its process, e.g. perf record -g -p PID";

Error api_error(Errc code, std::string message, std::string reason) {
  return {code, std::move(message), std::move(reason), {}};
}

// What a client's `field` asks for, within the operator's limit; 0: no limit.
Result<Duration> timeout_of(const HttpRequest& request, std::string_view field, Duration limit) {
  constexpr int64_t kMaxMilliseconds = 86'400'000;
  const std::string* text = request.header(field);
  if (text == nullptr) return limit;
  const std::optional<int64_t> milliseconds = parse_integer(*text);
  if (!milliseconds || *milliseconds < 1 || *milliseconds > kMaxMilliseconds) {
    Error error = invalid_argument(
        fmt::format("{}: expected milliseconds from 1 to {}", field, kMaxMilliseconds));
    error.param = std::string(field);
    return error;
  }
  const Duration asked = std::chrono::milliseconds(*milliseconds);
  return limit > Duration::zero() ? std::min(limit, asked) : asked;
}

// Compiled constraints that are kept: each up to Limits::max_cached_bytes.
constexpr size_t kMaxGrammars = 32;

Api::Options with_grammars(Api::Options options,
                           const engine::Engine& engine,
                           const text::Tokenizer& tokenizer) {
  options.model.grammars = std::make_shared<grammar::GrammarCache>(
      grammar::Vocabulary::from_tokenizer(
          tokenizer, options.model.vocab_size, engine.eos_token_ids()),
      kMaxGrammars);
  return options;
}

}  // namespace

struct Api::Route {
  bool takes(std::string_view method) const {
    for (std::string_view rest = allow; !rest.empty();) {
      const size_t end = std::min(rest.find(", "), rest.size());
      if (rest.substr(0, end) == method) return true;
      rest.remove_prefix(std::min(end + 2, rest.size()));
    }
    return false;
  }

  bool is_built_in() const {
    return answer != nullptr || serve != nullptr || work != nullptr || plan != nullptr;
  }

  std::string_view path;
  std::string_view allow;  // methods, as the Allow field lists them
  Access access = Access::kUser;
  Answer answer = nullptr;  // on the I/O thread
  Serve serve = nullptr;    // likewise, where an answer may be a stream
  Answer work = nullptr;    // or on a parser thread
  Planner plan = nullptr;   // or a completion
  ErrorAdapter adapt_error = nullptr;
  std::string_view fixed_body = {};  // of a completion that every caller of the route gets
  // Or nothing of these, and why.
  std::string_view unsupported = "this server completes text; it does nothing else";
};

const Api::Route* Api::find_route(std::string_view path) {
  constexpr std::string_view kRead = "GET, HEAD, OPTIONS";
  constexpr std::string_view kWrite = "POST, OPTIONS";
  constexpr std::string_view kReadOrWrite = "GET, POST, OPTIONS";
  static constexpr Route kRoutes[] = {
      {.path = "/health", .allow = kRead, .access = Access::kPublic, .answer = &Api::health},
      {.path = "/ping", .allow = kRead, .access = Access::kPublic, .answer = &Api::health},
      {.path = "/health/ready", .allow = kRead, .access = Access::kPublic, .answer = &Api::ready},
      {.path = "/ready", .allow = kRead, .access = Access::kPublic, .answer = &Api::ready},
      {.path = "/version", .allow = kRead, .answer = &Api::version},
      {.path = "/metrics", .allow = kRead, .answer = &Api::expose_metrics},
      {.path = kStatusDataPath, .allow = kRead, .answer = &Api::status},
      {.path = "/server_info", .allow = kRead, .answer = &Api::server_info},
      {.path = "/get_server_info", .allow = kRead, .answer = &Api::server_info},
      {.path = "/get_model_info", .allow = kRead, .answer = &Api::model_info},
      {.path = "/v1/loads", .allow = kRead, .answer = &Api::load_report},
      {.path = "/get_load", .allow = kRead, .answer = &Api::load_report},
      {.path = "/flush_cache",
       .allow = kReadOrWrite,
       .access = Access::kAdmin,
       .answer = &Api::flush_cache},
      {.path = "/abort_request", .allow = kWrite, .answer = &Api::abort_requests},
      {.path = "/tokenize", .allow = kWrite, .work = &Api::tokenize_text},
      {.path = "/v1/tokenize", .allow = kWrite, .work = &Api::tokenize_text},
      {.path = "/detokenize", .allow = kWrite, .work = &Api::detokenize_text},
      {.path = "/v1/detokenize", .allow = kWrite, .work = &Api::detokenize_text},
      {.path = "/v1/models", .allow = kRead, .answer = &Api::list_models},
      {.path = "/v1/chat/completions", .allow = kWrite, .plan = &GenerationPlanner::chat},
      {.path = "/v1/completions", .allow = kWrite, .plan = &GenerationPlanner::completion},
      {.path = "/health_generate",
       .allow = "GET, OPTIONS",
       .plan = &GenerationPlanner::completion,
       .fixed_body = R"({"prompt":"Hello","max_tokens":1,"temperature":0})"},
      {.path = "/v1/responses", .allow = kWrite, .plan = &GenerationPlanner::response},
      {.path = "/v1/messages",
       .allow = kWrite,
       .plan = &GenerationPlanner::anthropic_message,
       .adapt_error = &to_anthropic_error},
      {.path = "/v1/messages/count_tokens",
       .allow = kWrite,
       .work = &Api::count_anthropic_tokens,
       .adapt_error = &to_anthropic_error},
      {.path = "/start_profile",
       .allow = kWrite,
       .access = Access::kAdmin,
       .unsupported = kProfileFromOutside},
      {.path = "/stop_profile",
       .allow = kWrite,
       .access = Access::kAdmin,
       .unsupported = kProfileFromOutside},
      // Known to clients, not to a model that only writes text.
      {.path = "/v1/embeddings", .allow = kWrite},
      {.path = "/v1/rerank", .allow = kWrite},
      {.path = "/rerank", .allow = kWrite},
      {.path = "/v1/score", .allow = kWrite},
      {.path = "/score", .allow = kWrite},
      {.path = "/v1/classify", .allow = kWrite},
      {.path = "/classify", .allow = kWrite},
      {.path = "/v1/moderations", .allow = kWrite},
      {.path = "/v1/audio/speech", .allow = kWrite},
      {.path = "/v1/images/generations", .allow = kWrite},
  };
  static constexpr Route kModelRoute = {
      .path = kModelPrefix, .allow = kRead, .answer = &Api::show_model};
  static constexpr Route kStatusPageRoute = {
      .path = "/", .allow = kRead, .access = Access::kPublic, .answer = &Api::status_page};
  static constexpr Route kResponseRoute = {.path = kResponsePrefix,
                                           .allow = "GET, HEAD, DELETE, OPTIONS",
                                           .serve = &Api::serve_response};
  static constexpr Route kCancelRoute = {
      .path = "/v1/responses/{id}/cancel", .allow = kWrite, .answer = &Api::cancel_response};
  static constexpr Route kInputItemsRoute = {
      .path = "/v1/responses/{id}/input_items", .allow = kRead, .answer = &Api::list_input_items};
  for (const Route& route : kRoutes) {
    if (route.path == path) return &route;
  }
  if (path.starts_with(kResponsePrefix) && path.size() > kResponsePrefix.size()) {
    if (path.ends_with(kCancelSuffix)) return &kCancelRoute;
    return path.ends_with(kInputItemsSuffix) ? &kInputItemsRoute : &kResponseRoute;
  }
  if (is_status_page_path(path)) return &kStatusPageRoute;
  return path.starts_with(kModelPrefix) && path.size() > kModelPrefix.size() ? &kModelRoute
                                                                             : nullptr;
}

Api::Api(Options options, engine::Engine& engine, const text::Tokenizer& tokenizer)
    : options_(with_grammars(std::move(options), engine, tokenizer)),
      engine_(engine),
      tokenizer_(tokenizer),
      created_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      metrics_({.model_name = options_.model.names.front(),
                .version = options_.version,
                .kernels = options_.kernels,
                .page_size = engine.model_info().page_size,
                .load_seconds = options_.load_seconds}),
      responses_(options_.response_limits),
      planner_(options_.model, options_.version, tokenizer_, responses_, metrics_),
      unparsed_(options_.max_unparsed_requests) {
  for (int32_t i = 0; i < options_.num_parser_threads; ++i) {
    parser_threads_.emplace_back([this] { run_parser(); });
  }
}

Api::~Api() {
  unparsed_.close();
  for (std::thread& thread : parser_threads_) thread.join();
}

HttpHandlers Api::handlers() {
  return {
      .check_head = [this](const HttpRequest& head) { return check_head(head); },
      .handle = [this](HttpRequest request,
                       Exchange exchange) { handle(std::move(request), std::move(exchange)); },
      .fault = [this](int status, std::string_view text) { return fault_response(status, text); },
      .on_response = [this](const HttpOutcome& outcome) { on_response(outcome); }};
}

void Api::attach(HttpServer& server) {
  server_ = &server;
  generation_context_.emplace(GenerationContext{
      .engine = engine_,
      .metrics = metrics_,
      .recent = recent_,
      .io = server.io(),
      .heartbeat = {.text = ": ping\n\n", .interval = options_.heartbeat_interval},
      .retry_after = [this] { return retry_after_seconds(); }});
}

// --- what every request passes

std::optional<HttpResponse> Api::check_head(const HttpRequest& head) {
  std::optional<HttpResponse> refusal = head_refusal(head);
  if (!refusal) return refusal;
  metrics_.on_rejected(fmt::format("http_{}", refusal->status));
  return adapt(head, *std::move(refusal));
}

// Errors in the form of the protocol that the request is of: the route's, or what a client of
// Anthropic's says in its header.
HttpResponse Api::adapt(const HttpRequest& request, HttpResponse response) {
  if (response.status < 400) return response;
  const Route* route = find_route(request.path);
  ErrorAdapter adapter = route == nullptr ? nullptr : route->adapt_error;
  const bool is_completion = route != nullptr && route->plan != nullptr;
  if (!is_completion && is_anthropic(request)) adapter = &to_anthropic_error;
  return adapter == nullptr ? response : adapter(std::move(response), request.id);
}

// With an admin port, admin routes are there and nowhere else; completions are not.
bool Api::is_served_on(Listener listener, const Route& route) const {
  if (listener == Listener::kAdmin) return route.plan == nullptr;
  return route.access != Access::kAdmin || server_->admin_port() == 0;
}

std::optional<HttpResponse> Api::head_refusal(const HttpRequest& head) const {
  const Route* route = find_route(head.path);
  Access access = route == nullptr ? Access::kUser : route->access;
  if (head.listener == Listener::kAdmin && access == Access::kUser) access = Access::kAdmin;
  if (auto refusal = options_.access.refusal(head, access)) return refusal;
  if (head.method == "OPTIONS" && head.target == "*") return std::nullopt;
  if (route != nullptr && !is_served_on(head.listener, *route)) route = nullptr;
  if (route == nullptr) {
    return error_response(
        404,
        api_error(
            Errc::kNotFound, "no such route; see docs/api.md for those there are", "not_found"));
  }
  if (!route->takes(head.method)) {
    HttpResponse response =
        error_response(405,
                       api_error(Errc::kInvalidArgument,
                                 fmt::format("this route takes {}", route->allow),
                                 "method_not_allowed"));
    response.headers.push_back({"allow", std::string(route->allow)});
    return response;
  }
  if (head.method == "OPTIONS") return std::nullopt;
  if (!route->is_built_in()) {
    return error_response(
        501, api_error(Errc::kUnsupported, std::string(route->unsupported), "unsupported"));
  }
  if (route->plan != nullptr && is_draining_.load()) {
    return error_response(
        api_error(Errc::kUnavailable, "the server is shutting down", "shutting_down"),
        retry_after_seconds());
  }
  return std::nullopt;
}

void Api::handle(HttpRequest request, Exchange exchange) {
  const Route* route = find_route(request.path);
  if (request.method == "OPTIONS") {
    HttpResponse response{.status = 204, .content_type = ""};
    response.headers.push_back(
        {"allow", std::string(route == nullptr ? "GET, HEAD, POST, OPTIONS" : route->allow)});
    return exchange.respond(response);
  }
  if (route->answer != nullptr) {
    return exchange.respond(adapt(request, (this->*route->answer)(request)));
  }
  if (route->serve != nullptr) return (this->*route->serve)(request, std::move(exchange));
  if (!route->fixed_body.empty()) {
    if (!may_probe()) return refuse(exchange, *route, exhausted("asked a moment ago"));
    request.body = route->fixed_body;
  }
  request.owner = options_.access.owner_of(request);
  // Shared, because a std::function must be copyable.
  const auto shared = std::make_shared<HttpRequest>(std::move(request));
  const bool is_queued = unparsed_.try_push([this, shared, exchange, route] {
    if (route->plan != nullptr) return parse_and_start(*shared, exchange, *route);
    work_and_respond(*shared, exchange, route->work);
  });
  if (is_queued) return;
  refuse(exchange, *route, exhausted("too many requests wait to be read; try again later"));
}

// A probe costs a forward pass: once a second is enough to see whether the model answers.
bool Api::may_probe() {
  constexpr Duration kInterval = std::chrono::seconds(1);
  const TimePoint now = std::chrono::steady_clock::now();
  if (last_probe_ && now - *last_probe_ < kInterval) return false;
  last_probe_ = now;
  return true;
}

HttpResponse Api::fault_response(int status, std::string_view text) {
  metrics_.on_rejected(fmt::format("http_{}", status));
  const char* code = status == 413   ? "request_too_large"
                     : status == 429 ? "too_many_bodies"
                                     : "http_error";
  HttpResponse response =
      error_response(status, api_error(Errc::kInvalidArgument, std::string(text), code));
  if (status == 429) response.headers.push_back({"retry-after", "1"});
  return response;
}

void Api::on_response(const HttpOutcome& outcome) {
  const HttpRequest* request = outcome.request;
  const Route* route = request == nullptr ? nullptr : find_route(request->path);
  metrics_.on_response(route == nullptr ? "other" : route->path, outcome.status);
  if (request == nullptr) return;
  live_.remove_ended();
  if (options_.request_log == nullptr) return;
  options_.request_log->write({.request = *request,
                               .owner = options_.access.owner_of(*request),
                               .status = outcome.status,
                               .elapsed = outcome.elapsed,
                               .work = outcome.note});
}

// The time until those that wait have started.
int32_t Api::retry_after_seconds() const {
  constexpr double kLongest = 60;
  return static_cast<int32_t>(
      std::clamp(std::ceil(engine_.stats().expected_wait_seconds), 1.0, kLongest));
}

// --- small answers

HttpResponse Api::health(const HttpRequest&) {
  return json_response(json::make_object({{"status", "ok"}}));
}

HttpResponse Api::ready(const HttpRequest&) {
  if (!is_draining_.load()) return json_response(json::make_object({{"status", "ready"}}));
  return error_response(
      api_error(Errc::kUnavailable, "the server is shutting down", "shutting_down"),
      retry_after_seconds());
}

HttpResponse Api::version(const HttpRequest&) {
  return json_response(json::make_object({{"version", options_.version}}));
}

HttpResponse Api::expose_metrics(const HttpRequest& request) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = metrics_.expose(
      engine_.stats(),
      {.num_connections = server_->num_connections(),
       .num_buffered_body_bytes = static_cast<int64_t>(server_->num_buffered_body_bytes()),
       .stalled_seconds = options_.stalled_seconds ? options_.stalled_seconds() : 0.0});
  const std::string* accept = request.header("accept");
  const bool wants_open_metrics =
      accept != nullptr && accept->find("application/openmetrics-text") != std::string::npos;
  if (!wants_open_metrics) return response;
  response.content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
  response.body = to_open_metrics(response.body);
  return response;
}

HttpResponse Api::status_page(const HttpRequest& request) {
  return status_page_response(request.path);
}

HttpResponse Api::status(const HttpRequest& request) {
  const bool sees_all = options_.access.is_admin(request);
  return json_response(status_data(
      {.version = options_.version,
       .model_names = options_.model.names,
       .max_context = options_.model.max_context,
       .kernels = options_.kernels,
       .stats = engine_.stats(),
       .num_connections = server_->num_connections(),
       .is_draining = is_draining_.load(),
       .started_at = started_at_,
       .now = std::chrono::steady_clock::now(),
       .recent = recent_,
       .viewer = sees_all ? std::nullopt : std::optional(options_.access.owner_of(request))}));
}

HttpResponse Api::list_models(const HttpRequest& request) {
  const std::vector<std::string>& names = options_.model.names;
  json::Array models;
  for (const std::string& name : names) models.emplace_back(model_object(name, request));
  if (is_anthropic(request)) {
    return json_response(json::make_object({{"data", std::move(models)},
                                            {"has_more", false},
                                            {"first_id", names.front()},
                                            {"last_id", names.back()}}));
  }
  return json_response(json::make_object({{"object", "list"}, {"data", std::move(models)}}));
}

HttpResponse Api::show_model(const HttpRequest& request) {
  const std::string name =
      percent_decode(std::string_view(request.path).substr(kModelPrefix.size()));
  const auto& names = options_.model.names;
  if (std::find(names.begin(), names.end(), name) != names.end()) {
    return json_response(model_object(name, request));
  }
  return error_response(api_error(Errc::kNotFound,
                                  fmt::format("this server has the model '{}' only", names.front()),
                                  "model_not_found"));
}

json::Object Api::model_object(const std::string& name, const HttpRequest& request) const {
  if (is_anthropic(request)) return anthropic_model(name, created_, options_.model.max_context);
  return json::make_object({{"id", name},
                            {"object", "model"},
                            {"created", created_},
                            {"owned_by", "nibble"},
                            {"root", options_.model.names.front()},
                            {"parent", nullptr},
                            {"max_model_len", options_.model.max_context}});
}

// --- completions

void Api::run_parser() {
  name_this_thread("nibble-parser");
  while (auto task = unparsed_.pop()) (*task)();
}

// Parser thread; what it finds goes back to the I/O thread.
void Api::parse_and_start(const HttpRequest& request,
                          const Exchange& exchange,
                          const Route& route) {
  auto plan = std::make_shared<Result<GenerationPlan>>(make_plan(request, route.plan));
  const TimePoint received_at = request.received_at;
  const KeyId owner = request.owner;
  generation_context_->io->post([this, plan, exchange, received_at, owner, &route] {
    if (!plan->ok()) return refuse(exchange, route, plan->error());
    const auto generation =
        Generation::start(*generation_context_, std::move(*plan).value(), exchange, received_at);
    if (!generation->is_over()) live_.add(exchange.request_id(), owner, generation);
  });
}

Result<GenerationPlan> Api::make_plan(const HttpRequest& request, Planner planner) {
  TRY_ASSIGN(const Duration timeout,
             timeout_of(request, "x-request-timeout-ms", options_.request_timeout));
  TRY_ASSIGN(const Duration queue_timeout,
             timeout_of(request, "x-queue-timeout-ms", options_.queue_timeout));
  TRY_ASSIGN(GenerationPlan plan, (planner_.*planner)(request));
  if (timeout > Duration::zero()) plan.deadline = request.received_at + timeout;
  plan.owner = request.owner;
  // The engine shares the machine and cached prefixes by owner.
  const bool has_owner = request.owner != KeyId{};
  const std::string owner = has_owner ? fmt::format("{:016x}", request.owner.value) : "";
  for (engine::Request& sequence : plan.sequences) {
    sequence.owner = owner;
    sequence.queue_timeout = queue_timeout;
  }
  return plan;
}

void Api::work_and_respond(const HttpRequest& request, const Exchange& exchange, Answer work) {
  const auto response = std::make_shared<HttpResponse>((this->*work)(request));
  generation_context_->io->post([response, open = exchange]() mutable { open.respond(*response); });
}

HttpResponse Api::error_answer(const Error& error) const {
  const bool is_temporary = error.code == Errc::kExhausted || error.code == Errc::kUnavailable;
  return is_temporary ? error_response(error, retry_after_seconds()) : error_response(error);
}

void Api::refuse(const Exchange& exchange, const Route& route, const Error& error) {
  metrics_.on_rejected(error_name(error));
  Exchange open = exchange;
  HttpResponse response = error_answer(error);
  if (route.adapt_error != nullptr) {
    response = route.adapt_error(std::move(response), exchange.request_id());
  }
  open.respond(response);
}

// Parser thread.
HttpResponse Api::count_anthropic_tokens(const HttpRequest& request) {
  const Result<int32_t> count = planner_.count_anthropic_tokens(request);
  if (count.ok()) return json_response(json::make_object({{"input_tokens", *count}}));
  return to_anthropic_error(error_response(count.error()), request.id);
}

}  // namespace nibble::server
