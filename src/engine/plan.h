// What would run: the format and kernel of every module class, memory per device, bytes per step
// and what they bound, all from headers alone. `nibble plan` prints this object. Programs that load
// a model make it first, refuse what it refuses, reserve the state that it counts, and compare the
// kernels that loading took with it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/model_description.h"
#include "engine/device_sheet.h"
#include "engine/kv_plan.h"
#include "kernels/kernel.h"
#include "models/model.h"
#include "quant/detect.h"

namespace nibble::engine {

enum class Goal : uint8_t { kLatency, kThroughput };

// The longest context that the model allows and the memory holds.
inline constexpr int32_t kLongestContext = -1;

// What an engine may take for decoding state; zeros: what is sensible.
struct KvDivision {
  int64_t budget_bytes = 0;
  int32_t num_slots = 0;
  int64_t num_tokens = 0;  // of all requests and the prefix cache
  bool has_prefix_cache = true;
};

struct PlanOptions {
  DeviceSheet device;
  int32_t num_devices = 1;
  int32_t tp = 0;           // 0: num_devices
  int32_t ep = 1;           // devices that share the routed experts by id
  int32_t context = 0;      // tokens per sequence; 0: 32768 or the model's maximum; kLongestContext
  int32_t concurrency = 0;  // sequences; 0: 1 for latency, 64 for throughput
  int32_t pass_tokens = 0;  // of one prefill pass, which size the workspace; 0: 512
  Goal goal = Goal::kLatency;
  models::Precision precision = models::Precision::kDefault;
  models::KvDtype kv_dtype = models::KvDtype::kAuto;
  bool deterministic = false;  // only batch-invariant kernels
  // Set for an engine: divides decoding memory by plan_kv() and decides concurrency and, where
  // kLongestContext asks for it, context.
  std::optional<KvDivision> kv = {};
  bool loads_draft = false;  // on a CPU, which serves without; plans for GPUs always hold it
  quant::DetectOptions detection;
  std::vector<std::string> allow_slow;  // classes that may run on a slower kernel than the best
  std::string only_kernel;              // restrict to kernels whose name contains this text
  std::string without_kernel;           // as if none whose name contains this text were built
  bool allow_reference = false;         // the scalar reference may run, with a warning
  bool pads_fp8_blocks = false;         // shards may cut FP8 blocks; both sides keep the scale
};

// One projection of a class: "wq_a", "w1".
struct PlannedPart {
  std::string name;
  int64_t n = 0;
  int64_t k = 0;
  int64_t count = 0;  // matrices
};

// Modules of one class, format and kernel.
struct PlannedModule {
  std::string module_class;  // "attention", "draft_routed_experts", ...
  std::vector<int32_t> layers;
  std::string format;
  std::string evidence;
  std::vector<PlannedPart> parts;
  int64_t bytes = 0;                            // in the files, scales included
  int64_t bytes_per_device = 0;                 // resident
  const kernels::KernelInfo* kernel = nullptr;  // none: an error says why
  // On GPUs, where a weight has a kernel for every range of rows: all of them, `kernel` included.
  std::vector<const kernels::KernelInfo*> by_rows;
  std::string why;
  std::vector<kernels::Refusal> refused;  // records before it of this kind of device, and why not
  std::vector<kernels::Refusal> better;   // of these, what this very device could have run
  const kernels::KernelInfo* unforced =
      nullptr;                            // what only_kernel or without_kernel keeps it from
  int64_t unforced_bytes_per_device = 0;  // resident in its layout
};

struct PlannedOp {
  std::string name;  // "sparse_attention"
  const kernels::KernelInfo* kernel = nullptr;
  std::string why;  // where another generation has a kernel of its own; else empty
  std::vector<kernels::Refusal> refused;
};

// What a form of cached keys takes.
struct PlanKvForm {
  std::string name;  // "bf16", "fp8"
  // Of one token of context, in all layers of a kind.
  double entries_4 = 0;
  double index_entries = 0;
  double entries_128 = 0;
  int64_t windows = 0;  // of one sequence

  double per_token() const { return entries_4 + index_entries + entries_128; }
};

// Bytes on one device.
struct PlanMemory {
  int64_t capacity = 0;
  int64_t reserved = 0;  // driver, graphs, communication
  int64_t weights = 0;
  int64_t draft_weights = 0;  // part of `weights`
  int64_t windows = 0;
  int64_t entries_4 = 0;
  int64_t index_entries = 0;
  int64_t entries_128 = 0;
  int64_t compressor_state = 0;
  int64_t draft_state = 0;
  int64_t snapshots = 0;  // one per sequence, or what plan_kv() gives
  int64_t num_pages = 0;  // of all sequences
  int64_t workspace = 0;
  // What one more sequence, and one more page of 256 tokens, cost.
  int64_t per_sequence = 0;
  int64_t per_page = 0;
  std::vector<PlanKvForm> kv_forms;  // the one in use, then the others
  // The most that fits: sequences of the planned context, tokens for the planned sequences.
  int64_t max_concurrency = 0;
  int64_t max_context = 0;

