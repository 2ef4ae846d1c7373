#include "kernels/work.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/kernel.h"

namespace nibble::kernels {
namespace {

// Device memory of these tests is the host's.
std::vector<int32_t> read_host(const int32_t* data, int64_t count) { return {data, data + count}; }

PackedWeight weight_of(quant::Format format, PackedLayout layout, int64_t n, int64_t k) {
  PackedWeight weight;
  weight.format = format;
  weight.layout = layout;
  weight.n = n;
  weight.k = k;
  return weight;
}

TEST(Work, OfAProductCountsTheWeightOnce) {
  const PackedWeight weight = weight_of(quant::Format::kBf16, PackedLayout::kInterleaved16, 64, 32);
  const MatMulArgs args{.x = TensorView::contiguous(nullptr, DType::kF32, {5, 32}),
                        .weight = &weight,
                        .y = TensorView::contiguous(nullptr, DType::kF32, {5, 64})};
  const Work work = work_of(args, {});
  EXPECT_EQ(work.bytes, 64 * 32 * 2 + 5 * (32 + 64) * 4);
  EXPECT_EQ(work.flops, 2 * 5 * 64 * 32);
}

TEST(Work, OfExpertsCountsThoseThatHaveTokens) {
  const PackedWeight weight = weight_of(quant::Format::kMxfp4, PackedLayout::kPanel64, 128, 128);
  const int32_t experts[] = {3, 7, 3, -1};
  DeviceGroupedMatMulArgs args{.weight = &weight,
                               .slots = {.rows = 1, .experts = experts, .max_slots = 4}};
  const double one = static_cast<double>(
      packed_weight_bytes(quant::Format::kMxfp4, 128, 128, DType::kF32, PackedLayout::kPanel64));
  const Work known = work_of(args, read_host);
  EXPECT_EQ(known.bytes, 2 * one + 3 * (128 + 128 * 4));
  EXPECT_EQ(known.flops, 2.0 * 3 * 128 * 128);
  EXPECT_EQ(work_of(args, {}).flops, 2.0 * 4 * 128 * 128);

  const int32_t count = 2, pairs[] = {0, 4, -1, -1, 2, -1, -1, -1};
  args.slots = {.rows = 4, .count = &count, .experts = experts, .pairs = pairs, .max_slots = 4};
  EXPECT_EQ(work_of(args, read_host).flops, 2.0 * 3 * 128 * 128);
}

TEST(Work, OfAttentionFollowsTheCounts) {
  const int32_t window[] = {128, 5}, entries[] = {512, 0};
  const DeviceSparseAttentionArgs args{.window = {.counts = window, .max_rows = 128},
                                       .entries = {.counts = entries, .max_rows = 512},
                                       .kv_dtype = DType::kF8E4m3,
                                       .m = 2,
                                       .heads = 64};
  EXPECT_EQ(work_of(args, read_host).bytes, 2.0 * 2 * 64 * 512 * 2 + 645 * 584);
  EXPECT_EQ(work_of(args, read_host).flops, 4.0 * 645 * 64 * 512);
  EXPECT_EQ(work_of(args, {}).flops, 4.0 * 1280 * 64 * 512);
}

Result<void> count_launch(const RmsNormArgs& args, device::Stream& /*stream*/) {
  *static_cast<int32_t*>(args.x.data) += 1;
  return {};
}

TEST(LaunchObserver, SeesALaunchAndRunsIt) {
  int32_t launches = 0;
  const KernelInfo kernel{.name = "rms_norm.test", .op = Op::kRmsNorm, .launch = &count_launch};
  const Route route{.kernel = &kernel};
  const RmsNormArgs args{.x = TensorView::contiguous(&launches, DType::kF32, {2, 8}),
                         .y = TensorView::contiguous(nullptr, DType::kF32, {2, 8})};
  device::Stream stream;
  ASSERT_TRUE(route.launch(args, stream).ok());
  EXPECT_EQ(launches, 1);

  std::string seen;
  const device::LaunchObserver observer{[&](const device::ObservedLaunch& launch) -> Result<void> {
    seen += launch.kernel;
    EXPECT_EQ(launch.work({}).bytes, 2 * 2 * 8 * 4);
    TRY(launch.run());
    return launch.run();
  }};
  stream.observer = &observer;
  ASSERT_TRUE(route.launch(args, stream).ok());
  EXPECT_EQ(seen, "rms_norm.test");
  EXPECT_EQ(launches, 3);
}

}  // namespace
}  // namespace nibble::kernels
