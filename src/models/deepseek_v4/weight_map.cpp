#include "models/deepseek_v4/weight_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/utf8.h"
#include "models/deepseek_v4/module_tensors.h"
#include "models/deepseek_v4/tensor_names.h"
#include "quant/numeric.h"
#include "quant/weight_view.h"

namespace nibble::models::deepseek_v4 {
namespace {

std::string describe(const TensorView& view) {
  return fmt::format("{} {}", dtype_name(view.dtype), view.shape.to_string());
}

bool is_float_table(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16;
}

float element_as_f32(const TensorView& view, int64_t i) {
  switch (view.dtype) {
    case DType::kF32:
      return view.as<const float>()[i];
    case DType::kBf16:
      return quant::bf16_to_f32(view.as<const uint16_t>()[i]);
    default:
      return quant::f16_to_f32(view.as<const uint16_t>()[i]);
  }
}

}  // namespace

Result<WeightMap> WeightMap::build(const checkpoint::Checkpoint& checkpoint) {
  WeightMap map(checkpoint);
  map.entries_.reserve(checkpoint.tensors().size());
  for (const TensorMeta& meta : checkpoint.tensors()) {
    TRY_ASSIGN(const TensorView view, checkpoint.tensor(meta.name));
    if (parse_fused_experts(meta.name)) {
      TRY(map.add_fused(meta, view));
    } else {
      TRY(map.add(original_name(meta.name),
                  Entry{.stored_name = meta.name, .view = view, .num_bytes = view.num_bytes()}));
    }
  }
  return map;
}

Result<void> WeightMap::add(std::string name, const Entry& entry) {
  const auto [position, is_new] = entries_.try_emplace(std::move(name), entry);
  if (is_new) return {};
  return data_loss(
      fmt::format("tensors {} and {} both mean {}; expected one of them. Remove the other.",
                  escape_for_display(position->second.stored_name),
                  escape_for_display(entry.stored_name),
                  escape_for_display(position->first)));
}

// One entry per expert, and for gate_up_proj one per half: w1 is the first half of the rows, w3 the
// second.
Result<void> WeightMap::add_fused(const TensorMeta& meta, const TensorView& view) {
  const FusedExperts fused = *parse_fused_experts(meta.name);
  if (view.shape.rank() != 3) {
    return data_loss(fmt::format("tensor {}: {}, expected [n_routed_experts, rows, columns]",
                                 escape_for_display(meta.name),
                                 describe(view)));
  }
  const bool is_split = fused.part == FusedExperts::Part::kGateUp;
  for (int64_t expert = 0; expert < view.shape[0]; ++expert) {
    const TensorView matrix = view.rows(expert, 1).reshaped({view.shape[1], view.shape[2]});
    for (int32_t half = 0; half < (is_split ? 2 : 1); ++half) {
      const std::string_view part = !is_split ? "w2" : (half == 0 ? "w1" : "w3");
      TRY(add(fmt::format("layers.{}.ffn.experts.{}.{}.{}",
                          fused.layer,
                          expert,
                          part,
                          fused.is_scale ? "scale" : "weight"),
              Entry{.stored_name = meta.name,
                    .view = matrix,
                    .half = is_split ? half : -1,
                    .num_bytes = matrix.num_bytes() / (is_split ? 2 : 1)}));
    }
  }
  return {};
}

const WeightMap::Entry* WeightMap::claim(const std::string& name) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return nullptr;
  Entry& entry = found->second;
  CHECK(!entry.is_claimed) << name << " is used twice";
  entry.is_claimed = true;
  claimed_bytes_ += entry.num_bytes;
  return &entry;
}

// "model-00003-of-00046.safetensors: tensor layers.12.ffn.gate.bias"
std::string WeightMap::locate(const Entry& entry) const {
  return fmt::format("{}: tensor {}",
                     escape_for_display(checkpoint_->shard_of(entry.stored_name)),
                     escape_for_display(entry.stored_name));
}

Result<const WeightMap::Entry*> WeightMap::require(const std::string& name,
                                                   std::string_view expected) {
  if (const Entry* entry = claim(name)) return entry;
  return not_found(
      fmt::format("{}: tensor {} is missing, expected {}. The config describes a model that has "
                  "it; compare config.json with the "
                  "checkpoint.",
                  checkpoint_->dir().string(),
                  name,
                  expected));
}

Result<const WeightMap::Entry*> WeightMap::require_shape(const std::string& name,
                                                         const Shape& shape) {
  TRY_ASSIGN(const Entry* entry, require(name, fmt::format("shape {}", shape.to_string())));
  if (entry->half < 0 && entry->view.shape == shape) return entry;
  return data_loss(fmt::format("{}: shape {}, expected {} (from config.json)",
                               locate(*entry),
                               entry->view.shape.to_string(),
                               shape.to_string()));
}

const WeightMap::Entry* WeightMap::claim_part(const std::string& module, ModulePart part) {
  for (const ModulePartSuffix& entry : kModulePartSuffixes) {
    if (entry.part != part) continue;
    if (const Entry* found = claim(module + std::string(entry.suffix))) return found;
  }
  return nullptr;
}

Result<std::optional<float>> WeightMap::global_scale(const std::string& module) {
  for (const ModulePart part : {ModulePart::kGlobalMultiplier, ModulePart::kGlobalDivisor}) {
    const Entry* entry = claim_part(module, part);
    if (entry == nullptr) continue;
    TRY_ASSIGN(const float scale, read_global_scale(part, entry->view, entry->stored_name));
    return std::optional(scale);
  }
  return std::optional<float>();
}

