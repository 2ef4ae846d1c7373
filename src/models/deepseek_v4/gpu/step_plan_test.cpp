#include "models/deepseek_v4/gpu/step_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "device/emulated_gpu.h"

namespace nibble::models::deepseek_v4::gpu {
namespace {

// Notes where in host memory uploads come from, and leaves them out.
class UploadRecorder final : public device::Device {
 public:
  explicit UploadRecorder(std::unique_ptr<device::Device> device) : device_(std::move(device)) {}

  const device::DeviceInfo& info() const override { return device_->info(); }
  Result<device::Buffer> allocate(int64_t num_bytes) override {
    return device_->allocate(num_bytes);
  }
  Result<device::Buffer> allocate_host(int64_t num_bytes) override {
    return device_->allocate_host(num_bytes);
  }
  Result<int64_t> free_bytes() const override { return device_->free_bytes(); }
  device::Stream& stream() override { return device_->stream(); }
  Result<void> copy_in(void*, const void* host, int64_t) override {
    sources.insert(host);
    return {};
  }
  Result<void> copy_out(void*, const void*, int64_t) override { return {}; }
  Result<void> synchronize() override { return {}; }

  std::set<const void*> sources;

 private:
  std::unique_ptr<device::Device> device_;
};

// Bytes that a step's lists take: the choice of tokens comes first, the pages last.
int64_t list_bytes(const StepPlan& plan, const StepSize& size) {
  const StepLists lists = plan.lists(size);
  const kernels::DeviceSequences& sequences = lists.main.sequences;
  const int32_t* const end = sequences.pages + int64_t{size.sequences} * sequences.max_pages;
  return reinterpret_cast<const std::byte*>(end) -
         reinterpret_cast<const std::byte*>(lists.sample.seeds);
}

TEST(StepPlan, HasRoomForEveryStep) {
  const auto device = device::make_emulated_gpu(1).value();
  for (const int32_t context : {1, 256, 2048}) {
    for (const int32_t tokens : {1, 8, 100}) {
      for (int32_t slots = 1; slots <= 256; ++slots) {
        const StateOptions options{
            .num_slots = slots, .max_context = context, .max_tokens_per_pass = tokens};
        const StepPlan plan = StepPlan::make(options, *device).value();
        const int64_t room = StepPlan::num_bytes(options);
        // Buckets are less than twice the slots.
        EXPECT_LE(list_bytes(plan, StepSize::decode(2 * slots)), room) << slots;
        const StepSize prompt{.rows = tokens,
                              .sequences = std::min(slots, tokens),
                              .mtp_rows = tokens,
                              .sampled_rows = 0};
        EXPECT_LE(list_bytes(plan, prompt), room) << slots;
      }
    }
  }
}

TEST(StepPlan, OfAPassLeavesThoseOfQueuedStepsAlone) {
  UploadRecorder device(device::make_emulated_gpu(1).value());
  StepPlan plan =
      StepPlan::make({.num_slots = 2, .max_context = 512, .max_tokens_per_pass = 16}, device)
          .value();
  for (int32_t step = 0; step < kMaxQueuedSteps; ++step) plan.upload(device).value();
  plan.upload(device).value();
  EXPECT_EQ(device.sources.size(), static_cast<size_t>(kMaxQueuedSteps) + 1);
}

}  // namespace
}  // namespace nibble::models::deepseek_v4::gpu
