// The decode steps that a device has been given and whose tokens nobody has seen yet: while it
// computes one, the next waits behind it, so that it is never idle between them. Owner: the engine
// thread.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "engine/model_runner.h"
#include "engine/sequence.h"

namespace nibble::engine {

class DecodeQueue final {
 public:
  struct Options {
    std::span<const int32_t> eos_token_ids;  // outlive the queue
    // Nothing but a sequence's own tokens decides what it gives: draws, whose last bit may differ
    // between devices, are left to the host, whoever else is served.
    bool deterministic = false;
  };
  struct Step {
    std::vector<Sequence*> sequences;  // in the order of its tokens; null: has ended since
    TimePoint queued;
  };

  // The runner must outlive the queue.
  DecodeQueue(ModelRunner& runner, const Options& options) : runner_(runner), options_(options) {}

  bool is_empty() const { return steps_.empty(); }
  bool has_room() const { return static_cast<int32_t>(steps_.size()) < runner_.max_queued_steps(); }
  int32_t num_steps() const { return static_cast<int32_t>(steps_.size()); }

  // Whether the device can choose what comes after the tokens that are known or queued: by steps 4
  // to 9 of sampler.h alone, with nothing to report but the token.
  bool takes(const Sequence& sequence) const;
  // Whether a step of so many sequences is not too large.
  bool takes_rows(size_t count) const {
    return count <= static_cast<size_t>(runner_.max_queued_rows());
  }

  // Queues a step of these sequences, all of which takes() accepts. Nothing is queued on error.
  Result<void> push(std::span<Sequence* const> sequences, TimePoint now);
  // Takes out the oldest step and waits for its tokens (models::Model::fetch_decoded).
  Result<std::span<const int32_t>> pop(Step& step);
  // The sequence ends: what is queued for it is nobody's.
  void forget(const Sequence& sequence);

 private:
  ModelRunner& runner_;
  Options options_;
  std::deque<Step> steps_;         // at most max_queued_steps
  std::vector<DecodeItem> items_;  // scratch of push()
};

}  // namespace nibble::engine
