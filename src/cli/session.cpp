#include "cli/session.h"

#include <fmt/core.h>

#include <algorithm>
#include <random>
#include <utility>

#include "base/log.h"
#include "checkpoint/config_reader.h"
#include "cli/console.h"
#include "cli/spot_check.h"
#include "comm/communicator.h"
#include "engine/model_runner.h"
#include "kernels/registry.h"
#include "models/deepseek_v4/row_check.h"
#include "tools/synth/synth.h"

namespace nibble::cli {
namespace {

const SteadyClock kClock;  // has no state

// "owner/name", as model hubs write it.
bool looks_like_repository(const std::string& text) {
  const size_t slash = text.find('/');
  const auto is_name_char = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == '/';
  };
  return slash != std::string::npos && slash > 0 && slash + 1 < text.size() && text[0] != '.' &&
         text.find('/', slash + 1) == std::string::npos &&
         std::all_of(text.begin(), text.end(), is_name_char);
}

engine::KvDivision kv_division(const engine::EngineConfig& config, const KvFlags& flags) {
  return {.budget_bytes = flags.memory_mb * 1'000'000,
          .num_slots = config.max_running_requests,
          .num_tokens = flags.max_total_tokens,
          .has_prefix_cache = flags.prefix_cache};
}

// Q-K3 (spec "quantization" 3.7): nothing starts on kernels that compute something else than the
// scalar reference does on rows of this very checkpoint. On a GPU a module of each class is enough,
// as it runs on up to four kernels of the class. Seconds that it took.
Result<double> test_kernels(const checkpoint::Checkpoint& checkpoint,
                            device::Device& device,
                            const ModelFlags& flags) {
  const TimePoint start = kClock.now();
  const bool is_gpu = device.info().kind == device::DeviceKind::kCuda;
  Result<std::vector<models::deepseek_v4::RowComparison>> rows = models::deepseek_v4::check_rows(
      checkpoint, device, load_options(flags), is_gpu ? 1 : models::deepseek_v4::kCheckedModules);
  if (!rows.ok()) {
    Error error = std::move(rows).error();
    error.message = "start-up self-test: " + error.message + "; --kernel forces another kernel";
    error.reason = "Q-K3";
    return error;
  }
  const double seconds = to_seconds(kClock.now() - start);
  log_info("self-test of {} kinds of weights passed in {:.1f} s", rows->size(), seconds);
  return seconds;
}

// The device as it is planned for: a GPU with the memory that is free, or less where the flags say
// so. Other programs may hold some of it.
Result<device::DeviceInfo> planned_device(const device::Device& device, const ModelFlags& flags) {
  device::DeviceInfo info = device.info();
  if (info.kind != device::DeviceKind::kCuda) {
    if (flags.gpu_memory_share == 0) return info;
    return invalid_argument(
        "--gpu-memory-utilization: the model runs on the CPU, where memory is planned from "
        "--kv-memory-mb, --max-running-requests and --max-context");
  }
  if (flags.gpu_memory_share != 0 && !(flags.gpu_memory_share > 0 && flags.gpu_memory_share <= 1)) {
    return invalid_argument(fmt::format(
        "--gpu-memory-utilization {}: expected more than 0, at most 1", flags.gpu_memory_share));
  }
  TRY_ASSIGN(const int64_t free, device.free_bytes());
  const auto allowed =
      static_cast<int64_t>(flags.gpu_memory_share == 0
                               ? static_cast<double>(free)
                               : static_cast<double>(info.memory_bytes) * flags.gpu_memory_share);
  info.memory_bytes = std::min(free, allowed);
  return info;
}

}  // namespace

models::LoadOptions load_options(const ModelFlags& flags) {
  models::LoadOptions options;
  options.precision = flags.precision;
  options.kv_dtype = flags.kv_dtype;
  options.check_finite = flags.nan_check;
  options.routing = {.deterministic = flags.deterministic,
                     .only = flags.kernel,
                     .without = flags.checks.without_kernel,
                     .allow_reference = flags.checks.allow_reference};
  return options;
}

Result<checkpoint::Checkpoint> open_checkpoint(const Path& model) {
  std::error_code ignored;
  if (std::filesystem::is_directory(model, ignored)) {
    TRY_ASSIGN(checkpoint::Checkpoint checkpoint, checkpoint::Checkpoint::open(model));
    // Other tensors at every start, so that damage does not stay unseen for ever.
    TRY_ASSIGN(const SpotCheck checked, spot_check(checkpoint, std::random_device{}()));
    if (checked.num_files > 0) {
      log_info("{} tensors of {} files compared with the record of their download",
               checked.num_tensors,
               checked.num_files);
    }
    return checkpoint;
  }
  if (std::filesystem::exists(model, ignored)) {
    return invalid_argument(
        fmt::format("{}: is a file, expected the directory of a checkpoint", model.string()));
  }
  if (looks_like_repository(model.string())) {
    return not_found(
        fmt::format("{}: is no directory here. `nibble pull {}` fetches the model and prints the "
                    "directory to give.",
                    model.string(),
                    model.string()));
  }
  return not_found(fmt::format("{}: no such directory", model.string()));
}

