#include "quant/stored_module.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <unordered_map>
#include <utility>

#include "base/checked_math.h"
#include "base/utf8.h"

namespace nibble::quant {
namespace {

struct Suffix {
  std::string_view text;
  Part part;
};

// Longer suffixes first where one ends in another.
constexpr std::array kSuffixes = std::to_array<Suffix>({
    {".weight_packed", Part::kWeightPacked},
    {".weight_scale_inv", Part::kWeightScaleInv},
    {".weight_scale_2", Part::kWeightScale2},
    {".weight_global_scale", Part::kWeightGlobalScale},
    {".weight_scale", Part::kWeightScale},
    {".input_global_scale", Part::kInputGlobalScale},
    {".input_scale", Part::kInputScale},
    {".weight_shape", Part::kWeightShape},
    {".weight_zero_point", Part::kZeroPoint},
    {".weight_g_idx", Part::kGroupIndex},
    {".g_idx", Part::kGroupIndex},
    {".pre_quant_scale", Part::kPreQuantScale},
    {".k_scale", Part::kKvScale},
    {".v_scale", Part::kKvScale},
    {".qweight", Part::kQweight},
    {".qzeros", Part::kQzeros},
    {".scales", Part::kScales},
    {".scale", Part::kScale},
    {".weight", Part::kWeight},
    {".bias", Part::kBias},
    {"_blocks", Part::kBlocks},
    {"_scale_inv", Part::kWeightScaleInv},
    {"_scales", Part::kScales},
    {"_bias", Part::kBias},
});

bool ends_with(std::string_view text, std::string_view suffix) {
  return text.size() > suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

// The module part of a tensor name, and which part of it the tensor is.
std::pair<std::string_view, Part> split_name(std::string_view name) {
  // X.weight.absmax, X.weight.quant_map, X.weight.quant_state.bitsandbytes__nf4
  for (const std::string_view marker :
       {".weight.absmax", ".weight.quant_map", ".weight.nested_", ".weight.quant_state"}) {
    const size_t at = name.find(marker);
    if (at != std::string_view::npos) return {name.substr(0, at), Part::kQuantState};
  }
  const bool is_fused = name.find(".experts.") != std::string_view::npos;
  for (const Suffix& suffix : kSuffixes) {
    if (suffix.text.front() == '_' && !is_fused) continue;
    if (ends_with(name, suffix.text)) {
      return {name.substr(0, name.size() - suffix.text.size()), suffix.part};
    }
  }
  return {name, Part::kOther};
}

StoredModule empty_module(std::string_view name) {
  StoredModule module{.name = name, .tensors = {}};
  module.tensors.fill(-1);
  return module;
}

int64_t bytes_of(const TensorMeta& tensor) {
  return tensor.shape.num_elements() * dtype_size(tensor.dtype);
}

// A tensor as a module of its own.
StoredModule parameter_module(std::span<const TensorMeta> tensors, int32_t index) {
  const TensorMeta& tensor = tensors[static_cast<size_t>(index)];
  StoredModule module = empty_module(tensor.name);
  module.tensors[static_cast<size_t>(Part::kOther)] = index;
  module.num_bytes = bytes_of(tensor);
  module.num_tensors = 1;
  return module;
}

bool has_weight(const StoredModule& module) {
  return module.has(Part::kWeight) || module.has(Part::kWeightPacked) ||
         module.has(Part::kQweight) || module.has(Part::kBlocks);
}

// Scales of a quantised weight that was left out; other lone tensors (a hyper-connection's `scale`,
// a KV scale, a bias) are parameters.
bool is_orphan(const StoredModule& module) {
  for (const Part part : {Part::kWeightScale,
                          Part::kWeightScaleInv,
                          Part::kWeightScale2,
                          Part::kWeightGlobalScale,
                          Part::kScales,
                          Part::kQzeros}) {
    if (module.has(part)) return true;
  }
  return false;
}

}  // namespace

std::vector<StoredModule> group_tensors(std::span<const TensorMeta> tensors) {
  std::vector<StoredModule> modules;
  std::unordered_map<std::string_view, size_t> index;
  index.reserve(tensors.size());
  std::unordered_map<size_t, std::vector<int32_t>> repeated;  // by module: tensors without a place
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto [name, part] = split_name(tensors[i].name);
    auto [it, is_new] = index.try_emplace(name, modules.size());
    if (is_new) modules.push_back(empty_module(name));
    StoredModule& module = modules[it->second];
    int32_t& place = module.tensors[static_cast<size_t>(part)];
    const auto tensor = static_cast<int32_t>(i);
    // Only both KV scales and bitsandbytes' state come several to a part.
    const bool may_repeat = part == Part::kQuantState || part == Part::kKvScale;
    if (place >= 0 && !may_repeat) {
      modules.push_back(parameter_module(tensors, tensor));
      continue;
    }
    // The state's name tells which of bitsandbytes' formats it is.
    const bool is_named = tensors[i].name.find(".quant_state.") != std::string::npos;
    if (place < 0) {
      place = tensor;
    } else {
      repeated[it->second].push_back(is_named ? std::exchange(place, tensor) : tensor);
    }
    module.num_bytes += bytes_of(tensors[i]);
    ++module.num_tensors;
  }
  const size_t num_groups = modules.size();
  for (size_t m = 0; m < num_groups; ++m) {
    const StoredModule group = modules[m];
    if (has_weight(group) || group.has(Part::kOther) || is_orphan(group)) continue;
    bool is_first = true;
    for (const int32_t tensor : group.tensors) {
      if (tensor < 0) continue;
      if (is_first) {
        modules[m] = parameter_module(tensors, tensor);
      } else {
        modules.push_back(parameter_module(tensors, tensor));
      }
      is_first = false;
    }
    const auto it = repeated.find(m);
    if (it == repeated.end()) continue;
    for (const int32_t tensor : it->second) modules.push_back(parameter_module(tensors, tensor));
  }
  return modules;
}

namespace {

// One deduction in progress.
class Classifier final {
 public:
  Classifier(const StoredModule& module,
             std::span<const TensorMeta> tensors,
             const ShapeHints& hints)
      : module_(module), tensors_(tensors), hints_(hints) {}

