#include "tools/convert/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/hash.h"
#include "base/utf8.h"
#include "checkpoint/config_reader.h"
#include "checkpoint/shard_index.h"
#include "models/deepseek_v4/config.h"
#include "models/deepseek_v4/module_tensors.h"
#include "models/deepseek_v4/tensor_names.h"
#include "quant/numeric.h"
#include "quant/reference.h"
#include "quant/weight_view.h"
#include "tools/convert/cast.h"
#include "tools/convert/encode.h"
#include "tools/convert/input_scale.h"
#include "tools/convert/roles.h"
#include "tools/convert/stored_weight.h"

namespace nibble::tools {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using models::deepseek_v4::ModulePart;
using quant::Format;
using quant::WeightView;

constexpr std::string_view kConfigName = "config.json";
constexpr std::string_view kHfQuantName = "hf_quant_config.json";
constexpr std::string_view kRecordName = "nibble_convert.json";
// Larger files beside the shards are weights of another kind, not tokenizers and licences.
constexpr uintmax_t kMaxSmallFileBytes = 256 << 20;

std::string shown(std::string_view text) { return escape_for_display(text); }

struct SourceTensor {
  std::string name;  // original (tensor_names.h)
  const TensorMeta* meta = nullptr;
  TensorView view;
};

// A weight of the input with everything that it is stored as.
struct SourceModule {
  std::string name;
  std::array<std::optional<SourceTensor>, 6> parts;  // by ModulePart
  WeightView weight;

  const std::optional<SourceTensor>& part(ModulePart p) const {
    return parts[static_cast<size_t>(p)];
  }
};

enum class Action { kCopy, kCast, kEncode, kRefuse };

bool is_dense(Format format) { return !quant::format_info(format).has_scales(); }

Action choose_action(Format from, Format to) {
  if (from == to) return Action::kCopy;
  if (is_dense(from)) return Action::kEncode;
  const bool from_fp4 = from == Format::kMxfp4 || from == Format::kNvfp4;
  const bool to_fp4 = to == Format::kMxfp4 || to == Format::kNvfp4;
  if (from_fp4 && to_fp4) return Action::kCast;
  if (from == Format::kFp8E4m3Block128x128 && to_fp4) return Action::kEncode;
  return Action::kRefuse;
}

// --- pieces ---

// Copies a mapped tensor. Its pages are fetched in runs: fault by fault costs more than the copy.
Result<void> copy_bytes(const TensorView& tensor, size_t index, const WriteBytes& write) {
  constexpr size_t kRunBytes = 4 << 20;
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(tensor.data),
                                         static_cast<size_t>(tensor.num_bytes()));
  for (size_t begin = 0; begin < bytes.size(); begin += kRunBytes) {
    const auto run = bytes.subspan(begin, std::min(kRunBytes, bytes.size() - begin));
    fetch_mapped(run);
    TRY(write(index, static_cast<int64_t>(begin), run));
  }
  return {};
}

Piece copy_piece(const SourceTensor& tensor) {
  return {.module_class = module_class(tensor.name),
          .tensors = {{tensor.name, tensor.meta->dtype, tensor.meta->shape}},
          .make = [view = tensor.view](const WriteBytes& write) -> Result<ErrorStatistics> {
            TRY(copy_bytes(view, 0, write));
            return ErrorStatistics{.num_exact_tensors = 1};
          }};
}

// Weights that become `format` together: one, or w1 and w3 of an expert, which then share their
// global scale because kernels compute both at once.
struct WeightGroup {
  std::vector<const SourceModule*> modules;
  Format format = Format::kBf16;
  bool is_cast = false;
  int32_t global_exponent = 0;  // of a cast to NVFP4
  std::optional<float> input_scale;
};

std::vector<WeightView> weights_of(const WeightGroup& group) {
  std::vector<WeightView> weights;
  for (const SourceModule* module : group.modules) weights.push_back(module->weight);
  return weights;
}

Result<ErrorStatistics> cast_to_nvfp4(const WeightGroup& group, const WriteBytes& write) {
  const float global_scale = quant::exp2_int(group.global_exponent);
  std::vector<uint8_t> scales;
  for (size_t m = 0; m < group.modules.size(); ++m) {
    const WeightView& weight = group.modules[m]->weight;
    const size_t first = m * 3;
    scales.resize(static_cast<size_t>(2 * weight.scales.shape.num_elements()));
    cast_scales_to_nvfp4(weight, group.global_exponent, scales);
    TRY(copy_bytes(weight.codes, first + kCodesIndex, write));
    TRY(write(first + kScalesIndex, 0, std::as_bytes(std::span(scales))));
    TRY(write(first + kGlobalScaleIndex, 0, std::as_bytes(std::span(&global_scale, 1))));
  }
  return ErrorStatistics{.num_exact_tensors = static_cast<int64_t>(group.modules.size())};
}

