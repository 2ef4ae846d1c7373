#include "quant/value_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/utf8.h"
#include "quant/numeric.h"

namespace nibble::quant {
namespace {

// Enough to see a wrong format in any class; all of it in checkpoints that are small.
constexpr int64_t kBytesPerClass = int64_t{2} << 20;
constexpr int64_t kMaxBytesPerTensor = 64 << 10;
constexpr size_t kMaxGlobals = 4096;

// True when E4M3 codes are distributed as exponents are. Both may lie in 0x6E to 0x7F: E4M3 scales
// within a quarter of the largest do. But exponents of weights are a few neighbouring numbers,
// while E4M3 scales are either many, or have gaps (weights of few values), or hold 0x7E, which the
// largest group of every tensor has.
bool looks_like_exponents(const std::array<int64_t, 256>& histogram, int64_t total) {
  constexpr int32_t kMaxExponents = 8;
  int64_t in_range = 0;
  int32_t first = -1, last = -1, num_common = 0;  // codes that make up 1% or more
  for (int32_t code = 0; code < 256; ++code) {
    const int64_t count = histogram[static_cast<size_t>(code)];
    if (code >= 0x6E && code <= 0x7F) in_range += count;
    if (count * 100 < total) continue;
    if (first < 0) first = code;
    last = code;
    ++num_common;
  }
  return in_range * 10 > total * 9 && num_common == last - first + 1 &&
         num_common <= kMaxExponents && histogram[0x7E] == 0;
}

class Checker final {
 public:
  Checker(const DetectInput& input, const DetectOptions& options, const Declaration& declaration)
      : input_(input), options_(options), declaration_(declaration) {}

  std::vector<Diagnostic> run(const std::vector<ScaledModule>& modules) {
    std::map<std::pair<std::string, std::string>, std::vector<const ScaledModule*>> classes;
    for (const ScaledModule& module : modules) {
      if (!module.physical->scheme.is_quantized()) continue;
      classes[{role_name(module.role), scheme_name(module.physical->scheme)}].push_back(&module);
    }
    for (const auto& [key, members] : classes) check_class(key.first, members);
    return std::move(diagnostics_);
  }

 private:
  void add(Severity severity, std::string_view code, std::string message) {
    diagnostics_.push_back(
        {.severity = severity, .code = std::string(code), .message = std::move(message)});
  }
  const TensorMeta& meta(int32_t tensor) const {
    return input_.tensors[static_cast<size_t>(tensor)];
  }
  std::vector<std::byte> read(int32_t tensor, int64_t begin, int64_t count) {
    Result<std::vector<std::byte>> bytes = input_.read(static_cast<size_t>(tensor), begin, count);
    if (bytes.ok()) return std::move(bytes).value();
    add(Severity::kError,
        "Q-F1",
        fmt::format("{}: {}. Fix: fetch the file again.",
                    escape_for_display(meta(tensor).name),
                    bytes.error().message));
    return {};
  }
  std::optional<float> read_f32(int32_t tensor) {
    if (tensor < 0 || meta(tensor).dtype != DType::kF32) return std::nullopt;
    const std::vector<std::byte> bytes = read(tensor, 0, sizeof(float));
    if (bytes.size() != sizeof(float)) return std::nullopt;
    float value = 0;
    std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }

  void check_class(const std::string& role, const std::vector<const ScaledModule*>& members) {
    sample_scales(role, members);
    check_globals(members);
    check_input_scales(members);
    check_fused(role, members);
    if (members.front()->physical->scheme.carrier != Carrier::kGptq) return;
    check_zero_points(members);
    check_group_index(members);
  }