  Physical run() {
    if (module_.has(Part::kQweight)) {
      gptq_or_awq();
    } else if (module_.has(Part::kBlocks)) {
      gpt_oss();
    } else if (module_.has(Part::kWeightPacked)) {
      compressed_tensors();
    } else if (module_.has(Part::kWeight)) {
      weight(meta(Part::kWeight));
    } else if (module_.has(Part::kOther) && module_.has(Part::kWeightScaleInv)) {
      weight(meta(Part::kOther));  // fused experts: gate_up_proj beside gate_up_proj_scale_inv
    } else if (module_.has(Part::kOther)) {
      dense(meta(Part::kOther));
    } else {
      error("Q-C1b",
            "scales without a weight",
            "a tensor .weight or .weight_packed beside them",
            "the checkpoint is incomplete; fetch it again");
    }
    if (result_.diagnostics.empty()) check_companions();
    return std::move(result_);
  }

 private:
  const TensorMeta& meta(Part part) const {
    return tensors_[static_cast<size_t>(module_.tensor(part))];
  }
  const TensorMeta* find(Part part) const { return module_.has(part) ? &meta(part) : nullptr; }

  static std::string describe(const TensorMeta& tensor) {
    return fmt::format("{} {}", dtype_name(tensor.dtype), tensor.shape.to_string());
  }

  void error(std::string_view code,
             std::string_view found,
             std::string_view expected,
             std::string_view fix) {
    result_.diagnostics.push_back({.severity = Severity::kError,
                                   .code = std::string(code),
                                   .message = fmt::format("{}: {}; expected {}. Fix: {}.",
                                                          escape_for_display(module_.name),
                                                          found,
                                                          expected,
                                                          fix)});
  }
  void missing_scale(std::string_view what, std::string_view expected) {
    error("Q-S1", what, expected, "the checkpoint is incomplete; fetch it again");
  }
  void wrong_scale(const TensorMeta& scale, std::string_view expected) {
    error("Q-S2",
          fmt::format("{} is {}", escape_for_display(scale.name), describe(scale)),
          expected,
          "weight and scale do not belong together; fetch the checkpoint again or export it anew");
  }

  void set_scheme(SchemeKind kind, Carrier carrier, BlockShape block = {1, 1}, int32_t bits = 0) {
    result_.scheme.kind = kind;
    result_.scheme.carrier = carrier;
    result_.scheme.block = block;
    result_.scheme.bits = bits;
    result_.scheme.has_input_scale =
        module_.has(Part::kInputScale) || module_.has(Part::kInputGlobalScale);
    result_.scheme.has_pre_scale = module_.has(Part::kPreQuantScale);
    result_.scheme.has_zero_point = module_.has(Part::kZeroPoint);
    result_.scheme.is_reordered = kind == SchemeKind::kInt && has_group_index(carrier);
  }