Result<ErrorStatistics> cast_to_mxfp4(const WeightGroup& group, const WriteBytes& write) {
  const WeightView& weight = group.modules.front()->weight;
  std::vector<uint8_t> scales(static_cast<size_t>(weight.scales.shape.num_elements() / 2));
  TRY(cast_scales_to_mxfp4(weight, scales));
  TRY(copy_bytes(weight.codes, kCodesIndex, write));
  TRY(write(kScalesIndex, 0, std::as_bytes(std::span(scales))));
  return ErrorStatistics{.num_exact_tensors = 1};
}

Result<float> shared_global_scale(const WeightGroup& group) {
  if (!quant::format_info(group.format).has_global_scale) return 1.0f;
  float amax = 0;
  for (const SourceModule* module : group.modules) {
    TRY_ASSIGN(const float module_amax, weight_amax(module->weight, module->name));
    amax = std::max(amax, module_amax);
  }
  return quant::nvfp4_global_scale(amax);
}

Result<ErrorStatistics> encode(const WeightGroup& group, const WriteBytes& write) {
  TRY_ASSIGN(const float global_scale, shared_global_scale(group));
  ErrorStatistics statistics;
  size_t first = 0;
  for (const SourceModule* module : group.modules) {
    const WeightView& weight = module->weight;
    TRY_ASSIGN(const ErrorStatistics own,
               encode_weight(weight,
                             module->name,
                             {.format = group.format,
                              .codes_index = first + kCodesIndex,
                              .scales_index = first + kScalesIndex,
                              .global_scale = global_scale},
                             write));
    statistics.merge(own);
    if (group.format == Format::kNvfp4) {
      TRY(write(first + kGlobalScaleIndex, 0, std::as_bytes(std::span(&global_scale, 1))));
    }
    if (group.format == Format::kInt4Group32) {
      const int64_t shape[] = {weight.n, weight.k};
      TRY(write(first + kShapeIndex, 0, std::as_bytes(std::span(shape))));
    }
    first += stored_tensors(module->name, group.format, weight.n, weight.k).size();
  }
  return statistics;
}

Result<ErrorStatistics> make_group(const WeightGroup& group, const WriteBytes& write) {
  if (!group.is_cast) return encode(group, write);
  return group.format == Format::kNvfp4 ? cast_to_nvfp4(group, write) : cast_to_mxfp4(group, write);
}

Piece weight_piece(const WeightGroup& group) {
  Piece piece{.module_class = module_class(group.modules.front()->name)};
  std::vector<std::string> names;
  for (const SourceModule* module : group.modules) {
    for (TensorMeta& meta :
         stored_tensors(module->name, group.format, module->weight.n, module->weight.k)) {
      piece.tensors.push_back(std::move(meta));
    }
    names.push_back(module->name);
  }
  const size_t first_input_scale = piece.tensors.size();
  if (group.input_scale) append_input_scales(names, piece.tensors);
  piece.make = [group, first_input_scale](const WriteBytes& write) -> Result<ErrorStatistics> {
    if (group.input_scale) {
      TRY(write_input_scales(*group.input_scale, first_input_scale, group.modules.size(), write));
    }
    return make_group(group, write);
  };
  return piece;
}

// --- the plan ---

// memchr() looks at scales faster than anything that asks what they mean.
bool may_hold_nan(const TensorView& scales) {
  const auto contains = [&](uint8_t byte) {
    return std::memchr(scales.data, byte, static_cast<size_t>(scales.num_bytes())) != nullptr;
  };
  if (scales.dtype == DType::kF8E8m0) return contains(quant::kE8m0Nan);
  if (scales.dtype == DType::kF8E4m3) return contains(0x7F) || contains(0xFF);
  return true;
}

Result<void> check_scales(const TensorView& scales, std::string_view name) {
  fetch_mapped(
      {static_cast<const std::byte*>(scales.data), static_cast<size_t>(scales.num_bytes())});
  const int64_t num_nan = may_hold_nan(scales) ? quant::count_nan(scales) : 0;
  if (num_nan == 0) return {};
  return data_loss(
      fmt::format("tensor {}: {} of {} scales are NaN, expected none. The file is damaged.",
                  shown(name),
                  num_nan,
                  scales.shape.num_elements()));
}

