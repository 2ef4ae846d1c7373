#include "models/deepseek_v4/model_info.h"

#include <span>

#include "base/hash.h"

namespace nibble::models::deepseek_v4 {
namespace {

// Snapshots fit a model only if weights, row formats and rotation agree.
uint64_t fingerprint_of(const Config& config,
                        const Numerics& numerics,
                        bool has_mtp,
                        uint64_t weights_fingerprint) {
  const int64_t values[] = {static_cast<int64_t>(numerics.precision),
                            static_cast<int64_t>(numerics.kv_dtype),
                            has_mtp,
                            config.vocab_size,
                            config.hidden_size,
                            config.num_hidden_layers,
                            config.head_dim,
                            config.index_head_dim,
                            config.sliding_window,
                            config.hc_mult};
  const uint64_t seed = hash_bytes(std::as_bytes(std::span(values)), weights_fingerprint);
  return hash_bytes(std::as_bytes(std::span(config.compress_ratios)), seed);
}

}  // namespace

ModelInfo model_info(const Config& config,
                     const Numerics& numerics,
                     bool has_mtp,
                     uint64_t weights_fingerprint,
                     const StateBytes& state) {
  return {.architecture = "deepseek_v4",
          .vocab_size = config.vocab_size,
          .hidden_size = config.hidden_size,
          .num_hidden_layers = config.num_hidden_layers,
          .max_position_embeddings = config.max_position_embeddings,
          .has_mtp = has_mtp,
          .page_size = kPageSize,
          .max_rollback = kMaxRollback,
          .fingerprint = fingerprint_of(config, numerics, has_mtp, weights_fingerprint),
          .slot_bytes = state.per_slot(),
          .page_bytes = state.per_page(),
          .snapshot_bytes = state.snapshot};
}

}  // namespace nibble::models::deepseek_v4
