// Passes of a loaded model over random tokens: what benchmarks and profiles time.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "base/result.h"
#include "comm/communicator.h"
#include "models/model.h"

namespace nibble::tools {

class Steps final {
 public:
  // `model` has reserved state for `num_sequences` of `max_context` tokens each.
  Steps(models::Model& model, int32_t num_sequences, int32_t max_context);

  // Starts `count` sequences anew and brings each to `context` tokens, in passes of `chunk`.
  Result<void> start(int32_t count, int32_t context, int32_t chunk);
  // A pass over one more token of each of the first `count` sequences, with logits of each. Where
  // the model queues decode steps it is put behind the last one, and that is waited for: what a
  // run of steps takes, the choice of tokens included.
  Result<void> decode(int32_t count);
  // A pass over `count` more tokens of the first sequence, with logits of the last.
  Result<void> prefill(int32_t count);
  // Takes back the last token of each of the first `count` sequences.
  Result<void> rewind(int32_t count);
  // Whether each of the first `count` sequences may grow by `tokens`.
  bool has_room(int32_t count, int32_t tokens) const;

 private:
  struct Part {
    int32_t sequence = 0;
    int32_t tokens = 0;
  };
  Result<void> pass(const std::vector<Part>& parts);
  Result<void> queue(int32_t count);
  Result<void> wait_for_queued(int32_t most_left);

  models::Model& model_;
  const int32_t max_context_;
  std::vector<std::vector<PageId>> pages_;  // by sequence
  std::unique_ptr<comm::Communicator> communicator_;
  std::mt19937 random_{1};
  int32_t num_queued_ = 0;
};

}  // namespace nibble::tools
