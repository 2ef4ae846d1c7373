#include "hub/transfer.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "hub/disk.h"
#include "hub/errors.h"

namespace nibble::hub {
namespace {

constexpr size_t kMaxOwners = 4;        // blobs open at a time
constexpr int64_t kMaxSpanBlocks = 64;  // 64 MiB per request: the cost of a request vanishes
constexpr int64_t kWritebackBlocks = 16;
constexpr int32_t kMaxDownloads = 2;         // of one blob whose hash is wrong at the end
constexpr int32_t kMaxUnreadableBlocks = 8;  // that read back differently than written
constexpr std::chrono::milliseconds kTick{100};

// Cuts an ordered stream of bytes into blocks and stores them. Keeps the unfinished block over
// several requests, so that every byte that arrives counts.
class BlockWriter final {
 public:
  BlockWriter(PartialBlob& blob,
              BlockSpan span,
              std::span<std::byte> buffer,
              std::atomic<int64_t>& done_bytes)
      : blob_(blob),
        buffer_(buffer),
        done_bytes_(done_bytes),
        position_(span.begin * kBlockBytes),
        end_(std::min(span.end * kBlockBytes, blob.size())) {}

  int64_t position() const { return position_; }
  int64_t end() const { return end_; }
  std::optional<Error>& fault() { return fault_; }

  // Bytes before the position are passed over. False at the end and after a fault.
  bool accept(int64_t offset, std::span<const std::byte> bytes) {
    const int64_t skip = std::min(position_ - offset, static_cast<int64_t>(bytes.size()));
    CHECK(skip >= 0) << "gap before byte " << offset;
    bytes = bytes.subspan(static_cast<size_t>(skip));
    while (!bytes.empty() && position_ < end_) {
      const int64_t block = position_ / kBlockBytes;
      const auto filled = static_cast<size_t>(position_ - block * kBlockBytes);
      const auto whole = static_cast<size_t>(block_bytes(blob_.size(), block));
      const size_t count = std::min(bytes.size(), whole - filled);
      std::copy_n(bytes.begin(), count, buffer_.begin() + static_cast<ptrdiff_t>(filled));
      bytes = bytes.subspan(count);
      if (filled + count == whole && !store(block, whole)) return false;
      position_ += static_cast<int64_t>(count);
    }
    return position_ < end_;
  }

 private:
  bool store(int64_t block, size_t bytes) {
    Result<int64_t> stored = blob_.store(block, buffer_.first(bytes));
    if (!stored.ok()) {
      fault_ = std::move(stored).error();
      return false;
    }
    done_bytes_ += *stored;
    return true;
  }

  PartialBlob& blob_;
  const std::span<std::byte> buffer_;
  std::atomic<int64_t>& done_bytes_;
  int64_t position_;
  const int64_t end_;
  std::optional<Error> fault_;
};

}  // namespace

struct Transfer::ActiveBlob {
  const RepoFile& file;
  PartialBlob& partial;
  std::unique_ptr<FileSource> source;
};

struct Transfer::Job {
  std::shared_ptr<ActiveBlob> active;
  BlockSpan span;
};

Transfer::Transfer(Client& client,
                   const RepoId& repo,
                   std::string commit,
                   const RepoCache& cache,
                   CheckDepth depth,
                   Cancel& cancel,
                   const TransferEvents& events)
    : client_(client),
      repo_(repo),
      commit_(std::move(commit)),
      cache_(cache),
      depth_(depth),
      cancel_(cancel),
      events_(events) {}

Result<Transfer::Report> Transfer::run(const std::vector<RepoFile>& files) {
  num_files_ = static_cast<int64_t>(files.size());
  for (const RepoFile& file : files) total_bytes_ += file.size;
  const auto num_connections = static_cast<size_t>(std::max(1, client_.config().num_connections));
  num_owners_ = std::min({kMaxOwners, num_connections, files.size()});
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < num_connections; ++i) threads.emplace_back([this] { fetch_blocks(); });
    for (size_t i = num_owners_; i > 0; --i) threads.emplace_back([&] { own_files(files); });
    report_until_owners_end();
  }
  if (failure_) return *std::move(failure_);
  return Report{counter_.body_bytes(), resumed_bytes_, std::move(repaired_)};
}

void Transfer::own_files(const std::vector<RepoFile>& files) {
  for (size_t i = next_file_++; i < files.size() && !cancel_.is_set(); i = next_file_++) {
    Result<void> obtained = obtain(files[i]);
    if (obtained.ok()) {
      ++num_files_done_;
    } else {
      fail(std::move(obtained).error());
    }
  }
  if (cancel_.is_set()) fail(cancelled_error());
  const std::lock_guard lock(mutex_);
  --num_owners_;
  changed_.notify_all();
}

