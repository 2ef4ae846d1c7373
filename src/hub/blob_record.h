// What this program knows about a blob whose bytes it has verified: fast hashes of its blocks, so
// that damage can be found and repaired in ranges, and of its tensors, so that a server can
// spot-check what it loads. One JSON file per blob, in a folder that other tools pass over.
//
//   {"format": 1, "etag": "HEX", "size": N, "block_bytes": 1048576,
//    "blocks": "16 hexadecimal digits of XXH3 per block", "tensors": {"NAME": "16 digits", ...}}
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "base/result.h"
#include "hub/digest.h"

namespace nibble::hub {

// The unit of resuming, checking and repairing. The last block of a file may be shorter.
inline constexpr int64_t kBlockBytes = 1 << 20;

int64_t num_blocks(int64_t file_bytes);
int64_t block_bytes(int64_t file_bytes, int64_t block);

struct TensorHash {
  std::string name;
  uint64_t xxh3 = 0;  // hash_bytes of the tensor's bytes
};

struct BlobRecord {
  std::string etag;
  int64_t size = 0;
  std::vector<uint64_t> blocks;     // hash_bytes of each block
  std::vector<TensorHash> tensors;  // by offset; empty for files that are no safetensors

  std::string to_json() const;
  // kDataLoss when the text is no record of format 1 or contradicts itself.
  static Result<BlobRecord> parse(std::string_view json_text);
};

// kNotFound when there is none.
Result<BlobRecord> read_record(const Path& path);

// Hashes the tensors of a safetensors file that is fed from its start. A header that makes no sense
// ends in no hashes; judging it is not this layer's task.
class TensorHasher final {
 public:
  explicit TensorHasher(int64_t file_bytes) : file_bytes_(file_bytes) {}

  void update(std::span<const std::byte> bytes);
  std::vector<TensorHash> finish();

 private:
  struct Extent {
    std::string name;
    int64_t begin = 0;  // offsets in the file
    int64_t end = 0;
  };

  void collect_header(std::span<const std::byte>& bytes);
  void parse_header();
  void hash_tensors(std::span<const std::byte> bytes);
  void close_finished();

  const int64_t file_bytes_;
  bool is_valid_ = true;
  bool has_header_ = false;
  std::string header_;  // length and JSON; dropped once parsed
  int64_t position_ = 0;
  std::vector<Extent> extents_;  // sorted, not overlapping
  size_t current_ = 0;
  HashStream hash_;
  std::vector<TensorHash> hashes_;
};

// All hashes of a file that is fed block by block from its start.
class BlobHasher final {
 public:
  enum class Content { kSafetensors, kOther };
  BlobHasher(std::string etag, int64_t size, Content content);

  // The next block; returns its hash_bytes.
  uint64_t update(std::span<const std::byte> block);
  // The same where the caller has computed it already.
  void update(std::span<const std::byte> block, uint64_t hash);

  struct Finished {
    std::string digest;  // to be compared with the etag
    BlobRecord record;
  };
  Finished finish();

 private:
  BlobRecord record_;
  Digest digest_;
  Content content_;
  TensorHasher tensors_;
};

BlobHasher::Content content_of(std::string_view path);

}  // namespace nibble::hub
