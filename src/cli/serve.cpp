#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "base/crash_report.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/exit_codes.h"
#include "cli/peer_flags.h"
#include "cli/session.h"
#include "cli/version.h"
#include "kernels/registry.h"
#include "server/server.h"

namespace nibble::cli {
namespace {

// The directory's name, also for "dir/" and ".".
std::string model_name(const Path& model) {
  const Path path = std::filesystem::absolute(model).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

std::vector<server::KernelSelection> kernel_selections(
    const std::vector<models::RoutedModule>& modules, const device::DeviceInfo& device) {
  std::vector<server::KernelSelection> selections;
  for (const models::RoutedModule& module : modules) {
    const auto& refused = module.route.refused;
    selections.push_back(
        {.layer_class = module.module,
         .kernel = kernels::marked_name(*module.route.kernel, device),
         .reason = refused.empty()
                       ? "first choice"
                       : fmt::format("{}: {}", refused.front().kernel, refused.front().reason)});
  }
  return selections;
}

Path dump_dir(const ServeFlags& flags) {
  std::error_code failed;
  const Path fallback = std::filesystem::temp_directory_path(failed);
  return flags.crash_dump_dir.value_or(failed ? Path("/tmp") : fallback);
}

std::optional<Duration> max_queue_wait(const ServeFlags& flags) {
  if (!flags.max_queue_wait_ms) return std::nullopt;
  return std::chrono::milliseconds(*flags.max_queue_wait_ms);
}

server::ServerConfig server_config(const ServeFlags& flags) {
  server::ServerConfig config;
  config.http.host = flags.host;
  config.http.port = flags.port;
  config.http.max_connections = flags.max_connections;
  if (flags.admin_port) config.http.admin = {flags.admin_host, *flags.admin_port};
  config.http.max_buffered_body_bytes =
      uint64_t{1'000'000} * static_cast<uint64_t>(flags.body_memory_megabytes);
  config.api_key_file = flags.api_key_file;
  config.admin_key_file = flags.admin_api_key_file;
  config.request_log = flags.request_log;
  config.stall_limits = {.dump_after = std::chrono::seconds(flags.soft_watchdog_seconds),
                         .give_up_after = std::chrono::seconds(flags.watchdog_seconds)};
  config.dump_dir = dump_dir(flags);
  config.request_timeout = std::chrono::seconds(flags.request_timeout_seconds);
  config.queue_timeout = std::chrono::seconds(flags.queue_timeout_seconds);
  config.allowed_hosts = flags.allowed_hosts;
  config.version = version_number();
  config.shutdown_timeout = std::chrono::seconds(flags.shutdown_seconds);
  config.on_early_signal = [](int signal) {
    print_note(fmt::format("signal {}: stopped before the model was loaded", signal));
    std::_Exit(kExitOk);  // loading cannot be called off
  };
  return config;
}

server::ModelConfig model_config(const ServeFlags& flags, const Session& session) {
  SamplingFlags sampling;
  sampling.temperature = flags.temperature;
  sampling.top_p = flags.top_p;
  server::ModelConfig config;
  config.served_names = flags.served_model_names;
  if (config.served_names.empty()) config.served_names = {model_name(flags.model.model)};
  config.kernels = kernel_selections(session.routed_modules, session.plan.options.device.info());
  config.load_seconds = session.load_seconds;
  config.default_sampling = sampling_params(sampling, session.defaults.generation);
  if (flags.think) config.default_thinking = text::ThinkingMode::kThinking;
  config.generation = session.defaults.chat_generation;
  config.reasoning_fields = flags.reasoning_fields;
  return config;
}

}  // namespace

Result<void> run_serve(const ServeFlags& flags) {
  for (const std::string& note : flags.notes) print_note(note);
  install_crash_report(dump_dir(flags), version_number());
  std::optional<Session> session;  // outlives the server
  TRY_ASSIGN(const std::unique_ptr<server::Server> server,
             server::Server::listen(server_config(flags)));
  server->start();
  print_note(fmt::format("loading; {}:{} is not ready until then", flags.host, server->port()));
  if (server->admin_port() != 0) {
    print_note(fmt::format("admin routes on {}:{}", flags.admin_host, server->admin_port()));
  }
  TRY_ASSIGN(session,
             open_session(flags.model,
                          {.max_queued_requests = flags.max_queued_requests,
                           .max_queue_wait = max_queue_wait(flags),
                           .max_running_requests = flags.max_running_requests,
                           .prefill_chunk_tokens = flags.prefill_chunk_tokens,
                           .max_gap = std::chrono::milliseconds(flags.max_itl_ms)},
                          flags.kv));
  print_note(session->plan.kv->describe());
  print_note(session->times.describe());
  server->attach(model_config(flags, *session), *session->engine, *session->tokenizer);
  print_note(fmt::format("listening on {}:{}", flags.host, server->port()));
  server->run();
  return {};
}

Result<void> run_peer_flags(const PeerFlagsFlags& flags) {
  return write_output(flags.markdown ? peer_flags_markdown() : peer_flags_help());
}

}  // namespace nibble::cli