class Planner final {
 public:
  Planner(const Checkpoint& checkpoint, const ConvertOptions& options)
      : checkpoint_(checkpoint), options_(options) {}

  Result<ConvertPlan> plan();

 private:
  Result<void> check_paths() const;
  Result<void> read_config();
  Result<void> collect();
  Result<void> read_weight(SourceModule& module) const;
  std::optional<Format> target_of(const SourceModule& module) const;
  Result<void> convert_module(const SourceModule& module);
  Result<void> convert_weight(const SourceModule& module, Format target);
  Result<void> check_cast(WeightGroup& group);
  Result<std::optional<float>> input_scale_of(const std::string& module);
  void keep(const SourceModule& module);
  void add(const TensorView& first_source, Piece piece);
  Result<void> finish_casts() const;
  Result<void> add_files();
  void sort_pieces();
  json::Object identity() const;

  const Checkpoint& checkpoint_;
  const ConvertOptions& options_;
  json::Object config_json_;
  models::deepseek_v4::Config config_;
  std::map<std::string, TensorView> norms_;  // ffn_norm.weight of the layers, by original name
  std::map<std::string, float> gate_input_scales_;  // by the same names
  ConvertPlan plan_;
  // Owned by the pieces, which outlive the planner.
  std::shared_ptr<std::map<std::string, SourceModule>> modules_ =
      std::make_shared<std::map<std::string, SourceModule>>();
  std::vector<const void*> piece_sources_;  // first input byte of each piece
  std::string first_fault_;
  int64_t num_inexact_ = 0;
  int64_t num_cast_ = 0;
  int64_t num_converted_ = 0;
  int64_t num_clamped_groups_ = 0;
  int64_t num_dropped_input_scales_ = 0;
  bool drafts_differ_ = false;
};

Result<void> Planner::check_paths() const {
  std::error_code fault;
  const Path in = fs::canonical(checkpoint_.dir(), fault);
  const Path out = fs::weakly_canonical(fs::absolute(options_.out), fault);
  const auto [in_end, ignored] = std::mismatch(in.begin(), in.end(), out.begin(), out.end());
  if (fault || in_end != in.end()) return {};
  return invalid_argument(
      fmt::format("{}: lies inside the input {}, which is never written to. Choose another place.",
                  shown(options_.out.string()),
                  shown(checkpoint_.dir().string())));
}

Result<void> Planner::read_config() {
  TRY_ASSIGN(const checkpoint::ConfigReader reader, checkpoint::read_config(checkpoint_.dir()));
  TRY_ASSIGN(config_, models::deepseek_v4::parse_config(reader));
  config_json_ = reader.root();
  return {};
}

// Groups tensors into modules; what belongs to no weight is copied.
Result<void> Planner::collect() {
  for (const TensorMeta& meta : checkpoint_.tensors()) {
    if (models::deepseek_v4::parse_fused_experts(meta.name)) {
      return unsupported(
          fmt::format("tensor {}: holds the experts of a layer in one tensor, expected one tensor "
                      "per expert. Convert the original checkpoint instead.",
                      shown(meta.name)));
    }
    TRY_ASSIGN(const TensorView view, checkpoint_.tensor(meta.name));
    SourceTensor tensor{models::deepseek_v4::original_name(meta.name), &meta, view};
    const auto split = models::deepseek_v4::split_module_tensor_name(tensor.name);
    if (!split || weight_role(split->module) == WeightRole::kOther) {
      if (tensor.name.ends_with(".ffn_norm.weight")) norms_.emplace(tensor.name, view);
      add(view, copy_piece(tensor));
      continue;
    }
    SourceModule& module = (*modules_)[std::string(split->module)];
    module.name = split->module;
    auto& part = module.parts[static_cast<size_t>(split->part)];
    if (part) {
      return data_loss(fmt::format("tensors {} and {} both mean {}; expected one of them.",
                                   shown(part->meta->name),
                                   shown(meta.name),
                                   shown(tensor.name)));
    }
    part = std::move(tensor);
  }
  return {};
}

