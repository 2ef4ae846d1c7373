#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/checked_math.h"
#include "base/json.h"
#include "checkpoint/display.h"

namespace nibble::checkpoint {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr std::string_view kMetadataKey = "__metadata__";
// {name: {"shape": [dims]}} is three deep.
constexpr json::Limits kHeaderLimits = {
    .max_depth = 3, .max_nodes = 4'000'000, .max_bytes = kMaxHeaderBytes};
constexpr std::string_view kFetchAgain = "The file is damaged: delete it and fetch it again.";

// Where a fault was found; starts every message.
struct Place {
  std::string_view file;
  std::string_view tensor = {};

  Error damaged(const std::string& what) const { return data_loss(text(what, kFetchAgain)); }
  Error unreadable(const std::string& what, std::string_view remedy) const {
    return unsupported(text(what, remedy));
  }

 private:
  std::string text(const std::string& what, std::string_view remedy) const {
    const std::string subject =
        tensor.data() == nullptr ? "" : fmt::format("tensor {}: ", display_name(tensor));
    return fmt::format("{}: {}{}. {}", display_name(file), subject, what, remedy);
  }
};

int64_t read_length(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) value |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  return static_cast<int64_t>(
      value);  // lengths beyond int64_t come out negative and are refused as such
}

Result<const json::Value*> require_member(const json::Object& entry,
                                          std::string_view key,
                                          const Place& place) {
  const json::Value* value = entry.find(key);
  if (value == nullptr) return place.damaged(fmt::format("has no \"{}\"", key));
  return value;
}

// An array of non-negative integers.
Result<std::vector<int64_t>> read_sizes(const json::Object& entry,
                                        std::string_view key,
                                        const Place& place) {
  TRY_ASSIGN(const json::Value* value, require_member(entry, key, place));
  const json::Array* array = value->as_array();
  if (array == nullptr) {
    return place.damaged(
        fmt::format("{} is {}, expected an array of integers", key, display_value(*value)));
  }
  std::vector<int64_t> sizes;
  for (const json::Value& element : *array) {
    const std::optional<int64_t> size = element.as_int64();
    if (!size || *size < 0) {
      return place.damaged(fmt::format(
          "{} holds {}, expected integers from 0 to 2^63 - 1", key, display_value(element)));
    }
    sizes.push_back(*size);
  }
  return sizes;
}

constexpr std::string_view kPackedFp4 = "F4";

Result<std::string> read_dtype_name(const json::Object& entry, const Place& place) {
  TRY_ASSIGN(const json::Value* value, require_member(entry, "dtype", place));
  const std::string* name = value->as_string();
  if (name == nullptr)
    return place.damaged(fmt::format("dtype is {}, expected a string", display_value(*value)));
  return *name;
}

Result<DType> dtype_of(const std::string& name, const Place& place) {
  if (name == kPackedFp4) return DType::kU8;
  const std::optional<DType> dtype = dtype_from_name(name);
  if (dtype) return *dtype;
  Error error =
      place.unreadable(fmt::format("dtype {}, expected one of BOOL, U8, I8, I16, U16, I32, U32, "
                                   "I64, U64, F16, BF16, F32, F64, F8_E4M3, F8_E5M2, F8_E8M0, F4",
                                   display_name(name)),
                       "Convert the checkpoint to one of these.");
  error.reason = kUnknownDtypeReason;
  return error;
}

// The shape in bytes of packed codes whose shape may count codes.
Shape shape_in_bytes(const Shape& shape, int64_t num_bytes) {
  const std::optional<int64_t> elements = shape.checked_num_elements();
  const int32_t last = shape.rank() - 1;
  if (!elements || last < 0 || *elements == num_bytes || *elements / 2 != num_bytes ||
      shape[last] % 2 != 0) {
    return shape;
  }
  std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
  dims.back() /= 2;
  return *Shape::from(dims);
}

Result<Shape> read_shape(const json::Object& entry, const Place& place) {
  TRY_ASSIGN(const std::vector<int64_t> dims, read_sizes(entry, "shape", place));
  const std::optional<Shape> shape = Shape::from(dims);
  if (!shape) {
    return place.unreadable(
        fmt::format("rank {}, expected at most {}", dims.size(), Shape::kMaxRank),
        "No supported model has such tensors.");
  }
  return *shape;
}

