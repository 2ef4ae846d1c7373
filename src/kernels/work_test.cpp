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
  float x = 0;
  DeviceGroupedMatMulArgs args{.x = {.f32 = &x},
                               .weight = &weight,
                               .slots = {.rows = 1, .experts = experts, .max_slots = 4}};
  const double one = static_cast<double>(
      packed_weight_bytes(quant::Format::kMxfp4, 128, 128, DType::kF32, PackedLayout::kPanel64));
  const Work known = work_of(args, read_host);
  EXPECT_EQ(known.bytes, 2 * one + 3 * (128 * 4 + 128 * 4));
  EXPECT_EQ(known.flops, 2.0 * 3 * 128 * 128);
  EXPECT_EQ(work_of(args, {}).flops, 2.0 * 4 * 128 * 128);

  args.down.weight = &weight;
  EXPECT_EQ(work_of(args, read_host).flops, 2.0 * 2 * 3 * 128 * 128);
  EXPECT_EQ(work_of(args, read_host).bytes, 2 * known.bytes);
  args.down.weight = nullptr;

  const int32_t count = 2, pairs[] = {0, 4, -1, -1, 2, -1, -1, -1};
  args.slots = {.rows = 4, .count = &count, .experts = experts, .pairs = pairs, .max_slots = 4};
  EXPECT_EQ(work_of(args, read_host).flops, 2.0 * 3 * 128 * 128);
}

TEST(Work, OfAttentionCountsSharedKeysOnce) {
  const int32_t window_counts[] = {2, 3}, window_rows[] = {5, 6, -1, 5, 6, 7};
  const int32_t entry_counts[] = {1, 0}, entry_rows[] = {9, -1, -1, -1};
  float out = 0;  // only whether it is there counts
  const DeviceSparseAttentionArgs args{
      .q = &out,
      .window = {.rows = window_rows, .counts = window_counts, .max_rows = 3},
      .entries = {.rows = entry_rows, .counts = entry_counts, .max_rows = 2},
      .kv_dtype = DType::kF8E4m3,
      .out = {.bf16 = &out},
      .m = 2,
      .heads = 64};
  EXPECT_EQ(work_of(args, read_host).bytes, 2.0 * 2 * 64 * 512 * 2 + 4 * 584);
  EXPECT_EQ(work_of(args, read_host).flops, 4.0 * 6 * 64 * 512);
  EXPECT_EQ(work_of(args, {}).flops, 4.0 * 10 * 64 * 512);
}

TEST(Work, OfTheIndexerCountsTheEntriesOfASequenceOnce) {
  const int32_t counts[] = {600, 601, 700, 20}, pages[] = {3, 4, 3, 4, 8, 9, 1, 2};
  const DeviceIndexerScoreArgs args{.keys = {.pages = pages, .counts = counts, .max_pages = 2},
                                    .m = 4,
                                    .heads = 64,
                                    .width = 128,
                                    .unscored_count = 512};
  EXPECT_EQ(work_of(args, read_host).bytes,
            4.0 * 64 * 260 + (601 + 700) * 256 + (600 + 601 + 700) * 4);
  EXPECT_EQ(work_of(args, read_host).flops, 2.0 * (600 + 601 + 700) * 64 * 128);
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