  // GPTQ files always hold g_idx; what it means depends on desc_act.
  bool has_group_index(Carrier carrier) const {
    const bool is_gptq = carrier == Carrier::kGptq;
    return module_.has(Part::kGroupIndex) && (!is_gptq || hints_.has_act_order);
  }

  // Splits [n, c] or [e, n, c] (fused experts); anything else has no matrix form.
  bool set_matrix(const Shape& shape, int64_t elements_per_column) {
    const int32_t rank = shape.rank();
    if (rank != 2 && rank != 3) return false;
    result_.num_matrices = rank == 3 ? shape[0] : 1;
    result_.n = shape[rank - 2];
    result_.k = shape[rank - 1] * elements_per_column;
    return true;
  }

  // S2 for a companion of another dtype or shape than this weight needs.
  void expect(Part part, DType dtype, std::initializer_list<Shape> shapes) {
    const TensorMeta* tensor = find(part);
    if (tensor == nullptr) return;
    const bool fits = std::find(shapes.begin(), shapes.end(), tensor->shape) != shapes.end();
    if (tensor->dtype == dtype && fits) return;
    wrong_scale(*tensor,
                fmt::format("{} {} beside a weight [{}, {}]",
                            dtype_name(dtype),
                            shapes.begin()->to_string(),
                            result_.n,
                            result_.k));
  }

  // What lies beside a quantised weight and its scales.
  void check_companions() {
    const Scheme& scheme = result_.scheme;
    const int64_t matrices = result_.num_matrices;
    if (scheme.kind == SchemeKind::kNvfp4) {
      for (const Part part : {Part::kInputScale, Part::kInputGlobalScale}) {
        expect(part, DType::kF32, {Shape{}, Shape{1}, Shape{matrices}, Shape{matrices, 1}});
      }
    }
    if (scheme.kind != SchemeKind::kInt || scheme.block.k < 1) return;
    const int64_t groups = result_.k / scheme.block.k;
    const int64_t packed_n = ceil_div(result_.n * scheme.bits, 32);
    expect(Part::kWeightShape, DType::kI64, {Shape{2}});
    expect(Part::kZeroPoint, DType::kI32, {Shape{packed_n, groups}});
    expect(Part::kQzeros, DType::kI32, {Shape{groups, packed_n}});
    expect(Part::kGroupIndex, DType::kI32, {Shape{result_.k}});
  }

  // Weights of `groups` along k: the group size; S2 for sizes that no producer writes.
  std::optional<int32_t> group_of(int64_t groups, const TensorMeta& scale) {
    constexpr int64_t kMaxGroup = 1 << 20;
    const int64_t group = groups > 0 ? result_.k / groups : 0;
    if (group >= 1 && group <= kMaxGroup) return static_cast<int32_t>(group);
    wrong_scale(scale,
                fmt::format("a scale per group of 1 to {} along k {}", kMaxGroup, result_.k));
    return std::nullopt;
  }

  // The shape of a scale of this weight: fused experts put their number in front.
  Shape scale_shape(int64_t rows, int64_t columns, int32_t weight_rank) const {
    if (weight_rank == 3) return Shape{result_.num_matrices, rows, columns};
    return Shape{rows, columns};
  }

  void dense(const TensorMeta& tensor) {
    const Shape& shape = tensor.shape;
    if (shape.rank() == 1) {
      result_.n = 1;
      result_.k = shape[0];
    } else if (!set_matrix(shape, 1)) {
      const int64_t elements = shape.num_elements();
      result_.n = 1;
      result_.k = elements;
    }
    result_.evidence = std::string(dtype_name(tensor.dtype));
    switch (tensor.dtype) {
      case DType::kF32:
        return set_scheme(SchemeKind::kF32, Carrier::kPlain);
      case DType::kBf16:
        return set_scheme(SchemeKind::kBf16, Carrier::kPlain);
      case DType::kF16:
        return set_scheme(SchemeKind::kF16, Carrier::kPlain);
      case DType::kF8E4m3:
      case DType::kF8E5m2:
        return missing_scale(fmt::format("{} is {} without a scale", tensor.name, describe(tensor)),
                             "a sibling .scale, .weight_scale_inv or .weight_scale");
      case DType::kU8:
      case DType::kI8:
        if (module_.has(Part::kWeight) && shape.rank() >= 2) {
          return missing_scale(
              fmt::format("weight is packed 4-bit or INT8 ({}) but has no scale", describe(tensor)),
              "a sibling .scale or .weight_scale");
        }
        return set_scheme(SchemeKind::kIndex, Carrier::kPlain);
      default:
        return set_scheme(SchemeKind::kIndex, Carrier::kPlain);
    }
  }

