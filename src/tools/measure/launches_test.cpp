#include "tools/measure/launches.h"

#include <gtest/gtest.h>

#include <optional>

#include "checkpoint/checkpoint.h"
#include "device/emulated_gpu.h"
#include "models/model.h"
#include "tools/measure/bench.h"
#include "tools/measure/roofs.h"
#include "tools/measure/steps.h"

namespace nibble::tools {
namespace {

constexpr int32_t kContext = 40, kBatch = 2;

// tiny-v4 with two sequences, on the host or on the emulated GPU.
class Launches : public ::testing::Test {
 protected:
  void SetUp() override { load(device::make_host_device({.num_threads = 1}).value()); }

  void load(std::unique_ptr<device::Device> device) {
    steps_.reset();
    model_.reset();
    device_ = std::move(device);
    const auto checkpoint =
        checkpoint::Checkpoint::open(Path(NIBBLE_SOURCE_DIR) / "models/tiny-v4").value();
    models::LoadOptions options;
    options.load_mtp = false;
    options.routing.allow_reference = true;
    model_ = models::load_model(checkpoint, *device_, options).value();
    ASSERT_TRUE(model_
                    ->reserve_state({.num_slots = kBatch,
                                     .num_pages = kBatch,
                                     .max_context = 64,
                                     .max_tokens_per_pass = 32})
                    .ok());
    steps_.emplace(*model_, kBatch, 64);
    ASSERT_TRUE(steps_->start(kBatch, kContext, 32).ok());
  }

  Pass decode() {
    return [this]() -> Result<void> {
      TRY(steps_->decode(kBatch));
      return steps_->rewind(kBatch);
    };
  }

  std::unique_ptr<device::Device> device_;
  std::unique_ptr<models::Model> model_;
  std::optional<Steps> steps_;
};

TEST_F(Launches, OfADecodeStepHaveKernelsWorkAndTimes) {
  const PassLaunches pass = time_launches(*device_, decode(), 2).value();
  EXPECT_EQ(pass.timing, Timing::kClock);
  bool has_experts = false;
  for (const TimedLaunch& launch : pass.launches) {
    ASSERT_NE(launch.kernel, nullptr);
    EXPECT_GT(launch.us, 0) << launch.kernel->name;
    EXPECT_GT(launch.work.bytes, 0) << launch.kernel->name;
    has_experts = has_experts || (launch.kernel->op == kernels::Op::kGroupedMatMul &&
                                  launch.work.flops > 0 && launch.work.n > 0);
  }
  EXPECT_TRUE(has_experts);
  EXPECT_EQ(device_->stream().observer, nullptr);
  EXPECT_EQ(model_->length(SlotId{0}), kContext);
}

TEST_F(Launches, OfAGpuStepStateTheirWork) {
  load(device::make_emulated_gpu(1).value());
  const PassLaunches pass = time_launches(*device_, decode(), 1).value();
  double expert_flops = 0;
  for (const TimedLaunch& launch : pass.launches) {
    ASSERT_NE(launch.kernel, nullptr);
    EXPECT_GT(launch.work.bytes, 0) << launch.kernel->name;
    if (launch.kernel->op == kernels::Op::kGroupedMatMul) expert_flops += launch.work.flops;
  }
  EXPECT_GT(expert_flops, 0) << "ids are read back from the device";
  EXPECT_FALSE(bench_kernels(*device_, decode(), "matmul", 1).value().empty());
}

TEST_F(Launches, ThatChangeFromPassToPassAreRefused) {
  const Pass growing = [this] { return steps_->decode(kBatch); };  // compresses now and then
  const Result<PassLaunches> pass = time_launches(*device_, growing, 8);
  ASSERT_FALSE(pass.ok());
  EXPECT_EQ(pass.error().code, Errc::kInternal);
  EXPECT_EQ(device_->stream().observer, nullptr);
}

TEST_F(Launches, AreTimedByKernelAndShape) {
  const auto rows = bench_kernels(*device_, decode(), "matmul", 3).value();
  ASSERT_FALSE(rows.empty());
  for (const KernelRow& row : rows) {
    EXPECT_NE(row.name.find("matmul"), std::string::npos);
    EXPECT_GT(row.m, 0) << row.name;
    EXPECT_LE(row.us.low, row.us.median);
  }
  EXPECT_TRUE(bench_peers(*device_, rows, 3).value().empty()) << "peers are on GPUs";
}

TEST(Roofs, OfAnEmulatedGpuAreThoseOfMemory) {
  const auto device = device::make_emulated_gpu(1).value();
  const Roofs roofs = measure_roofs(*device).value();
  EXPECT_GT(roofs.read_bytes_per_s, 0);
  EXPECT_EQ(roofs.bf16_flops_per_s, 0);
  EXPECT_EQ(roofs.bf16_note, "an emulated GPU has no products of its own");
}

TEST_F(Launches, OfAPromptSumUpItsWork) {
  const Pass prompt = [this] { return steps_->start(1, 32, 32); };
  const device::Work once = work_of_pass(*device_, prompt).value();
  const Pass twice = [this]() -> Result<void> {
    TRY(steps_->start(1, 32, 32));
    return steps_->start(1, 32, 32);
  };
  EXPECT_GT(once.flops, 0);
  EXPECT_NEAR(work_of_pass(*device_, twice).value().flops, 2 * once.flops, 0.05 * once.flops);
}

}  // namespace
}  // namespace nibble::tools
