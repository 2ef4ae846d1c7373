// The gated activation of the feed-forward layers. Device code only.
#pragma once

namespace nibble::kernels::cuda {

// silu(min(gate, limit)) * clamp(up, -limit, limit); limit infinity: no clamp.
__device__ __forceinline__ float swiglu(float gate, float up, float limit) {
  gate = fminf(gate, limit);
  up = fminf(fmaxf(up, -limit), limit);
  return __fdividef(gate, 1.0f + __expf(-gate)) * up;  // 2 ulp; no slow path
}

}  // namespace nibble::kernels::cuda
