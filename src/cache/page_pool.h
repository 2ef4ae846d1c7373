// KV pages of one device: which are free and which belong to a sequence. Owner: the engine thread.
// Host-only: hands out ids, never touches KV bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace nibble::cache {

class PagePool final {
 public:
  explicit PagePool(int32_t num_pages);

  // Takes `count` pages or none. kExhausted when fewer are free; the scheduler then preempts.
  Result<std::vector<PageId>> take(int32_t count);

  // Returns pages. Each must be live: a double release is our bug and stops the process.
  void release(std::span<const PageId> pages);

  int32_t num_pages() const { return static_cast<int32_t>(is_live_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_used() const { return num_pages() - num_free(); }

 private:
  std::vector<PageId> free_;   // the next page to hand out is at the back
  std::vector<bool> is_live_;  // [num_pages]
};

}  // namespace nibble::cache