// Products of any of the sizes stay far inside int64_t, also where another size is 0.
bool is_sane(const TensorMeta& meta) {
  constexpr int64_t kMaxBytes = int64_t{1} << 48;
  std::optional<int64_t> bytes = dtype_size(meta.dtype);
  for (const int64_t dim : meta.shape.dims()) {
    if (bytes) bytes = checked_mul(*bytes, std::max<int64_t>(dim, 1));
  }
  return bytes && *bytes <= kMaxBytes;
}

Result<StoredTensor> read_tensor(const json::Member& member,
                                 int64_t data_begin,
                                 const Place& place) {
  const json::Object* entry = member.value.as_object();
  if (entry == nullptr) {
    return place.damaged(
        fmt::format("entry is {}, expected an object", display_value(member.value)));
  }
  constexpr size_t kMaxNameBytes = 1024;
  if (member.key.size() > kMaxNameBytes) {
    return place.damaged(fmt::format(
        "the name has {} bytes, expected at most {}", member.key.size(), kMaxNameBytes));
  }
  StoredTensor tensor;
  tensor.meta.name = member.key;
  TRY_ASSIGN(const std::string dtype, read_dtype_name(*entry, place));
  TRY_ASSIGN(tensor.meta.dtype, dtype_of(dtype, place));
  TRY_ASSIGN(tensor.meta.shape, read_shape(*entry, place));
  TRY_ASSIGN(const std::vector<int64_t> offsets, read_sizes(*entry, "data_offsets", place));
  if (offsets.size() != 2) {
    return place.damaged(fmt::format("data_offsets has {} numbers, expected 2", offsets.size()));
  }
  if (offsets[0] > offsets[1]) {
    return place.damaged(
        fmt::format("data_offsets [{}, {}], expected begin <= end", offsets[0], offsets[1]));
  }
  if (dtype == kPackedFp4) {
    tensor.meta.shape = shape_in_bytes(tensor.meta.shape, offsets[1] - offsets[0]);
  }
  if (!is_sane(tensor.meta)) {
    return place.damaged(fmt::format("shape {} of {} overflows, expected at most 2^48 bytes",
                                     tensor.meta.shape.to_string(),
                                     dtype_name(tensor.meta.dtype)));
  }
  const int64_t num_bytes = tensor.meta.shape.num_elements() * dtype_size(tensor.meta.dtype);
  if (offsets[1] - offsets[0] != num_bytes) {
    return place.damaged(fmt::format("data_offsets [{}, {}] span {} bytes, expected {} for {} {}",
                                     offsets[0],
                                     offsets[1],
                                     offsets[1] - offsets[0],
                                     num_bytes,
                                     dtype_name(tensor.meta.dtype),
                                     tensor.meta.shape.to_string()));
  }
  const std::optional<int64_t> end = checked_add(offsets[1], data_begin);
  if (!end) return place.damaged(fmt::format("data_offsets end {} overflows", offsets[1]));
  tensor.begin = offsets[0] + data_begin;
  tensor.end = *end;
  return tensor;
}

Result<std::vector<std::pair<std::string, std::string>>> read_metadata(const json::Value& value,
                                                                       const Place& place) {
  const json::Object* object = value.as_object();
  if (object == nullptr) {
    return place.damaged(
        fmt::format("{} is {}, expected an object", kMetadataKey, display_value(value)));
  }
  std::vector<std::pair<std::string, std::string>> metadata;
  for (const json::Member& member : *object) {
    const std::string* text = member.value.as_string();
    if (text == nullptr) {
      return place.damaged(fmt::format("{}.{} is {}, expected a string",
                                       kMetadataKey,
                                       display_name(member.key),
                                       display_value(member.value)));
    }
    metadata.emplace_back(member.key, *text);
  }
  return metadata;
}

Error truncated(std::string message) {
  Error error = data_loss(std::move(message));
  error.reason = kTruncatedReason;
  return error;
}

// "a, b and 12 more": the tensors whose data a file of `file_size` bytes does not hold whole.
std::string lost_tensors(const SafetensorsHeader& header, int64_t file_size) {
  constexpr size_t kShown = 4;
  std::string names;
  size_t count = 0;
  for (const StoredTensor& tensor : header.tensors) {
    if (tensor.end <= file_size) continue;
    if (++count > kShown) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", display_name(tensor.meta.name));
  }
  return count > kShown ? fmt::format("{} and {} more", names, count - kShown) : names;
}

