// What the command line decides for the hub. Validated by Client::create; nothing here is read from
// the environment.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/file.h"

namespace nibble::hub {

// Attempts that brought no byte. A byte that arrives starts the count again.
struct RetryPolicy {
  int32_t max_attempts = 6;
  std::chrono::milliseconds first_delay{
      500};  // doubles per attempt, plus up to a quarter of jitter
  std::chrono::milliseconds max_delay{30'000};
  std::chrono::milliseconds max_server_delay{300'000};  // a longer Retry-After is a failure
};

struct TransportOptions {
  std::chrono::milliseconds connect_timeout{10'000};
  // A transfer below `stall_bytes_per_second` for this long is cut and tried again.
  std::chrono::seconds stall_timeout{30};
  int64_t stall_bytes_per_second = 1024;
  std::string https_proxy;  // empty: none
  std::string http_proxy;
  std::string no_proxy;  // comma-separated hosts
  Path ca_file;          // empty: the system's certificates
};

struct HubConfig {
  std::string endpoint = "https://huggingface.co";
  std::string token;  // empty: anonymous
  Path cache_dir;
  bool is_offline = false;
  bool has_symlinks = true;  // false: snapshots hold hard links to the blobs
  int32_t num_connections = 8;
  RetryPolicy retry;
  TransportOptions transport;
};

}  // namespace nibble::hub
