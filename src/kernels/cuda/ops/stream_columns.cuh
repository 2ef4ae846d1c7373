// Four neighbouring columns of every residual stream of a token, as a thread updates them. Rows are
// vectors. Device code only.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/ops/rows.cuh"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

__device__ __forceinline__ float4 multiply(float factor, const float4& v) {
  return {factor * v.x, factor * v.y, factor * v.z, factor * v.w};
}
__device__ __forceinline__ float4 multiply_add(float factor, const float4& v, const float4& sum) {
  return {fmaf(factor, v.x, sum.x),
          fmaf(factor, v.y, sum.y),
          fmaf(factor, v.z, sum.z),
          fmaf(factor, v.w, sum.w)};
}

// `comb`, then `post` of a token, and padding.
template <int kMult>
struct alignas(16) TokenCoefficients {
  static constexpr int kCount = kMult * (kMult + 1);
  float values[(kCount + 3) / 4 * 4];
};

// What y grows by: its further splits, then the pairs.
__device__ __forceinline__ int num_addends(const DeviceStreamUpdateArgs& args) {
  return args.y.splits - 1 + args.choices;
}
__device__ __forceinline__ const float* y_split(const DeviceStreamUpdateArgs& args,
                                                int64_t token,
                                                int64_t column,
                                                int index) {
  return args.y.data + (int64_t{index} * args.m + token) * args.hidden + column;
}
__device__ __forceinline__ const float* y_pair(const DeviceStreamUpdateArgs& args,
                                               int64_t token,
                                               int64_t column,
                                               int choice) {
  return args.pairs + (token * args.choices + choice) * args.hidden + column;
}

// Where four columns of every stream lie, and the first of what is added to them.
template <int kMult>
struct ColumnPlaces {
  static constexpr int kAddends = 7;
  float* streams = nullptr;  // null beyond the last token or column
  int64_t stream_step;
  const float* y = nullptr;  // null without an update
  const float* addends[kAddends];
  int count;  // of all addends

  __device__ __forceinline__ ColumnPlaces(const DeviceStreamUpdateArgs& args,
                                          int64_t token,
                                          int64_t column)
      : stream_step(args.hidden), count(num_addends(args)) {
    if (token >= args.m || column >= args.hidden) return;
    streams = args.streams + token * kMult * args.hidden + column;
    if (args.post == nullptr) return;
    y = y_split(args, token, column, 0);
    const int splits = args.y.splits - 1;
    const int64_t split_step = args.m * args.hidden;
    const float* const first_pair = y_pair(args, token, column, 0);
    const float* next = splits > 0 ? y + split_step : first_pair;
#pragma unroll
    for (int i = 0; i < kAddends; ++i) {
      addends[i] = next;
      next = i + 1 == splits ? first_pair : next + (i < splits ? split_step : args.hidden);
    }
  }
  // Has them made now, while there is nothing else to do.
  __device__ __forceinline__ void keep() {
    keep_in_register(streams);
    keep_in_register(y);
#pragma unroll
    for (const float*& addend : addends) keep_in_register(addend);
  }
};

// Four columns of every stream, and what is added to them.
template <int kMult>
struct Columns {
  static constexpr int kPairsAtOnce = 6;  // that are copied with the streams
  static constexpr int kAddendsAtOnce = ColumnPlaces<kMult>::kAddends;
  float4 streams[kMult];
  float4 y;
  float4 addends[kAddendsAtOnce];

  __device__ __forceinline__ Columns() : streams{}, y{} {}

