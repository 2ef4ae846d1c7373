// The text format of Prometheus as OpenMetrics 1.0 wants it.
#pragma once

#include <string>
#include <string_view>

namespace nibble::server {

// Counters lose "_total" in the name of their family, and "# EOF" ends the text. `text`: format
// 0.0.4 with HELP and TYPE before each family, as the serializer writes it.
std::string to_open_metrics(std::string_view text);

}  // namespace nibble::server
