// A few tensors of a downloaded checkpoint, compared with what they were when `pull` verified them:
// finds files that were damaged on the disk or written over since, without reading all of them.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "checkpoint/checkpoint.h"

namespace nibble::cli {

struct SpotCheck {
  int64_t num_files = 0;  // with a record of their hashes
  int64_t num_tensors = 0;
};

// Draws two tensors of up to 16 MiB from each shard that `pull` has a record of; other shards are
// passed over. kDataLoss when one is not what it was. `seed` decides which are drawn.
Result<SpotCheck> spot_check(const checkpoint::Checkpoint& checkpoint, uint64_t seed);

}  // namespace nibble::cli
