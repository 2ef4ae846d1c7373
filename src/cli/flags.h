// What the command line and the configuration file may say, as plain values. Optional fields are
// those whose default comes from the model's files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "cli/bench_flags.h"
#include "cli/device_choice.h"
#include "device/device.h"
#include "engine/plan.h"
#include "models/model.h"
#include "quant/detect.h"
#include "tools/convert/declare.h"

namespace nibble::cli {

enum class LoadFormat {
  kCheckpoint,
  kDummy,  // random weights of the shapes in config.json
};

// What a user accepts that a plan would otherwise refuse, and the other way around.
struct PlanChecks {
  bool strict = false;
  bool trust_headers = false;
  bool dynamic_activation_scales = false;
  quant::ExpertDtype expert_dtype = quant::ExpertDtype::kAsStored;
  std::vector<std::string> allow_slow;
  bool allow_reference = false;
  std::string without_kernel;  // part of the names of kernels that are as if not built
};

struct ModelFlags {
  Path model;
  LoadFormat load_format = LoadFormat::kCheckpoint;
  int32_t num_layers_override = 0;  // of dummy weights; 0: all
  DeviceChoice device;
  double gpu_memory_share = 0;  // of the GPU's memory that may be used, with weights; 0: all free
  int32_t threads = 0;          // 0: physical cores
  device::IsaLevel isa = device::IsaLevel::kNative;
  models::Precision precision = models::Precision::kDefault;
  models::KvDtype kv_dtype = models::KvDtype::kAuto;
  bool deterministic = false;
  std::string kernel;       // part of a kernel name; empty: any
  int32_t max_context = 0;  // 0: the longest that the model allows and the memory holds
  bool nan_check = false;
  PlanChecks checks;
};

// Whether planned memory is resident before the first request, rather than as it is first used.
enum class Prefault : uint8_t {
  kAuto,  // where its size is stated
  kOn,
  kOff,
};

// How decoding memory is planned.
struct KvFlags {
  int64_t memory_mb = 0;         // 0: a quarter of what the weights leave
  int64_t max_total_tokens = 0;  // of all requests and the prefix cache; 0: what is sensible
  bool prefix_cache = true;
  Prefault prefault = Prefault::kOff;
  // Beyond it.
  int64_t host_mb = 0;
  std::optional<Path> disk_dir = {};
  int64_t disk_mb = 10'000;

  bool is_resident() const {
    const bool is_stated = memory_mb > 0 || max_total_tokens > 0;
    return prefault == Prefault::kOn || (prefault == Prefault::kAuto && is_stated);
  }
};

struct SamplingFlags {
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<int32_t> top_k;
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  std::optional<float> repetition_penalty;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::optional<uint64_t> seed;
  int32_t max_tokens = 0;  // 0: up to the context
  int32_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
};

struct GenerateFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::optional<std::string> prompt;
  std::optional<Path> prompt_file;  // neither: standard input
  std::string system;
  bool raw = false;
  bool think = false;
};

struct ChatFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::string system;
  bool think = false;
};

struct PlanFlags {
  std::vector<std::string> targets;
  std::vector<std::string> gpus;  // NAME[xN]; empty: this machine
  int32_t tp = 0;                 // 0: all devices
  int32_t ep = 1;
  int32_t context = 0;
  int32_t concurrency = 0;
  engine::Goal goal = engine::Goal::kLatency;
  models::KvDtype kv_dtype = models::KvDtype::kAuto;
  bool json = false;
  std::optional<std::string> explain;
  PlanChecks checks;
  device::IsaLevel isa = device::IsaLevel::kNative;  // of "local"
  std::string kernel;
  bool pad_fp8_blocks = false;
  int32_t connections = 8;
};

struct KernelsFlags {
  bool markdown = false;
};

struct DemoFlags {
  ModelFlags model;
};

struct ServeFlags {
  ModelFlags model;
  // Where requests say nothing.
  std::optional<float> temperature;
  std::optional<float> top_p;
  bool think = false;
  std::vector<std::string> reasoning_fields = {"reasoning_content"};

  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: any free one
  std::optional<Path> api_key_file;
  std::string admin_host = "127.0.0.1";
  std::optional<uint16_t> admin_port;  // none: admin routes are on the main port
  std::optional<Path> admin_api_key_file;
  std::vector<std::string> allowed_hosts;
  std::vector<std::string> served_model_names;  // empty: the directory's name
  int32_t max_connections = 512;
  int32_t max_queued_requests = 256;
  std::optional<int32_t> max_queue_wait_ms;  // absent: what a request takes; 0: any
  int32_t max_running_requests = 0;          // 0: planned from memory
  int32_t prefill_chunk_tokens = 512;
  int32_t max_itl_ms = 150;
  KvFlags kv = {.prefault = Prefault::kAuto};
  int32_t shutdown_seconds = 30;
  int32_t request_timeout_seconds = 0;  // 0: none
  int32_t queue_timeout_seconds = 0;    // 0: none
  int32_t body_memory_megabytes = 256;