// From whatever the disk holds to a verified blob.
Result<void> Transfer::obtain(const RepoFile& file) {
  TRY_ASSIGN(const BlobLock blob_lock,
             BlobLock::take(cache_.lock(file.etag), cancel_, [&](const std::string& holder) {
               note(fmt::format("{}: waiting for {}", file.path, holder));
             }));
  {
    const std::lock_guard lock(mutex_);
    locks_.push_back(&blob_lock);
  }
  const auto obtain_locked = [&]() -> Result<void> {
    int64_t read_bytes = 0;
    TRY_ASSIGN(const BlobCheck check, check_blob(cache_, file, depth_, cancel_, [&](int64_t bytes) {
                 read_bytes += bytes;
                 done_bytes_ += bytes;
               }));
    if (check.state == BlobCheck::State::kGood) return remove_leftovers(file.etag);
    done_bytes_ -= read_bytes;
    TRY_ASSIGN(const std::unique_ptr<PartialBlob> partial,
               PartialBlob::open(cache_.partial(file.etag), cache_.journal(file.etag), file.size));
    resumed_bytes_ += partial->present_bytes();
    done_bytes_ += partial->present_bytes();
    if (check.state == BlobCheck::State::kDamaged) TRY(seed(*partial, file, check));
    TRY(download(file, *partial));
    if (check.state == BlobCheck::State::kDamaged) {
      const std::lock_guard lock(mutex_);
      repaired_.push_back(file.path);
    }
    return {};
  };
  Result<void> result = obtain_locked();
  const std::lock_guard lock(mutex_);
  std::erase(locks_, &blob_lock);
  return result;
}

// Copies the good blocks of a damaged blob, which stays as it is until the new one is renamed over
// it.
Result<void> Transfer::seed(PartialBlob& partial, const RepoFile& file, const BlobCheck& check) {
  if (check.good_blocks.empty()) {
    note(fmt::format("{}: damaged; fetching all of it again", file.path));
    return {};
  }
  note(fmt::format("{}: {} of {} blocks of 1 MiB damaged; fetching them again",
                   file.path,
                   check.bad_blocks.size(),
                   num_blocks(file.size)));
  const Path blob = cache_.blob(file.etag);
  TRY_ASSIGN(const UniqueFd fd, open_file(blob, O_RDONLY));
  std::vector<std::byte> buffer(static_cast<size_t>(kBlockBytes));
  for (const int64_t block : check.good_blocks) {
    if (cancel_.is_set()) return cancelled_error();
    const std::span<std::byte> bytes =
        std::span(buffer).first(static_cast<size_t>(block_bytes(file.size, block)));
    TRY_ASSIGN(const size_t have, read_at(fd, blob, block * kBlockBytes, bytes));
    if (have != bytes.size()) continue;
    TRY_ASSIGN(const int64_t stored, partial.store(block, bytes));
    done_bytes_ += stored;
  }
  return {};
}

Result<void> Transfer::download(const RepoFile& file, PartialBlob& partial) {
  const auto active =
      std::make_shared<ActiveBlob>(ActiveBlob{file, partial, client_.source(repo_, commit_, file)});
  {
    const std::lock_guard lock(mutex_);
    active_.push_back(active);
  }
  changed_.notify_all();
  Result<void> result = hash_and_publish(*active);
  if (!result.ok()) fail(result.error());
  // Fetchers refer to `partial` through their jobs; wait until the last has let go.
  std::unique_lock lock(mutex_);
  std::erase(active_, active);
  changed_.wait(lock, [&] { return active.use_count() == 1; });
  return result;
}

Result<void> Transfer::hash_and_publish(ActiveBlob& active) {
  std::string found;
  for (int32_t attempt = 1; attempt <= kMaxDownloads; ++attempt) {
    TRY_ASSIGN(const BlobHasher::Finished finished, hash_behind_front(active));
    if (finished.digest == active.file.etag) return publish(active, finished.record);
    found = finished.digest;
    TRY_ASSIGN(const int64_t discarded, active.partial.discard_all());
    done_bytes_ -= discarded;
    if (attempt < kMaxDownloads) {
      note(fmt::format("{}: wrong bytes (hash {}); starting again", active.file.path, found));
      changed_.notify_all();
    }
  }
  TRY(remove_leftovers(active.file.etag));
  return integrity_error(fmt::format(
      "{}: wrong bytes: hash {}, expected {} of the commit's file list, {} times. Nothing "
      "was kept of it. The server or something on the way to it is faulty: try again "
      "later, or check HF_ENDPOINT and the proxy.",
      active.source->what(),
      found,
      active.file.etag,
      kMaxDownloads));
}

// Reads the blocks in order as they arrive. What comes back must be what was written. The disk is
// set to work from here, in long runs: fetchers that did it for their blocks would queue for the
// file's lock.
Result<BlobHasher::Finished> Transfer::hash_behind_front(ActiveBlob& active) {
  PartialBlob& partial = active.partial;
  BlobHasher hasher(active.file.etag, active.file.size, content_of(active.file.path));
  std::vector<std::byte> buffer(static_cast<size_t>(kBlockBytes));
  int32_t num_unreadable = 0;
  for (int64_t block = 0; block < num_blocks(partial.size());) {
    if (!partial.wait_for(block, cancel_)) return cancelled_error();
    const std::span<std::byte> bytes =
        std::span(buffer).first(static_cast<size_t>(block_bytes(partial.size(), block)));
    TRY_ASSIGN(const std::optional<uint64_t> hash, partial.read_back(block, bytes));
    if (hash) {
      hasher.update(bytes, *hash);
      ++block;
      if (block % kWritebackBlocks == 0) {
        partial.start_writeback({block - kWritebackBlocks, block});
      }
      continue;
    }
    if (++num_unreadable > kMaxUnreadableBlocks) {
      return disk_error(fmt::format("{}: reads back other bytes than were written. Check the disk.",
                                    partial.path().string()));
    }
    TRY_ASSIGN(const int64_t discarded, partial.discard(block));
    done_bytes_ -= discarded;
    changed_.notify_all();
  }
  return hasher.finish();
}