  __device__ __forceinline__ void read(const DeviceStreamUpdateArgs& args,
                                       int64_t token,
                                       int64_t column) {
    read(ColumnPlaces<kMult>(args, token, column));
  }
  __device__ __forceinline__ void read(const ColumnPlaces<kMult>& places) {
    if (places.streams == nullptr) return;
#pragma unroll
    for (int i = 0; i < kMult; ++i) {
      streams[i] = load_vector(places.streams + i * places.stream_step);
    }
    if (places.y == nullptr) return;
    y = load_vector(places.y);
#pragma unroll
    for (int i = 0; i < kAddendsAtOnce; ++i) {
      if (i < places.count) addends[i] = load_vector(places.addends[i]);
    }
  }
  // Adds up y after read().
  __device__ __forceinline__ void add(const DeviceStreamUpdateArgs& args,
                                      int64_t token,
                                      int64_t column) {
    if (args.post == nullptr || token >= args.m || column >= args.hidden) return;
    const int count = num_addends(args);
#pragma unroll
    for (int i = 0; i < kAddendsAtOnce; ++i) {
      if (i < count) y = y + addends[i];
    }
#pragma unroll 1
    for (int i = kAddendsAtOnce; i < count; ++i)
      y = y + load_vector(addend(args, token, column, i));
  }
  // The same by way of shared memory: asks for what read() reads, into every 32nd of `slots`, and
  // takes it from there when it has come, added up.
  __device__ __forceinline__ static void request(const DeviceStreamUpdateArgs& args,
                                                 int64_t token,
                                                 int64_t column,
                                                 float4* slots) {
    if (token >= args.m || column >= args.hidden) return;
    const auto copy = [&](int slot, const float* from) {
      copy_16_to_shared(shared_address(slots + slot * 32), from);
    };
    const float* const state = args.streams + token * kMult * args.hidden + column;
#pragma unroll
    for (int i = 0; i < kMult; ++i) copy(i, state + i * args.hidden);
    if (args.post == nullptr) return;
    copy(kMult, args.y.data + token * args.hidden + column);
#pragma unroll
    for (int j = 0; j < kPairsAtOnce; ++j) {
      if (j < args.choices) copy(kMult + 1 + j, y_pair(args, token, column, j));
    }
  }
  __device__ __forceinline__ void take(const DeviceStreamUpdateArgs& args,
                                       int64_t token,
                                       int64_t column,
                                       const float4* slots) {
    if (token >= args.m || column >= args.hidden) return;
#pragma unroll
    for (int i = 0; i < kMult; ++i) streams[i] = slots[i * 32];
    if (args.post == nullptr) return;
    y = slots[kMult * 32];
#pragma unroll 4
    for (int i = 1; i < args.y.splits; ++i) y = y + load_vector(y_split(args, token, column, i));
#pragma unroll
    for (int j = 0; j < kPairsAtOnce; ++j) {
      if (j < args.choices) y = y + slots[(kMult + 1 + j) * 32];
    }
    for (int j = kPairsAtOnce; j < args.choices; ++j) {
      y = y + load_vector(y_pair(args, token, column, j));
    }
  }
  // The new state in place of the old one, also in memory; returns the sum of its squares.
  __device__ __forceinline__ float update(const DeviceStreamUpdateArgs& args,
                                          const TokenCoefficients<kMult> coefficients,
                                          int64_t token,
                                          int64_t column) {
    const bool is_there = args.post != nullptr && token < args.m && column < args.hidden;
    return update(is_there ? args.streams + token * kMult * args.hidden + column : nullptr,
                  args.hidden,
                  coefficients);
  }
  //   to: where the first stream's columns lie; null: the old state stays
  __device__ __forceinline__ float update(float* to,
                                          int64_t stream_step,
                                          const TokenCoefficients<kMult>& coefficients) {
    if (to != nullptr) {
      const auto& c = coefficients.values;
      float4 updated[kMult];
#pragma unroll
      for (int j = 0; j < kMult; ++j) {
        updated[j] = multiply(c[kMult * kMult + j], y);
#pragma unroll
        for (int i = 0; i < kMult; ++i) {
          updated[j] = multiply_add(c[i * kMult + j], streams[i], updated[j]);
        }
      }
#pragma unroll
      for (int j = 0; j < kMult; ++j) {
        streams[j] = updated[j];
        store_vector(to + j * stream_step, updated[j]);
      }
    }
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kMult; ++j) squares += sum_of_squares(streams[j]);
    return squares;
  }

 private:
  __device__ __forceinline__ static const float* addend(const DeviceStreamUpdateArgs& args,
                                                        int64_t token,
                                                        int64_t column,
                                                        int index) {
    const int splits = args.y.splits - 1;
    return index < splits ? y_split(args, token, column, index + 1)
                          : y_pair(args, token, column, index - splits);
  }
};

}  // namespace nibble::kernels::cuda