  int32_t watchdog_seconds = 300;      // 0: off
  int32_t soft_watchdog_seconds = 10;  // at the least; 0: off
  std::optional<Path> crash_dump_dir;  // none: the directory for temporary files
  std::optional<Path> request_log;

  std::vector<std::string> notes;  // on flags in other servers' spelling
};

struct TokenizeFlags {
  Path dir;
  bool json = false;
  bool no_special = false;
  bool decode = false;
};

struct LogitsFlags {
  ModelFlags model;
  std::vector<int32_t> ids;
  std::optional<Path> ids_file;
  int32_t last = 0;   // 0: all positions
  int32_t chunk = 0;  // 0: as much at a time as is sensible
  bool mtp = false;
  std::optional<Path> record;
  std::optional<Path> replay;
  Path output;
};

struct CheckFlags {
  ModelFlags model;
};

struct PullFlags {
  std::string repo;
  std::vector<std::string> include;
  std::vector<std::string> exclude;
  bool verify = false;
  std::optional<Path> cache_dir;
  int32_t connections = 8;
  int32_t attempts = 6;
  int32_t retry_delay_ms = 500;
  std::optional<int32_t> stall_timeout;  // seconds
  std::optional<bool> plan;              // unset: when standard output is a terminal
};

struct ConvertFlags {
  Path in;
  Path out;
  tools::CheckpointFormat format = tools::CheckpointFormat::kNative;
  bool convert_drafts = false;
  bool allow_rounding = false;
  bool resume = false;
  int64_t shard_megabytes = 2048;
  int32_t threads = 0;  // 0: physical cores
};

struct SynthFlags {
  Path out;
  std::string preset;
  tools::CheckpointFormat format = tools::CheckpointFormat::kNative;
  int32_t layers = 0;  // 0: the preset's
  uint64_t seed = 0;
  bool config_only = false;
  bool resume = false;
  int64_t shard_megabytes = 2048;
  int32_t threads = 0;  // 0: physical cores
};

// Passes over random tokens: of decode steps, or of a prompt.
struct ProfileFlags {
  ModelFlags model;
  int32_t batch = 1;
  int32_t context = 1024;  // tokens of each sequence before the step, or of the prompt
  int32_t chunk = 512;     // tokens of a prefill pass
  bool prefill = false;
  int32_t repeats = 9;
  bool json = false;
};

struct BenchDecodeFlags {
  ModelFlags model;
  std::vector<int32_t> batches = {1};
  int32_t context = 1024;
  int32_t chunk = 512;
  int32_t repeats = 32;
  bool json = false;
};

struct BenchPrefillFlags {
  ModelFlags model;
  int32_t chunk = 512;
  int32_t prompt = 2048;
  int32_t repeats = 5;
  bool json = false;
};

struct BenchKernelsFlags {
  ModelFlags model;
  int32_t batch = 1;
  int32_t context = 1024;
  int32_t chunk = 512;
  std::string only;  // part of a kernel's name; empty: all
  int32_t repeats = 9;
  bool json = false;
};

struct PeerFlagsFlags {
  bool markdown = false;
};

struct VersionFlags {};

using Command = std::variant<GenerateFlags,
                             ChatFlags,
                             ServeFlags,
                             TokenizeFlags,
                             LogitsFlags,
                             CheckFlags,
                             PullFlags,
                             PlanFlags,
                             KernelsFlags,
                             DemoFlags,
                             ConvertFlags,
                             SynthFlags,
                             BenchServeFlags,
                             BenchDecodeFlags,
                             BenchPrefillFlags,
                             BenchKernelsFlags,
                             ProfileFlags,
                             PeerFlagsFlags,
                             VersionFlags>;

struct CommandLine {
  LogLevel log_level = LogLevel::kWarning;
  // Text to print instead of running anything (--help, --version).
  std::optional<std::string> text;
  Command command = VersionFlags{};
};

}  // namespace nibble::cli