Result<void> Transfer::publish(ActiveBlob& active, const BlobRecord& record) {
  const std::string& etag = active.file.etag;
  TRY(active.partial.sync());
  TRY(rename_file(cache_.partial(etag), cache_.blob(etag)));
  TRY(sync_directory(cache_.blobs()));
  // After the rename: a record must never vouch for bytes that somebody else put there.
  TRY(write_atomically(cache_.record(etag), record.to_json(), cache_.scratch()));
  return remove_leftovers(etag);
}

// Also what a process left that died between rename and clean-up.
Result<void> Transfer::remove_leftovers(const std::string& etag) const {
  TRY(remove_file(cache_.partial(etag)));
  return remove_file(cache_.journal(etag));
}

void Transfer::fetch_blocks() {
  const std::unique_ptr<Fetcher> fetcher = client_.fetcher(counter_);
  std::vector<std::byte> buffer(static_cast<size_t>(kBlockBytes));
  while (std::optional<Job> job = next_job()) {
    Result<void> fetched = fetch_span(*fetcher, *job, buffer);
    job->active->partial.release_span(job->span);
    if (!fetched.ok()) fail(std::move(fetched).error());
    const std::lock_guard lock(mutex_);
    job.reset();
    changed_.notify_all();
  }
}

std::optional<Transfer::Job> Transfer::next_job() {
  const int64_t share = 2 * std::max(1, client_.config().num_connections);
  std::unique_lock lock(mutex_);
  while (num_owners_ > 0 && !cancel_.is_set()) {
    for (const std::shared_ptr<ActiveBlob>& active : active_) {
      // Shorter spans towards the end of a blob, so that all connections end together.
      const int64_t missing = num_blocks(active->partial.size() - active->partial.present_bytes());
      const std::optional<BlockSpan> span =
          active->partial.take_span(std::clamp<int64_t>(missing / share, 1, kMaxSpanBlocks));
      if (span) return Job{active, *span};
    }
    changed_.wait_for(lock, kTick);
  }
  return std::nullopt;
}

Result<void> Transfer::fetch_span(Fetcher& fetcher, const Job& job, std::span<std::byte> buffer) {
  PartialBlob& partial = job.active->partial;
  FileSource& source = *job.active->source;
  BlockWriter writer(partial, job.span, buffer, done_bytes_);
  return fetcher.with_retries([&](bool& has_progressed) -> std::optional<Failure> {
    const int64_t before = writer.position();
    const IgnoredRange ignored =
        partial.is_single_stream() ? IgnoredRange::kStream : IgnoredRange::kStop;
    ReadOutcome outcome = source.read(fetcher,
                                      {before, writer.end()},
                                      ignored,
                                      [&](int64_t offset, std::span<const std::byte> bytes) {
                                        return writer.accept(offset, bytes);
                                      });
    has_progressed = writer.position() > before;
    if (writer.fault()) return permanent(*std::move(writer.fault()));
    if (outcome.failure) return std::move(outcome.failure);
    if (outcome.are_ranges_ignored) {
      partial.set_single_stream();
      return std::nullopt;  // the span goes back
    }
    if (writer.position() == writer.end()) return std::nullopt;
    return retryable(
        network_error(source.what() + ": the server sent less than it was asked for."));
  });
}

void Transfer::fail(Error error) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(error);
  }
  cancel_.request();
  changed_.notify_all();
}

void Transfer::note(std::string line) {
  const std::lock_guard lock(mutex_);
  notes_.push_back(std::move(line));
}

void Transfer::report_until_owners_end() {
  auto last_beat = std::chrono::steady_clock::now();
  bool is_running = true;
  while (is_running) {
    std::vector<std::string> notes;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kTick, [&] { return num_owners_ == 0; });
      is_running = num_owners_ > 0;
      notes.swap(notes_);
      const auto now = std::chrono::steady_clock::now();
      if (now - last_beat >= kOwnerTimeout / 10) {
        for (const BlobLock* held : locks_) held->beat();
        last_beat = now;
      }
    }
    for (const std::string& line : notes) {
      if (events_.on_note) events_.on_note(line);
    }
    if (events_.on_progress) events_.on_progress(progress());
  }
}

TransferProgress Transfer::progress() const {
  return {.total_bytes = total_bytes_,
          .done_bytes = done_bytes_,
          .received_bytes = counter_.body_bytes(),
          .num_files = num_files_,
          .num_files_done = num_files_done_};
}

}  // namespace nibble::hub