  // A weight with whatever scale lies beside it.
  void weight(const TensorMeta& weight) {
    if (module_.has(Part::kQuantState)) return bits_and_bytes();
    const TensorMeta* scale = nullptr;
    Carrier carrier = Carrier::kModelOpt;
    Part part = Part::kWeightScale;
    if (module_.has(Part::kScale)) {
      part = Part::kScale;
      carrier = Carrier::kDeepSeek;
    } else if (module_.has(Part::kWeightScaleInv)) {
      part = Part::kWeightScaleInv;
      carrier = Carrier::kHuggingFaceFp8;
    }
    scale = find(part);
    if (scale == nullptr) {
      const bool is_dense = weight.dtype == DType::kBf16 || weight.dtype == DType::kF16 ||
                            weight.dtype == DType::kF32;
      if (is_dense && (module_.has(Part::kWeightScale2) || module_.has(Part::kWeightGlobalScale))) {
        return missing_scale(
            fmt::format("weight is {} with a global scale but no .weight_scale", describe(weight)),
            "a packed weight with group scales, or no scale at all");
      }
      if (module_.has(Part::kWeightScale2)) {
        return missing_scale("weight is packed FP4 but .weight_scale is absent",
                             "F8_E4M3 [n, k/16] as .weight_scale_2 beside it demands");
      }
      return dense(weight);
    }
    result_.scale = module_.tensor(part);
    switch (weight.dtype) {
      case DType::kF8E4m3:
        return fp8(weight, *scale, carrier);
      case DType::kU8:
      case DType::kI8:
        return bytes(weight, *scale, carrier);
      default:
        dense(weight);
        return error("Q-S2",
                     fmt::format("weight is {} but has the scale {}",
                                 describe(weight),
                                 escape_for_display(scale->name)),
                     "an unquantised weight to have none",
                     "remove the scale or fetch the checkpoint again");
    }
  }

