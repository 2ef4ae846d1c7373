#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/unique_fd.h"
#include "engine/kv_tier.h"

namespace nibble::engine {
namespace {

constexpr uint32_t kMagic = 0x564B424E;  // "NBKV"
constexpr uint32_t kVersion = 1;
// Pages that wait to be written; more are given up rather than held in memory.
constexpr size_t kMaxQueued = 64;
constexpr std::string_view kWithSnapshot = ".s.kv";
constexpr std::string_view kWithoutSnapshot = ".e.kv";

// First bytes of a file, little-endian; tokens, entries, snapshot and the tag of all before follow.
struct FileHeader {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  uint64_t model = 0;
  Hash128 name;
  Hash128 parent;
  int64_t num_tokens = 0;
  int64_t entries_bytes = 0;
  int64_t snapshot_bytes = 0;
};
static_assert(sizeof(FileHeader) == 72);

Error io_error(const Path& path, std::string_view action) {
  return unavailable(fmt::format(
      "{}: cannot {}: {}", path.string(), action, std::generic_category().message(errno)));
}

bool write_all(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return true;
}

std::optional<std::vector<std::byte>> read_regular(const Path& path, int64_t max_bytes) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0) return std::nullopt;
  if (!S_ISREG(status.st_mode) || status.st_size > max_bytes) return std::nullopt;
  std::vector<std::byte> bytes(static_cast<size_t>(status.st_size));
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::read(file.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    done += static_cast<size_t>(got);
  }
  return bytes;
}

// Writes beside and renames, so that a file is whole or absent.
Result<void> write_file(const Path& path, std::span<const std::byte> bytes) {
  const Path part = path.string() + ".part";
  ::unlink(part.c_str());
  const UniqueFd file(
      ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.is_open()) return io_error(part, "create");
  if (!write_all(file.get(), bytes) || ::rename(part.c_str(), path.c_str()) != 0) {
    Error error = io_error(part, "write");
    ::unlink(part.c_str());
    return error;
  }
  return {};
}

std::string file_name(const Hash128& name, bool has_snapshot) {
  const auto hex = to_hex(name);
  return std::string(hex.data(), hex.size())
      .append(has_snapshot ? kWithSnapshot : kWithoutSnapshot);
}

// The name in a file's name; none for other files.
std::optional<Hash128> parse_name(std::string_view file) {
  if (file.size() != 32 + kWithSnapshot.size()) return std::nullopt;
  const std::string_view ending = file.substr(32);
  if (ending != kWithSnapshot && ending != kWithoutSnapshot) return std::nullopt;
  uint64_t words[2] = {0, 0};
  for (size_t i = 0; i < 32; ++i) {
    const char c = file[i];
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit && !(c >= 'a' && c <= 'f')) return std::nullopt;
    const auto digit = static_cast<uint64_t>(is_digit ? c - '0' : c - 'a' + 10);
    words[i / 16] = (words[i / 16] << 4) | digit;
  }
  return Hash128{.low = words[1], .high = words[0]};
}