// `tensors` is sorted by begin.
Result<void> check_coverage(const SafetensorsHeader& header,
                            int64_t file_size,
                            std::string_view file) {
  int64_t expected = header.data_begin;
  for (const StoredTensor& tensor : header.tensors) {
    if (tensor.begin != expected) {
      const Place place{.file = file, .tensor = tensor.meta.name};
      return place.damaged(fmt::format("data begins at {}, expected {} ({})",
                                       tensor.begin - header.data_begin,
                                       expected - header.data_begin,
                                       tensor.begin > expected ? "gap after the tensor before"
                                                               : "overlap with the tensor before"));
    }
    expected = tensor.end;
  }
  if (file_size < expected) {
    return truncated(fmt::format(
        "{}: file of {} bytes, expected {} by its header ({} missing): the download is incomplete. "
        "Lost: {}. Delete this file and fetch it again.",
        display_name(file),
        file_size,
        expected,
        expected - file_size,
        lost_tensors(header, file_size)));
  }
  if (file_size > expected) {
    return data_loss(
        fmt::format("{}: file of {} bytes, expected {}: {} bytes follow the last tensor. {}",
                    display_name(file),
                    file_size,
                    expected,
                    file_size - expected,
                    kFetchAgain));
  }
  return {};
}

Result<void> check_alignment(const SafetensorsHeader& header, std::string_view file) {
  for (const StoredTensor& tensor : header.tensors) {
    const int64_t size = dtype_size(tensor.meta.dtype);
    if (tensor.begin % size == 0 || tensor.begin == tensor.end) continue;
    const Place place{.file = file, .tensor = tensor.meta.name};
    return place.unreadable(
        fmt::format("{} data at byte {} of the file, expected a multiple of {}",
                    dtype_name(tensor.meta.dtype),
                    tensor.begin,
                    size),
        "Write the file again with a current safetensors library, which aligns tensors.");
  }
  return {};
}

}  // namespace

Result<int64_t> safetensors_prefix_bytes(std::span<const std::byte> first_bytes,
                                         int64_t file_size,
                                         std::string_view file_name) {
  const Place place{.file = file_name};
  if (file_size < kLengthBytes) {
    return place.damaged(
        fmt::format("file of {} bytes, expected at least {}", file_size, kLengthBytes));
  }
  CHECK(static_cast<int64_t>(first_bytes.size()) >= kLengthBytes) << first_bytes.size();
  const int64_t length = read_length(first_bytes);
  if (length < 2 || length > kMaxHeaderBytes) {
    return place.damaged(
        fmt::format("header length {}, expected 2 to {}; this may be no safetensors file",
                    static_cast<uint64_t>(length),
                    kMaxHeaderBytes));
  }
  if (length > file_size - kLengthBytes) {
    return data_loss(
        fmt::format("{}: header of {} bytes in a file of {}, expected at most {}. The download is "
                    "incomplete; delete this file and fetch it again.",
                    display_name(file_name),
                    length,
                    file_size,
                    file_size - kLengthBytes));
  }
  return kLengthBytes + length;
}

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> prefix,
                                                   int64_t file_size,
                                                   std::string_view file_name) {
  const Place place{.file = file_name};
  SafetensorsHeader header;
  TRY_ASSIGN(header.data_begin, safetensors_prefix_bytes(prefix, file_size, file_name));
  CHECK(static_cast<int64_t>(prefix.size()) >= header.data_begin) << prefix.size();
  const std::string_view text(reinterpret_cast<const char*>(prefix.data()) + kLengthBytes,
                              static_cast<size_t>(header.data_begin - kLengthBytes));
  const Result<json::Value> document = json::parse(text, kHeaderLimits);
  if (!document.ok()) {
    return place.damaged(
        fmt::format("header: {}, expected a JSON object", document.error().message));
  }
  const json::Object* entries = document->as_object();
  if (entries == nullptr) {
    return place.damaged(
        fmt::format("header: {}, expected a JSON object", display_value(*document)));
  }
  for (const json::Member& member : *entries) {
    if (member.key == kMetadataKey) {
      TRY_ASSIGN(header.metadata, read_metadata(member.value, place));
      continue;
    }
    const Place tensor_place{.file = file_name, .tensor = member.key};
    TRY_ASSIGN(StoredTensor tensor, read_tensor(member, header.data_begin, tensor_place));
    header.tensors.push_back(std::move(tensor));
  }
  std::sort(header.tensors.begin(),
            header.tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) {
              return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
            });
  TRY(check_coverage(header, file_size, file_name));
  TRY(check_alignment(header, file_name));
  return header;
}

}  // namespace nibble::checkpoint