  int64_t kv() const { return windows + entries_4 + index_entries + entries_128; }
  int64_t total() const {
    return reserved + weights + kv() + compressor_state + draft_state + snapshots + workspace;
  }
  bool exceeds_kv_budget = false;  // what is asked of an engine does not fit its part
  bool fits() const { return total() <= capacity && !exceeds_kv_budget; }
};

// One decode step of `batch` sequences.
struct PlanBatch {
  int32_t batch = 0;
  double distinct_experts = 0;  // expected, per layer
  double weight_bytes = 0;      // of the whole machine
  double bytes_per_device = 0;  // weights and cache
  double kv_bytes = 0;          // of all sequences
  double exchange_seconds = 0;
  double bound_seconds = 0;             // bytes_per_device at the read rate, and the exchange
  std::optional<int32_t> num_launches;  // of GPUs; nullopt: not counted
  double launch_seconds = 0;            // beside them, however few bytes there are
  double bound_tok_s() const { return bound_seconds > 0 ? batch / bound_seconds : 0; }
  // Where a step reaches `share` of the bound between its launches.
  double expected_tok_s(double share) const {
    return bound_seconds > 0 ? batch / (bound_seconds / share + launch_seconds) : 0;
  }
};

struct PlanPerformance {
  std::vector<PlanBatch> batches;
  int32_t num_experts = 0;  // routed, of a layer
  int32_t choices = 0;      // of a token
  double low_share = 0;     // of the bound that is expected, at least and at most
  double high_share = 0;
  std::string assumption;
};

struct Plan {
  std::string target;
  std::string model_type;
  std::string method;
  std::string not_runnable = "not planned yet";  // why this build cannot run it; empty: it can
  PlanOptions options;                           // without zeros
  int32_t num_hidden_layers = 0;
  int32_t max_position_embeddings = 0;
  int64_t num_tensors = 0;
  int64_t num_shards = 0;
  int64_t download_bytes = 0;
  bool is_complete = true;  // false: tensors are missing, and the bytes are those of what is there
  std::vector<PlannedModule> modules;
  std::vector<PlannedOp> ops;
  std::vector<quant::Diagnostic> diagnostics;
  std::optional<KvPlan> kv;                    // of an engine
  std::optional<PlanMemory> memory;            // of models that Nibble can run, sizes known
  std::optional<PlanPerformance> performance;  // likewise
  std::string why_no_sizes;  // why both are absent, in a clause; empty: they are not

  bool has_errors() const { return quant::has_errors(diagnostics); }
  bool is_runnable() const { return not_runnable.empty(); }
};

// Never fails: what is wrong becomes a diagnostic. `read` may be empty.
Plan make_plan(const checkpoint::ModelDescription& description,
               const quant::ReadTensorBytes& read,
               const PlanOptions& options);

// What PlanOptions::only_kernel or without_kernel costs: a decode step of `batch` sequences,
// estimated from how fast the kernels were on that generation or, where nobody timed them, from
// bytes at the read rate and, for units without matrix products, from their instructions.
struct ForcedModule {
  const PlannedModule* module = nullptr;
  std::string_view timed_on;  // empty: it was not
  double us = 0;              // of a step
  double unforced_us = 0;     // on the kernel that routing takes otherwise
  double share = 0;           // of the read rate
};
struct ForcedCost {
  int32_t batch = 0;
  std::vector<ForcedModule> modules;  // those with another kernel
  double step_us = 0;                 // of all weights
  double unforced_step_us = 0;
};
ForcedCost forced_cost(const Plan& plan);

// The decoding state that `plan` counts. It must have `memory`.
models::StateOptions planned_state(const Plan& plan);

// kInternal when loading took a kernel that `plan` does not name.
Result<void> check_executed(const Plan& plan, const std::vector<models::RoutedModule>& loaded);

// Expected distinct experts of `batch` tokens that choose `k` of `n` independently (spec
// "deepseek-v4" 11.2).
double expected_distinct_experts(double n, double k, double batch);

// The input of detection that a description holds.
std::vector<quant::ConfigText> config_texts(const checkpoint::ModelDescription& description);

}  // namespace nibble::engine
