#include "engine/fair_share.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace nibble::engine {

// Smallest demand first: whoever asks for less than an equal part leaves the rest to the others.
std::vector<int32_t> fair_split(int32_t budget, std::span<const int32_t> demands) {
  std::vector<size_t> order(demands.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Equal demands: the last comes first, so that the remainder stays for the first.
  std::ranges::sort(order, [&](size_t a, size_t b) {
    return demands[a] != demands[b] ? demands[a] < demands[b] : a > b;
  });
  std::vector<int32_t> parts(demands.size());
  auto num_left = static_cast<int32_t>(demands.size());
  for (const size_t i : order) {
    parts[i] = std::min(demands[i], budget / num_left);
    budget -= parts[i];
    --num_left;
  }
  return parts;
}

void OwnerShares::join(const std::string& owner) {
  const auto least =
      std::ranges::min_element(shares_, {}, [](const auto& entry) { return entry.second.served; });
  const int64_t start = least == shares_.end() ? 0 : least->second.served;
  Share& share = shares_.try_emplace(owner, Share{.served = start}).first->second;
  ++share.num_live;
}

void OwnerShares::leave(const std::string& owner) {
  const auto found = shares_.find(owner);
  CHECK(found != shares_.end());
  if (--found->second.num_live == 0) shares_.erase(found);
}

void OwnerShares::charge(const std::string& owner, int64_t num_tokens) {
  const auto found = shares_.find(owner);
  CHECK(found != shares_.end());
  found->second.served += num_tokens;
}

int64_t OwnerShares::served(const std::string& owner) const {
  const auto found = shares_.find(owner);
  return found == shares_.end() ? 0 : found->second.served;
}

}  // namespace nibble::engine