Result<checkpoint::Checkpoint> open_model(const ModelFlags& flags) {
  if (flags.load_format == LoadFormat::kCheckpoint) return open_checkpoint(flags.model);
  device::ThreadPool pool({.num_threads = flags.threads});
  constexpr int32_t kDistinctOnGpu = 8;
  return tools::make_dummy_checkpoint(flags.model,
                                      {.num_layers = flags.num_layers_override,
                                       .num_distinct = is_gpu(flags.device) ? kDistinctOnGpu : 0},
                                      pool);
}

Result<LoadedModel> load_model(const checkpoint::Checkpoint& checkpoint,
                               const ModelFlags& flags,
                               const ModelWork& work,
                               Report report) {
  LoadedModel loaded;
  TRY_ASSIGN(
      loaded.device,
      open_device(flags.device,
                  {.num_threads = flags.threads, .pin = flags.threads == 0, .isa = flags.isa}));
  TRY_ASSIGN(const device::DeviceInfo planned, planned_device(*loaded.device, flags));
  TRY_ASSIGN(loaded.plan, plan_model(checkpoint, planned, flags, work));
  if (report == Report::kPlan) print_plan(loaded.plan);
  const TimePoint start = kClock.now();
  for (const std::string& warning : checkpoint.warnings()) log_warning("{}", warning);
  ProgressBar bar("loading");
  models::LoadOptions options = load_options(flags);
  options.load_mtp = work.needs_draft;
  options.progress = [&bar](int64_t done, int64_t total) { bar.update(done, total); };
  TRY_ASSIGN(loaded.model, models::load_model(checkpoint, *loaded.device, options));
  TRY(engine::check_executed(loaded.plan, loaded.model->routed_modules()));
  loaded.load_seconds = to_seconds(kClock.now() - start);
  return loaded;
}

Result<ModelDefaults> read_defaults(const Path& model) {
  ModelDefaults defaults;
  TRY_ASSIGN(defaults.generation, checkpoint::read_generation_config(model));
  TRY_ASSIGN(const checkpoint::ConfigReader config, checkpoint::read_config(model));
  constexpr checkpoint::IntRange kIds{0, INT32_MAX};
  constexpr int64_t kMaxEosTokens = 64;
  defaults.eos_token_ids = defaults.generation.eos_token_ids;
  if (defaults.eos_token_ids.empty()) {
    TRY_ASSIGN(const auto ids, config.integer_or_list({"eos_token_id"}, kIds, kMaxEosTokens));
    for (const int64_t id : ids.value_or(std::vector<int64_t>{})) {
      defaults.eos_token_ids.push_back(static_cast<int32_t>(id));
    }
  }
  TRY_ASSIGN(const int64_t bos, config.integer_or({"bos_token_id"}, kIds, -1));
  // The releases with DSpark stages moved the effort prefixes; nothing else tells them apart.
  TRY_ASSIGN(const int64_t block_size, config.integer_or({"dspark_block_size"}, kIds, 0));
  if (block_size > 0) defaults.chat_generation = text::Generation::kJuly;
  defaults.bos_token_id = defaults.generation.bos_token_id.value_or(static_cast<int32_t>(bos));
  return defaults;
}

