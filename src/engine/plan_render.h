// A plan as text for people and as JSON for programs.
#pragma once

#include <span>
#include <string>

#include "base/json.h"
#include "engine/plan.h"

namespace nibble::engine {

// One plan in full.
std::string plan_text(const Plan& plan);

// What programs print before they load a model: formats with their kernels and why, memory.
std::string short_plan_text(const Plan& plan);

// Field names are part of the interface: errors, warnings, notes, modules, ops, memory, download,
// performance, forced_kernel_cost.
json::Value plan_json(const Plan& plan);

// Several targets or machines side by side, one line each.
std::string comparison_text(std::span<const Plan> plans);

}  // namespace nibble::engine