  void fp8(const TensorMeta& weight, const TensorMeta& scale, Carrier carrier) {
    const int32_t rank = weight.shape.rank();
    set_scheme(SchemeKind::kUnknown, carrier);
    if (!set_matrix(weight.shape, 1)) {
      return error("Q-S2",
                   fmt::format("weight is {}", describe(weight)),
                   "a matrix [n, k]",
                   "fetch the checkpoint again");
    }
    const int64_t n = result_.n;
    const int64_t k = result_.k;
    const auto evidence = [&](std::string_view granularity) {
      result_.evidence = fmt::format("F8_E4M3 + {}/{}", dtype_name(scale.dtype), granularity);
      if (module_.has(Part::kInputScale)) result_.evidence += " + input_scale";
    };
    const bool is_scale_dtype = scale.dtype == DType::kF32 || scale.dtype == DType::kBf16 ||
                                scale.dtype == DType::kF16 || scale.dtype == DType::kF8E8m0 ||
                                scale.dtype == DType::kU8;
    if (!is_scale_dtype) {
      return wrong_scale(
          scale,
          fmt::format("F8_E8M0 or F32 [{}, {}] for an FP8 weight [{}, {}] in 128x128 blocks",
                      ceil_div(n, 128),
                      ceil_div(k, 128),
                      n,
                      k));
    }
    if (scale.shape.num_elements() == 1 && n * k > 1 && !hints_.fp8_block) {
      set_scheme(SchemeKind::kFp8Tensor, carrier);
      return evidence("tensor");
    }
    const bool is_float = scale.dtype != DType::kF8E8m0 && scale.dtype != DType::kU8;
    if (is_float && (scale.shape == Shape{n} || scale.shape == scale_shape(n, 1, rank))) {
      set_scheme(SchemeKind::kFp8Channel, carrier);
      return evidence("row");
    }
    std::vector<BlockShape> fitting;
    for (const BlockShape block :
         {BlockShape{128, 128}, BlockShape{32, 32}, BlockShape{1, 32}, BlockShape{1, 128}}) {
      if (scale.shape == scale_shape(ceil_div(n, block.n), ceil_div(k, block.k), rank)) {
        fitting.push_back(block);
      }
    }
    if (fitting.size() > 1 && hints_.fp8_block) {
      const auto hinted = std::find(fitting.begin(), fitting.end(), *hints_.fp8_block);
      if (hinted != fitting.end()) fitting = {*hinted};
    }
    if (fitting.empty() && hints_.fp8_block) {
      const BlockShape block = *hints_.fp8_block;
      if (block.n > 0 && block.k > 0 &&
          scale.shape == scale_shape(ceil_div(n, block.n), ceil_div(k, block.k), rank)) {
        fitting.push_back(block);
      }
    }
    if (fitting.empty() && scale.shape.num_elements() == 1) {
      set_scheme(SchemeKind::kFp8Tensor, carrier);
      return evidence("tensor");
    }
    if (fitting.empty()) {
      const BlockShape block = hints_.fp8_block.value_or(BlockShape{128, 128});
      return wrong_scale(scale,
                         fmt::format("[{}, {}] for an FP8 weight [{}, {}] in {}x{} blocks (or one "
                                     "element per tensor, row, or 32x32 block)",
                                     ceil_div(n, block.n),
                                     ceil_div(k, block.k),
                                     n,
                                     k,
                                     block.n,
                                     block.k));
    }
    if (fitting.size() > 1) {
      return error("Q-S2",
                   fmt::format("{} fits blocks {}x{} and {}x{} alike",
                               describe(scale),
                               fitting[0].n,
                               fitting[0].k,
                               fitting[1].n,
                               fitting[1].k),
                   "weight_block_size in config.json, as this matrix is too small to tell",
                   "add weight_block_size to quantization_config");
    }
    const BlockShape block = fitting.front();
    const bool is_mx = block == BlockShape{1, 32} && !is_float;
    set_scheme(is_mx ? SchemeKind::kMxfp8 : SchemeKind::kFp8Block, carrier, block);
    evidence(is_mx ? "32" : fmt::format("{}x{}", block.n, block.k));
  }

  // U8 or I8 codes: E2M1 pairs, INT8, or ModelOpt's INT4 with two output rows per byte.
  void bytes(const TensorMeta& weight, const TensorMeta& scale, Carrier carrier) {
    const int32_t rank = weight.shape.rank();
    const bool is_float =
        scale.dtype == DType::kF32 || scale.dtype == DType::kBf16 || scale.dtype == DType::kF16;
    if (!set_matrix(weight.shape, 2)) {
      return error("Q-S2",
                   fmt::format("weight is {}", describe(weight)),
                   "a matrix [n, k/2]",
                   "fetch the checkpoint again");
    }
    if (is_float) return integer_bytes(weight, scale, carrier);
    const bool has_global = module_.has(Part::kWeightScale2);
    if (scale.dtype == DType::kF8E8m0 || (scale.dtype == DType::kU8 && !has_global)) {
      if (result_.k % 32 != 0) return group_does_not_divide(32);
      const Shape expected = scale_shape(result_.n, result_.k / 32, rank);
      if (scale.shape != expected) {
        return wrong_scale(scale,
                           fmt::format("{} {} for MXFP4 [{}, {}] in groups of 32",
                                       dtype_name(scale.dtype),
                                       expected.to_string(),
                                       result_.n,
                                       result_.k));
      }
      set_scheme(SchemeKind::kMxfp4, carrier, {1, 32});
      result_.evidence =
          fmt::format("{} + {}/32", dtype_name(weight.dtype), dtype_name(scale.dtype));
      if (has_global) {
        error("Q-S6",
              "MXFP4 scales (E8M0 per 32) together with .weight_scale_2",
              "no global scale for MXFP4",
              "the checkpoint mixes two formats; export it anew");
      }
      return;
    }
    if (scale.dtype != DType::kF8E4m3) {
      return wrong_scale(scale,
                         fmt::format("F8_E8M0 {} (MXFP4) or F8_E4M3 {} (NVFP4) for packed FP4{}",
                                     scale_shape(result_.n, result_.k / 32, rank).to_string(),
                                     scale_shape(result_.n, result_.k / 16, rank).to_string(),
                                     swizzle_hint(scale)));
    }
    nvfp4(weight, scale, carrier);
  }

