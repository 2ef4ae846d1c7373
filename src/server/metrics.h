// Counters and latencies, exposed in the Prometheus text format under the names that dashboards
// and gateways of SGLang and vLLM already know, and under nibble_* where nobody has a name.
// Safe to use from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/request.h"

namespace nibble::server {

// A kind of layer and the kernel that it runs on.
struct KernelSelection {
  std::string layer_class;
  std::string kernel;
  std::string reason;
};

// "stop", "length", "abort" or "error".
const char* finish_reason_name(engine::FinishReason reason);

class Metrics final {
 public:
  struct Options {
    std::string model_name;
    std::string version;
    std::vector<KernelSelection> kernels;
    int32_t page_size = 0;  // tokens
    double load_seconds = 0;
  };
  // What is only known at the moment of asking.
  struct Now {
    int32_t num_connections = 0;
    int64_t num_buffered_body_bytes = 0;
    double stalled_seconds = 0;
  };
  explicit Metrics(const Options& options);
  ~Metrics();

  void on_response(std::string_view route, int status);
  void on_first_token(double seconds_since_arrival);
  void on_token_gap(double seconds);
  void on_finish(const engine::Finish& finish, double seconds_since_arrival);
  // `cause`: "disconnect", "slow_reader", "shutdown", "deadline" or "abort".
  void on_aborted(std::string_view cause);
  // `reason`: the error code that the client saw.
  void on_rejected(std::string_view reason);
  void on_unknown_fields(int64_t count);

  // Prometheus text format 0.0.4.
  std::string expose(const engine::EngineStats& stats, const Now& now);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::server
