// Whether a blob in the cache is what its name says, and if not, which of its blocks still are.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "hub/blob_record.h"
#include "hub/cancel.h"
#include "hub/repo.h"
#include "hub/repo_cache.h"

namespace nibble::hub {

enum class CheckDepth {
  kTrustRecord,  // size and our own record suffice; blobs of other tools are read once
  kReadAll,
};

struct BlobCheck {
  enum class State { kGood, kAbsent, kDamaged };
  State state = State::kAbsent;
  std::vector<int64_t> good_blocks;  // of a damaged blob that has a record
  std::vector<int64_t> bad_blocks;   // likewise
};

// Reads what must be read, writes the record of a good blob that has none. `on_read` (may be null)
// gets the bytes of each block read.
Result<BlobCheck> check_blob(const RepoCache& cache,
                             const RepoFile& file,
                             CheckDepth depth,
                             const Cancel& cancel,
                             const std::function<void(int64_t bytes)>& on_read);

}  // namespace nibble::hub
