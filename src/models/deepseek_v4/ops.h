// The kernels without weights that the forward pass launches, chosen once at load.
#pragma once

#include "base/result.h"
#include "device/device.h"
#include "kernels/kernel.h"
#include "models/deepseek_v4/config.h"
#include "models/deepseek_v4/numerics.h"

namespace nibble::models::deepseek_v4 {

// Norms and rotations are routed per row width: hidden_size, q_lora_rank, head_dim (heads and
// entries), index_head_dim.
struct Ops {
  kernels::Route embed;
  kernels::Route hyper_pre;
  kernels::Route hyper_post;
  kernels::Route hyper_head;
  kernels::Route norm_hidden;
  kernels::Route norm_q_lora;
  kernels::Route norm_head;
  kernels::Route norm_index;
  kernels::Route rope_head;
  kernels::Route rope_index;
  kernels::Route attention;
  kernels::Route compress_head;
  kernels::Route compress_index;
  kernels::Route indexer_score;
  kernels::Route top_k;
  kernels::Route select_experts;
  kernels::Route swiglu;
  kernels::Route combine_experts;
};

// kUnsupported when an op has no kernel for this device.
Result<Ops> route_ops(const Config& config,
                      const Numerics& numerics,
                      const device::DeviceInfo& device,
                      const kernels::RouteOptions& routing);

}  // namespace nibble::models::deepseek_v4
