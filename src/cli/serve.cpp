#include <fmt/core.h>

#include <chrono>
#include <utility>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/session.h"
#include "cli/version.h"
#include "server/server.h"

namespace nibble::cli {
namespace {

// The directory's name, also for "dir/" and ".".
std::string model_name(const Path& model) {
  const Path path = std::filesystem::absolute(model).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

std::vector<server::KernelSelection> kernel_selections(
    const std::vector<models::RoutedModule>& modules) {
  std::vector<server::KernelSelection> selections;
  for (const models::RoutedModule& module : modules) {
    const auto& refused = module.route.refused;
    selections.push_back(
        {.layer_class = module.module,
         .kernel = std::string(module.route.kernel->name),
         .reason = refused.empty()
                       ? "first choice"
                       : fmt::format("{}: {}", refused.front().kernel, refused.front().reason)});
  }
  return selections;
}

server::ServerConfig server_config(const ServeFlags& flags, const Session& session) {
  SamplingFlags sampling;
  sampling.temperature = flags.temperature;
  sampling.top_p = flags.top_p;
  const engine::SamplingParams defaults = sampling_params(sampling, session.defaults.generation);
  server::ServerConfig config;
  config.http.host = flags.host;
  config.http.port = flags.port;
  config.http.max_connections = flags.max_connections;
  config.served_names = flags.served_model_names;
  if (config.served_names.empty()) config.served_names = {model_name(flags.model.model)};
  config.api_key_file = flags.api_key_file;
  config.allowed_hosts = flags.allowed_hosts;
  config.version = version_number();
  config.kernels = kernel_selections(session.routed_modules);
  config.default_sampling = defaults;
  if (flags.think) config.default_thinking = text::ThinkingMode::kThinking;
  config.shutdown_timeout = std::chrono::seconds(flags.shutdown_seconds);
  return config;
}

}  // namespace

Result<void> run_serve(const ServeFlags& flags) {
  // Before the model loads, which may take minutes.
  TRY(server::check_access(flags.host, flags.api_key_file));
  TRY_ASSIGN(Session session,
             open_session(flags.model,
                          {.max_queued_requests = flags.max_queued_requests,
                           .max_running_requests = flags.max_running_requests,
                           .prefill_chunk_tokens = flags.prefill_chunk_tokens}));
  print_note(kernel_line(session.routed_modules));
  return server::run_server(
      server_config(flags, session), *session.engine, *session.tokenizer, [&flags](uint16_t port) {
        print_note(fmt::format("listening on {}:{}", flags.host, port));
      });
}

}  // namespace nibble::cli