  void sample_scales(const std::string& role, const std::vector<const ScaledModule*>& members) {
    const auto count = static_cast<int64_t>(members.size());
    const int64_t share = std::max<int64_t>(kBytesPerClass / count, 256);
    const size_t stride = static_cast<size_t>(std::max<int64_t>(count / 8192, 1));
    std::array<int64_t, 256> histogram{};
    std::optional<DType> dtype;
    bool has_reported_nan = false;
    for (size_t i = 0; i < members.size(); i += stride) {
      const ScaledModule& module = *members[i];
      const int32_t tensor = module.physical->scale;
      if (tensor < 0) continue;
      const TensorMeta& scale = meta(tensor);
      if (dtype_size(scale.dtype) != 1) {
        check_float_scale(module, tensor);
        continue;
      }
      dtype = scale.dtype;
      const int64_t total = scale.shape.num_elements();
      const int64_t wanted = std::min({total, share, kMaxBytesPerTensor});
      const std::vector<std::byte> bytes = read(tensor, 0, wanted);
      for (size_t b = 0; b < bytes.size(); ++b) {
        const auto code = std::to_integer<uint8_t>(bytes[b]);
        ++histogram[code];
        if (!has_reported_nan && is_forbidden(scale.dtype, code)) {
          has_reported_nan = true;
          report_code(scale, code, b);
        }
        if (code == 0 && module.physical->scheme.kind == SchemeKind::kNvfp4) {
          check_zero_group(module, static_cast<int64_t>(b));
        }
      }
    }
    if (dtype) judge_histogram(role, *dtype, histogram);
  }

  // A scale of zero is allowed where the group holds nothing but zeros. A few groups are looked at.
  void check_zero_group(const ScaledModule& module, int64_t group) {
    constexpr int64_t kCodeBytes = 8;  // 16 codes
    constexpr int32_t kMaxGroups = 64;
    if (num_zero_groups_ >= kMaxGroups || has_bad_zero_) return;
    ++num_zero_groups_;
    const Part part = module.stored->has(Part::kWeightPacked) ? Part::kWeightPacked : Part::kWeight;
    const int32_t weight = module.stored->tensor(part);
    const std::vector<std::byte> codes = read(weight, group * kCodeBytes, kCodeBytes);
    // Codes 0 and 8 are both zero.
    if (std::all_of(codes.begin(), codes.end(), [](std::byte b) {
          return (b & std::byte{0x77}) == std::byte{0};
        })) {
      return;
    }
    has_bad_zero_ = true;
    add(Severity::kError,
        "Q-S3",
        fmt::format("{}: group {} has the scale 0 but its codes are not all zero; expected a scale "
                    "above 0. Fix: fetch the file again, or export the checkpoint anew.",
                    escape_for_display(meta(module.physical->scale).name),
                    group));
  }

  static bool is_forbidden(DType dtype, uint8_t code) {
    if (dtype == DType::kF8E4m3) return is_e4m3_nan(code) || (code & 0x80) != 0;
    return code == kE8m0Nan;
  }
  void report_code(const TensorMeta& scale, uint8_t code, size_t index) {
    const bool is_e4m3 = scale.dtype == DType::kF8E4m3;
    add(Severity::kError,
        "Q-S3",
        fmt::format(
            "{}: byte {} is 0x{:02X}, which is {} in {}; expected a {} scale. Fix: fetch the "
            "file again, or export the checkpoint anew.",
            escape_for_display(scale.name),
            index,
            code,
            is_e4m3 && !is_e4m3_nan(code) ? "negative" : "NaN",
            is_e4m3 ? "E4M3" : "E8M0",
            is_e4m3 ? "finite, non-negative" : "finite"));
  }

