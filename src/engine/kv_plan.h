// How decoding memory is divided into slots, pages and snapshots. The one place that decides it:
// programs reserve what it says, and print it.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "device/device.h"
#include "models/model.h"

namespace nibble::engine {

struct KvPlanOptions {
  int64_t budget_bytes = 0;  // of all three together
  int32_t max_context = 0;   // tokens of one sequence
  bool may_shorten = false;  // the context to what fits, rather than refuse
  int32_t num_slots = 0;     // sequences at a time; 0: as many as are sensible
  int32_t num_pages = 0;     // 0: as many as are sensible
  bool has_prefix_cache = true;
};

struct KvPlan {
  int32_t num_slots = 0;
  int32_t num_pages = 0;
  int32_t num_snapshots = 0;
  int32_t page_size = 0;
  int32_t max_context = 0;
  int64_t slots_bytes = 0;
  int64_t pages_bytes = 0;
  int64_t snapshots_bytes = 0;

  int64_t num_bytes() const { return slots_bytes + pages_bytes + snapshots_bytes; }
  int64_t num_tokens() const { return int64_t{num_pages} * page_size; }
  // "KV memory 383 MB: 32 requests at a time, 262144 tokens in 1024 pages, contexts of 16384
  // tokens, 98 resume points".
  std::string describe() const;
};

// Every sequence of max_context can run, alone at least. A slot costs up to a quarter of the budget
// before requests wait for one another; of what is left, snapshots get half as much as the pages
// whose prefixes they make resumable. kExhausted when one sequence does not fit the budget.
//   info: slot_bytes, page_bytes, snapshot_bytes, page_size
Result<KvPlan> plan_kv(const models::ModelInfo& info, const KvPlanOptions& options);

// What programs take without being told: a quarter of the memory that the weights leave on a CPU,
// which others use too; three quarters on a GPU.
int64_t default_kv_bytes(device::DeviceKind kind, int64_t memory_bytes, int64_t weights_bytes);

}  // namespace nibble::engine
