// How the mixing values of a hyper-connection become its coefficients (specification 3.3).
#pragma once

#include <cstdint>
#include <vector>

namespace nibble::kernels::reference {

struct HyperSplit {
  std::vector<double> pre;   // [M]
  std::vector<double> post;  // [M]; empty for the head
  std::vector<double> comb;  // [M * M], row: source stream, column: destination; empty for the head
};

// mix: 2 M + M * M values of a half layer, or M of the head; base: one for each; scale: 3, or 1.
HyperSplit split_mix(const std::vector<double>& mix,
                     const float* base,
                     const float* scale,
                     int32_t hc_mult,
                     int32_t sinkhorn_iters,
                     double eps);

// x[i] = sum_m pre[m] * state[m, i].   state: [M, d]
void read_streams(const float* state, const std::vector<double>& pre, int64_t d, float* x);

}  // namespace nibble::kernels::reference