Result<void> Planner::read_weight(SourceModule& module) const {
  const auto& weight = module.part(ModulePart::kWeight);
  if (!weight) {
    return data_loss(fmt::format(
        "module {}: has scales but no weight. The checkpoint is incomplete.", shown(module.name)));
  }
  quant::WeightTensors tensors{.name = weight->meta->name, .weight = weight->view};
  const std::string expected_scale = module.name + ".scale";
  tensors.scale_name = expected_scale;
  if (const auto& scale = module.part(ModulePart::kScale)) {
    tensors.scale_name = scale->meta->name;
    tensors.scale = scale->view;
  }
  for (const ModulePart part : {ModulePart::kGlobalMultiplier, ModulePart::kGlobalDivisor}) {
    if (const auto& global = module.part(part)) {
      TRY_ASSIGN(tensors.global_scale,
                 models::deepseek_v4::read_global_scale(part, global->view, global->meta->name));
    }
  }
  TRY_ASSIGN(module.weight, quant::make_weight_view(tensors));
  if (const auto& shape = module.part(ModulePart::kShape)) {
    TRY(models::deepseek_v4::check_stored_shape(
        shape->view, shape->meta->name, module.weight.n, module.weight.k));
  }
  return tensors.scale ? check_scales(*tensors.scale, tensors.scale_name) : Result<void>();
}

// The format that a module should get; nullopt: it stays as it is.
std::optional<Format> Planner::target_of(const SourceModule& module) const {
  const bool is_expert = weight_role(module.name) == WeightRole::kRoutedExpert;
  switch (options_.format) {
    case CheckpointFormat::kNative:
      return is_expert ? Format::kMxfp4 : Format::kFp8E4m3Block128x128;
    case CheckpointFormat::kNvfp4:
      return is_expert ? Format::kNvfp4 : Format::kFp8E4m3Block128x128;
    case CheckpointFormat::kInt4:
      if (is_expert) return Format::kInt4Group32;
      return is_dense(module.weight.format) ? std::nullopt : std::optional(Format::kBf16);
    case CheckpointFormat::kBf16:
      break;
  }
  return std::nullopt;
}

void Planner::add(const TensorView& first_source, Piece piece) {
  piece_sources_.push_back(first_source.data);
  plan_.job.pieces.push_back(std::move(piece));
}

void Planner::keep(const SourceModule& module) {
  for (const auto& part : module.parts) {
    if (part) add(part->view, copy_piece(*part));
  }
}

Result<void> Planner::convert_module(const SourceModule& module) {
  const std::optional<Format> target = target_of(module);
  const Format from = module.weight.format;
  if (!target || *target == from) {
    if (from == Format::kNvfp4 && module.part(ModulePart::kGlobalDivisor)) {
      return unsupported(
          fmt::format("module {}: NVFP4 in the naming of compressed-tensors, expected ModelOpt's. "
                      "Convert to native first.",
                      shown(module.name)));
    }
    keep(module);
    return {};
  }
  const bool becomes_native = options_.format == CheckpointFormat::kNative && is_dense(from);
  if (is_draft(module.name) && !options_.convert_drafts && !becomes_native) {
    drafts_differ_ = true;
    keep(module);
    return {};
  }
  return convert_weight(module, *target);
}

Result<void> Planner::convert_weight(const SourceModule& module, Format target) {
  const Action action = choose_action(module.weight.format, target);
  if (action == Action::kRefuse) {
    return unsupported(
        fmt::format("module {}: {} cannot become {}: quantising what is quantised already loses "
                    "too much. Convert the BF16 checkpoint to {}.",
                    shown(module.name),
                    quant::format_name(module.weight.format),
                    quant::format_name(target),
                    checkpoint_format_name(options_.format)));
  }
  if (module.weight.k % quant::k_multiple(target) != 0) {
    return unsupported(fmt::format("module {}: k {}, expected a multiple of {} for {}.",
                                   shown(module.name),
                                   module.weight.k,
                                   quant::k_multiple(target),
                                   quant::format_name(target)));
  }
  WeightGroup group{.modules = {&module}, .format = target, .is_cast = action == Action::kCast};
  if (target == Format::kNvfp4 && module.name.ends_with(".w3")) {
    const auto partner = modules_->find(module.name.substr(0, module.name.size() - 1) + '1');
    if (partner != modules_->end()) return {};  // made with w1
  }
  if (target == Format::kNvfp4 && module.name.ends_with(".w1")) {
    const auto partner = modules_->find(module.name.substr(0, module.name.size() - 1) + '3');
    if (partner != modules_->end()) {
      if (partner->second.weight.format != module.weight.format) {
        return data_loss(fmt::format("module {}: {}, expected {} as {}",
                                     shown(partner->first),
                                     quant::format_name(partner->second.weight.format),
                                     quant::format_name(module.weight.format),
                                     shown(module.name)));
      }
      group.modules.push_back(&partner->second);
    }
  }
  if (group.is_cast) TRY(check_cast(group));
  if (target == Format::kNvfp4) {
    TRY_ASSIGN(group.input_scale, input_scale_of(module.name));
  }
  for (const SourceModule* member : group.modules) {
    ++num_converted_;
    if (member->part(ModulePart::kInputScale)) ++num_dropped_input_scales_;
  }
  add(module.part(ModulePart::kWeight)->view, weight_piece(group));
  // The piece refers to modules; it shares their ownership.
  auto& make = plan_.job.pieces.back().make;
  make = [owner = modules_, inner = std::move(make)](const WriteBytes& write) {
    return inner(write);
  };
  return {};
}