void append(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

std::vector<std::byte> encode(const TierPage& page, uint64_t model, const SipKey& key) {
  const FileHeader header{.model = model,
                          .name = page.name,
                          .parent = page.parent,
                          .num_tokens = static_cast<int64_t>(page.tokens.size()),
                          .entries_bytes = static_cast<int64_t>(page.entries.size()),
                          .snapshot_bytes = static_cast<int64_t>(page.snapshot.size())};
  std::vector<std::byte> bytes;
  bytes.reserve(sizeof(header) + static_cast<size_t>(page.num_bytes()) + sizeof(Hash128));
  append(bytes, std::as_bytes(std::span(&header, 1)));
  append(bytes, std::as_bytes(std::span(page.tokens)));
  append(bytes, page.entries);
  append(bytes, page.snapshot);
  const Hash128 tag = sip_hash(key, bytes);
  append(bytes, std::as_bytes(std::span(&tag, 1)));
  return bytes;
}

// Nothing unless every byte is as this installation wrote it, for this model and name.
std::optional<TierPage> decode(std::span<const std::byte> bytes,
                               const Hash128& name,
                               uint64_t model,
                               const SipKey& key) {
  FileHeader header;
  Hash128 tag;
  if (bytes.size() < sizeof(header) + sizeof(tag)) return std::nullopt;
  const auto tagged = bytes.first(bytes.size() - sizeof(tag));
  std::memcpy(&tag, bytes.data() + tagged.size(), sizeof(tag));
  if (tag != sip_hash(key, tagged)) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const auto payload = tagged.subspan(sizeof(header));
  const auto size = static_cast<int64_t>(payload.size());
  const bool is_sound =
      header.magic == kMagic && header.version == kVersion && header.model == model &&
      header.name == name && header.num_tokens >= 0 &&
      header.num_tokens <= size / int64_t{sizeof(int32_t)} && header.entries_bytes >= 0 &&
      header.entries_bytes <= size && header.snapshot_bytes >= 0 && header.snapshot_bytes <= size &&
      header.num_tokens * int64_t{sizeof(int32_t)} + header.entries_bytes + header.snapshot_bytes ==
          size;
  if (!is_sound) return std::nullopt;
  TierPage page{.name = name, .parent = header.parent};
  page.tokens.resize(static_cast<size_t>(header.num_tokens));
  const auto tokens_bytes = page.tokens.size() * sizeof(int32_t);
  std::memcpy(page.tokens.data(), payload.data(), tokens_bytes);
  const auto entries = payload.subspan(tokens_bytes, static_cast<size_t>(header.entries_bytes));
  page.entries.assign(entries.begin(), entries.end());
  const auto snapshot = payload.last(static_cast<size_t>(header.snapshot_bytes));
  page.snapshot.assign(snapshot.begin(), snapshot.end());
  return page;
}

class DiskTier final : public KvTier {
 public:
  // lock: of the directory.
  DiskTier(const DiskTierOptions& options, const SipKey& key, UniqueFd lock)
      : options_(options), key_(key), lock_(std::move(lock)), worker_([this] { work(); }) {}

  ~DiskTier() override {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  // What earlier runs left, the oldest first. Called before the tier is used.
  void adopt_files() {
    struct Found {
      std::filesystem::file_time_type time;
      Hash128 name;
      Entry entry;
    };
    std::vector<Found> found;
    std::error_code error;
    for (const auto& file : std::filesystem::directory_iterator(options_.dir, error)) {
      const std::string text = file.path().filename().string();
      if (file.path().extension() == ".part") std::filesystem::remove(file.path(), error);
      const auto name = parse_name(text);
      if (!name || !file.is_regular_file(error)) continue;
      found.push_back({.time = file.last_write_time(error),
                       .name = *name,
                       .entry = {.num_bytes = static_cast<int64_t>(file.file_size(error)),
                                 .has_snapshot = text.ends_with(kWithSnapshot)}});
    }
    std::ranges::sort(found, {}, [](const Found& f) { return f.time; });
    const std::lock_guard lock(mutex_);
    for (const Found& f : found) add_entry(f.name, f.entry);
    make_room(0);
  }

  Holds holds(const Hash128& name) const override {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(name);
    if (found == entries_.end()) return Holds::kNothing;
    return found->second.has_snapshot ? Holds::kEntriesAndSnapshot : Holds::kEntries;
  }

  void put(TierPage&& page, WhenFull when_full) override {
    {
      std::unique_lock lock(mutex_);
      if (knows(page)) return;
      if (when_full == WhenFull::kWait) {
        changed_.wait(lock, [this] { return writes_.size() < kMaxQueued; });
      }
      if (writes_.size() >= kMaxQueued) return;
      writes_.push_back(std::move(page));
    }
    changed_.notify_all();
  }

  void fetch(std::span<const Hash128> names) override {
    {
      const std::lock_guard lock(mutex_);
      reads_.assign(names.begin(), names.end());
      fetched_.clear();
      ++batch_;
    }
    changed_.notify_all();
  }

  bool is_fetched() const override {
    const std::lock_guard lock(mutex_);
    return reads_.empty() && !is_reading_;
  }

  void wait_fetched(Duration most) override {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, most, [this] { return reads_.empty() && !is_reading_; });
  }

  TierPages take() override {
    const std::lock_guard lock(mutex_);
    return std::exchange(fetched_, {});
  }

  int64_t num_bytes() const override {
    const std::lock_guard lock(mutex_);
    return num_bytes_;
  }

  void clear() override {
    const std::lock_guard lock(mutex_);
    writes_.clear();
    reads_.clear();
    fetched_.clear();
    ++batch_;
    ++num_clears_;
    while (!by_use_.empty()) remove_entry(Hash128(by_use_.begin()->second));
  }

  void close() override {
    std::unique_lock lock(mutex_);
    changed_.notify_all();
    changed_.wait(lock, [this] { return writes_.empty() && !is_writing_; });
  }

 private:
  struct Entry {
    int64_t num_bytes = 0;
    bool has_snapshot = false;
    int64_t last_used = 0;
  };

  Path path_of(const Hash128& name, bool has_snapshot) const {
    return options_.dir / file_name(name, has_snapshot);
  }

  bool knows(const TierPage& page) const {
    const auto found = entries_.find(page.name);
    return found != entries_.end() && (found->second.has_snapshot || page.snapshot.empty());
  }

  void add_entry(const Hash128& name, Entry entry) {
    if (entries_.contains(name)) remove_entry(name);
    entry.last_used = ++now_;
    by_use_.insert({entry.last_used, name});
    num_bytes_ += entry.num_bytes;
    entries_[name] = entry;
  }

  void remove_entry(const Hash128& name) {
    const auto found = entries_.find(name);
    if (found == entries_.end()) return;
    ::unlink(path_of(name, found->second.has_snapshot).c_str());
    num_bytes_ -= found->second.num_bytes;
    by_use_.erase({found->second.last_used, name});
    entries_.erase(found);
  }

  void make_room(int64_t num_bytes) {
    while (!by_use_.empty() && num_bytes_ + num_bytes > options_.max_bytes) {
      remove_entry(Hash128(by_use_.begin()->second));
    }
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return is_stopping_ || !reads_.empty() || !writes_.empty(); });
      if (is_stopping_) return;
      if (!reads_.empty()) {
        read_one(lock);
      } else {
        write_one(lock);
      }
      changed_.notify_all();
    }
  }

  void read_one(std::unique_lock<std::mutex>& lock) {
    const Hash128 name = reads_.front();
    reads_.pop_front();
    const auto found = entries_.find(name);
    if (found == entries_.end()) return;
    const Path path = path_of(name, found->second.has_snapshot);
    const int64_t batch = batch_;
    is_reading_ = true;
    lock.unlock();
    const auto bytes = read_regular(path, options_.max_bytes);
    auto page = bytes ? decode(*bytes, name, options_.model, key_) : std::nullopt;
    lock.lock();
    is_reading_ = false;
    if (!page) {
      log_warning("{}: damaged, or of another model; removed", path.string());
      remove_entry(name);
    } else if (batch == batch_) {
      touch(name);
      fetched_.emplace(name, std::move(*page));
    }
  }

  void touch(const Hash128& name) {
    const auto found = entries_.find(name);
    if (found == entries_.end()) return;
    by_use_.erase({found->second.last_used, name});
    found->second.last_used = ++now_;
    by_use_.insert({found->second.last_used, name});
  }

  void write_one(std::unique_lock<std::mutex>& lock) {
    const TierPage page = std::move(writes_.front());
    writes_.pop_front();
    if (knows(page)) return;
    const bool has_snapshot = !page.snapshot.empty();
    const int64_t num_clears = num_clears_;
    is_writing_ = true;
    lock.unlock();
    const std::vector<std::byte> bytes = encode(page, options_.model, key_);
    const auto size = static_cast<int64_t>(bytes.size());
    Result<void> written = exhausted("larger than the whole tier");
    if (size <= options_.max_bytes) {
      lock.lock();
      make_room(size);
      lock.unlock();
      written = write_file(path_of(page.name, has_snapshot), bytes);
    }
    lock.lock();
    is_writing_ = false;
    if (written.ok() && num_clears != num_clears_) {
      ::unlink(path_of(page.name, has_snapshot).c_str());
    } else if (written.ok()) {
      add_entry(page.name, {.num_bytes = size, .has_snapshot = has_snapshot});
    }
    note_written(written);
  }

  // Says when writing begins to fail and when it works again, not every page of a full disk.
  void note_written(const Result<void>& written) {
    if (!written.ok() && num_lost_++ == 0) {
      log_warning("a cached page was not written, others may follow: {}", written.error().message);
    }
    if (written.ok() && num_lost_ > 0) {
      log_info("cached pages are written again; {} were not", std::exchange(num_lost_, 0));
    }
  }

  const DiskTierOptions options_;
  const SipKey key_;
  const UniqueFd lock_;

  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  std::unordered_map<Hash128, Entry> entries_;  // one per file
  std::set<std::pair<int64_t, Hash128>> by_use_;
  std::deque<TierPage> writes_;  // at most kMaxQueued
  std::deque<Hash128> reads_;    // the pages of one request
  TierPages fetched_;            // likewise
  int64_t num_bytes_ = 0;
  int64_t now_ = 0;
  int64_t batch_ = 0;  // counts fetch() calls
  int64_t num_clears_ = 0;
  int64_t num_lost_ = 0;  // pages that could not be written, since the last one that could
  bool is_reading_ = false;
  bool is_writing_ = false;
  bool is_stopping_ = false;

  std::thread worker_;  // last: starts when everything above exists
};

