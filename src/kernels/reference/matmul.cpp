// kMatMul and kGroupedMatMul of every format: each weight row is decoded to f32, each output is one
// sum in double, rounded once. The oracle of the differential test.
#include <vector>

#include "kernels/reference/dot.h"
#include "kernels/registry.h"

namespace nibble::kernels {
namespace {

using quant::Format;
using reference::dot;

Result<void> matmul(const MatMulArgs& args, device::Stream& stream) {
  const PackedWeight& weight = *args.weight;
  DCHECK(weight.layout == PackedLayout::kRowMajor);
  stream.pool->parallel_for(weight.n, [&](int64_t row) {
    std::vector<float> w(static_cast<size_t>(weight.k));
    unpack_row(weight, row, w);
    for (int64_t t = 0; t < args.x.num_rows(); ++t) {
      args.y.row<float>(t)[row] =
          static_cast<float>(dot(w.data(), args.x.row<const float>(t), weight.k));
    }
  });
  return {};
}

Result<void> grouped_matmul(const GroupedMatMulArgs& args, device::Stream& stream) {
  if (args.weights.empty()) return {};
  const int64_t n = args.weights.front().n;
  const auto num_groups = static_cast<int64_t>(args.weights.size());
  stream.pool->parallel_for(num_groups * n, [&](int64_t task) {
    const auto group = static_cast<size_t>(task / n);
    const int64_t row = task % n;
    const PackedWeight& weight = args.weights[group];
    DCHECK(weight.layout == PackedLayout::kRowMajor);
    const int32_t begin = args.group_offsets[group], end = args.group_offsets[group + 1];
    if (begin == end) return;
    std::vector<float> w(static_cast<size_t>(weight.k));
    unpack_row(weight, row, w);
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      args.y.row<float>(args.out_rows[i])[row] =
          static_cast<float>(dot(w.data(), args.x.row<const float>(args.in_rows[i]), weight.k));
    }
  });
  return {};
}

constexpr KernelInfo row(std::string_view name, Op op, Format format, Launch launch) {
  KernelInfo info;
  info.name = name;
  info.op = op;
  info.has_weight = true;
  info.weight = format;
  info.layout = PackedLayout::kRowMajor;
  info.verified = kCpuVerified;
  info.launch = launch;
  return info;
}

// clang-format off
constexpr KernelInfo kTable[] = {
    row("matmul.f32.f32.cpu.scalar", Op::kMatMul, Format::kF32, &matmul),
    row("matmul.bf16.f32.cpu.scalar", Op::kMatMul, Format::kBf16, &matmul),
    row("matmul.f16.f32.cpu.scalar", Op::kMatMul, Format::kF16, &matmul),
    row("matmul.fp8_block128x128.f32.cpu.scalar", Op::kMatMul, Format::kFp8E4m3Block128x128, &matmul),
    row("matmul.mxfp4.f32.cpu.scalar", Op::kMatMul, Format::kMxfp4, &matmul),
    row("matmul.nvfp4.f32.cpu.scalar", Op::kMatMul, Format::kNvfp4, &matmul),
    row("matmul.int4_g32.f32.cpu.scalar", Op::kMatMul, Format::kInt4Group32, &matmul),
    row("grouped_matmul.f32.f32.cpu.scalar", Op::kGroupedMatMul, Format::kF32, &grouped_matmul),
    row("grouped_matmul.bf16.f32.cpu.scalar", Op::kGroupedMatMul, Format::kBf16, &grouped_matmul),
    row("grouped_matmul.f16.f32.cpu.scalar", Op::kGroupedMatMul, Format::kF16, &grouped_matmul),
    row("grouped_matmul.fp8_block128x128.f32.cpu.scalar", Op::kGroupedMatMul, Format::kFp8E4m3Block128x128, &grouped_matmul),
    row("grouped_matmul.mxfp4.f32.cpu.scalar", Op::kGroupedMatMul, Format::kMxfp4, &grouped_matmul),
    row("grouped_matmul.nvfp4.f32.cpu.scalar", Op::kGroupedMatMul, Format::kNvfp4, &grouped_matmul),
    row("grouped_matmul.int4_g32.f32.cpu.scalar", Op::kGroupedMatMul, Format::kInt4Group32, &grouped_matmul),
};
// clang-format on

}  // namespace

std::span<const KernelInfo> reference_matmul_kernels() { return kTable; }

}  // namespace nibble::kernels
