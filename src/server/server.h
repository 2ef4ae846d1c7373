// The server of one model: configuration, start, orderly end. What `nibble serve` runs.
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
#include "text/chat.h"
#include "text/tokenizer.h"

namespace nibble::server {

struct ServerConfig {
  HttpConfig http = {.limits = {.body_bytes = 0}};  // body_bytes 0: from the model's context
  std::vector<std::string> served_names;            // at least one; the first is the model's id
  std::optional<Path> api_key_file;                 // one key a line; without it loopback only
  std::vector<std::string> allowed_hosts;           // further Host names of a keyless server
  std::string version;
  std::vector<KernelSelection> kernels;  // for /metrics

  // Where requests say nothing: the checkpoint's generation_config and the operator's flags.
  engine::SamplingParams default_sampling;
  text::ThinkingMode default_thinking = text::ThinkingMode::kChat;
  text::Generation generation = text::Generation::kApril;
  // Put before the text prompts of /v1/completions that do not begin with it; -1: none. Set it for
  // tokenizers that say add_bos_token.
  int32_t completion_bos_id = -1;

  Duration ping_interval = std::chrono::seconds(15);     // of silent streams
  Duration shutdown_timeout = std::chrono::seconds(30);  // for accepted work after SIGTERM
  bool handles_signals = true;                           // SIGTERM and SIGINT end it
};

// What Server::create() checks of these two, for callers that want to know before they load a
// model.
Result<void> check_access(std::string_view host, const std::optional<Path>& api_key_file);

class Api;

class Server final {
 public:
  // Listens, but answers nothing yet. Engine and tokenizer must outlive the server. Errors: an
  // address that needs a key (kInvalidArgument), in use (kUnavailable), a bad key file.
  static Result<std::unique_ptr<Server>> create(const ServerConfig& config,
                                                engine::Engine& engine,
                                                const text::Tokenizer& tokenizer);
  ~Server();  // stops at once

  uint16_t port() const;
  void start();
  // Makes run() return. Any thread; also called by the first signal.
  void request_shutdown();
  // Serves until a shutdown is requested, then: readiness 503, no new completions, accepted work
  // goes on until shutdown_timeout, the rest ends with an error event. A second signal ends the
  // process at once. Call once, after start().
  void run();

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// create, start and run. `on_listening` hears the port before the first request is answered.
Result<void> run_server(const ServerConfig& config,
                        engine::Engine& engine,
                        const text::Tokenizer& tokenizer,
                        const std::function<void(uint16_t port)>& on_listening = {});

}  // namespace nibble::server