  // Some quantisers save the order that tensor cores read, as a flat tensor.
  static std::string_view swizzle_hint(const TensorMeta& scale) {
    return scale.shape.rank() == 1 ? " (already in the tensor-core tile order?)" : "";
  }

  // E2M1 pairs with E4M3 group scales; `global` completes it.
  void nvfp4(const TensorMeta& weight, const TensorMeta& scale, Carrier carrier) {
    const bool is_ct = carrier == Carrier::kCompressedTensors;
    set_scheme(SchemeKind::kNvfp4, carrier, {1, 16});
    if (result_.k % 16 != 0) return group_does_not_divide(16);
    const Shape expected = scale_shape(result_.n, result_.k / 16, weight.shape.rank());
    if (scale.shape != expected) {
      return wrong_scale(scale,
                         fmt::format("F8_E4M3 {} for NVFP4 [{}, {}] in groups of 16{}",
                                     expected.to_string(),
                                     result_.n,
                                     result_.k,
                                     swizzle_hint(scale)));
    }
    const Part wanted = is_ct ? Part::kWeightGlobalScale : Part::kWeightScale2;
    const Part other = is_ct ? Part::kWeightScale2 : Part::kWeightGlobalScale;
    const std::string_view wanted_name = is_ct ? ".weight_global_scale" : ".weight_scale_2";
    result_.evidence = fmt::format("{} + F8_E4M3/16 + F32{}",
                                   dtype_name(weight.dtype),
                                   result_.scheme.has_input_scale ? " + input_scale" : "");
    if (!module_.has(wanted) && module_.has(other)) {
      return error("Q-S6",
                   fmt::format("the global scale is called {}, which {}",
                               is_ct ? ".weight_scale_2" : ".weight_global_scale",
                               is_ct ? "ModelOpt multiplies by" : "compressed-tensors divides by"),
                   fmt::format("{} beside {}", wanted_name, is_ct ? ".weight_packed" : ".weight"),
                   "rename the tensor and invert its value, or export the checkpoint anew");
    }
    const TensorMeta* global = find(wanted);
    if (global == nullptr) {
      return missing_scale(fmt::format("weight is packed FP4 but {} is absent", wanted_name),
                           "one F32 value per tensor");
    }
    const int64_t elements = global->shape.num_elements();
    if (global->dtype != DType::kF32 || (elements != 1 && elements != result_.num_matrices)) {
      return wrong_scale(*global, "one F32 value");
    }
    result_.global_scale = module_.tensor(wanted);
  }

  void group_does_not_divide(int64_t group) {
    error("Q-P1",
          fmt::format("k {} is not a multiple of the group of {}", result_.k, group),
          fmt::format("whole groups of {} along k", group),
          "export the checkpoint with another group size");
  }

  void integer_bytes(const TensorMeta& weight, const TensorMeta& scale, Carrier carrier) {
    const int32_t rank = weight.shape.rank();
    const int64_t rows = result_.n;
    const int64_t columns = result_.k / 2;  // as stored
    if (scale.shape == scale_shape(rows, 1, rank) || scale.shape == Shape{rows}) {
      result_.k = columns;
      set_scheme(SchemeKind::kInt8, carrier);
      result_.evidence =
          fmt::format("{} + {}/row", dtype_name(weight.dtype), dtype_name(scale.dtype));
      return;
    }
    const bool is_awq = scale.shape.rank() == 2 && scale.shape[0] == 2 * rows &&
                        scale.shape[1] > 0 && columns % scale.shape[1] == 0;
    if (is_awq) {
      result_.n = 2 * rows;
      result_.k = columns;
      const std::optional<int32_t> group = group_of(scale.shape[1], scale);
      if (!group) return;
      set_scheme(SchemeKind::kInt, Carrier::kModelOptAwq, {1, *group}, 4);
      result_.evidence =
          fmt::format("U8, two rows per byte, + {}/{}", dtype_name(scale.dtype), *group);
      return;
    }
    wrong_scale(
        scale,
        fmt::format(
            "[{}, 1] for INT8 or [{}, k/group] for INT4 with two rows per byte", rows, 2 * rows));
  }

