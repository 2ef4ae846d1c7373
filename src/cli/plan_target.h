// What a plan is made from: a model directory, or a repository of the hub by its headers alone.
#pragma once

#include <string>

#include "base/result.h"
#include "checkpoint/model_description.h"
#include "cli/flags.h"
#include "quant/detect.h"

namespace nibble::cli {

struct PlanTarget {
  checkpoint::LocalModel model;  // without files for remote targets
  bool is_local = true;

  // Empty for remote targets. Must not outlive this object.
  quant::ReadTensorBytes reader() const;
};

// A directory that exists, else org/name[@revision] or a URL. Remote weights are never read: two
// ranges a shard at most.
Result<PlanTarget> open_plan_target(const std::string& target, const PlanFlags& flags);

}  // namespace nibble::cli
