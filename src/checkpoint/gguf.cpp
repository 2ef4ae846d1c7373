#include "checkpoint/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/checked_math.h"
#include "checkpoint/display.h"
#include "checkpoint/safetensors.h"

namespace nibble::checkpoint {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kMaxTensors = 1'000'000;
constexpr uint64_t kMaxPairs = 100'000;
constexpr uint64_t kMaxNameBytes = 65'535;
constexpr int64_t kMaxTensorBytes = int64_t{1} << 48;
constexpr int32_t kMaxArrayDepth = 4;

// Types of metadata values.
constexpr uint32_t kString = 8;
constexpr uint32_t kArray = 9;

// Bytes of a value of fixed size; nullopt for strings, arrays and unknown types.
std::optional<uint64_t> value_bytes(uint32_t type) {
  constexpr uint8_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  if (type >= std::size(kBytes) || kBytes[type] == 0) return std::nullopt;
  return kBytes[type];
}

class Reader final {
 public:
  Reader(std::span<const std::byte> file, std::string_view name) : file_(file), name_(name) {}

  Result<GgufHeader> read() {
    if (file_.size() < 24 || std::memcmp(file_.data(), kMagic.data(), kMagic.size()) != 0) {
      return damaged("begins otherwise than with GGUF and a header of 24 bytes");
    }
    position_ = kMagic.size();
    TRY_ASSIGN(const auto version, number<uint32_t>());
    if (version != 2 && version != 3) {
      return unsupported(
          fmt::format("{}: GGUF version {}, expected 2 or 3. Convert the file again.",
                      display_name(name_),
                      version));
    }
    TRY_ASSIGN(const auto num_tensors, number<uint64_t>());
    TRY_ASSIGN(const auto num_pairs, number<uint64_t>());
    if (num_tensors > kMaxTensors || num_pairs > kMaxPairs) {
      return damaged(fmt::format("{} tensors and {} metadata values, expected at most {} and {}",
                                 num_tensors,
                                 num_pairs,
                                 kMaxTensors,
                                 kMaxPairs));
    }
    for (uint64_t i = 0; i < num_pairs; ++i) TRY(pair());
    for (uint64_t i = 0; i < num_tensors; ++i) TRY(tensor());
    return place_data();
  }