  void compressed_tensors() {
    const TensorMeta& weight = meta(Part::kWeightPacked);
    const TensorMeta* scale = find(Part::kWeightScale);
    set_scheme(SchemeKind::kUnknown, Carrier::kCompressedTensors);
    if (scale == nullptr) {
      return missing_scale("weight is packed but .weight_scale is absent",
                           "group scales beside .weight_packed");
    }
    result_.scale = module_.tensor(Part::kWeightScale);
    const int32_t rank = weight.shape.rank();
    if (weight.dtype == DType::kI32) return packed_integers(weight, *scale);
    if (!set_matrix(weight.shape, 2)) {
      return error("Q-S2",
                   fmt::format(".weight_packed is {}", describe(weight)),
                   "a matrix [n, k/2]",
                   "fetch the checkpoint again");
    }
    if (scale->dtype == DType::kF8E4m3) {
      return nvfp4(weight, *scale, Carrier::kCompressedTensors);
    }
    if (scale->dtype != DType::kU8 && scale->dtype != DType::kF8E8m0) {
      return wrong_scale(*scale, "U8 [n, k/32] (MXFP4) or F8_E4M3 [n, k/16] (NVFP4)");
    }
    if (result_.k % 32 != 0) return group_does_not_divide(32);
    const Shape expected = scale_shape(result_.n, result_.k / 32, rank);
    if (scale->shape != expected) {
      return wrong_scale(*scale,
                         fmt::format("U8 {} for MXFP4 [{}, {}] in groups of 32",
                                     expected.to_string(),
                                     result_.n,
                                     result_.k));
    }
    set_scheme(SchemeKind::kMxfp4, Carrier::kCompressedTensors, {1, 32});
    result_.evidence =
        fmt::format("packed {} + {}/32", dtype_name(weight.dtype), dtype_name(scale->dtype));
  }

  // [n, ceil(k * bits / 32)] words; k comes from the scales and the group, bits from the config.
  void packed_integers(const TensorMeta& weight, const TensorMeta& scale) {
    const int32_t bits = hints_.bits > 0 ? hints_.bits : 4;
    if (weight.shape.rank() != 2 || scale.shape.rank() != 2 || scale.shape[1] == 0 ||
        scale.shape[0] != weight.shape[0]) {
      return wrong_scale(scale, fmt::format("[n, k/group] for packed {}", describe(weight)));
    }
    result_.n = weight.shape[0];
    result_.k = weight.shape[1] * 32 / bits;
    if (result_.k % scale.shape[1] != 0) {
      return error("Q-P1",
                   fmt::format("k {} ({} words of {}-bit codes) does not divide into {} groups",
                               result_.k,
                               weight.shape[1],
                               bits,
                               scale.shape[1]),
                   "whole groups along k",
                   "export the checkpoint with another group size");
    }
    if (!module_.has(Part::kWeightShape)) {
      missing_scale("weight is packed but .weight_shape is absent",
                    "the logical shape as two integers");
    }
    const std::optional<int32_t> group = group_of(scale.shape[1], scale);
    if (!group) return;
    set_scheme(SchemeKind::kInt, Carrier::kCompressedTensors, {1, *group}, bits);
    result_.evidence = fmt::format("packed I32 + {}/{}", dtype_name(scale.dtype), *group);
  }

  // [e, n, k/32, 16] blocks with [e, n, k/32] scales.
  void gpt_oss() {
    const TensorMeta& blocks = meta(Part::kBlocks);
    const TensorMeta* scales = find(Part::kScales);
    set_scheme(SchemeKind::kMxfp4, Carrier::kGptOss, {1, 32});
    if (scales == nullptr) {
      return missing_scale("_blocks without _scales", "U8 [experts, n, k/32]");
    }
    result_.scale = module_.tensor(Part::kScales);
    const Shape& shape = blocks.shape;
    if (blocks.dtype != DType::kU8 || shape.rank() != 4 || shape[3] != 16) {
      return error("Q-S2",
                   fmt::format("_blocks is {}", describe(blocks)),
                   "U8 [experts, n, k/32, 16]",
                   "fetch the checkpoint again");
    }
    result_.num_matrices = shape[0];
    result_.n = shape[1];
    result_.k = shape[2] * 32;
    const Shape expected{shape[0], shape[1], shape[2]};
    if (scales->dtype != DType::kU8 || scales->shape != expected) {
      return wrong_scale(*scales, fmt::format("U8 {}", expected.to_string()));
    }
    result_.evidence = "U8 blocks + U8/32";
  }

