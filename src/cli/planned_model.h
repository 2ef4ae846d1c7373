// The plan of a model that is about to be loaded: what the program will execute, made and checked
// before the first weight is read.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "cli/flags.h"
#include "device/device.h"
#include "engine/plan.h"

namespace nibble::cli {

// What a program will ask of the model.
struct ModelWork {
  int32_t context = 0;      // tokens per sequence; 0: the longest that model and memory allow
  int32_t concurrency = 1;  // sequences
  int32_t pass_tokens = 0;  // of one pass; 0: the plan's default
  bool needs_draft = false;
  std::optional<engine::KvDivision> kv = {};  // for an engine: decides the concurrency
};

// Refuses with the plan's words: kUnsupported for its errors and for what this build does not run,
// kExhausted for what the memory does not hold.
Result<engine::Plan> plan_model(const checkpoint::Checkpoint& checkpoint,
                                const device::DeviceInfo& device,
                                const ModelFlags& flags,
                                const ModelWork& work);

// The short form of a plan, on standard error.
void print_plan(const engine::Plan& plan);

// kUnsupported with the first error of the plans, and how many more there are.
Result<void> refuse_errors(std::span<const engine::Plan> plans);

// What the flags of `nibble plan` and those of programs that load a model ask of a plan alike.
engine::PlanOptions plan_options(const PlanChecks& checks,
                                 const std::string& only_kernel,
                                 models::KvDtype kv_dtype);

}  // namespace nibble::cli
