// What a step costs, learnt from the steps that ran: how many prefill tokens fit beside decoding
// sequences without making them wait longer than a bound. Owner: the engine thread.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace nibble::engine {

struct StepLoad {
  int32_t num_decode = 0;   // sequences that advance by one token
  int32_t num_prefill = 0;  // tokens of prompts
};

// step = (decode(num_decode) + num_prefill * token) * overshoot. The first two are moving averages;
// the last is the worst ratio of late between a step and its estimate: it counts at once what a
// step took longer, and forgets slowly.
class StepCost final {
 public:
  void observe(const StepLoad& load, Duration duration);

  // Prefill tokens that keep a step with `num_decode` decoding sequences within `limit`, with a
  // margin for what was not foreseen; at least one, so that prompts advance even where decoding
  // alone takes that long. At most kMaxGrowth times what was observed.
  int32_t prefill_within(Duration limit, int32_t num_decode);

 private:
  // Where nothing was seen yet: a machine that others use, too.
  static constexpr double kFirstOvershoot = 1.4;

  double decode_seconds(int32_t num_decode) const;
  void observe_decode(int32_t num_decode, double seconds);
  void observe_prefill(const StepLoad& load, double seconds);
  void note_overshoot(const StepLoad& load, double seconds);

  // A step of `decode_load_` decoding sequences and nothing else; load 0: not observed.
  double decode_seconds_ = 0;
  int32_t decode_load_ = 0;
  double token_seconds_ = 0;  // 0: not observed
  int32_t largest_prefill_ = 0;
  int32_t planned_ = 0;                 // what prefill_within() said last
  double overshoot_ = kFirstOvershoot;  // at least 1
};

}  // namespace nibble::engine
