#include <fmt/core.h>

#include <chrono>
#include <memory>
#include <optional>
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

server::ServerConfig server_config(const ServeFlags& flags) {
  server::ServerConfig config;
  config.http.host = flags.host;
  config.http.port = flags.port;
  config.http.max_connections = flags.max_connections;
  config.api_key_file = flags.api_key_file;
  config.allowed_hosts = flags.allowed_hosts;
  config.version = version_number();
  config.shutdown_timeout = std::chrono::seconds(flags.shutdown_seconds);
  return config;
}

server::ModelConfig model_config(const ServeFlags& flags, const Session& session) {
  SamplingFlags sampling;
  sampling.temperature = flags.temperature;
  sampling.top_p = flags.top_p;
  server::ModelConfig config;
  config.served_names = flags.served_model_names;
  if (config.served_names.empty()) config.served_names = {model_name(flags.model.model)};
  config.kernels = kernel_selections(session.routed_modules);
  config.default_sampling = sampling_params(sampling, session.defaults.generation);
  if (flags.think) config.default_thinking = text::ThinkingMode::kThinking;
  return config;
}

}  // namespace

Result<void> run_serve(const ServeFlags& flags) {
  std::optional<Session> session;  // outlives the server
  TRY_ASSIGN(const std::unique_ptr<server::Server> server,
             server::Server::listen(server_config(flags)));
  server->start();
  print_note(fmt::format("loading; {}:{} is not ready until then", flags.host, server->port()));
  TRY_ASSIGN(session,
             open_session(flags.model,
                          {.max_queued_requests = flags.max_queued_requests,
                           .max_running_requests = flags.max_running_requests,
                           .prefill_chunk_tokens = flags.prefill_chunk_tokens,
                           .max_gap = std::chrono::milliseconds(flags.max_itl_ms)}));
  server->attach(model_config(flags, *session), *session->engine, *session->tokenizer);
  print_note(fmt::format("listening on {}:{}", flags.host, server->port()));
  server->run();
  return {};
}

}  // namespace nibble::cli