 private:
  Error damaged(std::string_view what) const {
    return data_loss(fmt::format(
        "{}: {}. The file is damaged: delete it and fetch it again.", display_name(name_), what));
  }
  size_t rest() const { return file_.size() - position_; }
  Result<void> skip(uint64_t bytes) {
    if (bytes > rest()) return damaged("ends within its header");
    position_ += static_cast<size_t>(bytes);
    return {};
  }
  template <class T>
  Result<T> number() {
    T value{};
    if (rest() < sizeof(T)) return damaged("ends within its header");
    std::memcpy(&value, file_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }
  Result<std::string_view> text(uint64_t max_bytes) {
    TRY_ASSIGN(const auto length, number<uint64_t>());
    if (length > max_bytes) return damaged(fmt::format("a text of {} bytes", length));
    const auto* begin = reinterpret_cast<const char*>(file_.data()) + position_;
    TRY(skip(length));
    return std::string_view(begin, static_cast<size_t>(length));
  }

  Result<void> pair() {
    TRY_ASSIGN(const std::string_view key, text(kMaxNameBytes));
    TRY_ASSIGN(const auto type, number<uint32_t>());
    if (key == "general.architecture" && type == kString) {
      TRY_ASSIGN(const std::string_view value, text(kMaxNameBytes));
      header_.architecture = value;
      return {};
    }
    if (key == "general.alignment" && type == 4) {
      TRY_ASSIGN(alignment_, number<uint32_t>());
      if (alignment_ == 0 || alignment_ > 1 << 20) {
        return damaged(fmt::format("general.alignment is {}", alignment_));
      }
      return {};
    }
    return skip_value(type, 0);
  }

  Result<void> skip_value(uint32_t type, int32_t depth) {
    if (const auto bytes = value_bytes(type)) return skip(*bytes);
    if (type == kString) return text(rest()).ok() ? Result<void>() : damaged("a text past its end");
    if (type != kArray || depth >= kMaxArrayDepth) {
      return damaged(fmt::format("a metadata value of type {}", type));
    }
    TRY_ASSIGN(const auto element, number<uint32_t>());
    TRY_ASSIGN(const auto count, number<uint64_t>());
    if (count > rest()) return damaged(fmt::format("an array of {} values", count));
    if (const auto bytes = value_bytes(element)) return skip(*bytes * count);
    for (uint64_t i = 0; i < count; ++i) TRY(skip_value(element, depth + 1));
    return {};
  }

  Result<void> tensor() {
    GgufTensor tensor;
    TRY_ASSIGN(const std::string_view name, text(kMaxNameBytes));
    tensor.name = name;
    TRY_ASSIGN(const auto rank, number<uint32_t>());
    if (rank > static_cast<uint32_t>(Shape::kMaxRank)) {
      return damaged(fmt::format("tensor {}: rank {}", display_name(name), rank));
    }
    std::vector<int64_t> dims;
    for (uint32_t i = 0; i < rank; ++i) {
      TRY_ASSIGN(const auto dim, number<uint64_t>());
      dims.push_back(static_cast<int64_t>(std::min<uint64_t>(dim, INT64_MAX)));
    }
    std::reverse(dims.begin(), dims.end());  // stored innermost first
    tensor.shape = *Shape::from(dims);
    TRY_ASSIGN(const auto type, number<uint32_t>());
    tensor.type = find_block_type(type);
    if (tensor.type == nullptr) {
      Error error = unsupported(fmt::format(
          "{}: tensor {}: type {} is not known to this version. Convert the file again.",
          display_name(name_),
          display_name(name),
          type));
      error.reason = kUnknownDtypeReason;
      return error;
    }
    TRY_ASSIGN(const auto offset, number<uint64_t>());
    if (offset > static_cast<uint64_t>(kMaxTensorBytes)) {
      return damaged(fmt::format("tensor {}: offset {}", display_name(name), offset));
    }
    tensor.begin = static_cast<int64_t>(offset);
    TRY_ASSIGN(const int64_t bytes, bytes_of(tensor));
    tensor.end = tensor.begin + bytes;
    header_.tensors.push_back(std::move(tensor));
    return {};
  }

  Result<int64_t> bytes_of(const GgufTensor& tensor) const {
    std::optional<int64_t> elements = 1;
    for (const int64_t dim : tensor.shape.dims()) {
      if (elements) elements = checked_mul(*elements, std::max<int64_t>(dim, 1));
    }
    const int32_t rank = tensor.shape.rank();
    const int64_t row = rank == 0 ? 1 : tensor.shape[rank - 1];
    if (!elements || *elements > kMaxTensorBytes || row % tensor.type->num_elements != 0) {
      return damaged(
          fmt::format("tensor {}: shape {} of {}, expected rows of whole blocks of {} "
                      "and at most 2^48 elements",
                      display_name(tensor.name),
                      tensor.shape.to_string(),
                      tensor.type->name,
                      tensor.type->num_elements));
    }
    return tensor.shape.num_elements() / tensor.type->num_elements * tensor.type->num_bytes;
  }

  // Offsets count from the first aligned byte after the header.
  Result<GgufHeader> place_data() {
    header_.data_begin = round_up(static_cast<int64_t>(position_), int64_t{alignment_});
    const auto size = static_cast<int64_t>(file_.size());
    for (GgufTensor& tensor : header_.tensors) {
      tensor.begin += header_.data_begin;
      tensor.end += header_.data_begin;
      if (tensor.end <= size) continue;
      Error error =
          data_loss(fmt::format("{}: file of {} bytes, tensor {} ends at {}: the download is "
                                "incomplete. Delete this file "
                                "and fetch it again.",
                                display_name(name_),
                                size,
                                display_name(tensor.name),
                                tensor.end));
      error.reason = kTruncatedReason;
      return error;
    }
    return std::move(header_);
  }

  std::span<const std::byte> file_;
  std::string_view name_;
  size_t position_ = 0;
  uint32_t alignment_ = 32;
  GgufHeader header_;
};

}  // namespace

Result<GgufHeader> parse_gguf_header(std::span<const std::byte> file, std::string_view file_name) {
  return Reader(file, file_name).read();
}

}  // namespace nibble::checkpoint
