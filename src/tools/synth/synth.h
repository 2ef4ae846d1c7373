// `nibble synth`: a random checkpoint of a given shape, and the same weights made in memory for
// programs that measure and do not care what a model says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "device/thread_pool.h"
#include "tools/convert/declare.h"
#include "tools/output/job.h"

namespace nibble::tools {

struct SynthOptions {
  CheckpointFormat format = CheckpointFormat::kNative;
  uint64_t seed = 0;
};

// The tensors of a model with this config (as config.json states it) in `format`. The values are
// those of the native checkpoint of the same seed, whatever the format: BF16 decodes them, NVFP4
// casts the experts without loss, INT4 rounds the experts and decodes the rest. Drafts keep the
// native format in NVFP4, as conversion leaves them, and are BF16 in INT4.
// kInvalidArgument and kUnsupported for configs that describe no model.
struct Synthesis {
  std::vector<Piece> pieces;
  json::Object config;  // with the declaration of the format
  std::optional<json::Object> hf_quant;
};
Result<Synthesis> synthesize(const json::Object& config, const SynthOptions& options);

struct SynthJobOptions {
  Path out;
  std::string preset;
  int32_t num_layers = 0;  // 0: the preset's
  SynthOptions synth;
  bool resume = false;
  int64_t shard_bytes = int64_t{2} << 30;
};
// A checkpoint without tokenizer. kInvalidArgument for unknown presets and numbers of layers.
Result<Job> plan_synthesis(const SynthJobOptions& options);

struct DummyOptions {
  int32_t num_layers = 0;  // 0: all that the config has
  uint64_t seed = 0;
  // Weights of one class and shape share the bytes of so many that are made; 0: all are. For
  // models that go to a GPU, where the host would hold tens of GB for nothing.
  int32_t num_distinct = 0;
};
// A checkpoint in memory with the shapes and the format that DIR/config.json states; weights in DIR
// are not looked at. kExhausted when memory does not suffice.
Result<checkpoint::Checkpoint> make_dummy_checkpoint(const Path& dir,
                                                     const DummyOptions& options,
                                                     device::ThreadPool& pool);

}  // namespace nibble::tools
