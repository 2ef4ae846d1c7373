#include "server/status_page.h"

#include "base/check.h"

namespace nibble::server {
namespace {

constexpr std::string_view kPrefix = "/status/";

// Only our own files and our own API; no inline code, no eval, no frames, no forms that go
// elsewhere, and text can never become markup.
constexpr std::string_view kContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'";

std::string_view file_name(std::string_view path) {
  if (path == "/") return "index.html";
  return path.starts_with(kPrefix) ? path.substr(kPrefix.size()) : std::string_view();
}

std::string_view content_type(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "text/javascript; charset=utf-8";
}

double milliseconds(double seconds) { return seconds * 1e3; }

json::Array kernel_list(const std::vector<KernelSelection>& kernels) {
  json::Array list;
  for (const KernelSelection& selection : kernels) {
    list.emplace_back(json::make_object({{"layer_class", selection.layer_class},
                                         {"kernel", selection.kernel},
                                         {"reason", selection.reason}}));
  }
  return list;
}

json::Array recent_list(const StatusSource& source) {
  json::Array list;
  for (const RecentRequest& request : source.recent.newest_first()) {
    if (source.viewer && request.owner != *source.viewer) continue;
    list.emplace_back(json::make_object({{"seconds_ago", to_seconds(source.now - request.ended_at)},
                                         {"outcome", request.outcome},
                                         {"prompt_tokens", request.usage.prompt_tokens},
                                         {"cached_tokens", request.usage.cached_tokens},
                                         {"completion_tokens", request.usage.completion_tokens},
                                         {"queue_ms", milliseconds(request.queue_seconds)},
                                         {"prefill_ms", milliseconds(request.prefill_seconds)},
                                         {"decode_ms", milliseconds(request.decode_seconds)},
                                         {"total_ms", milliseconds(request.total_seconds)}}));
  }
  return list;
}

}  // namespace

bool is_status_page_path(std::string_view path) {
  const std::string_view name = file_name(path);
  const bool has_two_addresses = path != "/" && name == "index.html";
  return !has_two_addresses && !status_page_text(name).empty();
}

HttpResponse status_page_response(std::string_view path) {
  const std::string_view name = file_name(path);
  const std::string_view text = status_page_text(name);
  CHECK(!text.empty()) << path;
  return {.content_type = std::string(content_type(name)),
          .headers = {{"content-security-policy", std::string(kContentSecurityPolicy)},
                      {"x-content-type-options", "nosniff"},
                      {"referrer-policy", "no-referrer"},
                      {"cross-origin-opener-policy", "same-origin"},
                      {"cross-origin-resource-policy", "same-origin"},
                      {"cache-control", "no-cache"}},
          .body = std::string(text)};
}

json::Object status_data(const StatusSource& source) {
  const engine::EngineStats& stats = source.stats;
  json::Array names;
  for (const std::string& name : source.model_names) names.emplace_back(name);
  return json::make_object(
      {{"version", source.version},
       {"state", source.is_draining ? "draining" : "ready"},
       {"uptime_seconds", to_seconds(source.now - source.started_at)},
       {"model",
        json::make_object({{"names", std::move(names)}, {"max_model_len", source.max_context}})},
       {"kernels", kernel_list(source.kernels)},
       {"load",
        json::make_object({{"running", stats.num_running},
                           {"queued", stats.num_queued},
                           {"connections", source.num_connections},
                           {"kv_pages_used", stats.num_pages_used},
                           {"kv_pages_cached", stats.num_pages_cached},
                           {"kv_pages_total", stats.num_pages_total},
                           {"longest_gap_ms", milliseconds(stats.longest_gap_seconds)}})},
       {"totals",
        json::make_object({{"prompt_tokens", stats.prompt_tokens_total},
                           {"generation_tokens", stats.generation_tokens_total},
                           {"prefix_query_tokens", stats.prefix_query_tokens_total},
                           {"prefix_hit_tokens", stats.prefix_hit_tokens_total},
                           {"preemptions", stats.preemptions_total},
                           {"finished", stats.requests_finished_total},
                           {"cancelled", stats.requests_cancelled_total},
                           {"failed", stats.requests_failed_total}})},
       {"recent", recent_list(source)}});
}

}  // namespace nibble::server