  void judge_histogram(const std::string& role,
                       DType dtype,
                       const std::array<int64_t, 256>& histogram) {
    int64_t total = 0;
    int64_t like_e8m0 = 0;  // 0x6E to 0x7F: where E8M0 scales of weights lie
    int64_t odd_range = 0;  // far from any weight's magnitude
    int64_t powers = 0;     // E4M3 with zero mantissa
    for (size_t code = 0; code < histogram.size(); ++code) {
      total += histogram[code];
      if (code >= 0x6E && code <= 0x7F) like_e8m0 += histogram[code];
      if (code < 60 || code > 190) odd_range += histogram[code];
      const bool is_power = code <= 8 ? (code & (code - 1)) == 0 : (code & 7) == 0;
      if (is_power) powers += histogram[code];
    }
    if (total == 0) return;
    if (dtype == DType::kF8E4m3) {
      // A lossless cast puts the largest scales at 2^8 and 2^7, 0x78 and 0x70: the same range, but
      // exponents of weights are not all multiples of 8.
      if (powers == total && total >= 64) {
        add(Severity::kInfo,
            "Q-S4",
            fmt::format("{}: all sampled E4M3 scales are powers of two: the weights were cast "
                        "losslessly from MXFP4.",
                        role));
      } else if (looks_like_exponents(histogram, total)) {
        add(Severity::kError,
            "Q-S4",
            fmt::format(
                "{}: {} of {} sampled E4M3 scale bytes lie in 0x6E to 0x7F; these look like "
                "E8M0 exponents (MXFP4 labelled as NVFP4). Fix: export the checkpoint anew.",
                role,
                like_e8m0,
                total));
      }
      return;
    }
    if (odd_range * 2 > total) {
      add(Severity::kWarning,
          "Q-S4",
          fmt::format(
              "{}: {} of {} sampled E8M0 scale bytes lie outside 60 to 190 (2^-67 to 2^63); "
              "expected the magnitude of weights. The scales may be of another format.",
              role,
              odd_range,
              total));
    }
  }

  // Scales stored as F32, BF16 or F16: the first values of each tensor.
  void check_float_scale(const ScaledModule& module, int32_t tensor) {
    const TensorMeta& scale = meta(tensor);
    const int64_t size = dtype_size(scale.dtype);
    if (size != 4 && size != 2) return;
    const int64_t count = std::min<int64_t>(scale.shape.num_elements(), 1024);
    const std::vector<std::byte> bytes = read(tensor, 0, count * size);
    for (size_t i = 0; i + static_cast<size_t>(size) <= bytes.size();
         i += static_cast<size_t>(size)) {
      float value = 0;
      if (size == 4) {
        std::memcpy(&value, bytes.data() + i, sizeof(value));
      } else {
        uint16_t half = 0;
        std::memcpy(&half, bytes.data() + i, sizeof(half));
        value = scale.dtype == DType::kBf16 ? bf16_to_f32(half) : f16_to_f32(half);
      }
      const SchemeKind kind = module.physical->scheme.kind;
      const bool may_be_negative = kind == SchemeKind::kInt;
      const bool is_global = kind == SchemeKind::kFp8Tensor;
      const bool is_in_range = may_be_negative || (is_global ? value > 0 : value >= 0);
      if (std::isfinite(value) && is_in_range) continue;
      add(Severity::kError,
          "Q-S3",
          fmt::format(
              "{}: element {} is {}; expected a finite scale{}. Fix: fetch the file again, or "
              "export the checkpoint anew.",
              escape_for_display(scale.name),
              i / static_cast<size_t>(size),
              value,
              may_be_negative ? ""
              : is_global     ? " above 0"
                              : " that is not negative"));
      return;
    }
  }

  void check_globals(const std::vector<const ScaledModule*>& members) {
    const size_t stride = std::max<size_t>(members.size() / kMaxGlobals, 1);
    for (size_t i = 0; i < members.size(); i += stride) {
      const ScaledModule& module = *members[i];
      const std::optional<float> value = read_f32(module.physical->global_scale);
      if (!value) continue;
      const std::string name = escape_for_display(meta(module.physical->global_scale).name);
      const bool is_divisor = module.physical->scheme.carrier == Carrier::kCompressedTensors;
      if (!std::isfinite(*value) || *value <= 0) {
        add(Severity::kError,
            "Q-S3",
            fmt::format("{}: the value is {}; expected a finite value above 0. Fix: fetch the file "
                        "again, or export the checkpoint anew.",
                        name,
                        *value));
      } else if (is_divisor ? *value < 1 : *value > 1) {
        add(Severity::kError,
            "Q-S6",
            fmt::format(
                "{}: the value is {}; a {} is {} 1. The multiplier of ModelOpt and the "
                "divisor of compressed-tensors were mixed up. Fix: export the checkpoint "
                "anew.",
                name,
                *value,
                is_divisor ? "weight_global_scale (2688/amax)" : "weight_scale_2 (amax/2688)",
                is_divisor ? "above" : "below"));
      }
    }
  }

