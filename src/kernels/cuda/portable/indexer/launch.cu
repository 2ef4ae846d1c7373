// score(entry) = sum over heads of relu(q_h . key) * weight_h. Entries are the M operand of
// m16n8k16, heads the N operand: a warp takes 16 entries at a time and all heads.
//
// Bytes: an entry's key, 4 per score. FLOPs: 2 heads width per entry.
#include <algorithm>

#include "base/checked_math.h"
#include "kernels/cuda/common/copy_async.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/portable/indexer/launch.h"
#include "kernels/cuda/portable/keys.cuh"
#include "kernels/planned/targets.h"
#include "quant/fp8_key.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int kIndexerWarps = 8, kIndexerTile = 16;  // entries
constexpr int kIndexerMaxWidth = 240, kIndexerMaxHeads = 64;

// DeviceIndexerScoreArgs as the kernel takes them.
struct PortableIndexerParams {
  const uint8_t* q;
  const float* head_weights;
  const uint8_t* pool;
  const int* pages;
  const int* counts;
  int max_pages;
  int entries_per_page;
  KeyRowFormat format;
  int heads;
  int unscored_count;
  int blocks_per_token;
  float* scores;
  int64_t columns;
};

// Shared memory of a block: q and head weights, padded with zeros to whole tiles of eight heads,
// then each warp's tile of keys.
struct IndexerLayout {
  __host__ __device__ constexpr IndexerLayout(int width, int heads)
      : padded_heads((heads + 7) / 8 * 8),
        weights(padded_heads * key_row_stride(width)),
        tiles(weights + (padded_heads * 4 + 15) / 16 * 16),
        tile_bytes(kIndexerTile * key_row_stride(width)),
        bytes(tiles + kIndexerWarps * tile_bytes) {}

  int padded_heads;
  int weights;
  int tiles;
  int tile_bytes;
  int bytes;
};

// Grid: (token, block), block fastest.
template <KeyStorage kStorage>
__global__ void __launch_bounds__(kIndexerWarps * 32)
    portable_indexer_score(const PortableIndexerParams params) {
  extern __shared__ __align__(16) uint8_t memory[];
  const int width = params.format.width, stride = key_row_stride(width), runs = width / 8;
  const IndexerLayout layout(width, params.heads);
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const auto token = static_cast<int>(blockIdx.x) / params.blocks_per_token;
  const auto block = static_cast<int>(blockIdx.x) % params.blocks_per_token;
  auto* const weights = reinterpret_cast<float*>(memory + layout.weights);
  uint8_t* const tile = memory + layout.tiles + warp * layout.tile_bytes;

  launch_dependents();
  wait_for_predecessors();
  const int count = __ldg(params.counts + token);
  if (count <= params.unscored_count) return;
  for (int i = thread; i < layout.padded_heads * runs; i += kIndexerWarps * 32) {
    const int head = i / runs, run = i % runs;
    const bool is_present = head < params.heads;
    const int64_t row = static_cast<int64_t>(token) * params.heads + head;
    copy_async_16(shared_address(memory + head * stride + 16 * run),
                  is_present ? params.q + row * (2 * width) + 16 * run : params.q,
                  is_present);
  }
  for (int head = thread; head < layout.padded_heads; head += kIndexerWarps * 32) {
    weights[head] =
        head < params.heads
            ? __ldcg(params.head_weights + static_cast<int64_t>(token) * params.heads + head)
            : 0.0f;
  }
  copy_async_wait_all();
  __syncthreads();

  const auto key_row = [&](int entry) -> const uint8_t* {
    if (entry >= count) return nullptr;
    const int page = __ldg(params.pages + static_cast<int64_t>(token) * params.max_pages +
                           entry / params.entries_per_page);
    return params.pool + (static_cast<int64_t>(page) * params.entries_per_page +
                          entry % params.entries_per_page) *
                             params.format.row_bytes;
  };
  const uint32_t key_address =
      shared_address(tile + (lane / 8 % 2 * 8 + lane % 8) * stride + lane / 16 * 16);
  const uint32_t q_address = shared_address(memory + lane % 8 * stride);
  const int step = params.blocks_per_token * kIndexerWarps * kIndexerTile;
  for (int first = (block * kIndexerWarps + warp) * kIndexerTile; first < count; first += step) {
    fetch_key_rows<kStorage>(
        params.format, 0, kIndexerTile, 1, [&](int entry) { return key_row(first + entry); }, tile);
    __syncwarp();
    float scale[2] = {1.0f, 1.0f};  // of entries g and g + 8
    if constexpr (kStorage == KeyStorage::kFp8Index) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint8_t* const row = key_row(first + g + 8 * half);
        if (row != nullptr) scale[half] = __ldcg(reinterpret_cast<const float*>(row + width));
      }
    }
    float sums[2] = {};
    for (int head = 0; head < layout.padded_heads; head += 8) {
      float dots[4] = {};
      for (int k = 0; k < width; k += 32) {
        const bool has_second = k + 16 < width;
        uint32_t a[4], b[4];
        load_matrices(
            b, q_address + head * stride + 2 * k + (has_second ? lane / 8 : lane / 8 % 2) * 16);
        load_matrices(a, key_address + 2 * k);
        mma_bf16(dots, a, b[0], b[1]);
        if (has_second) {
          load_matrices(a, key_address + 2 * k + 32);
          mma_bf16(dots, a, b[2], b[3]);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[i / 2] =
            fmaf(relu(dots[i] * scale[i / 2]), weights[head + 2 * t + i % 2], sums[i / 2]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sums[half] += __shfl_xor_sync(~0U, sums[half], 1);
      sums[half] += __shfl_xor_sync(~0U, sums[half], 2);
      const int entry = first + g + 8 * half;
      // -0 + 0 is +0.
      if (t == 0 && entry < count) {
        params.scores[token * params.columns + entry] = sums[half] + 0.0f;
      }
    }
    __syncwarp();  // the tile has been read
  }
}

int row_bytes(const DeviceIndexerScoreArgs& args) {
  const int64_t bytes = args.key_dtype == DType::kF8E4m3 ? quant::fp8_index_key_bytes(args.width)
                                                         : args.width * dtype_size(args.key_dtype);
  return static_cast<int>(bytes);
}

}  // namespace

