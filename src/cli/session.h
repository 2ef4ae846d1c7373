// A model made ready for use: files opened, weights loaded, engine started.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/generation_config.h"
#include "cli/flags.h"
#include "cli/planned_model.h"
#include "device/device.h"
#include "engine/engine.h"
#include "models/model.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace nibble::cli {

// Opens a directory; what `pull` downloaded is spot-checked (spot_check.h). kNotFound when `model`
// is no directory.
Result<checkpoint::Checkpoint> open_checkpoint(const Path& model);

// What the flags name: the checkpoint, or dummy weights in memory.
Result<checkpoint::Checkpoint> open_model(const ModelFlags& flags);

struct LoadedModel {
  engine::Plan plan;
  std::unique_ptr<device::Device> device;
  std::unique_ptr<models::Model> model;
  double load_seconds = 0;
};

enum class Report { kNothing, kPlan };

// What the flags say on loading; without the MTP layer's part and progress.
models::LoadOptions load_options(const ModelFlags& flags);

// Plans, refuses what the plan refuses, prints its short form where asked, and loads the weights
// with a progress bar.
Result<LoadedModel> load_model(const checkpoint::Checkpoint& checkpoint,
                               const ModelFlags& flags,
                               const ModelWork& work,
                               Report report);

// What the model's files say about its special tokens and sampling.
struct ModelDefaults {
  checkpoint::GenerationConfig generation;
  std::vector<int32_t> eos_token_ids;
  int32_t bos_token_id = -1;  // -1: none
  text::Generation chat_generation = text::Generation::kApril;
};
Result<ModelDefaults> read_defaults(const Path& model);

// Where the time before the first request went.
struct StartTimes {
  double weights = 0;    // read, packed and brought to the device
  double self_test = 0;  // kernels against the scalar reference
  double state = 0;      // KV memory and workspace
  models::RecordedGraphs graphs;

  // "ready in 3.1 s: weights 2.41 s, self-test 0.32 s, memory 0.05 s, 12 graphs 0.30 s"
  std::string describe() const;
};

// Everything between flags and an engine that takes requests. Members are destroyed last to first.
struct Session {
  std::unique_ptr<text::Tokenizer> tokenizer;
  ModelDefaults defaults;
  engine::Plan plan;
  std::unique_ptr<device::Device> device;
  std::vector<models::RoutedModule> routed_modules;
  int64_t memory_bytes = 0;
  double load_seconds = 0;
  StartTimes times;
  std::unique_ptr<engine::Engine> engine;
};
// `config.eos_token_ids` and `config.max_context` are filled in from the model and the flags;
// max_running_requests 0 becomes what the memory is planned for.
Result<Session> open_session(const ModelFlags& flags,
                             engine::EngineConfig config,
                             const KvFlags& kv_flags = {});

// Flags over the model's defaults over ours.
engine::SamplingParams sampling_params(const SamplingFlags& flags,
                                       const checkpoint::GenerationConfig& defaults);

// "kernels: NAME (x 12), ...": what the modules of the model run on, the largest weights first.
std::string kernel_line(const std::vector<models::RoutedModule>& modules,
                        const device::DeviceInfo& device);
// "9 prompt tokens at 3012 tok/s, 48 generated tokens at 401 tok/s"
std::string speed_line(const engine::Finish& finish);

}  // namespace nibble::cli