Result<Session> open_session(const ModelFlags& flags,
                             engine::EngineConfig config,
                             const KvFlags& kv_flags) {
  Session session;
  TRY_ASSIGN(const checkpoint::Checkpoint checkpoint, open_model(flags));
  TRY_ASSIGN(session.tokenizer, text::load_tokenizer(flags.model));
  TRY_ASSIGN(session.defaults, read_defaults(flags.model));
  TRY_ASSIGN(LoadedModel loaded,
             load_model(checkpoint,
                        flags,
                        {.context = flags.max_context,
                         .pass_tokens = config.prefill_chunk_tokens,
                         .kv = kv_division(config, kv_flags)},
                        Report::kPlan));
  session.times.weights = loaded.load_seconds;
  TRY_ASSIGN(session.times.self_test, test_kernels(checkpoint, *loaded.device, flags));
  session.device = std::move(loaded.device);
  session.load_seconds = loaded.load_seconds;
  session.routed_modules = loaded.model->routed_modules();

  config.max_context = loaded.plan.options.context;
  config.eos_token_ids = session.defaults.eos_token_ids;
  config.deterministic = flags.deterministic;
  config.max_running_requests = loaded.plan.options.concurrency;
  config.kv_host_bytes = kv_flags.host_mb * 1'000'000;
  config.kv_disk_dir = kv_flags.disk_dir.value_or(Path());
  config.kv_disk_bytes = kv_flags.disk_mb * 1'000'000;
  models::StateOptions state = engine::planned_state(loaded.plan);
  state.is_resident = kv_flags.is_resident();
  const TimePoint reserve_start = kClock.now();
  TRY_ASSIGN(auto runner,
             engine::make_model_runner(std::move(loaded.model),
                                       state,
                                       comm::make_local_communicator(),
                                       loaded.plan.kv->num_snapshots));
  session.times.graphs = runner->graphs();
  session.times.state = to_seconds(kClock.now() - reserve_start) - session.times.graphs.seconds;
  log_info("reserved KV memory and workspace in {:.2f} s", session.times.state);
  session.plan = std::move(loaded.plan);
  session.memory_bytes = runner->memory_bytes();
  TRY_ASSIGN(session.engine,
             engine::Engine::create(config, std::move(runner), *session.tokenizer, kClock));
  return session;
}

std::string StartTimes::describe() const {
  std::string text =
      fmt::format("ready in {:.1f} s: weights {:.2f} s, self-test {:.2f} s, memory {:.2f} s",
                  weights + self_test + state + graphs.seconds,
                  weights,
                  self_test,
                  state);
  if (graphs.count > 0) text += fmt::format(", {} graphs {:.2f} s", graphs.count, graphs.seconds);
  return text;
}

engine::SamplingParams sampling_params(const SamplingFlags& flags,
                                       const checkpoint::GenerationConfig& defaults) {
  engine::SamplingParams params;
  if (defaults.temperature) params.temperature = static_cast<float>(*defaults.temperature);
  if (defaults.top_p) params.top_p = static_cast<float>(*defaults.top_p);
  if (defaults.min_p) params.min_p = static_cast<float>(*defaults.min_p);
  if (defaults.repetition_penalty) {
    params.repetition_penalty = static_cast<float>(*defaults.repetition_penalty);
  }
  params.top_k = defaults.top_k.value_or(params.top_k);
  if (defaults.do_sample == false) params.temperature = 0;
  params.temperature = flags.temperature.value_or(params.temperature);
  params.top_p = flags.top_p.value_or(params.top_p);
  params.min_p = flags.min_p.value_or(params.min_p);
  params.top_k = flags.top_k.value_or(params.top_k);
  params.presence_penalty = flags.presence_penalty;
  params.frequency_penalty = flags.frequency_penalty;
  params.repetition_penalty = flags.repetition_penalty.value_or(params.repetition_penalty);
  params.logit_bias = flags.logit_bias;
  params.seed = flags.seed;
  params.max_tokens = flags.max_tokens;
  params.min_tokens = flags.min_tokens;
  params.ignore_eos = flags.ignore_eos;
  params.stop = flags.stop;
  params.stop_token_ids = flags.stop_token_ids;
  return params;
}

std::string kernel_line(const std::vector<models::RoutedModule>& modules,
                        const device::DeviceInfo& device) {
  struct Use {
    std::string kernel;
    int64_t num_weights = 0;
    int32_t num_modules = 0;
  };
  std::vector<Use> uses;
  for (const models::RoutedModule& module : modules) {
    const std::string name = kernels::marked_name(*module.route.kernel, device);
    auto it =
        std::find_if(uses.begin(), uses.end(), [&](const Use& u) { return u.kernel == name; });
    if (it == uses.end()) it = uses.insert(uses.end(), {.kernel = name});
    it->num_weights += module.n * module.k;
    ++it->num_modules;
  }
  std::stable_sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) {
    return a.num_weights > b.num_weights;
  });
  std::string line = "kernels:";
  for (const Use& use : uses) {
    line += fmt::format("{} {}", line.back() == ':' ? "" : ",", use.kernel);
    if (use.num_modules > 1) line += fmt::format(" (x {})", use.num_modules);
  }
  return line;
}

std::string speed_line(const engine::Finish& finish) {
  const auto rate = [](int32_t count, double seconds) {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
  };
  // The first token comes out of the prefill.
  return fmt::format("{} prompt tokens at {:.0f} tok/s, {} generated tokens at {:.0f} tok/s",
                     finish.usage.prompt_tokens,
                     rate(finish.usage.prompt_tokens, finish.prefill_seconds),
                     finish.usage.completion_tokens,
                     rate(std::max(finish.usage.completion_tokens - 1, 0), finish.decode_seconds));
}

}  // namespace nibble::cli
