// Sparse attention (specification 3.4 Core) and the compressor's pooling (3.5), in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/dot.h"
#include "kernels/reference/ops_launchers.h"
#include "quant/fp8_key.h"
#include "quant/numeric.h"

namespace nibble::kernels::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

std::vector<float> fp8_row(const void* pool, int64_t row, const quant::Fp8KeyLayout& layout) {
  std::vector<float> values(static_cast<size_t>(layout.width()));
  quant::decode_fp8_key(
      static_cast<const std::byte*>(pool) + row * layout.row_bytes(), layout, values);
  return values;
}

std::vector<float> plain_row(const void* pool, DType dtype, int64_t row, int64_t width) {
  std::vector<float> values(static_cast<size_t>(width));
  for (int64_t i = 0; i < width; ++i) {
    const int64_t element = row * width + i;
    values[static_cast<size_t>(i)] =
        dtype == DType::kBf16 ? quant::bf16_to_f32(static_cast<const uint16_t*>(pool)[element])
                              : static_cast<const float*>(pool)[element];
  }
  return values;
}

// The visible keys of one token as f32 rows: window first, then entries.
std::vector<std::vector<float>> visible_rows(const KeySet& keys, const SparseAttentionArgs& args) {
  const int64_t width = args.q.shape[2];
  const quant::Fp8KeyLayout layout{.num_codes = width - args.num_rotary,
                                   .num_rotary = args.num_rotary};
  const auto pool_row = [&](const void* pool, int64_t row) {
    return args.kv_dtype == DType::kF8E4m3 ? fp8_row(pool, row, layout)
                                           : plain_row(pool, args.kv_dtype, row, width);
  };
  std::vector<std::vector<float>> rows;
  for (const int32_t row : keys.window_rows) rows.push_back(pool_row(keys.window, row));
  for (const int32_t row : keys.entry_rows) rows.push_back(pool_row(keys.entries, row));
  return rows;
}

// One query head. The sink takes part in the maximum, so that a sink far above every logit does not
// overflow; without any finite logit the output is zero.
void attend(const float* q,
            const std::vector<std::vector<float>>& keys,
            float scale,
            float sink,
            int64_t d,
            float* out) {
  std::vector<double> logits;
  double max = sink;
  for (const auto& key : keys) {
    logits.push_back(scale * dot(q, key.data(), d));
    max = std::max(max, logits.back());
  }
  std::fill(out, out + d, 0.0f);
  if (max == kMinusInfinity) return;

  double denominator = std::exp(sink - max);
  std::vector<double> sums(static_cast<size_t>(d), 0.0);
  for (size_t j = 0; j < keys.size(); ++j) {
    const double p = std::exp(logits[j] - max);
    denominator += p;
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += p * keys[j][i];
  }
  for (size_t i = 0; i < sums.size(); ++i) out[i] = static_cast<float>(sums[i] / denominator);
}

}  // namespace

Result<void> sparse_attention(const SparseAttentionArgs& args, device::Stream&) {
  const int64_t heads = args.q.shape[1];
  const int64_t d = args.q.shape[2];
  for (int64_t t = 0; t < args.q.num_rows(); ++t) {
    const auto keys = visible_rows(args.keys[static_cast<size_t>(t)], args);
    for (int64_t h = 0; h < heads; ++h) {
      attend(args.q.row<float>(t) + h * d,
             keys,
             args.scale,
             args.sink[h],
             d,
             args.out.row<float>(t) + h * d);
    }
  }
  return {};
}

Result<void> compress(const CompressArgs& args, device::Stream&) {
  const int64_t width = args.out.shape[1];
  for (int64_t entry = 0; entry < args.out.num_rows(); ++entry) {
    for (int64_t a = 0; a < width; ++a) {
      double max = kMinusInfinity;
      double denominator = 0;
      double sum = 0;
      const auto begin = static_cast<size_t>(entry * args.num_slots);
      const auto end = begin + static_cast<size_t>(args.num_slots);
      for (size_t s = begin; s < end; ++s) {
        if (args.gates[s] != nullptr) max = std::max(max, static_cast<double>(args.gates[s][a]));
      }
      for (size_t s = begin; s < end; ++s) {
        if (args.gates[s] == nullptr) continue;
        const double weight = std::exp(args.gates[s][a] - max);
        denominator += weight;
        sum += weight * args.values[s][a];
      }
      args.out.row<float>(entry)[a] = static_cast<float>(sum / denominator);
    }
  }
  return {};
}

}  // namespace nibble::kernels::reference
