// Detection with everything hostile: configuration files, tensor names, dtypes, shapes and values.
// An input is four parts separated by NUL: config.json, hf_quant_config.json, quantize_config.json,
// and tensors, one a line: "NAME DTYPE DIM DIM ...". Values are the bytes of the input itself.
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/checked_math.h"
#include "quant/detect.h"
#include "quant/shard.h"

namespace {

using nibble::Result;
using nibble::Shape;
using nibble::TensorMeta;
using nibble::quant::ConfigText;
using nibble::quant::DetectInput;
using nibble::quant::Detection;
using nibble::quant::Diagnostic;

std::string_view take(std::string_view& text, char end) {
  const size_t at = text.find(end);
  const std::string_view part = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view() : text.substr(at + 1);
  return part;
}

// What header parsing lets through: at most 2^48 bytes, also where a size is 0.
bool is_sane(const std::vector<int64_t>& dims) {
  std::optional<int64_t> bytes = 8;
  for (const int64_t dim : dims) {
    if (dim < 0) return false;
    if (bytes) bytes = nibble::checked_mul(*bytes, std::max<int64_t>(dim, 1));
  }
  return bytes && *bytes <= int64_t{1} << 48;
}

std::vector<TensorMeta> tensors_of(std::string_view text) {
  std::vector<TensorMeta> tensors;
  while (!text.empty()) {
    std::string_view line = take(text, '\n');
    const std::string_view name = take(line, ' ');
    const auto dtype = nibble::dtype_from_name(take(line, ' '));
    std::vector<int64_t> dims;
    while (!line.empty()) {
      const std::string_view number = take(line, ' ');
      int64_t dim = -1;
      std::from_chars(number.data(), number.data() + number.size(), dim);
      dims.push_back(dim);
    }
    const std::optional<Shape> shape = Shape::from(dims);
    if (!dtype || !shape || !is_sane(dims)) continue;
    tensors.push_back({.name = std::string(name), .dtype = *dtype, .shape = *shape});
  }
  return tensors;
}

void check_promises(const Detection& detection, const std::vector<TensorMeta>& tensors) {
  int64_t num_tensors = 0;
  for (const auto& module : detection.modules) {
    num_tensors += module.num_tensors;
    CHECK(module.n >= 0 && module.k >= 0 && module.num_matrices >= 0) << module.name;
    CHECK(!detection.evidence_of(module).empty());
    CHECK(!module.is_sound || module.scheme.block.k >= 0) << module.name;
    for (const auto axis : {nibble::quant::ShardAxis::kN, nibble::quant::ShardAxis::kK}) {
      (void)nibble::quant::shard_of(
          {.scheme = module.scheme, .n = module.n, .k = module.k, .axis = axis, .parts = 8});
    }
  }
  CHECK(num_tensors == static_cast<int64_t>(tensors.size()));
  CHECK(detection.diagnostics.size() < 1000) << detection.diagnostics.size();
  for (const Diagnostic& diagnostic : detection.diagnostics) {
    CHECK(diagnostic.code.starts_with("Q-")) << diagnostic.code;
    CHECK(!diagnostic.message.empty() && diagnostic.message.find('\n') == std::string::npos);
    CHECK(diagnostic.message.size() < 20'000) << diagnostic.message.size();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  std::string_view rest = input;
  std::vector<ConfigText> configs;
  for (const char* name : {"config.json", "hf_quant_config.json", "quantize_config.json"}) {
    const std::string_view text = take(rest, '\0');
    if (!text.empty()) configs.push_back({.file_name = name, .text = std::string(text)});
  }
  const std::vector<TensorMeta> tensors = tensors_of(rest);
  const nibble::quant::ReadTensorBytes values =
      [&](size_t tensor, int64_t begin, int64_t count) -> Result<std::vector<std::byte>> {
    CHECK(tensor < tensors.size() && begin >= 0 && count >= 0 && count <= 1 << 22) << count;
    const TensorMeta& meta = tensors[tensor];
    CHECK(begin + count <= meta.shape.num_elements() * nibble::dtype_size(meta.dtype)) << meta.name;
    std::vector<std::byte> bytes(static_cast<size_t>(count));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(input[i % size]);
    return bytes;
  };
  const DetectInput headers = {.configs = configs, .tensors = tensors, .read = {}};
  check_promises(nibble::quant::detect(headers), tensors);
  const DetectInput whole = {.configs = configs, .tensors = tensors, .read = values};
  check_promises(nibble::quant::detect(whole, {.is_strict = true}), tensors);
  if (!tensors.empty()) (void)nibble::quant::explain(headers, {}, tensors.back().name);
  return 0;
}
