#include "cli/id_arrays.h"

#include <fmt/core.h>

#include <limits>

namespace nibble::cli {

Result<json::Value> parse_id_arrays(std::string_view text, std::string_view what) {
  Result<json::Value> document = json::parse(text, kIdArrayLimits);
  if (document.ok()) return document;
  return invalid_argument(fmt::format("{}: {}", what, document.error().message));
}

Result<std::vector<int32_t>> ids_from_json(const json::Value& value, std::string_view what) {
  const json::Array* array = value.as_array();
  if (array == nullptr) {
    return invalid_argument(
        fmt::format("{}: is {}, expected an array of token ids", what, value.kind_name()));
  }
  std::vector<int32_t> ids;
  ids.reserve(array->size());
  for (const json::Value& element : *array) {
    const auto id = element.as_int64();
    if (!id || *id < 0 || *id > std::numeric_limits<int32_t>::max()) {
      return invalid_argument(fmt::format("{}: element {} is no token id", what, ids.size()));
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

Result<std::vector<int32_t>> ids_from_document(const json::Value& value, std::string_view what) {
  const json::Value* member = value.find("ids");
  return ids_from_json(member != nullptr ? *member : value, what);
}

json::Value ids_to_json(const std::vector<int32_t>& ids) {
  json::Array array;
  array.reserve(ids.size());
  for (const int32_t id : ids) array.emplace_back(id);
  return array;
}

}  // namespace nibble::cli
