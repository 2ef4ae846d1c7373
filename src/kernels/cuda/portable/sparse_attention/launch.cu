#include "base/checked_math.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/portable/sparse_attention/kernel.cuh"
#include "kernels/cuda/portable/sparse_attention/launch.h"
#include "kernels/planned/targets.h"
#include "quant/fp8_key.h"

namespace nibble::kernels::cuda {
namespace {

PortableKeyList list_of(const DeviceKeyRows& rows) {
  return {.pool = static_cast<const uint8_t*>(rows.pool),
          .rows = rows.rows,
          .counts = rows.counts,
          .max_rows = rows.max_rows};
}

KeyRowFormat format_of(const DeviceSparseAttentionArgs& args) {
  const int32_t width = args.head_dim;
  if (args.kv_dtype != DType::kF8E4m3) {
    return {.width = width, .row_bytes = static_cast<int>(width * dtype_size(args.kv_dtype))};
  }
  const quant::Fp8KeyLayout layout{.num_codes = width - args.num_rotary,
                                   .num_rotary = args.num_rotary};
  return {.width = width,
          .num_codes = static_cast<int>(layout.num_codes),
          .row_bytes = static_cast<int>(layout.row_bytes())};
}

}  // namespace

Result<void> launch_portable_sparse_attention(const DeviceSparseAttentionArgs& args,
                                              device::Stream& stream) {
  DCHECK(args.head_dim % 16 == 0 && args.head_dim <= kPortableAttentionWidth) << args.head_dim;
  if (args.m == 0) return {};
  static_assert(PortableAttentionLayout(kPortableAttentionWidth).bytes <= kLeastSharedBytes);
  constexpr float kLog2E = 1.4426950408889634f;
  const int32_t head_tiles = ceil_div(args.heads, kPortableAttentionHeads);
  const PortableAttentionParams params{.q = static_cast<const uint8_t*>(args.q),
                                       .window = list_of(args.window),
                                       .entries = list_of(args.entries),
                                       .format = format_of(args),
                                       .sink = args.sink,
                                       .scale = args.scale * kLog2E,
                                       .out = static_cast<uint16_t*>(args.out.bf16),
                                       .heads = args.heads,
                                       .head_tiles = head_tiles};
  const LaunchShape shape{.grid = static_cast<uint32_t>(args.m * head_tiles),
                          .block = 256,
                          .shared_bytes = PortableAttentionLayout(args.head_dim).bytes,
                          .is_dependent = args.is_dependent};
  switch (args.kv_dtype) {
    case DType::kF32:
      return launch_kernel(&portable_sparse_attention<KeyStorage::kF32>, shape, stream, params);
    case DType::kBf16:
      return launch_kernel(&portable_sparse_attention<KeyStorage::kBf16>, shape, stream, params);
    default:
      return launch_kernel(&portable_sparse_attention<KeyStorage::kFp8>, shape, stream, params);
  }
}

}  // namespace nibble::kernels::cuda
