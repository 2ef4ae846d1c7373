#include "server/front_door.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "server/error_response.h"
#include "server/status_page.h"

namespace nibble::server {
namespace {

// Loading takes seconds to minutes; asking more often changes nothing.
constexpr int32_t kRetryAfterSeconds = 5;

bool is_health_route(std::string_view path) { return path == "/health" || path == "/ping"; }
bool is_ready_route(std::string_view path) { return path == "/ready" || path == "/health/ready"; }

HttpResponse loading_response() {
  return error_response(
      {Errc::kUnavailable, "the model is being loaded; try again later", "loading", {}},
      kRetryAfterSeconds);
}

}  // namespace

HttpHandlers FrontDoor::handlers() {
  return {.check_head =
              [this](const HttpRequest& head) {
                return api() != nullptr ? api()->check_head(head) : check_head(head);
              },
          .handle =
              [this](HttpRequest request, Exchange exchange) {
                if (api() != nullptr) return api()->handle(std::move(request), std::move(exchange));
                exchange.respond(answer(request));
              },
          .fault =
              [this](int status, std::string_view text) {
                if (api() != nullptr) return api()->fault(status, text);
                return error_response(
                    status, {Errc::kInvalidArgument, std::string(text), "http_error", {}});
              },
          .on_response =
              [this](const HttpOutcome& outcome) {
                if (api() != nullptr) api()->on_response(outcome);
              }};
}

void FrontDoor::open(HttpHandlers api) {
  CHECK(!opened_) << "opened twice";
  opened_ = std::move(api);
  api_.store(&*opened_, std::memory_order_release);
}

std::optional<HttpResponse> FrontDoor::check_head(const HttpRequest& head) const {
  const bool is_public =
      is_health_route(head.path) || is_ready_route(head.path) || is_status_page_path(head.path);
  if (auto refusal = access_.refusal(head, is_public ? Access::kPublic : Access::kUser)) {
    return refusal;
  }
  const bool is_read = head.method == "GET" || head.method == "HEAD";
  if (is_read && is_public) return std::nullopt;
  return loading_response();
}

HttpResponse FrontDoor::answer(const HttpRequest& request) {
  if (is_status_page_path(request.path)) return status_page_response(request.path);
  if (is_ready_route(request.path)) return loading_response();
  return json_response(json::make_object({{"status", "ok"}}));
}

}  // namespace nibble::server
