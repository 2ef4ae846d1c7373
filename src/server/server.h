// The server of one model: configuration, start, orderly end. What `nibble serve` runs. It listens
// before the model is loaded, so that those who wait can see that it lives.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/result.h"
#include "engine/engine.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/watchdog.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace nibble::server {

// How the model appears, known once it is loaded.
struct ModelConfig {
  std::vector<std::string> served_names;  // at least one; the first is the model's id
  std::vector<KernelSelection> kernels;   // for /metrics
  double load_seconds = 0;

  // Where requests say nothing: the checkpoint's generation_config and the operator's flags.
  engine::SamplingParams default_sampling;
  text::ThinkingMode default_thinking = text::ThinkingMode::kChat;
  text::Generation generation = text::Generation::kApril;
  std::vector<std::string> reasoning_fields = {"reasoning_content"};  // of chat answers
  // Put before the text prompts of /v1/completions that do not begin with it; -1: none. Set it for
  // tokenizers that say add_bos_token.
  int32_t completion_bos_id = -1;
};

struct ServerConfig {
  HttpConfig http = {.limits = {.body_bytes = 0}};  // body_bytes 0: from the model's context
  std::optional<Path> api_key_file;                 // one key a line; without it loopback only
  std::optional<Path> admin_key_file;
  std::vector<std::string> allowed_hosts;  // further Host names of a keyless server
  std::string version;
  std::optional<Path> request_log;  // one line of JSON per request; without it, among the log
  // Of an engine that makes no step although it has work. The process ends after the second limit.
  StallDetector::Limits stall_limits;
  Path dump_dir = "/tmp";  // for its state

  Duration ping_interval = std::chrono::seconds(15);     // of silent streams
  Duration request_timeout = Duration::zero();           // of completions, in all; 0: none
  Duration queue_timeout = Duration::zero();             // of completions, until they run; 0: none
  Duration shutdown_timeout = std::chrono::seconds(30);  // for accepted work after SIGTERM
  // SIGTERM and SIGINT end it, SIGHUP makes it read the key files again.
  bool handles_signals = true;
  // The first SIGTERM or SIGINT before attach(), when nothing was accepted that could be lost; on
  // the I/O thread. Empty: the default action.
  std::function<void(int)> on_early_signal;
};

class Api;

class Server final {
 public:
  // Listens, but answers nothing before start(). Errors: an address that needs a key
  // (kInvalidArgument), in use (kUnavailable), a bad key file.
  static Result<std::unique_ptr<Server>> listen(const ServerConfig& config);
  ~Server();  // stops at once

  uint16_t port() const;
  uint16_t admin_port() const;  // 0: there is none
  // Answers from now on: /health says 200, everything else 503 until a model is there.
  void start();
  // Serves this model from now on. Once. Engine and tokenizer must outlive the server.
  void attach(const ModelConfig& model, engine::Engine& engine, const text::Tokenizer& tokenizer);
  // Reads the key files again; from the next request on the new keys count. An error leaves the
  // old ones in place. Also called by SIGHUP.
  Result<void> reload_keys();
  // Makes run() return. Any thread, after attach(); also called by the first signal.
  void request_shutdown();
  // Serves until a shutdown is requested, then: readiness 503, no new completions, accepted work
  // goes on until shutdown_timeout, the rest ends with an error event. A second signal ends the
  // process at once. Call once, after start() and attach().
  void run();

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::server
