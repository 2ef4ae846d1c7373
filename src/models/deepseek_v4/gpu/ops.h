// The kernels without weights of a step on a GPU, chosen once at load.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "kernels/kernel.h"
#include "models/deepseek_v4/config.h"
#include "models/deepseek_v4/numerics.h"

namespace nibble::models::deepseek_v4::gpu {

struct Ops {
  kernels::Route plan;
  kernels::Route copy_rows;
  kernels::Route make_slots;
  kernels::Route embed;
  kernels::Route stream_update;
  kernels::Route stream_mix;
  kernels::Route latents;
  kernels::Route queries;
  kernels::Route attention;
  kernels::Route attended;
  kernels::Route indexer_score;
  kernels::Route top_k;
  kernels::Route select_experts;
  kernels::Route quantize;
  kernels::Route rms_norm;
  kernels::Route join_mtp;
  kernels::Route sample;
  std::optional<kernels::Route> matmul_pair;  // two products of few rows in one launch
  std::optional<kernels::Route> stream_turn;  // update and mix of few rows in one launch

  // Null where there is none.
  const kernels::Route* pair() const { return matmul_pair ? &*matmul_pair : nullptr; }
  // The update and the mix of m rows; null where they are two launches.
  const kernels::Route* turn(int32_t m) const;
};

// An op of the step and what it is asked to do.
struct OpProblem {
  std::string_view module;  // as in plans: "attention"
  kernels::Problem problem;
  kernels::Route Ops::*route = nullptr;
};
std::vector<OpProblem> op_problems(const Config& config, const Numerics& numerics);

// kUnsupported when an op has no kernel for this device.
Result<Ops> route_ops(const Config& config,
                      const Numerics& numerics,
                      const device::DeviceInfo& device,
                      const kernels::RouteOptions& routing);

}  // namespace nibble::models::deepseek_v4::gpu
