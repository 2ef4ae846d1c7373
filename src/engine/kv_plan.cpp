#include "engine/kv_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked_math.h"

namespace nibble::engine {
namespace {

constexpr int32_t kMostSlots = 32;
// Tokens per slot that are kept ready without being asked for; more would mostly lie idle.
constexpr int32_t kTokensPerSlot = 8192;
constexpr double kSnapshotsPerPageByte = 0.5;

int32_t clamp_count(int64_t count, int64_t low, int64_t high) {
  return static_cast<int32_t>(std::clamp(count, low, std::max(low, high)));
}

int32_t planned_slots(const models::ModelInfo& info, const KvPlanOptions& options) {
  if (options.num_slots > 0) return options.num_slots;
  const int64_t affordable = options.budget_bytes / 4 / std::max<int64_t>(info.slot_bytes, 1);
  return clamp_count(affordable, 1, kMostSlots);
}

int64_t place_bytes(const models::ModelInfo& info) {
  return round_up(info.snapshot_bytes, int64_t{64});
}

}  // namespace

Result<KvPlan> plan_kv(const models::ModelInfo& info, const KvPlanOptions& options) {
  const int64_t page_bytes = std::max<int64_t>(info.page_bytes, 1);
  KvPlan plan{.num_slots = planned_slots(info, options),
              .page_size = info.page_size,
              .max_context = options.max_context};
  plan.slots_bytes = plan.num_slots * info.slot_bytes;
  const int64_t most_pages = (options.budget_bytes - plan.slots_bytes) / page_bytes;
  if (options.may_shorten && most_pages > 0) {
    plan.max_context =
        static_cast<int32_t>(std::min<int64_t>(plan.max_context, most_pages * info.page_size));
  }
  const int64_t context_pages = ceil_div(int64_t{plan.max_context}, int64_t{info.page_size});
  const int64_t least = plan.slots_bytes + context_pages * page_bytes;
  if (least > options.budget_bytes) {
    return exhausted(fmt::format(
        "KV memory: {} requests at a time and one context of {} tokens take {} MB, but {} MB are "
        "allowed; shorten the context, run fewer requests, or allow more",
        plan.num_slots,
        plan.max_context,
        ceil_div(least, int64_t{1'000'000}),
        options.budget_bytes / 1'000'000));
  }
  const bool has_snapshots = options.has_prefix_cache && info.snapshot_bytes > 0;
  const double snapshot_share = has_snapshots ? kSnapshotsPerPageByte : 0;
  const auto for_pages = static_cast<int64_t>(
      static_cast<double>(options.budget_bytes - plan.slots_bytes) / (1 + snapshot_share));
  const int64_t tokens_per_slot = std::min<int64_t>(plan.max_context, kTokensPerSlot);
  const int64_t sensible = plan.num_slots * ceil_div(tokens_per_slot, int64_t{info.page_size});
  const int64_t wanted = options.num_pages > 0 ? options.num_pages : sensible;
  plan.num_pages = clamp_count(
      std::min({wanted, for_pages / page_bytes, int64_t{INT32_MAX}}), context_pages, INT32_MAX);
  plan.pages_bytes = plan.num_pages * page_bytes;
  if (has_snapshots) {
    const auto share = static_cast<int64_t>(static_cast<double>(plan.pages_bytes) * snapshot_share);
    const int64_t left = options.budget_bytes - plan.slots_bytes - plan.pages_bytes;
    plan.num_snapshots = clamp_count(std::min(share, left) / place_bytes(info), 0, INT32_MAX);
  }
  plan.snapshots_bytes = plan.num_snapshots * place_bytes(info);
  return plan;
}

int64_t default_kv_bytes(device::DeviceKind kind, int64_t memory_bytes, int64_t weights_bytes) {
  const int64_t quarter = std::max<int64_t>(memory_bytes - weights_bytes, 0) / 4;
  return kind == device::DeviceKind::kCuda ? 3 * quarter : quarter;
}

std::string KvPlan::describe() const {
  return fmt::format(
      "KV memory {} MB: {} requests at a time, {} tokens in {} pages, contexts of {} tokens, {} "
      "resume points",
      num_bytes() / 1'000'000,
      num_slots,
      num_tokens(),
      num_pages,
      max_context,
      num_snapshots);
}

}  // namespace nibble::engine
