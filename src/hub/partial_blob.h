// A blob on its way to the disk: the file with holes, the journal that says which blocks are there,
// and who fetches which. Any thread.
//
// A block is written, then its hash is written into the journal: a process that dies in between has
// lost that block and nothing else. After a power cut a journal may run ahead of its file; whoever
// reads a block back compares it with the hash and discards it.
//
// Journal: "NBLJRNL1", the file's size and the block size as 64-bit little endian, then per block
// its XXH3 (0: not there; a hash of 0 is stored as 1).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "hub/cancel.h"
#include "hub/disk.h"

namespace nibble::hub {

// Half-open range of blocks.
struct BlockSpan {
  int64_t begin = 0;
  int64_t end = 0;
};

class PartialBlob final {
 public:
  // Goes on with what is there; a journal that does not fit starts anew.
  static Result<std::unique_ptr<PartialBlob>> open(const Path& file,
                                                   const Path& journal,
                                                   int64_t size);
  // Bytes that a journal says are there, without opening anything for writing.
  static int64_t recorded_bytes(const Path& file, const Path& journal, int64_t size);

  int64_t size() const { return size_; }
  const Path& path() const { return path_; }
  int64_t present_bytes() const;

  // The next missing blocks, now the caller's; nullopt when none are missing.
  std::optional<BlockSpan> take_span(int64_t max_blocks);
  // Gives them back; those that were not stored are missing again.
  void release_span(BlockSpan span);
  // The server sends files only from the start: from now on one span at a time, to the end.
  void set_single_stream();
  bool is_single_stream() const;

  // Writes a block and records it; nothing happens when it is there already. Returns the bytes that
  // are newly present.
  Result<int64_t> store(int64_t block, std::span<const std::byte> bytes);

  // Waits until the block is there. False when cancelled.
  bool wait_for(int64_t block, const Cancel& cancel) const;
  // The bytes of a present block and their hash_bytes; nullopt when they are not those that were
  // stored.
  Result<std::optional<uint64_t>> read_back(int64_t block, std::span<std::byte> bytes) const;
  // Lets the disk begin with blocks that were stored, so that sync() has less to wait for. A hint.
  void start_writeback(BlockSpan span) const;
  // The block, or everything, is missing again. Returns the bytes that are no longer present.
  Result<int64_t> discard(int64_t block);
  Result<int64_t> discard_all();

  Result<void> sync() const;

 private:
  enum class State : uint8_t { kMissing, kTaken, kPresent };

  PartialBlob(Path path, Path journal_path, int64_t size);
  Result<void> load_journal();
  Result<void> start_journal();
  Result<void> write_entry(int64_t block, uint64_t hash);

  const Path path_;
  const Path journal_path_;
  const int64_t size_;
  UniqueFd fd_;
  UniqueFd journal_fd_;

  mutable std::mutex mutex_;  // guards everything below
  mutable std::condition_variable stored_;
  std::vector<State> states_;     // per block
  std::vector<uint64_t> hashes_;  // per block, as in the journal
  int64_t present_bytes_ = 0;
  int64_t first_missing_ = 0;  // no block before it is missing
  int32_t num_spans_ = 0;      // taken and not released
  bool is_single_stream_ = false;
};

}  // namespace nibble::hub
