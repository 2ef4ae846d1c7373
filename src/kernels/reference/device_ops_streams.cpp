// The residual streams of a GPU step (specification 3.3, 3.2) and what joins them for MTP (5.1).
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/checked_math.h"
#include "kernels/reference/device_ops_launchers.h"
#include "kernels/reference/device_rows.h"
#include "kernels/reference/forms.h"
#include "kernels/reference/hyper_split.h"

namespace nibble::kernels::reference {
namespace {

// What the half layer gave for row t: shared sums, then the pairs of its choices.
std::vector<float> result_row(const DeviceStreamUpdateArgs& args, int64_t t) {
  std::vector<float> y = sum_row(args.y, args.m, args.hidden, t);
  if (args.pairs == nullptr) return y;
  for (int64_t j = 0; j < args.choices; ++j) {
    const float* const pair = args.pairs + (t * args.choices + j) * args.hidden;
    for (size_t i = 0; i < y.size(); ++i) y[i] += pair[i];
  }
  return y;
}

void update_row(const DeviceStreamUpdateArgs& args, int64_t t) {
  const int32_t mult = args.hc_mult;
  const std::vector<float> y = result_row(args, t);
  const float* const post = args.post + t * mult;
  const float* const comb = args.comb + t * mult * mult;
  float* const state = args.streams + t * mult * args.hidden;
  std::vector<double> old(static_cast<size_t>(mult));
  for (int64_t i = 0; i < args.hidden; ++i) {
    for (int32_t m = 0; m < mult; ++m) old[static_cast<size_t>(m)] = state[m * args.hidden + i];
    for (int32_t j = 0; j < mult; ++j) {
      double sum = double{post[j]} * y[static_cast<size_t>(i)];
      for (int32_t m = 0; m < mult; ++m) sum += comb[m * mult + j] * old[static_cast<size_t>(m)];
      state[j * args.hidden + i] = static_cast<float>(sum);
    }
  }
}

// The dots of columns [begin, end) of every stream, and their squares' sum.
void write_partials(
    const DeviceStreamUpdateArgs& args, int64_t t, int64_t begin, int64_t end, float* partials) {
  const float* const state = args.streams + t * args.hc_mult * args.hidden;
  std::vector<double> sums(static_cast<size_t>(args.num_mix) + 1, 0.0);
  for (int64_t m = 0; m < args.hc_mult; ++m) {
    for (int64_t i = m * args.hidden + begin; i < m * args.hidden + end; ++i) {
      for (int64_t r = 0; r < args.num_mix; ++r) {
        sums[static_cast<size_t>(r)] +=
            double{args.fn[r * args.hc_mult * args.hidden + i]} * state[i];
      }
      sums.back() += double{state[i]} * state[i];
    }
  }
  for (size_t r = 0; r < sums.size(); ++r) partials[r] = static_cast<float>(sums[r]);
}

// The mixing values of stream row `row`: the parts' sums over the RMS of the streams.
std::vector<double> mix_of(const DeviceStreamMixArgs& args, int64_t row) {
  std::vector<double> sums(static_cast<size_t>(args.num_mix) + 1, 0.0);
  for (int64_t part = 0; part < args.parts; ++part) {
    const float* const partials =
        args.partials + (row * args.parts + part) * static_cast<int64_t>(sums.size());
    for (size_t r = 0; r < sums.size(); ++r) sums[r] += partials[r];
  }
  const auto width = static_cast<double>(args.hc_mult * args.hidden);
  const double inverse_rms = 1.0 / std::sqrt(sums.back() / width + args.norm_eps);
  sums.pop_back();
  for (double& value : sums) value *= inverse_rms;
  return sums;
}

void store(const std::vector<double>& values, int64_t row, float* out) {
  if (out == nullptr) return;
  const auto width = static_cast<int64_t>(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    out[row * width + static_cast<int64_t>(i)] = static_cast<float>(values[i]);
  }
}

}  // namespace

Result<void> device_stream_update(const DeviceStreamUpdateArgs& args, device::Stream&) {
  for (int64_t t = 0; t < args.m; ++t) {
    if (args.post != nullptr) update_row(args, t);
    if (args.fn == nullptr) continue;
    const int64_t size = round_up(ceil_div(args.hidden, args.parts), int64_t{4});
    for (int64_t part = 0; part < args.parts; ++part) {
      write_partials(args,
                     t,
                     std::min(args.hidden, part * size),
                     std::min(args.hidden, (part + 1) * size),
                     args.partials + (t * args.parts + part) * (args.num_mix + 1));
    }
  }
  return {};
}

Result<void> device_stream_mix(const DeviceStreamMixArgs& args, device::Stream&) {
  for (int64_t t = 0; t < args.m; ++t) {
    std::vector<float> x(static_cast<size_t>(args.hidden), 0.0f);
    const int64_t row = args.rows == nullptr ? t : args.rows[t];
    if (row >= 0) {
      const HyperSplit split = split_mix(
          mix_of(args, row), args.base, args.scale, args.hc_mult, args.sinkhorn_iters, args.hc_eps);
      const float* const streams = args.streams + row * args.hc_mult * args.hidden;
      read_streams(streams, split.pre, args.hidden, x.data());
      normalise(x, args.gamma, args.norm_eps);
      store(split.post, t, args.post);
      store(split.comb, t, args.comb);
    }
    write_forms(args.x, args.m, t, x);
  }
  return {};
}

Result<void> device_stream_turn(const DeviceStreamTurnArgs& args, device::Stream& stream) {
  TRY(device_stream_update(args.update, stream));
  return device_stream_mix(args.mix, stream);
}

Result<void> device_rms_norm(const DeviceRmsNormArgs& args, device::Stream&) {
  for (int64_t t = 0; t < args.m; ++t) {
    std::vector<float> x(args.x + t * args.k, args.x + (t + 1) * args.k);
    normalise(x, args.gamma, args.eps);
    write_forms(args.y, args.m, t, x);
  }
  return {};
}

Result<void> device_join_mtp(const DeviceJoinMtpArgs& args, device::Stream&) {
  for (int64_t row = 0; row < int64_t{args.m} * args.hc_mult; ++row) {
    const auto embedded = sum_row(args.embedded, args.m, args.hidden, row / args.hc_mult);
    const auto projected =
        sum_row(args.projected, int64_t{args.m} * args.hc_mult, args.hidden, row);
    for (size_t i = 0; i < embedded.size(); ++i) {
      args.streams[row * args.hidden + static_cast<int64_t>(i)] = embedded[i] + projected[i];
    }
  }
  return {};
}

}  // namespace nibble::kernels::reference
