#include "hub/partial_blob.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/hash.h"
#include "hub/blob_record.h"
#include "hub/errors.h"

namespace nibble::hub {
namespace {

constexpr char kMagic[8] = {'N', 'B', 'L', 'J', 'R', 'N', 'L', '1'};
constexpr size_t kHeaderBytes = 24;
constexpr size_t kEntryBytes = 8;

void put_u64(std::span<std::byte> out, uint64_t value) {
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<std::byte>(value >> (8 * i));
}

uint64_t get_u64(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) value |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  return value;
}

// The journal's form of hash_bytes.
uint64_t journal_hash(uint64_t hash) { return std::max<uint64_t>(1, hash); }

std::vector<std::byte> journal_header(int64_t size) {
  std::vector<std::byte> header(kHeaderBytes);
  std::memcpy(header.data(), kMagic, sizeof kMagic);
  put_u64(std::span(header).subspan(8), static_cast<uint64_t>(size));
  put_u64(std::span(header).subspan(16), static_cast<uint64_t>(kBlockBytes));
  return header;
}

// The entries of a journal for a file of `size` bytes; nullopt when it is for something else.
Result<std::optional<std::vector<uint64_t>>> read_journal(const UniqueFd& fd,
                                                          const Path& path,
                                                          int64_t size) {
  const auto count = static_cast<size_t>(num_blocks(size));
  std::vector<std::byte> bytes(kHeaderBytes + count * kEntryBytes);
  TRY_ASSIGN(const size_t have, read_at(fd, path, 0, bytes));
  const std::vector<std::byte> header = journal_header(size);
  if (have < kHeaderBytes || !std::equal(header.begin(), header.end(), bytes.begin())) {
    return std::optional<std::vector<uint64_t>>();
  }
  std::vector<uint64_t> hashes(count);  // entries that were never written read as 0
  for (size_t i = 0; i < count && kHeaderBytes + (i + 1) * kEntryBytes <= have; ++i) {
    hashes[i] = get_u64(std::span(bytes).subspan(kHeaderBytes + i * kEntryBytes));
  }
  return std::optional<std::vector<uint64_t>>(std::move(hashes));
}

}  // namespace

PartialBlob::PartialBlob(Path path, Path journal_path, int64_t size)
    : path_(std::move(path)),
      journal_path_(std::move(journal_path)),
      size_(size),
      states_(static_cast<size_t>(num_blocks(size)), State::kMissing),
      hashes_(states_.size(), 0) {}

Result<std::unique_ptr<PartialBlob>> PartialBlob::open(const Path& file,
                                                       const Path& journal,
                                                       int64_t size) {
  std::unique_ptr<PartialBlob> blob(new PartialBlob(file, journal, size));
  TRY_ASSIGN(blob->fd_, open_file(file, O_RDWR | O_CREAT));
  TRY_ASSIGN(blob->journal_fd_, open_file(journal, O_RDWR | O_CREAT));
  TRY(blob->load_journal());
  return blob;
}

int64_t PartialBlob::recorded_bytes(const Path& file, const Path& journal, int64_t size) {
  const Result<UniqueFd> fd = open_file(journal, O_RDONLY);
  if (!fd.ok() || !open_file(file, O_RDONLY).ok()) return 0;
  const auto hashes = read_journal(*fd, journal, size);
  if (!hashes.ok() || !hashes->has_value()) return 0;
  int64_t bytes = 0;
  for (size_t i = 0; i < (*hashes)->size(); ++i) {
    if ((**hashes)[i] != 0) bytes += block_bytes(size, static_cast<int64_t>(i));
  }
  return bytes;
}

Result<void> PartialBlob::load_journal() {
  TRY_ASSIGN(std::optional<std::vector<uint64_t>> hashes,
             read_journal(journal_fd_, journal_path_, size_));
  if (!hashes) return start_journal();
  TRY_ASSIGN(const int64_t length, file_size(fd_, path_));
  if (length > size_ && ::ftruncate(fd_.get(), size_) != 0) return disk_fault(path_, "shorten");
  hashes_ = std::move(*hashes);
  for (size_t i = 0; i < states_.size(); ++i) {
    const int64_t bytes = block_bytes(size_, static_cast<int64_t>(i));
    const bool is_there =
        hashes_[i] != 0 && static_cast<int64_t>(i) * kBlockBytes + bytes <= length;
    if (!is_there) continue;
    states_[i] = State::kPresent;
    present_bytes_ += bytes;
  }
  return {};
}

Result<void> PartialBlob::start_journal() {
  if (::ftruncate(journal_fd_.get(), 0) != 0) return disk_fault(journal_path_, "empty");
  if (::ftruncate(fd_.get(), 0) != 0) return disk_fault(path_, "empty");
  return write_at(journal_fd_, journal_path_, 0, journal_header(size_));
}

