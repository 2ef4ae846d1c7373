// The routes for operators: what the server is, how busy it is, and what they may make it do.
#include <fmt/format.h>

#include <utility>

#include "server/api.h"
#include "server/error_response.h"
#include "server/field_reader.h"
#include "server/reply_common.h"
#include "server/request_body.h"
#include "server/token_routes.h"

namespace nibble::server {
namespace {

HttpResponse to_response(const Result<json::Object>& result) {
  return result.ok() ? json_response(*result) : error_response(result.error());
}

struct AbortRequest {
  std::string id;
  bool all = false;
};

Result<AbortRequest> parse_abort(const HttpRequest& request, int32_t max_context) {
  TRY_ASSIGN(const json::Value body, parse_body(request, max_context));
  if (body.as_object() == nullptr) return wrong_type("body", "an object", body);
  FieldReader reader(*body.as_object());
  AbortRequest abort;
  TRY(reader.read("rid", abort.id));
  if (abort.id.empty()) TRY(reader.read("request_id", abort.id));
  TRY(reader.read("abort_all", abort.all));
  if (abort.id.empty() && !abort.all) return wrong_value("rid", "is missing");
  return abort;
}

}  // namespace

HttpResponse Api::server_info(const HttpRequest&) {
  const engine::EngineStats stats = engine_.stats();
  const ServedModel& model = options_.model;
  json::Array names(model.names.begin(), model.names.end());
  json::Array kernels;
  for (const KernelSelection& selection : options_.kernels) {
    kernels.emplace_back(json::make_object({{"layer_class", selection.layer_class},
                                            {"kernel", selection.kernel},
                                            {"reason", selection.reason}}));
  }
  return json_response(
      json::make_object({{"version", options_.version},
                         {"served_model_names", std::move(names)},
                         {"max_model_len", model.max_context},
                         {"vocab_size", model.vocab_size},
                         {"page_size", engine_.model_info().page_size},
                         {"num_pages", stats.num_pages_total},
                         {"temperature", readable(model.default_sampling.temperature)},
                         {"top_p", readable(model.default_sampling.top_p)},
                         {"thinking", model.default_thinking == text::ThinkingMode::kThinking},
                         {"request_timeout_seconds", to_seconds(options_.request_timeout)},
                         {"kernels", std::move(kernels)}}));
}

// SGLang's names.
HttpResponse Api::model_info(const HttpRequest&) {
  const std::string& name = options_.model.names.front();
  return json_response(json::make_object({{"model_path", name},
                                          {"served_model_name", name},
                                          {"is_generation", true},
                                          {"max_model_len", options_.model.max_context},
                                          {"vocab_size", options_.model.vocab_size}}));
}

HttpResponse Api::load_report(const HttpRequest&) {
  const engine::EngineStats stats = engine_.stats();
  const double usage = stats.num_pages_total > 0
                           ? static_cast<double>(stats.num_pages_used) / stats.num_pages_total
                           : 0.0;
  const int64_t page_size = engine_.model_info().page_size;
  return json_response(json::make_object({{"num_running_reqs", stats.num_running},
                                          {"num_waiting_reqs", stats.num_queued},
                                          {"num_reqs", stats.num_running + stats.num_queued},
                                          {"num_tokens", stats.num_pages_used * page_size},
                                          {"token_usage", usage},
                                          {"expected_wait_seconds", stats.expected_wait_seconds},
                                          {"is_draining", is_draining_.load()}}));
}

HttpResponse Api::flush_cache(const HttpRequest&) {
  engine_.flush_cache();
  return json_response(json::make_object({{"success", true}}));
}

// A client may end its own requests; those of others, or all, only an administrator.
HttpResponse Api::abort_requests(const HttpRequest& request) {
  const Result<AbortRequest> abort = parse_abort(request, options_.model.max_context);
  if (!abort.ok()) return error_response(abort.error());
  const bool is_admin = options_.access.is_admin(request);
  if (abort->all && !is_admin) {
    return error_response(403,
                          {Errc::kInvalidArgument,
                           "abort_all needs an admin key",
                           "admin_key_required",
                           "abort_all"});
  }
  const int32_t num_aborted = abort->all ? live_.abort_all()
                              : is_admin
                                  ? live_.abort_of_any_owner(abort->id)
                                  : live_.abort(abort->id, options_.access.owner_of(request));
  return json_response(json::make_object({{"success", num_aborted > 0}, {"aborted", num_aborted}}));
}

HttpResponse Api::tokenize_text(const HttpRequest& request) {
  const Result<json::Value> body = parse_body(request, options_.model.max_context);
  if (!body.ok()) return error_response(body.error());
  return to_response(tokenize(*body, options_.model, tokenizer_));
}

HttpResponse Api::detokenize_text(const HttpRequest& request) {
  const Result<json::Value> body = parse_body(request, options_.model.max_context);
  if (!body.ok()) return error_response(body.error());
  return to_response(detokenize(*body, options_.model, tokenizer_));
}

}  // namespace nibble::server
