// Who downloads a blob: one process of one machine at a time, also where flock means nothing (NFS,
// Lustre, GPFS). Two locks are taken together: flock on LOCK, the file that other hub tools lock as
// well, and an exclusively created LOCK.owner that names process and host. The owner file of a dead
// process is taken over: at once on its own machine, elsewhere when its heartbeat stopped.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "base/file.h"
#include "base/result.h"
#include "hub/cancel.h"
#include "hub/disk.h"

namespace nibble::hub {

// A heartbeat this old belongs to a dead process of another host; beat() is due every tenth of it.
inline constexpr std::chrono::seconds kOwnerTimeout{120};

class BlobLock final {
 public:
  // nullopt when somebody else holds it; `holder` then says who.
  static Result<std::optional<BlobLock>> try_take(const Path& lock, std::string& holder);
  // Waits; `on_wait` (may be null) is told once who holds it.
  static Result<BlobLock> take(const Path& lock,
                               const Cancel& cancel,
                               const std::function<void(const std::string& holder)>& on_wait);

  BlobLock(BlobLock&& other) noexcept;
  BlobLock& operator=(BlobLock&&) = delete;
  BlobLock(const BlobLock&) = delete;
  BlobLock& operator=(const BlobLock&) = delete;
  ~BlobLock();

  void beat() const;

 private:
  BlobLock(Path owner, UniqueFd flocked);

  Path owner_;  // empty when moved from
  UniqueFd flocked_;
};

// What an owner file says, and whether its process is gone. Exposed for tests.
struct LockOwner {
  int64_t pid = 0;
  std::string host;
  std::string boot;          // the kernel's boot id: pids of an earlier boot mean nothing
  uint64_t start_ticks = 0;  // of the process since boot: pids are used again

  static LockOwner self();
  static std::optional<LockOwner> parse(std::string_view text);
  std::string text() const;
  // `age` is the time since the last heartbeat by the file system's clock.
  bool is_gone(std::chrono::seconds age) const;
};

}  // namespace nibble::hub
