// What a checkpoint is: the format of every module, from stored bytes and configuration files
// together. Stored bytes decide, files confirm and name; where they disagree, both sides are shown.
// Every tensor is claimed by exactly one module, every module has one role. Reads no files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "quant/declaration.h"
#include "quant/diagnostic.h"
#include "quant/module_role.h"
#include "quant/scheme.h"
#include "tensor/block_type.h"
#include "tensor/tensor_view.h"

namespace nibble::quant {

// Bytes [begin, begin + count) of a tensor's data.
using ReadTensorBytes = std::function<Result<std::vector<std::byte>>(
    size_t tensor_index, int64_t begin, int64_t count)>;

struct DetectInput {
  std::span<const ConfigText> configs;
  std::span<const TensorMeta> tensors;  // of all shards
  ReadTensorBytes read;                 // empty: headers only, values are not checked
  // GGUF: as `tensors`, whose dtypes then mean nothing; and the architecture that the file names.
  std::span<const BlockType* const> block_types = {};
  std::string_view architecture = {};
};

// What the user believes that routed experts are.
enum class ExpertDtype : uint8_t { kAsStored, kFp4, kFp8 };

struct DetectOptions {
  bool is_strict = false;       // unmatched patterns and overruled declarations are errors
  bool trusts_headers = false;  // where files contradict the stored bytes, warn instead of stopping
  bool ignores_input_scales = false;  // activations are scaled by what they are at run time
  ExpertDtype expert_dtype = ExpertDtype::kAsStored;  // other than stored: Q-K4
};

struct DetectedModule {
  std::string name;  // as stored, without suffix
  ModuleRole role = {};
  Scheme scheme = {};
  int64_t num_matrices = 1;
  int64_t n = 0;  // logical [n, k] of one matrix; vectors have n 1
  int64_t k = 0;
  int64_t num_bytes = 0;  // of all its tensors
  int32_t num_tensors = 0;
  int32_t evidence = 0;  // index into Detection::evidence
  bool is_sound = true;  // false: classify() found a fault, and the scheme is a guess
};

struct Detection {
  std::string model_type;
  std::string method;  // quant_method, or what stands for it
  std::vector<DetectedModule> modules;
  std::vector<std::string> evidence;  // "header: I8 + F8_E8M0/32; expert_dtype fp4 (config.json)"
  std::vector<Diagnostic> diagnostics;

  const std::string& evidence_of(const DetectedModule& module) const {
    return evidence[static_cast<size_t>(module.evidence)];
  }
};

// Model types whose tensor names are all known, so that an unknown tensor is an error.
bool is_known_model_type(std::string_view model_type);

Detection detect(const DetectInput& input, const DetectOptions& options = {});

// The whole evidence for one module.
struct Explanation {
  std::string text;    // for people, a line per fact
  std::string role;    // "routed_experts"
  std::string format;  // "mxfp4"
};
// `module` is a module or tensor name as stored. kNotFound names the nearest modules.
Result<Explanation> explain(const DetectInput& input,
                            const DetectOptions& options,
                            std::string_view module);

// At most `count` of `names` that resemble `name` most, for "did you mean".
std::vector<std::string> nearest_names(std::string_view name,
                                       std::span<const std::string> names,
                                       size_t count);

// "layers.3.ffn.experts.17.w1" -> "layers.*.ffn.experts.*.w1"
std::string without_numbers(std::string_view name);

}  // namespace nibble::quant
