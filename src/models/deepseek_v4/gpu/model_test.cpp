#include "models/deepseek_v4/gpu/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "device/emulated_gpu_testing.h"

namespace nibble::models {
namespace {

using ::testing::HasSubstr;

// An emulated GPU that gives host memory so many times.
class ShortOfHostMemory final : public device::EmulatedGpuWrapper {
 public:
  ShortOfHostMemory() : EmulatedGpuWrapper(1) {}

  Result<device::Buffer> allocate_host(int64_t num_bytes) override {
    if (left == 0) return exhausted("no host memory");
    --left;
    return EmulatedGpuWrapper::allocate_host(num_bytes);
  }

  int32_t left = 1000;
};

checkpoint::Checkpoint tiny_v4() {
  return checkpoint::Checkpoint::open(Path(NIBBLE_SOURCE_DIR) / "models/tiny-v4").value();
}

TEST(GpuModel, RefusesTheCheckForNan) {
  const auto device = device::make_emulated_gpu(1).value();
  const auto model = load_model(tiny_v4(), *device, {.check_finite = true});
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().code, Errc::kUnsupported);
  EXPECT_THAT(model.error().message, HasSubstr("--device cpu"));
}

TEST(GpuModel, HasAllOfItsStateOrNone) {
  ShortOfHostMemory device;
  const auto model = load_model(tiny_v4(), device, {.routing = {.allow_reference = true}}).value();
  const StateOptions options{.num_slots = 1, .max_context = 256, .max_tokens_per_pass = 8};
  const SlotId slots[] = {SlotId{0}};
  const PageId pages[] = {PageId{0}};
  const std::span<const PageId> tables[] = {pages};
  const int32_t tokens[] = {5};
  const DeviceSampling greedy[1] = {};
  const DecodeInput step{
      .slots = slots, .block_tables = tables, .token_ids = tokens, .sampling = greedy};
  for (int32_t allocations = 0;; ++allocations) {
    device.left = allocations;
    if (model->reserve_state(options).ok()) break;
    EXPECT_EQ(model->state_bytes(), 0);
    const Result<void> queued = model->queue_decode(step);
    ASSERT_FALSE(queued.ok());
    EXPECT_EQ(queued.error().code, Errc::kUnavailable);
  }
  EXPECT_TRUE(model->queue_decode(step).ok());
  EXPECT_EQ(model->fetch_decoded().value().size(), 1U);
}

}  // namespace
}  // namespace nibble::models
