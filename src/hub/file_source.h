// One file of a commit as the hub serves it, read by ranges from several threads. Knows where the
// bytes really are (a signed URL that expires) and refuses answers that belong to another file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "hub/fetch.h"
#include "hub/repo.h"

namespace nibble::hub {

// Takes bytes at an absolute offset of the file, in order; false ends the transfer.
using RangeSink = std::function<bool(int64_t offset, std::span<const std::byte> bytes)>;

struct ReadOutcome {
  std::optional<Failure> failure;
  // The server sent the file from its start although the range begins later. Nothing went to the
  // sink.
  bool are_ranges_ignored = false;
};

enum class IgnoredRange { kStop, kStream };

class FileSource final {
 public:
  // `resolve_url` is the hub's address of `file` in `commit`; `what` names it in messages.
  FileSource(Url resolve_url, std::string commit, RepoFile file, std::string what);

  const RepoFile& file() const { return file_; }
  const std::string& what() const { return what_; }

  // One attempt at a range that is not empty. kStream: a server that ignores ranges feeds the sink
  // from offset 0.
  ReadOutcome read(Fetcher& fetcher, ByteRange range, IgnoredRange ignored, const RangeSink& sink);

 private:
  struct Location {
    Url url;
    std::string etag;  // the storage host's own; empty when it gave none
  };
  struct Progress;

  // Reads at the hub (no location) or where the hub sent us before. `status` is the last answer's.
  ReadOutcome read_at(Fetcher& fetcher,
                      const std::optional<Location>& location,
                      Progress progress,
                      const RangeSink& sink,
                      int32_t& status);
  std::optional<Failure> check_hub_head(const HttpHead& head) const;
  std::optional<Failure> check_body_head(const HttpHead& head, Progress& progress) const;
  Error wrong_length(const std::string& found) const;
  std::optional<Location> location() const;
  void set_location(std::optional<Location> location);

  const Url resolve_url_;
  const std::string commit_;
  const RepoFile file_;
  const std::string what_;
  mutable std::mutex mutex_;
  std::optional<Location> location_;
};

}  // namespace nibble::hub
