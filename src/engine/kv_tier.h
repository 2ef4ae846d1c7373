// Where cached pages go when the device's pool needs their place: host memory, then a directory.
// Used by the KV manager on the engine thread. Knows names, tokens and bytes; not what they mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/result.h"
#include "base/sip_hash.h"

namespace nibble::engine {

// One node of the prefix tree with its bytes.
struct TierPage {
  Hash128 name;
  Hash128 parent;
  std::vector<int32_t> tokens;  // of the page, compared before it is used
  std::vector<std::byte> entries;
  std::vector<std::byte> snapshot;  // empty: none

  int64_t num_bytes() const {
    return static_cast<int64_t>(entries.size() + snapshot.size() + tokens.size() * sizeof(int32_t));
  }
};

using TierPages = std::unordered_map<Hash128, TierPage>;

// A seam (ADR 12). No call waits for a disk but close(), wait_fetched() and, when told to, put().
class KvTier {
 public:
  enum class Holds { kNothing, kEntries, kEntriesAndSnapshot };
  enum class WhenFull { kGiveUp, kWait };  // of a queue of pages on their way

  virtual ~KvTier() = default;

  virtual Holds holds(const Hash128& name) const = 0;
  // Takes a page over. To stay within its bound a tier gives up what was used least recently, or
  // this one.
  virtual void put(TierPage&& page, WhenFull when_full) = 0;
  // Starts to read pages that it holds; what an earlier call started is forgotten.
  virtual void fetch(std::span<const Hash128> names) = 0;
  virtual bool is_fetched() const = 0;
  // Returns when everything is fetched, or after `most`.
  virtual void wait_fetched(Duration most) = 0;
  // What was read. Damaged and lost pages are missing. A page may leave the tier with it.
  virtual TierPages take() = 0;
  // Bytes held now.
  virtual int64_t num_bytes() const = 0;
  // Forgets everything, on disk as well.
  virtual void clear() = 0;
  // Hands on what only memory holds and returns when it is safe.
  virtual void close() = 0;
};

// Holds at most `max_bytes` in memory and hands the rest to `next` (may be null).
std::unique_ptr<KvTier> make_memory_tier(int64_t max_bytes, std::unique_ptr<KvTier> next);

struct DiskTierOptions {
  Path dir;               // made with mode 0700 when it is missing
  int64_t max_bytes = 0;  // of all files
  uint64_t model = 0;     // fingerprint of the model whose pages these are
};

// The key under which a directory's files are tagged and prefixes are named; made on first use.
// Prefix trees over such a directory use it as well, so that names survive a restart.
Result<SipKey> disk_tier_key(const Path& dir);

// Files in `dir`, one per page: mode 0600, tagged by SipHash-128 under the directory's key, bound
// to the model. Files of other models and damaged ones are removed when they are met. A thread
// reads and writes.
Result<std::unique_ptr<KvTier>> make_disk_tier(const DiskTierOptions& options);

}  // namespace nibble::engine