// The bound of an expert's input; nullopt where the model has none.
Result<std::optional<float>> Planner::input_scale_of(const std::string& module) {
  const std::optional<float> down = down_input_scale(config_);
  if (!down || module.ends_with(".w2")) return down;
  const std::string norm = input_norm_of_expert(module);
  const auto known = gate_input_scales_.find(norm);
  if (known != gate_input_scales_.end()) return std::optional(known->second);
  const auto gamma = norms_.find(norm);
  if (gamma == norms_.end()) {
    return data_loss(
        fmt::format("tensor {}: is missing. The checkpoint is incomplete.", shown(norm)));
  }
  TRY_ASSIGN(const float amax, vector_amax(gamma->second, norm));
  if (amax == 0) {
    return data_loss(
        fmt::format("tensor {}: is zero everywhere. The file is damaged.", shown(norm)));
  }
  const float scale = gate_input_scale(config_, amax);
  gate_input_scales_.emplace(norm, scale);
  return std::optional(scale);
}

// Makes an inexact cast an encoding.
Result<void> Planner::check_cast(WeightGroup& group) {
  const std::vector<WeightView> weights = weights_of(group);
  num_cast_ += static_cast<int64_t>(weights.size());
  std::string fault;
  if (group.format == Format::kNvfp4) {
    const Nvfp4Cast cast = plan_nvfp4_cast(weights);
    fault = cast.fault;
    group.global_exponent = cast.global_exponent;
    if (fault.empty()) num_clamped_groups_ += cast.num_clamped_groups;
  } else {
    std::vector<uint8_t> scales(static_cast<size_t>(weights[0].scales.shape.num_elements() / 2));
    const Result<int64_t> cast = cast_scales_to_mxfp4(weights[0], scales);
    fault = cast.ok() ? "" : cast.error().message;
    if (cast.ok()) num_clamped_groups_ += *cast;
  }
  if (fault.empty()) return {};
  if (num_inexact_ == 0) {
    first_fault_ = fmt::format("module {}: {}", shown(group.modules[0]->name), fault);
  }
  num_inexact_ += static_cast<int64_t>(weights.size());
  group.is_cast = false;
  return {};
}

Result<void> Planner::finish_casts() const {
  if (num_inexact_ == 0 || options_.allow_rounding) return {};
  return unsupported(fmt::format(
      "{} of {} weights cannot be cast without loss; first {}. Pass --allow-rounding to "
      "round them, or convert the BF16 checkpoint.",
      num_inexact_,
      num_cast_,
      first_fault_));
}

// config.json and hf_quant_config.json anew; other small files as they are.
Result<void> Planner::add_files() {
  const Declaration declaration = declare_format(config_json_,
                                                 {.format = options_.format,
                                                  .num_hidden_layers = config_.num_hidden_layers,
                                                  .drafts_differ = drafts_differ_});
  plan_.job.texts.push_back({std::string(kConfigName), config_text(declaration.config)});
  if (declaration.hf_quant) {
    plan_.job.texts.push_back({std::string(kHfQuantName), config_text(*declaration.hf_quant)});
  }
  std::error_code fault;
  std::vector<std::string> skipped;
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoint_.dir(), fault)) {
    const std::string name = entry.path().filename().string();
    if (name == kConfigName || name == kHfQuantName || name == kRecordName ||
        name == checkpoint::kIndexFileName || entry.path().extension() == ".safetensors") {
      continue;
    }
    std::error_code no_size;
    const bool is_small =
        entry.is_regular_file(no_size) && entry.file_size(no_size) <= kMaxSmallFileBytes;
    if (is_small && !no_size) {
      plan_.job.copies.push_back({.source = entry.path(), .name = name});
    } else {
      skipped.push_back(name);
    }
  }
  std::sort(plan_.job.copies.begin(),
            plan_.job.copies.end(),
            [](const CopiedFile& a, const CopiedFile& b) { return a.name < b.name; });
  std::sort(skipped.begin(), skipped.end());
  for (const std::string& name : skipped) {
    plan_.notes.push_back(fmt::format("{}: not copied (a directory or a large file)", shown(name)));
  }
  return {};
}

