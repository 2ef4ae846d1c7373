// The routes of kept responses: read, followed, listed, cancelled, forgotten.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "server/api.h"
#include "server/error_response.h"
#include "server/field_reader.h"
#include "server/response_items.h"

namespace nibble::server {
namespace {

HttpResponse unknown_response(const std::string& id) {
  constexpr size_t kMaxShown = 100;
  return error_response({Errc::kNotFound,
                         fmt::format("no response '{}' is kept here", id.substr(0, kMaxShown)),
                         "not_found",
                         {}});
}

bool is_in_background(const StoredResponse& stored) {
  const Result<json::Value> body = stored.parse_body();
  const json::Value* flag = body.ok() ? body->find("background") : nullptr;
  return flag != nullptr && flag->as_bool() != nullptr && *flag->as_bool();
}

// Of the query; `target` stays as it is when there is none.
Result<void> read_query(const HttpRequest& request,
                        std::string_view name,
                        int64_t& target,
                        IntegerRange range) {
  const std::optional<std::string> text = query_value(request.target, name);
  if (!text) return {};
  const std::optional<int64_t> value = parse_integer(*text);
  if (!value || *value < range.min || *value > range.max) {
    return wrong_value(std::string(name),
                       fmt::format("expected an integer from {} to {}", range.min, range.max));
  }
  target = *value;
  return {};
}

Result<ItemPage> read_page(const HttpRequest& request) {
  ItemPage page;
  page.after = query_value(request.target, "after").value_or("");
  int64_t limit = page.limit;
  TRY(read_query(request, "limit", limit, {1, 100}));
  page.limit = static_cast<int32_t>(limit);
  const std::string order = query_value(request.target, "order").value_or("desc");
  if (order != "asc" && order != "desc") return wrong_value("order", "expected asc or desc");
  page.newest_first = order == "desc";
  return page;
}

Result<json::Object> page_of_input(const HttpRequest& request, const StoredResponse& stored) {
  TRY_ASSIGN(const ItemPage page, read_page(request));
  TRY_ASSIGN(json::Array items, stored.parse_input());
  return list_items(std::move(items), page);
}

}  // namespace

// GET gives it, or streams it; DELETE forgets it and ends the work on it.
void Api::serve_response(const HttpRequest& request, Exchange exchange) {
  const std::string id = request.path.substr(kResponsePrefix.size());
  const KeyId owner = options_.access.owner_of(request);
  const std::shared_ptr<const StoredResponse> stored = responses_.find(owner, id);
  if (stored == nullptr) return exchange.respond(unknown_response(id));
  if (request.method == "DELETE") return exchange.respond(forget_response(owner, id));
  const bool is_stream = request.method == "GET" && query_value(request.target, "stream") == "true";
  if (is_stream) {
    return stream_response(request, *stored, id, std::move(exchange));
  }
  exchange.respond({.body = stored->body});
}

HttpResponse Api::forget_response(KeyId owner, const std::string& id) {
  responses_.erase(owner, id);
  abort_in_background(id);
  return json_response(json::make_object({{"id", id}, {"object", "response"}, {"deleted", true}}));
}

// From the event behind `starting_after` on, to the end of the work on it.
void Api::stream_response(const HttpRequest& request,
                          const StoredResponse& stored,
                          const std::string& id,
                          Exchange exchange) {
  int64_t starting_after = -1;
  const Result<void> query = read_query(request, "starting_after", starting_after, {0, INT32_MAX});
  if (!query.ok()) return exchange.respond(error_response(query.error()));
  if (const auto generation = find_in_background(id)) {
    return generation->follow(std::move(exchange), starting_after);
  }
  if (stored.events.empty()) {
    return exchange.respond(error_response(
        unsupported_field("stream", "only a response made with background: true is streamed")));
  }
  HttpResponse response = stream_head({});
  response.body = events_after(stored.events, starting_after);
  exchange.respond(response);
}

// The caller owns the response.
std::shared_ptr<Generation> Api::find_in_background(const std::string& response_id) const {
  const auto& working = generation_context_->in_background;
  const auto found = std::find_if(working.begin(), working.end(), [&](const auto& generation) {
    return generation->response_id() == response_id;
  });
  return found == working.end() ? nullptr : *found;
}

void Api::abort_in_background(const std::string& response_id) {
  if (const auto generation = find_in_background(response_id)) generation->abort();
}

HttpResponse Api::cancel_response(const HttpRequest& request) {
  std::string id = request.path.substr(kResponsePrefix.size());
  id.resize(id.size() - kCancelSuffix.size());
  const KeyId owner = options_.access.owner_of(request);
  const std::shared_ptr<const StoredResponse> stored = responses_.find(owner, id);
  if (stored == nullptr) return unknown_response(id);
  if (!is_in_background(*stored)) {
    return error_response(
        invalid_argument("only a response that was made with background: true can be cancelled"));
  }
  abort_in_background(id);
  const std::shared_ptr<const StoredResponse> ended = responses_.find(owner, id);
  return ended == nullptr ? unknown_response(id) : HttpResponse{.body = ended->body};
}

HttpResponse Api::list_input_items(const HttpRequest& request) {
  std::string id = request.path.substr(kResponsePrefix.size());
  id.resize(id.size() - kInputItemsSuffix.size());
  const std::shared_ptr<const StoredResponse> stored =
      responses_.find(options_.access.owner_of(request), id);
  if (stored == nullptr) return unknown_response(id);
  const Result<json::Object> page = page_of_input(request, *stored);
  return page.ok() ? json_response(*page) : error_response(page.error());
}

}  // namespace nibble::server