  void check_input_scales(const std::vector<const ScaledModule*>& members) {
    if (options_.ignores_input_scales) return;
    const size_t stride = std::max<size_t>(members.size() / kMaxGlobals, 1);
    std::vector<std::string> bad;
    for (size_t i = 0; i < members.size(); i += stride) {
      const StoredModule& stored = *members[i]->stored;
      const Part part = stored.has(Part::kInputScale) ? Part::kInputScale : Part::kInputGlobalScale;
      const std::optional<float> value = read_f32(stored.tensor(part));
      if (value && (!std::isfinite(*value) || *value <= 0)) bad.emplace_back(stored.name);
    }
    if (bad.empty()) return;
    const size_t count = bad.size();
    bad.resize(std::min<size_t>(count, 12));
    add(Severity::kError,
        "Q-S5",
        fmt::format("input_scale is zero or not finite in {} modules: {}{}; expected a value above "
                    "0. Fix: pass --act-scale dynamic to ignore static activation scales.",
                    count,
                    fmt::join(bad, ", "),
                    count > bad.size() ? ", ..." : ""));
  }

  // S7: projections that other programs compute in one call, and so with one global scale.
  void check_fused(const std::string& role, const std::vector<const ScaledModule*>& members) {
    struct Fused {
      std::string_view first;
      std::array<std::string_view, 2> others;
    };
    constexpr std::array kFused = std::to_array<Fused>({{".w1", {".w3", ""}},
                                                        {".gate_proj", {".up_proj", ""}},
                                                        {".q_proj", {".k_proj", ".v_proj"}}});
    std::unordered_map<std::string_view, const ScaledModule*> by_name;
    for (const ScaledModule* module : members) by_name[module->stored->name] = module;
    for (const Fused& fused : kFused) {
      for (const std::string_view other : fused.others) {
        if (!other.empty()) check_pairs(role, fused.first, other, by_name, members);
      }
    }
  }

  void check_pairs(const std::string& role,
                   std::string_view first,
                   std::string_view second,
                   const std::unordered_map<std::string_view, const ScaledModule*>& by_name,
                   const std::vector<const ScaledModule*>& members) {
    int64_t num_pairs = 0;
    int64_t num_different = 0;
    float worst = 1;
    for (const ScaledModule* module : members) {
      const std::string_view name = module->stored->name;
      if (module->physical->global_scale < 0 || !name.ends_with(first)) continue;
      if (num_pairs >= int64_t{kMaxGlobals}) break;
      const auto it = by_name.find(std::string(name.substr(0, name.size() - first.size())) +
                                   std::string(second));
      if (it == by_name.end()) continue;
      const std::optional<float> a = read_f32(module->physical->global_scale);
      const std::optional<float> b = read_f32(it->second->physical->global_scale);
      if (!a || !b || *a <= 0 || *b <= 0) continue;
      ++num_pairs;
      if (*a == *b) continue;
      ++num_different;
      worst = std::max({worst, *a / *b, *b / *a});
    }
    if (num_different == 0) return;
    add(Severity::kWarning,
        "Q-S7",
        fmt::format(
            "{}: the global scales of {} and {} differ in {} of {} pairs, by up to {:.3g}x. "
            "Each keeps its own scale, as separate rows of one packed weight.",
            role,
            first.substr(1),
            second.substr(1),
            num_different,
            num_pairs,
            worst));
  }

