#include "cache/page_pool.h"

#include <string>

namespace nibble::cache {

PagePool::PagePool(int32_t num_pages) : is_live_(static_cast<size_t>(num_pages), false) {
  CHECK(num_pages >= 0) << num_pages;
  free_.reserve(is_live_.size());
  for (int32_t page = num_pages - 1; page >= 0; --page) free_.push_back(PageId{page});
}

Result<std::vector<PageId>> PagePool::take(int32_t count) {
  CHECK(count >= 0) << count;
  if (count > num_free()) {
    return exhausted("KV pages: " + std::to_string(count) + " wanted, " +
                     std::to_string(num_free()) + " of " + std::to_string(num_pages()) + " free");
  }
  std::vector<PageId> pages;
  pages.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    const PageId page = free_.back();
    free_.pop_back();
    is_live_[static_cast<size_t>(page.value)] = true;
    pages.push_back(page);
  }
  return pages;
}

void PagePool::release(std::span<const PageId> pages) {
  for (const PageId page : pages) {
    CHECK(page.value >= 0 && page.value < num_pages()) << page.value;
    CHECK(is_live_[static_cast<size_t>(page.value)]) << "double release of page " << page.value;
    is_live_[static_cast<size_t>(page.value)] = false;
    free_.push_back(page);
  }
}

}  // namespace nibble::cache
