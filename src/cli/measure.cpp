// `nibble profile` and `nibble bench kernels|decode|prefill`: a model is loaded as for serving, and
// passes over random tokens are timed.
#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/session.h"
#include "device/cuda.h"
#include "device/kernel_trace.h"
#include "tools/measure/bench.h"
#include "tools/measure/profile.h"
#include "tools/measure/steps.h"

namespace nibble::cli {
namespace {

// Tokens that a benchmark may add to each sequence beyond its context.
constexpr int32_t kRoom = 64;

struct Measured {
  LoadedModel loaded;
  tools::Roofs roofs;

  device::Device& device() const { return *loaded.device; }
  models::Model& model() const { return *loaded.model; }
};

// `context`: the most tokens of a sequence; `pass`: of a pass.
Result<Measured> load(const checkpoint::Checkpoint& checkpoint,
                      const ModelFlags& flags,
                      int32_t sequences,
                      int32_t context,
                      int32_t pass) {
  Measured measured;
  TRY_ASSIGN(
      measured.loaded,
      load_model(checkpoint,
                 flags,
                 {.context = context, .concurrency = sequences, .pass_tokens = std::max(pass, 1)},
                 Report::kPlan));
  TRY_ASSIGN(measured.roofs, tools::measure_roofs(measured.device()));
  TRY(measured.model().reserve_state(engine::planned_state(measured.loaded.plan)));
  return measured;
}

Result<void> write_result(bool as_json, const json::Value& value, const std::string& text) {
  return write_output(as_json ? json::dump(value, json::Style::kPython) + "\n" : text);
}

// Bytes that a decode step of `batch` sequences reads, by a plan for it.
Result<double> planned_step_bytes(const checkpoint::Checkpoint& checkpoint,
                                  const device::DeviceInfo& device,
                                  const ModelFlags& flags,
                                  int32_t batch,
                                  int32_t context) {
  TRY_ASSIGN(const engine::Plan plan,
             plan_model(checkpoint, device, flags, {.context = context, .concurrency = batch}));
  if (!plan.performance) return 0;
  for (const engine::PlanBatch& step : plan.performance->batches) {
    if (step.batch == batch) return step.bytes_per_device;
  }
  return 0;
}

// The step of a decode benchmark; sequences that are full begin again.
tools::Pass decode_pass(tools::Steps& steps, int32_t batch, int32_t context, int32_t chunk) {
  return [&steps, batch, context, chunk]() -> Result<void> {
    if (!steps.has_room(batch, 1)) TRY(steps.start(batch, context, chunk));
    return steps.decode(batch);
  };
}

// A step that can be repeated: which launches it takes depends on its position.
tools::Pass same_decode_pass(tools::Steps& steps, int32_t batch) {
  return [&steps, batch]() -> Result<void> {
    TRY(steps.decode(batch));
    return steps.rewind(batch);
  };
}

// The prompt of a prefill benchmark, from its start.
tools::Pass prompt_pass(tools::Steps& steps, int32_t prompt, int32_t chunk) {
  return [&steps, prompt, chunk] { return steps.start(1, prompt, chunk); };
}

// Graphs are seen kernel by kernel only where they are captured while the library listens.
std::optional<device::KernelTrace> attach_trace() {
  if (!device::has_cuda_backend()) return std::nullopt;
  Result<device::KernelTrace> trace = device::KernelTrace::start();
  if (!trace.ok()) return std::nullopt;  // the profile says why
  return std::move(trace).value();
}

}  // namespace

Result<void> run_profile(const ProfileFlags& flags) {
  std::optional<device::KernelTrace> attached = attach_trace();
  TRY_ASSIGN(const checkpoint::Checkpoint checkpoint, open_model(flags.model));
  const int32_t room = flags.prefill ? flags.context : flags.context + kRoom;
  const int32_t batch = flags.prefill ? 1 : flags.batch;
  TRY_ASSIGN(const Measured measured,
             load(checkpoint, flags.model, batch, room, std::max(flags.chunk, batch)));
  attached.reset();
  tools::Steps steps(measured.model(), batch, room);
  TRY(steps.start(batch, flags.prefill ? 0 : flags.context, flags.chunk));
  const tools::Pass pass = flags.prefill ? prompt_pass(steps, flags.context, flags.chunk)
                                         : same_decode_pass(steps, batch);
  const std::string what =
      flags.prefill
          ? fmt::format("prefill of {} tokens in passes of {}", flags.context, flags.chunk)
          : fmt::format("decode of {} sequence{} at {} tokens",
                        batch,
                        batch == 1 ? "" : "s",
                        flags.context);
  TRY_ASSIGN(const tools::Spread us, tools::time_passes(pass, flags.repeats));
  TRY_ASSIGN(const tools::PassLaunches launches,
             tools::time_launches(measured.device(), pass, flags.repeats));
  const tools::Profile profile =
      tools::make_profile(what, measured.device().info(), measured.roofs, launches, us.median);
  return write_result(flags.json, tools::profile_json(profile), tools::profile_text(profile));
}

Result<void> run_bench_decode(const BenchDecodeFlags& flags) {
  TRY_ASSIGN(const checkpoint::Checkpoint checkpoint, open_model(flags.model));
  const int32_t most = *std::max_element(flags.batches.begin(), flags.batches.end());
  const int32_t room = flags.context + std::max(kRoom, flags.repeats + 8);
  TRY_ASSIGN(const Measured measured,
             load(checkpoint, flags.model, most, room, std::max(flags.chunk, most)));
  tools::Steps steps(measured.model(), most, room);
  std::vector<tools::DecodeRow> rows;
  for (const int32_t batch : flags.batches) {
    tools::DecodeRow row{.batch = batch, .context = flags.context};
    TRY_ASSIGN(row.step_bytes,
               planned_step_bytes(
                   checkpoint, measured.device().info(), flags.model, batch, flags.context));
    TRY(steps.start(batch, flags.context, flags.chunk));
    const tools::Pass pass = decode_pass(steps, batch, flags.context, flags.chunk);
    TRY_ASSIGN(row.us, tools::time_passes(pass, flags.repeats));
    rows.push_back(row);
  }
  return write_result(flags.json,
                      tools::decode_json(measured.roofs, measured.model().graphs(), rows),
                      tools::decode_text(measured.roofs, measured.model().graphs(), rows));
}

Result<void> run_bench_prefill(const BenchPrefillFlags& flags) {
  TRY_ASSIGN(const checkpoint::Checkpoint checkpoint, open_model(flags.model));
  TRY_ASSIGN(const Measured measured, load(checkpoint, flags.model, 1, flags.prompt, flags.chunk));
  tools::Steps steps(measured.model(), 1, flags.prompt);
  const tools::Pass pass = prompt_pass(steps, flags.prompt, flags.chunk);
  tools::PrefillRow row{.chunk = flags.chunk, .prompt = flags.prompt};
  TRY_ASSIGN(row.us, tools::time_passes(pass, flags.repeats));
  TRY_ASSIGN(const device::Work work, tools::work_of_pass(measured.device(), pass));
  row.flops = work.flops;
  return write_result(flags.json,
                      tools::prefill_json(measured.roofs, row),
                      tools::prefill_text(measured.roofs, row));
}

Result<void> run_bench_kernels(const BenchKernelsFlags& flags) {
  TRY_ASSIGN(const checkpoint::Checkpoint checkpoint, open_model(flags.model));
  const int32_t room = flags.context + kRoom;
  TRY_ASSIGN(const Measured measured,
             load(checkpoint, flags.model, flags.batch, room, std::max(flags.chunk, flags.batch)));
  tools::Steps steps(measured.model(), flags.batch, room);
  TRY(steps.start(flags.batch, flags.context, flags.chunk));
  const tools::Pass pass = same_decode_pass(steps, flags.batch);
  TRY_ASSIGN(std::vector<tools::KernelRow> rows,
             tools::bench_kernels(measured.device(), pass, flags.only, flags.repeats));
  TRY_ASSIGN(const std::vector<tools::KernelRow> peers,
             tools::bench_peers(measured.device(), rows, flags.repeats));
  rows.insert(rows.end(), peers.begin(), peers.end());
  return write_result(flags.json,
                      tools::kernels_json(measured.roofs, rows),
                      tools::kernels_text(measured.roofs, rows));
}

}  // namespace nibble::cli