  // D2: rows that are reordered although desc_act says they are not.
  void check_group_index(const std::vector<const ScaledModule*>& members) {
    if (declaration_.has_act_order()) return;
    for (const ScaledModule* module : members) {
      const int32_t group = module->physical->scheme.block.k;
      if (!module->stored->has(Part::kGroupIndex) || group < 1) continue;
      const TensorMeta& index = meta(module->stored->tensor(Part::kGroupIndex));
      const int64_t count = std::min<int64_t>(index.shape.num_elements(), kMaxBytesPerTensor / 4);
      const std::vector<std::byte> bytes =
          read(module->stored->tensor(Part::kGroupIndex), 0, count * 4);
      std::vector<int32_t> groups(bytes.size() / sizeof(int32_t));
      std::memcpy(groups.data(), bytes.data(), groups.size() * sizeof(int32_t));
      for (size_t i = 0; i < groups.size(); ++i) {
        const size_t expected = i / static_cast<size_t>(group);
        if (groups[i] == static_cast<int32_t>(expected)) continue;
        return add(Severity::kError,
                   "Q-D2",
                   fmt::format("{}: row {} belongs to group {}; expected {}, as desc_act is false. "
                               "Fix: set desc_act to true, or export the checkpoint anew.",
                               escape_for_display(index.name),
                               i,
                               groups[i],
                               expected));
      }
    }
  }

  static bool has_code_15(const std::vector<std::byte>& bytes) {
    return std::any_of(bytes.begin(), bytes.end(), [](std::byte b) {
      return (b & std::byte{0xF}) == std::byte{0xF} || (b >> 4) == std::byte{0xF};
    });
  }

  // S9: GPTQ stores z - 1 in format v1 and z in v2; symmetric 4-bit files show which.
  void check_zero_points(const std::vector<const ScaledModule*>& members) {
    const std::string& format = declaration_.checkpoint_format();
    for (const ScaledModule* module : members) {
      if (module->physical->scheme.bits != 4 || !module->stored->has(Part::kQzeros)) continue;
      const int32_t tensor = module->stored->tensor(Part::kQzeros);
      const int64_t count =
          std::min<int64_t>(meta(tensor).shape.num_elements() * 4, kMaxBytesPerTensor);
      const std::vector<std::byte> bytes = read(tensor, 0, count);
      if (bytes.empty()) return;
      const auto all = [&](uint8_t code) {
        return std::all_of(bytes.begin(), bytes.end(), [&](std::byte b) {
          return std::to_integer<uint8_t>(b) == code;
        });
      };
      const bool is_v2 = format == "gptq_v2";
      if (!is_v2 && has_code_15(bytes)) {
        return add(Severity::kError,
                   "Q-S9",
                   fmt::format("{}: a zero point is stored as 15, which in checkpoint_format {} "
                               "means 16 or, by wrapping, 0; expected 0 to 14. Fix: export the "
                               "checkpoint as gptq_v2.",
                               escape_for_display(meta(tensor).name),
                               format));
      }
      if (!all(is_v2 ? 0x77 : 0x88)) continue;
      add(Severity::kError,
          "Q-S9",
          fmt::format(
              "{}: every zero point is {}; expected {} for symmetric {} (checkpoint_format). "
              "Fix: correct checkpoint_format to {}.",
              escape_for_display(meta(tensor).name),
              is_v2 ? 7 : 8,
              is_v2 ? 8 : 7,
              format,
              is_v2 ? "gptq" : "gptq_v2"));
      return;
    }
  }

  const DetectInput& input_;
  const DetectOptions& options_;
  const Declaration& declaration_;
  std::vector<Diagnostic> diagnostics_;
  int32_t num_zero_groups_ = 0;
  bool has_bad_zero_ = false;
};

}  // namespace

std::vector<Diagnostic> check_values(const DetectInput& input,
                                     const DetectOptions& options,
                                     const std::vector<ScaledModule>& modules,
                                     const Declaration& declaration) {
  return Checker(input, options, declaration).run(modules);
}

}  // namespace nibble::quant
