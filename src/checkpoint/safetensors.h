// The safetensors container: a header of names, dtypes, shapes and byte ranges, then the raw data.
// Headers are hostile input: nothing is believed before it is checked, and no weight is used before
// the whole header holds. Layout: u64 little-endian header length, a JSON object of that many
// bytes, tensor data to the end of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "tensor/tensor_view.h"

namespace nibble::checkpoint {

// The format's own limit. The largest known header (145,116 tensors) has 18 MB.
inline constexpr int64_t kMaxHeaderBytes = 100'000'000;

// Error::reason of the faults that plans tell apart (spec "quantization" 4.2).
inline constexpr const char* kTruncatedReason = "Q-F1";
inline constexpr const char* kUnknownDtypeReason = "Q-F4";

struct StoredTensor {
  TensorMeta meta;
  int64_t begin = 0;  // byte range in the file
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;                          // in file order
  std::vector<std::pair<std::string, std::string>> metadata;  // "__metadata__", as written
  int64_t data_begin = 0;                                     // first byte after the header
};

// Bytes that parse_safetensors_header() needs: the length field and the header. `first_bytes` must
// hold at least min(8, file_size) bytes. kDataLoss for a length that is impossible in a file of
// `file_size` bytes.
Result<int64_t> safetensors_prefix_bytes(std::span<const std::byte> first_bytes,
                                         int64_t file_size,
                                         std::string_view file_name);

// Parses and checks a header. `prefix` is the file or at least its first
// safetensors_prefix_bytes(); `file_name` is for messages. The checks: length and depth of the
// JSON, unique names, known dtype, rank and overflow of the shape, dtype x shape = span, data
// sorted without gap or overlap from the header to exactly the end of the file, and each tensor
// aligned to its dtype (so that a mapped file can be read in place). kDataLoss for damaged or
// contradictory headers, kUnsupported for valid ones that this program cannot read.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> prefix,
                                                   int64_t file_size,
                                                   std::string_view file_name);

// A tensor to be written. `view` must be contiguous host memory.
struct NamedTensor {
  std::string name;
  TensorView view;
};

// Writes a safetensors file: wide dtypes first, then by name, so that equal content gives equal
// bytes. The file appears under `path` only when it is complete (temporary file, fsync, rename).
// kInvalidArgument for duplicate or reserved names and for paths that cannot be written; kExhausted
// when the disk is full.
Result<void> write_safetensors(const Path& path,
                               std::span<const NamedTensor> tensors,
                               std::span<const std::pair<std::string, std::string>> metadata = {});

}  // namespace nibble::checkpoint
