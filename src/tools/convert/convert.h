// `nibble convert`: a DeepSeek-V4 checkpoint in another weight format. Every tensor is either
// copied to the byte, cast without loss, or encoded anew with its error measured; what is none of
// the three is refused before anything is written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "tools/convert/declare.h"
#include "tools/output/job.h"

namespace nibble::tools {

struct ConvertOptions {
  Path out;
  CheckpointFormat format = CheckpointFormat::kNative;  // not kBf16
  // Drafts (mtp.*) keep their format unless this is set. Drafts that are not quantised become
  // native with the rest when that is the format.
  bool convert_drafts = false;
  // Round where a cast between MXFP4 and NVFP4 is not exact, instead of refusing.
  bool allow_rounding = false;
  bool resume = false;
  int64_t shard_bytes = int64_t{2} << 30;
};

struct ConvertPlan {
  Job job;
  std::vector<std::string> notes;  // sentences for people: what was kept, dropped, rounded
};

// Decides what becomes of each tensor, from headers and, for casts, scales. `checkpoint` must
// outlive the plan. kUnsupported for combinations that would lose more than they should or that no
// reader knows, kInvalidArgument when nothing is to be done or OUT lies inside the input,
// kDataLoss for tensors that contradict each other.
Result<ConvertPlan> plan_conversion(const checkpoint::Checkpoint& checkpoint,
                                    const ConvertOptions& options);

}  // namespace nibble::tools
