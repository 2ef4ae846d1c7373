#include "golden/editable_model.h"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "quant/reference.h"
#include "quant/weight_view.h"

namespace nibble::golden {
namespace {

std::vector<std::byte> copy_bytes(const void* data, int64_t count) {
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  std::memcpy(bytes.data(), data, bytes.size());
  return bytes;
}

constexpr std::string_view kWeight = ".weight";

bool is_weight(const std::string& name) {
  return name.size() > kWeight.size() && name.ends_with(kWeight);
}

std::string module_of(const std::string& name) {
  return name.substr(0, name.size() - kWeight.size());
}

}  // namespace

EditableModel EditableModel::read(const Path& dir) {
  EditableModel model;
  const checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(dir).value();
  for (const TensorMeta& meta : checkpoint.tensors()) {
    const TensorView view = checkpoint.tensor(meta.name).value();
    model.tensors[meta.name] = {
        .dtype = meta.dtype, .shape = meta.shape, .bytes = copy_bytes(view.data, view.num_bytes())};
  }
  const json::Value config = json::parse(read_file(dir / "config.json", 1 << 20).value()).value();
  model.config = *config.as_object();
  return model;
}

Path EditableModel::write() {
  if (written_.empty()) {
    std::string pattern = (std::filesystem::temp_directory_path() / "nibble-model-XXXXXX").string();
    CHECK(mkdtemp(pattern.data()) != nullptr) << pattern;
    written_ = pattern;
  }
  std::vector<checkpoint::NamedTensor> named;
  for (auto& [name, tensor] : tensors) named.push_back({.name = name, .view = tensor.view()});
  checkpoint::write_safetensors(written_ / "model.safetensors", named).value();
  std::ofstream(written_ / "config.json") << json::dump(json::Value(config), json::Style::kCompact);
  return written_;
}

EditableModel::~EditableModel() {
  std::error_code ignored;
  if (!written_.empty()) std::filesystem::remove_all(written_, ignored);
}

OwnedTensor& EditableModel::at(const std::string& name) {
  const auto found = tensors.find(name);
  CHECK(found != tensors.end()) << name;
  return found->second;
}

void EditableModel::erase(const std::string& name) { CHECK(tensors.erase(name) == 1) << name; }

void EditableModel::rename(const std::string& from, const std::string& to) {
  auto node = tensors.extract(from);
  CHECK(!node.empty()) << from;
  node.key() = to;
  tensors.insert(std::move(node));
}

void EditableModel::quantize(const std::function<bool(const std::string&)>& wanted,
                             quant::Format format,
                             DType scale_dtype) {
  std::map<std::string, OwnedTensor> scales;
  for (auto& [name, tensor] : tensors) {
    if (!is_weight(name) || !wanted(module_of(name))) continue;
    const quant::WeightView stored =
        quant::make_weight_view({.name = name, .weight = tensor.view(), .scale_name = ""}).value();
    std::vector<float> values(static_cast<size_t>(stored.n * stored.k));
    quant::dequantize(stored, values);
    const quant::QuantizedWeight packed =
        quant::quantize(format, values, stored.n, stored.k, scale_dtype);
    const quant::WeightView view = packed.view();
    tensor = {.dtype = view.codes.dtype, .shape = view.codes.shape, .bytes = packed.codes};
    scales[module_of(name) + ".scale"] = {
        .dtype = scale_dtype, .shape = view.scales.shape, .bytes = packed.scales};
  }
  tensors.merge(scales);
}

void EditableModel::dequantize() {
  for (auto& [name, tensor] : tensors) {
    const auto scale = is_weight(name) ? tensors.find(module_of(name) + ".scale") : tensors.end();
    if (scale == tensors.end()) continue;
    const quant::WeightView stored = quant::make_weight_view({.name = name,
                                                              .weight = tensor.view(),
                                                              .scale_name = scale->first,
                                                              .scale = scale->second.view()})
                                         .value();
    std::vector<float> values(static_cast<size_t>(stored.n * stored.k));
    quant::dequantize(stored, values);
    tensor = {
        .dtype = DType::kF32,
        .shape = {stored.n, stored.k},
        .bytes = copy_bytes(values.data(), static_cast<int64_t>(values.size() * sizeof(float)))};
    tensors.erase(scale);
  }
}

}  // namespace nibble::golden
