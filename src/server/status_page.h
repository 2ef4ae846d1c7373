// The status page at "/": a handful of static files, compiled into the program, and the numbers
// that they show. The page has no inline script, loads nothing from elsewhere, and may be fetched
// without a key, because it knows nothing; its data may not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "engine/engine.h"
#include "server/http_message.h"
#include "server/key_id.h"
#include "server/metrics.h"
#include "server/recent_requests.h"

namespace nibble::server {

inline constexpr std::string_view kStatusDataPath = "/status/data";

// True for "/" and "/status/FILE" of a file that the page consists of.
bool is_status_page_path(std::string_view path);
// That file, with headers that keep everything foreign out.
HttpResponse status_page_response(std::string_view path);

// The embedded text of a file of src/server/status_page, or an empty view.
std::string_view status_page_text(std::string_view name);

struct StatusSource {
  const std::string& version;
  const std::vector<std::string>& model_names;
  int32_t max_context = 0;
  const std::vector<KernelSelection>& kernels;
  engine::EngineStats stats;
  int32_t num_connections = 0;
  bool is_draining = false;
  TimePoint started_at;
  TimePoint now;
  const RecentRequests& recent;
  // Whose requests are listed; nullopt: all. Counts of cached tokens would tell a key what others
  // asked.
  std::optional<KeyId> viewer = {};
};

// What /status/data answers: totals, from which the page makes rates, and lists.
json::Object status_data(const StatusSource& source);

}  // namespace nibble::server