Result<void> PartialBlob::write_entry(int64_t block, uint64_t hash) {
  std::byte entry[kEntryBytes];
  put_u64(entry, hash);
  const auto offset = static_cast<int64_t>(kHeaderBytes + static_cast<size_t>(block) * kEntryBytes);
  return write_at(journal_fd_, journal_path_, offset, entry);
}

int64_t PartialBlob::present_bytes() const {
  const std::lock_guard lock(mutex_);
  return present_bytes_;
}

std::optional<BlockSpan> PartialBlob::take_span(int64_t max_blocks) {
  const std::lock_guard lock(mutex_);
  if (is_single_stream_ && num_spans_ > 0) return std::nullopt;
  const auto count = static_cast<int64_t>(states_.size());
  const auto state = [&](int64_t block) -> State& { return states_[static_cast<size_t>(block)]; };
  while (first_missing_ < count && state(first_missing_) != State::kMissing) ++first_missing_;
  if (first_missing_ == count) return std::nullopt;
  BlockSpan span{first_missing_, first_missing_};
  const int64_t limit = is_single_stream_ ? count : std::min(count, span.begin + max_blocks);
  while (span.end < limit && (is_single_stream_ || state(span.end) == State::kMissing)) {
    if (state(span.end) == State::kMissing) state(span.end) = State::kTaken;
    ++span.end;
  }
  ++num_spans_;
  return span;
}

void PartialBlob::release_span(BlockSpan span) {
  const std::lock_guard lock(mutex_);
  for (int64_t block = span.begin; block < span.end; ++block) {
    State& state = states_[static_cast<size_t>(block)];
    if (state != State::kTaken) continue;
    state = State::kMissing;
    first_missing_ = std::min(first_missing_, block);
  }
  --num_spans_;
}

void PartialBlob::set_single_stream() {
  const std::lock_guard lock(mutex_);
  is_single_stream_ = true;
}

bool PartialBlob::is_single_stream() const {
  const std::lock_guard lock(mutex_);
  return is_single_stream_;
}

Result<int64_t> PartialBlob::store(int64_t block, std::span<const std::byte> bytes) {
  const auto index = static_cast<size_t>(block);
  {
    const std::lock_guard lock(mutex_);
    if (states_[index] == State::kPresent) return 0;
  }
  const int64_t offset = block * kBlockBytes;
  const uint64_t hash = journal_hash(hash_bytes(bytes));
  TRY(write_at(fd_, path_, offset, bytes));
  TRY(write_entry(block, hash));
  const auto count = static_cast<int64_t>(bytes.size());
  {
    const std::lock_guard lock(mutex_);
    if (states_[index] == State::kPresent) return 0;
    states_[index] = State::kPresent;
    hashes_[index] = hash;
    present_bytes_ += count;
  }
  stored_.notify_all();
  return count;
}

bool PartialBlob::wait_for(int64_t block, const Cancel& cancel) const {
  constexpr std::chrono::milliseconds kPoll{50};  // how late a cancel may be seen
  std::unique_lock lock(mutex_);
  while (states_[static_cast<size_t>(block)] != State::kPresent) {
    if (cancel.is_set()) return false;
    stored_.wait_for(lock, kPoll);
  }
  return true;
}

Result<std::optional<uint64_t>> PartialBlob::read_back(int64_t block,
                                                       std::span<std::byte> bytes) const {
  TRY_ASSIGN(const size_t have, read_at(fd_, path_, block * kBlockBytes, bytes));
  const uint64_t hash = hash_bytes(bytes);
  const std::lock_guard lock(mutex_);
  const bool is_same =
      have == bytes.size() && journal_hash(hash) == hashes_[static_cast<size_t>(block)];
  return is_same ? std::optional(hash) : std::nullopt;
}

void PartialBlob::start_writeback(BlockSpan span) const {
  ::sync_file_range(fd_.get(),
                    span.begin * kBlockBytes,
                    (span.end - span.begin) * kBlockBytes,
                    SYNC_FILE_RANGE_WRITE);
}

Result<int64_t> PartialBlob::discard(int64_t block) {
  TRY(write_entry(block, 0));
  const std::lock_guard lock(mutex_);
  states_[static_cast<size_t>(block)] = State::kMissing;
  first_missing_ = std::min(first_missing_, block);
  const int64_t bytes = block_bytes(size_, block);
  present_bytes_ -= bytes;
  return bytes;
}

Result<int64_t> PartialBlob::discard_all() {
  TRY(start_journal());
  const std::lock_guard lock(mutex_);
  for (State& state : states_) {
    if (state == State::kPresent) state = State::kMissing;
  }
  first_missing_ = 0;
  return std::exchange(present_bytes_, 0);
}

Result<void> PartialBlob::sync() const { return sync_file(fd_, path_); }

}  // namespace nibble::hub
