// Shared between the files that make a plan.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan.h"
#include "models/deepseek_v4/config.h"
#include "models/deepseek_v4/inventory.h"
#include "models/deepseek_v4/numerics.h"

namespace nibble::engine::internal {

// How a module's bytes spread over devices.
enum class Spread : uint8_t { kReplicated, kTensorParallel, kExperts };

// The last component of a module's name: "wq_a".
std::string_view leaf_of(std::string_view module);

Spread spread_of(const quant::DetectedModule& module);

// Devices among which a module is split.
int32_t num_shares(Spread spread, const PlanOptions& options);

// The draft that the tensors describe.
models::deepseek_v4::DraftKind draft_kind(const quant::Detection& detection);

models::deepseek_v4::Numerics numerics_of(const PlanOptions& options);
// With keys in another form.
models::deepseek_v4::Numerics numerics_of(const PlanOptions& options, models::KvDtype kv_dtype);

// How a plan routes.
kernels::RouteOptions routing_of(const PlanOptions& options);

// Memory and speed stay unknown, because of that. The first reason is kept.
void leave_sizes_unknown(Plan& plan, std::string why);

// Kernels, formats, resident bytes; K and P3 diagnostics.
void plan_modules(const quant::Detection& detection, Plan& plan);
// Ops without weights. V4 only.
void plan_ops(const models::deepseek_v4::Config& config, Plan& plan);

// What a device holds, and what a decode step reads and launches, where sizes are known. V4 only.
void plan_memory_and_speed(const models::deepseek_v4::Config& config,
                           const quant::Detection& detection,
                           Plan& plan);

}  // namespace nibble::engine::internal