// The mode of the directory is changed and files are removed from it: neither may happen to what
// belongs to others. A new directory is empty, one of ours has a key or pages.
Result<void> check_is_ours(const Path& dir) {
  std::error_code error;
  bool has_others = false;
  for (std::filesystem::directory_iterator entry(dir, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool is_page = name.ends_with(".kv") || name.ends_with(".kv.part");
    if (is_page || name == "key" || name == "key.part") return {};
    has_others |= name != "lost+found";
  }
  if (error) return unavailable(fmt::format("{}: {}", dir.string(), error.message()));
  if (!has_others) return {};
  return invalid_argument(fmt::format(
      "{}: holds files of others; name a new or an empty directory for the cache", dir.string()));
}

// One process at a time, as each counts and removes what it has. Released with the file. Where the
// file system knows no locks there is none.
Result<UniqueFd> lock_directory(const Path& dir) {
  UniqueFd file(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file.is_open()) return io_error(dir, "open");
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return unavailable(
        fmt::format("{}: another process caches pages there; stop it, or name another directory",
                    dir.string()));
  }
  return file;
}

}  // namespace

Result<SipKey> disk_tier_key(const Path& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return unavailable(fmt::format("{}: {}", dir.string(), error.message()));
  TRY(check_is_ours(dir));
  if (::chmod(dir.c_str(), 0700) != 0) return io_error(dir, "set the mode to 0700");
  const Path path = dir / "key";
  SipKey key;
  if (!std::filesystem::exists(path, error)) {
    key = random_sip_key();
    TRY(write_file(path, std::as_bytes(std::span(&key, 1))));
    return key;
  }
  const auto bytes = read_regular(path, sizeof(key));
  if (!bytes || bytes->size() != sizeof(key)) {
    return data_loss(fmt::format("{}: is no key of {} bytes; remove the directory to start anew",
                                 path.string(),
                                 sizeof(key)));
  }
  std::memcpy(&key, bytes->data(), sizeof(key));
  return key;
}

Result<std::unique_ptr<KvTier>> make_disk_tier(const DiskTierOptions& options) {
  TRY_ASSIGN(const SipKey key, disk_tier_key(options.dir));
  TRY_ASSIGN(UniqueFd lock, lock_directory(options.dir));
  auto tier = std::make_unique<DiskTier>(options, key, std::move(lock));
  tier->adopt_files();
  return std::unique_ptr<KvTier>(std::move(tier));
}

}  // namespace nibble::engine
