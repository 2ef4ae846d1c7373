#include "cli/decision_trace.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/safetensors.h"

namespace nibble::cli {
namespace {

using PositionIds = std::vector<std::vector<int32_t>>;  // position -> ids
using LayerIds = std::vector<PositionIds>;              // layer -> position -> ids

constexpr std::string_view kPrefix = "layers.";
constexpr std::string_view kExperts = "experts";
constexpr std::string_view kSelected = "selected";
constexpr int32_t kMaxLayers = 4096;  // far above any model; bounds what a file can ask for

// A tensor to be written, with its elements.
struct Table {
  std::string name;
  Shape shape;
  std::vector<int32_t> elements;
};

std::optional<Table> make_table(size_t layer, std::string_view kind, const PositionIds& positions) {
  size_t width = 0;
  for (const auto& ids : positions) width = std::max(width, ids.size());
  if (width == 0) return std::nullopt;
  Table table{.name = fmt::format("{}{}.{}", kPrefix, layer, kind),
              .shape = {static_cast<int64_t>(positions.size()), static_cast<int64_t>(width)},
              .elements = std::vector<int32_t>(positions.size() * width, -1)};
  for (size_t i = 0; i < positions.size(); ++i) {
    std::copy(positions[i].begin(),
              positions[i].end(),
              table.elements.begin() + static_cast<std::ptrdiff_t>(i * width));
  }
  return table;
}

void add_tables(std::string_view kind, const LayerIds& layers, std::vector<Table>& tables) {
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (auto table = make_table(layer, kind, layers[layer])) tables.push_back(std::move(*table));
  }
}

// "layers.12.experts" -> {12, "experts"}
std::optional<std::pair<int32_t, std::string_view>> parse_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  int32_t layer = 0;
  const auto [end, fault] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (fault != std::errc() || layer < 0 || layer >= kMaxLayers) return std::nullopt;
  const std::string_view rest = name.substr(static_cast<size_t>(end - name.data()));
  if (rest == ".experts") return std::pair(layer, kExperts);
  if (rest == ".selected") return std::pair(layer, kSelected);
  return std::nullopt;
}

PositionIds read_table(const Shape& shape, const std::byte* data) {
  PositionIds positions(static_cast<size_t>(shape[0]));
  const auto width = static_cast<size_t>(shape[1]);
  std::vector<int32_t> row(width);
  for (size_t i = 0; i < positions.size(); ++i) {
    std::memcpy(row.data(), data + i * width * sizeof(int32_t), width * sizeof(int32_t));
    positions[i].assign(row.begin(), std::find(row.begin(), row.end(), -1));
  }
  return positions;
}

}  // namespace

Result<void> write_decisions(const Path& path, const models::Decisions& decisions) {
  std::vector<Table> tables;
  add_tables(kExperts, decisions.expert_ids, tables);
  add_tables(kSelected, decisions.selected_entries, tables);
  std::vector<checkpoint::NamedTensor> tensors;
  for (Table& table : tables) {
    tensors.push_back(
        {.name = table.name,
         .view = TensorView::contiguous(table.elements.data(), DType::kI32, table.shape)});
  }
  return checkpoint::write_safetensors(path, tensors);
}

Result<models::Decisions> read_decisions(const Path& path) {
  TRY_ASSIGN(const MappedFile file, MappedFile::open(path));
  const auto size = static_cast<int64_t>(file.bytes().size());
  TRY_ASSIGN(const checkpoint::SafetensorsHeader header,
             checkpoint::parse_safetensors_header(file.bytes(), size, path.string()));
  models::Decisions decisions;
  for (const checkpoint::StoredTensor& tensor : header.tensors) {
    const auto name = parse_name(tensor.meta.name);
    if (!name || tensor.meta.dtype != DType::kI32 || tensor.meta.shape.rank() != 2) {
      return data_loss(fmt::format(
          "{}: tensor {}: expected layers.N.experts or layers.N.selected, I32 of rank 2; the file "
          "was not written by --record",
          path.string(),
          tensor.meta.name));
    }
    LayerIds& layers = name->second == kExperts ? decisions.expert_ids : decisions.selected_entries;
    const auto layer = static_cast<size_t>(name->first);
    if (layers.size() <= layer) layers.resize(layer + 1);
    layers[layer] = read_table(tensor.meta.shape, file.bytes().data() + tensor.begin);
  }
  return decisions;
}

}  // namespace nibble::cli