Result<kernels::WeightRows> WeightMap::matrix(const std::string& module, int64_t n, int64_t k) {
  const Entry* weight = claim_part(module, ModulePart::kWeight);
  if (weight == nullptr) {
    TRY_ASSIGN(
        weight,
        require(module + ".weight", fmt::format("a weight of logical shape [{}, {}]", n, k)));
  }
  const Entry* scale = claim_part(module, ModulePart::kScale);
  TRY_ASSIGN(const std::optional<float> global, global_scale(module));
  const std::string expected_scale_name = module + ".scale";
  const std::string_view scale_name = scale == nullptr ? expected_scale_name : scale->stored_name;
  TRY_ASSIGN(const quant::WeightView view,
             quant::make_weight_view(
                 {.name = weight->stored_name,
                  .weight = weight->view,
                  .scale_name = scale_name,
                  .scale = scale == nullptr ? std::nullopt : std::optional(scale->view),
                  .global_scale = global}));
  if (const Entry* shape = claim_part(module, ModulePart::kShape)) {
    TRY(check_stored_shape(shape->view, shape->stored_name, view.n, view.k));
  }
  claim_part(module, ModulePart::kInputScale);  // activations stay wider than 4 bits here
  const bool is_half = weight->half >= 0;
  if (view.k != k || view.n != (is_half ? 2 * n : n)) {
    return data_loss(
        fmt::format("{}: logical shape [{}, {}] ({}), expected [{}, {}] (from config.json)",
                    locate(*weight),
                    view.n,
                    view.k,
                    quant::format_name(view.format),
                    is_half ? 2 * n : n,
                    k));
  }
  if (scale != nullptr && quant::count_nan(scale->view) > 0) {
    return data_loss(fmt::format("{}: {} of {} scales are NaN, expected none. The file is damaged.",
                                 locate(*scale),
                                 quant::count_nan(scale->view),
                                 scale->view.shape.num_elements()));
  }
  const int64_t row_begin = is_half ? weight->half * n : 0;
  return kernels::WeightRows{.weight = view, .row_begin = row_begin, .row_end = row_begin + n};
}

Result<device::Buffer> WeightMap::f32(const std::string& name, const Shape& shape) {
  TRY_ASSIGN(const Entry* entry, require_shape(name, shape));
  if (!is_float_table(entry->view.dtype)) {
    return unsupported(fmt::format(
        "{}: dtype {}, expected F32, BF16 or F16", locate(*entry), dtype_name(entry->view.dtype)));
  }
  const int64_t count = shape.num_elements();
  TRY_ASSIGN(device::Buffer buffer,
             device::Buffer::allocate(count * static_cast<int64_t>(sizeof(float))));
  auto* out = reinterpret_cast<float*>(buffer.data());
  for (int64_t i = 0; i < count; ++i) out[i] = element_as_f32(entry->view, i);
  if (const auto* bad =
          std::find_if_not(out, out + count, [](float v) { return std::isfinite(v); });
      bad != out + count) {
    return data_loss(
        fmt::format("{}: element {} is {}, expected a finite number. The file is damaged.",
                    locate(*entry),
                    bad - out,
                    *bad));
  }
  return buffer;
}

Result<TensorView> WeightMap::table(const std::string& name, const Shape& shape) {
  TRY_ASSIGN(const Entry* entry, require_shape(name, shape));
  const TensorView& view = entry->view;
  if (!is_float_table(view.dtype)) {
    return unsupported(fmt::format(
        "{}: dtype {}, expected F32, BF16 or F16", locate(*entry), dtype_name(view.dtype)));
  }
  return view;
}

Result<WeightMap::Table> WeightMap::copy(const TensorView& stored) {
  Table table;
  TRY_ASSIGN(table.storage, device::Buffer::allocate(stored.num_bytes()));
  std::memcpy(table.storage.data(), stored.data, static_cast<size_t>(stored.num_bytes()));
  table.view = table.storage.view(stored.dtype, stored.shape);
  return table;
}

Result<std::vector<int32_t>> WeightMap::integers(const std::string& name,
                                                 const Shape& shape,
                                                 int64_t limit) {
  TRY_ASSIGN(const Entry* entry, require_shape(name, shape));
  const TensorView& view = entry->view;
  if (view.dtype != DType::kI64 && view.dtype != DType::kI32) {
    return unsupported(
        fmt::format("{}: dtype {}, expected I64 or I32", locate(*entry), dtype_name(view.dtype)));
  }
  std::vector<int32_t> values(static_cast<size_t>(shape.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t value =
        view.dtype == DType::kI64 ? view.as<const int64_t>()[i] : view.as<const int32_t>()[i];
    if (value < 0 || value >= limit) {
      return data_loss(fmt::format("{}: element {} is {}, expected 0 to {}. The file is damaged.",
                                   locate(*entry),
                                   i,
                                   value,
                                   limit - 1));
    }
    values[i] = static_cast<int32_t>(value);
  }
  return values;
}

void WeightMap::ignore(std::string_view prefix) {
  for (auto& [name, entry] : entries_) {
    if (name.substr(0, prefix.size()) == prefix) entry.is_claimed = true;
  }
}

std::vector<std::string> WeightMap::unclaimed() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) {
    if (!entry.is_claimed) names.push_back(entry.stored_name);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace nibble::models::deepseek_v4
