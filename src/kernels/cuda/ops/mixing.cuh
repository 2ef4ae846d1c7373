// What the sums of the mixers' dots become: logits, shares of the streams, `post` and `comb`.
// Source: spec "deepseek-v4" 3.3. Device code only.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/ptx.cuh"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

__device__ __forceinline__ float sigmoid(float x) {
  return approximate_reciprocal(1.0f + expf(-x));
}

// A row of a mixer, of the lane of its number; zeros behind the last. Made of weights.
struct MixerRow {
  float base = 0, scale = 0;
  float inverse_width;  // of all streams

  __device__ __forceinline__ explicit MixerRow(const DeviceStreamMixArgs& args)
      : inverse_width(1.0f / static_cast<float>(args.hc_mult * args.hidden)) {
    const auto lane = static_cast<int>(threadIdx.x % 32);
    keep_in_register(inverse_width);  // made now: a division
    if (lane >= args.num_mix) return;
    base = args.base[lane];
    scale = args.scale[min(lane / args.hc_mult, 2)];
  }
  //   dot: of the row with all streams; squares: their sum
  __device__ __forceinline__ float logit(const DeviceStreamMixArgs& args,
                                         float dot,
                                         float squares) const {
    const float inverse_rms = rsqrtf(fmaf(squares, inverse_width, args.norm_eps));
    return dot * inverse_rms * scale + base;
  }
};

// The products of the other three of four numbers, and 1 over the product of all, which is normal.
// Divides by any of them: the unit of reciprocals takes as long as eight multiplications, and what
// is made of `others` need not wait for it.
struct Quotients {
  float others[4], inverse;

  __device__ __forceinline__ explicit Quotients(const float (&x)[4]) {
    const float first = x[0] * x[1], second = x[2] * x[3];
    inverse = approximate_reciprocal(first * second);
    others[0] = x[1] * second, others[1] = x[0] * second;
    others[2] = x[3] * first, others[3] = x[2] * first;
  }
};

// What Sinkhorn multiplies the rows and columns of a 4x4 matrix by.
struct SinkhornFactors {
  float rows[4], columns[4];
};
// Columns are normalised last. Ends early where rows have converged to rounding. It keeps what to
// divide by: a row with factor 1 / d has the sum s / d, s that over its columns with their factors,
// and is to be divided by s / d + eps, so that s + eps d takes the place of d. No element is below
// eps or above 1 + eps, which keeps the products of four within 1e-23 and 1.
__device__ __forceinline__ SinkhornFactors sinkhorn_factors(const float (&matrix)[4][4],
                                                            int iterations,
                                                            float eps) {
  constexpr float kRounding = 0x1p-22f;  // changes below this are of the last bits
  float rows[4] = {1, 1, 1, 1}, columns[4] = {1, 1, 1, 1};
  // Whether any of `divisors` changed by more than rounding.
  const auto normalise = [eps](float(&divisors)[4], const float(&by)[4], const auto& element) {
    const Quotients q(by);
    float change = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float sum = fmaf(element(i, 0), q.others[0], element(i, 1) * q.others[1]) +
                        fmaf(element(i, 2), q.others[2], element(i, 3) * q.others[3]);
      const float divisor = fmaf(sum, q.inverse, eps * divisors[i]);
      change = fmaxf(change, fabsf(divisor - divisors[i]) - kRounding * divisor);
      divisors[i] = divisor;
    }
    return change > 0;
  };
  const auto in_row = [&](int i, int j) { return matrix[i][j]; };
  const auto in_column = [&](int j, int i) { return matrix[i][j]; };
  normalise(columns, rows, in_column);
#pragma unroll 1
  for (int i = 1; i < iterations; ++i) {
    const bool has_changed = normalise(rows, columns, in_row);
    normalise(columns, rows, in_column);
    if (!has_changed) break;
  }
  const Quotients of_rows(rows), of_columns(columns);
  SinkhornFactors factors;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    factors.rows[i] = of_rows.others[i] * of_rows.inverse;
    factors.columns[i] = of_columns.others[i] * of_columns.inverse;
  }
  return factors;
}

// Softmax of the rows of a 4x4 matrix, then Sinkhorn. Lane l gives and gets element l % 16, row by
// row. Every lane holds all factors, so that none waits for another.
__device__ __forceinline__ float sinkhorn4(float logit, int iterations, float eps) {
  const auto lane = static_cast<int>(threadIdx.x % 16);
  float largest = fmaxf(logit, __shfl_xor_sync(~0U, logit, 1));
  largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 2));
  const float power = expf(logit - largest);
  float sum = power + __shfl_xor_sync(~0U, power, 1);
  sum += __shfl_xor_sync(~0U, sum, 2);
  const float value = power / sum + eps;
  float matrix[4][4];
#pragma unroll
  for (int i = 0; i < 16; ++i) matrix[i / 4][i % 4] = __shfl_sync(~0U, value, i);
  const SinkhornFactors factors = sinkhorn_factors(matrix, iterations, eps);
  const auto at = [](const float(&x)[4], int high, int low) {
    return high != 0 ? (low != 0 ? x[3] : x[2]) : (low != 0 ? x[1] : x[0]);
  };
  return value * at(factors.rows, lane & 8, lane & 4) * at(factors.columns, lane & 2, lane & 1);
}

// The same by one thread, in place, with the same bits.
__device__ __forceinline__ void sinkhorn4(float (&matrix)[4][4], int iterations, float eps) {
#pragma unroll
  for (float(&row)[4] : matrix) {
    const float largest = fmaxf(fmaxf(row[0], row[1]), fmaxf(row[2], row[3]));
#pragma unroll
    for (float& value : row) value = expf(value - largest);
    const float sum = (row[0] + row[1]) + (row[2] + row[3]);
#pragma unroll
    for (float& value : row) value = value / sum + eps;
  }
  const SinkhornFactors factors = sinkhorn_factors(matrix, iterations, eps);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float& value = matrix[i / 4][i % 4];
    value = value * factors.rows[i / 4] * factors.columns[i % 4];
  }
}

// Writes `post` and `comb` of token t, of four streams. One warp.
//   logit: of the mixer's row of the lane
__device__ __forceinline__ void write_coefficients4(const DeviceStreamMixArgs& args,
                                                    float logit,
                                                    int64_t t) {
  constexpr int kMult = 4, kSquare = kMult * kMult;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  if (lane / kMult == 1) args.post[t * kMult + lane % kMult] = 2.0f * sigmoid(logit);
  const float value = sinkhorn4(
      __shfl_sync(~0U, logit, 2 * kMult + lane % kSquare), args.sinkhorn_iters, args.hc_eps);
  if (lane < kSquare) args.comb[t * kSquare + lane] = value;
}

}  // namespace nibble::kernels::cuda