Result<void> launch_portable_indexer_score(const DeviceIndexerScoreArgs& args,
                                           device::Stream& stream) {
  DCHECK(args.width % 16 == 0 && args.width <= kIndexerMaxWidth) << args.width;
  static_assert(IndexerLayout(kIndexerMaxWidth, kIndexerMaxHeads).bytes <= kLeastSharedBytes);
  if (args.m == 0 || args.columns == 0) return {};
  constexpr int64_t kEntries = kIndexerWarps * kIndexerTile, kBlocksPerUnit = 2;
  const auto blocks =
      static_cast<int32_t>(std::clamp(ceil_div(kBlocksPerUnit * args.num_units, int64_t{args.m}),
                                      int64_t{1},
                                      ceil_div(args.columns, kEntries)));
  const PortableIndexerParams params{.q = static_cast<const uint8_t*>(args.q),
                                     .head_weights = args.head_weights,
                                     .pool = static_cast<const uint8_t*>(args.keys.pool),
                                     .pages = args.keys.pages,
                                     .counts = args.keys.counts,
                                     .max_pages = args.keys.max_pages,
                                     .entries_per_page = args.keys.entries_per_page,
                                     .format = {.width = args.width, .row_bytes = row_bytes(args)},
                                     .heads = args.heads,
                                     .unscored_count = args.unscored_count,
                                     .blocks_per_token = blocks,
                                     .scores = args.scores,
                                     .columns = args.columns};
  const LaunchShape shape{.grid = static_cast<uint32_t>(args.m * blocks),
                          .block = kIndexerWarps * 32,
                          .shared_bytes = IndexerLayout(args.width, args.heads).bytes,
                          .is_dependent = args.is_dependent};
  switch (args.key_dtype) {
    case DType::kF32:
      return launch_kernel(&portable_indexer_score<KeyStorage::kF32>, shape, stream, params);
    case DType::kBf16:
      return launch_kernel(&portable_indexer_score<KeyStorage::kBf16>, shape, stream, params);
    default:
      return launch_kernel(&portable_indexer_score<KeyStorage::kFp8Index>, shape, stream, params);
  }
}

}  // namespace nibble::kernels::cuda
