// The indexer's scores and selection (specification 3.6), and the token embedding.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/reference/dot.h"
#include "kernels/reference/ops_launchers.h"
#include "kernels/reference/ops_rank.h"
#include "quant/fp8_key.h"
#include "quant/numeric.h"

namespace nibble::kernels::reference {
namespace {

float element(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kBf16:
      return quant::bf16_to_f32(static_cast<const uint16_t*>(data)[index]);
    case DType::kF16:
      return quant::f16_to_f32(static_cast<const uint16_t*>(data)[index]);
    default:
      return static_cast<const float*>(data)[index];
  }
}

// A row of index keys as f32.
std::vector<float> index_key(const void* base, DType dtype, int64_t row, int64_t width) {
  std::vector<float> key(static_cast<size_t>(width));
  if (dtype == DType::kF8E4m3) {
    quant::decode_fp8_index_key(
        static_cast<const std::byte*>(base) + row * quant::fp8_index_key_bytes(width), key);
    return key;
  }
  for (int64_t i = 0; i < width; ++i) {
    key[static_cast<size_t>(i)] = element(base, dtype, row * width + i);
  }
  return key;
}

int64_t pool_row(const PagedRows& rows, int64_t entry) {
  const PageId page = rows.pages[static_cast<size_t>(entry / rows.entries_per_page)];
  return int64_t{page.value} * rows.entries_per_page + entry % rows.entries_per_page;
}

}  // namespace

Result<void> indexer_score(const IndexerScoreArgs& args, device::Stream&) {
  const int64_t heads = args.q.shape[1];
  const int64_t d = args.q.shape[2];
  for (int64_t t = 0; t < args.q.num_rows(); ++t) {
    const PagedRows& keys = args.keys[static_cast<size_t>(t)];
    for (int64_t c = 0; c < keys.count; ++c) {
      const std::vector<float> key = index_key(keys.base, args.key_dtype, pool_row(keys, c), d);
      double score = 0;
      for (int64_t h = 0; h < heads; ++h) {
        const float* q = args.q.row<float>(t) + h * d;
        score += std::max(dot(q, key.data(), d), 0.0) * args.head_weights.row<float>(t)[h];
      }
      args.scores.row<float>(t)[c] = static_cast<float>(score) + 0.0f;  // -0 + 0 is +0
    }
  }
  return {};
}

Result<void> top_k(const TopKArgs& args, device::Stream&) {
  for (int64_t t = 0; t < args.scores.num_rows(); ++t) {
    const float* scores = args.scores.row<float>(t);
    std::vector<int32_t> order(static_cast<size_t>(args.counts[static_cast<size_t>(t)]));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [scores](int32_t a, int32_t b) {
      return rank_of(scores[a]) > rank_of(scores[b]);
    });
    order.resize(std::min(order.size(), static_cast<size_t>(args.k)));
    std::sort(order.begin(), order.end());
    std::copy(order.begin(), order.end(), args.indices.row<int32_t>(t));
    args.num_selected[static_cast<size_t>(t)] = static_cast<int32_t>(order.size());
  }
  return {};
}

Result<void> embed(const EmbedArgs& args, device::Stream&) {
  const int64_t width = args.table.shape[1];
  for (int64_t t = 0; t < args.out.num_rows(); ++t) {
    const int64_t first = args.ids[static_cast<size_t>(t)] * args.table.row_stride;
    for (int64_t copy = 0; copy < args.copies; ++copy) {
      float* out = args.out.row<float>(t) + copy * width;
      for (int64_t i = 0; i < width; ++i) {
        out[i] = element(args.table.data, args.table.dtype, first + i);
      }
    }
  }
  return {};
}

}  // namespace nibble::kernels::reference