// Inputs are read front to back.
void Planner::sort_pieces() {
  std::map<std::string_view, size_t> shard_ranks;
  for (const std::string& name : checkpoint_.shard_names()) {
    shard_ranks.emplace(name, shard_ranks.size());
  }
  // Mappings do not overlap, so an address tells the shard; their order in memory is arbitrary.
  std::map<const void*, size_t> rank_of_source;
  for (const TensorMeta& meta : checkpoint_.tensors()) {
    rank_of_source.emplace(checkpoint_.find(meta.name)->data,
                           shard_ranks.at(checkpoint_.shard_of(meta.name)));
  }
  std::vector<size_t> order(plan_.job.pieces.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto key = [&](size_t i) {
    const void* source = piece_sources_[i];
    return std::pair(rank_of_source.at(source), reinterpret_cast<uintptr_t>(source));
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
  std::vector<Piece> sorted;
  sorted.reserve(order.size());
  for (const size_t i : order) sorted.push_back(std::move(plan_.job.pieces[i]));
  plan_.job.pieces = std::move(sorted);
}

json::Object Planner::identity() const {
  std::string text;
  for (const TensorMeta& meta : checkpoint_.tensors()) {
    text += fmt::format("{} {} {} {}\n",
                        meta.name,
                        dtype_name(meta.dtype),
                        meta.shape.to_string(),
                        checkpoint_.shard_of(meta.name));
  }
  for (const std::string& shard : checkpoint_.shard_names()) {
    std::error_code fault;
    const Path path = checkpoint_.dir() / shard;
    text += fmt::format("{} {} {}\n",
                        shard,
                        fs::file_size(path, fault),
                        fs::last_write_time(path, fault).time_since_epoch().count());
  }
  return json::make_object(
      {{"job", "convert"},
       {"source", fmt::format("{:016x}", hash_bytes(std::as_bytes(std::span(text))))},
       {"format", checkpoint_format_name(options_.format)},
       {"convert_drafts", options_.convert_drafts},
       {"allow_rounding", options_.allow_rounding}});
}

Result<ConvertPlan> Planner::plan() {
  CHECK(options_.format != CheckpointFormat::kBf16);
  TRY(check_paths());
  TRY(read_config());
  TRY(collect());
  for (auto& [name, module] : *modules_) TRY(read_weight(module));
  for (const auto& [name, module] : *modules_) TRY(convert_module(module));
  TRY(finish_casts());
  if (num_converted_ == 0) {
    return invalid_argument(fmt::format("{}: nothing to convert: all weights are {} already.",
                                        shown(checkpoint_.dir().string()),
                                        checkpoint_format_name(options_.format)));
  }
  TRY(add_files());
  sort_pieces();
  const auto note = [&](int64_t count, std::string_view what) {
    if (count > 0) plan_.notes.push_back(fmt::format("{} {}", count, what));
  };
  note(num_inexact_, fmt::format("of {} casts are not exact and round", num_cast_));
  note(num_clamped_groups_, "groups of zeros get another scale; their values stay 0");
  note(num_dropped_input_scales_, "input scales are dropped: they belong to the old format");
  if (options_.format == CheckpointFormat::kNvfp4 && !down_input_scale(config_)) {
    plan_.notes.push_back("no input scales: without swiglu_limit the inputs of w2 have no bound");
  }
  if (drafts_differ_) plan_.notes.push_back("mtp.* keeps its format");
  plan_.job.out = options_.out;
  plan_.job.record_name = kRecordName;
  plan_.job.identity = identity();
  plan_.job.resume = options_.resume;
  plan_.job.shard_bytes = options_.shard_bytes;
  return std::move(plan_);
}

}  // namespace

Result<ConvertPlan> plan_conversion(const Checkpoint& checkpoint, const ConvertOptions& options) {
  return Planner(checkpoint, options).plan();
}

}  // namespace nibble::tools