  void gptq_or_awq() {
    const TensorMeta& weight = meta(Part::kQweight);
    const TensorMeta* zeros = find(Part::kQzeros);
    const TensorMeta* scales = find(Part::kScales);
    set_scheme(SchemeKind::kUnknown, Carrier::kGptq);
    if (scales == nullptr) {
      return missing_scale("qweight without scales", "F16 [k/group, n]");
    }
    result_.scale = module_.tensor(Part::kScales);
    const bool is_shaped = weight.dtype == DType::kI32 && weight.shape.rank() == 2 &&
                           scales->shape.rank() == 2 && scales->shape[0] > 0;
    if (!is_shaped) {
      return wrong_scale(*scales, fmt::format("[k/group, n] for qweight {}", describe(weight)));
    }
    const int64_t groups = scales->shape[0];
    const int64_t n = scales->shape[1];
    const int32_t bits = hints_.bits > 0 ? hints_.bits : 4;
    Carrier carrier = Carrier::kGptq;
    result_.n = n;
    if (weight.shape[1] == n) {  // packed along k
      result_.k = weight.shape[0] * 32 / bits;
    } else if (weight.shape[1] * 32 / bits == n) {  // packed along n
      carrier = Carrier::kAwq;
      result_.k = weight.shape[0];
    } else {
      return wrong_scale(*scales, fmt::format("[k/group, n] for qweight {}", describe(weight)));
    }
    if (result_.k % groups != 0) {
      return error("Q-P1",
                   fmt::format("k {} does not divide into {} groups", result_.k, groups),
                   "whole groups along k",
                   "export the checkpoint with another group size");
    }
    if (zeros == nullptr) {
      return missing_scale("qweight without qzeros", "I32 zero points beside the scales");
    }
    const std::optional<int32_t> group = group_of(groups, *scales);
    if (!group) return;
    set_scheme(SchemeKind::kInt, carrier, {1, *group}, bits);
    result_.scheme.has_zero_point = true;
    result_.evidence = fmt::format("qweight I32 packed along {} + {}/{}",
                                   carrier == Carrier::kAwq ? "n" : "k",
                                   dtype_name(scales->dtype),
                                   *group);
  }

  void bits_and_bytes() {
    const TensorMeta& weight = meta(Part::kWeight);
    result_.n = 1;
    result_.k = weight.shape.num_elements() * 2;  // the logical shape is inside quant_state
    const std::string& state = meta(Part::kQuantState).name;
    const bool is_fp4 = state.find("bitsandbytes__fp4") != std::string::npos;
    set_scheme(is_fp4 ? SchemeKind::kBnbFp4 : SchemeKind::kNf4, Carrier::kBitsAndBytes, {1, 64});
    result_.evidence = fmt::format("{} + quant_state", describe(weight));
  }

  const StoredModule& module_;
  std::span<const TensorMeta> tensors_;
  const ShapeHints& hints_;
  Physical result_;
};

}  // namespace

Physical classify(const StoredModule& module,
                  std::span<const TensorMeta> tensors,
                  const ShapeHints& hints) {
  return Classifier(module, tensors, hints).run();
}

Physical classify_blocks(const StoredModule& module,
                         std::span<const TensorMeta> tensors,
                         std::span<const BlockType* const> block_types) {
  Part part = Part::kWeight;
  if (!module.has(part)) part = module.has(Part::kOther) ? Part::kOther : Part::kBias;
  Physical physical;
  if (!module.has(part)) return physical;
  const auto index = static_cast<size_t>(module.tensor(part));
  const Shape& shape = tensors[index].shape;
  const int32_t rank = shape.rank();
  physical.num_matrices = rank == 3 ? shape[0] : 1;
  physical.n = rank >= 2 ? shape[rank - 2] : 1;
  physical.k = rank >= 1 ? shape[rank - 1] : 1;
  const BlockType& type = *block_types[index];
  physical.evidence = fmt::format("GGUF type {}", type.name);
  Scheme& scheme = physical.scheme;
  scheme.carrier = Carrier::kGguf;
  if (type.is_quantized) {
    scheme.kind = SchemeKind::kGgufBlock;
    scheme.block = {1, static_cast<int32_t>(type.num_elements)};
    scheme.block_type = type.name;
  } else {
    scheme.kind = type.name == "f32"    ? SchemeKind::kF32
                  : type.name == "f16"  ? SchemeKind::kF16
                  : type.name == "bf16" ? SchemeKind::kBf16
                                        : SchemeKind::kIndex;
  }
  return physical;
}

}  // namespace nibble::quant
