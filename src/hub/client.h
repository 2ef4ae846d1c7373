// The hub's protocol: revisions, file lists, small files, and the headers of weight files by range,
// so that a model can be planned before it is downloaded. Methods may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "hub/cancel.h"
#include "hub/config.h"
#include "hub/fetch.h"
#include "hub/file_source.h"
#include "hub/repo.h"

namespace nibble::hub {

// A safetensors file of which only the header is wanted.
struct HeaderRequest {
  RepoFile file;
  // Bytes of the first range. 100 kB hold nearly all headers; a caller that knows the number of
  // tensors from the index can ask more exactly.
  int64_t first_range_bytes = 100'000;
};

struct ShardHeader {
  std::string path;
  int64_t file_bytes = 0;
  std::string
      bytes;  // the length (8 bytes, little endian) and the JSON behind it, not yet validated
};

struct HeaderReads {
  std::vector<ShardHeader> shards;  // in the order of the requests
  int64_t body_bytes = 0;           // received for them
  int64_t num_requests = 0;
};

class Client final {
 public:
  // `endpoint_override` is RepoId::endpoint. The token is dropped when it names another origin than
  // the configured endpoint. kInvalidArgument for a bad endpoint, token or proxy.
  static Result<std::unique_ptr<Client>> create(HubConfig config,
                                                const std::string& endpoint_override,
                                                const Cancel& cancel);

  const HubConfig& config() const { return config_; }
  const Cancel& cancel() const { return cancel_; }

  // The commit that a branch, tag or abbreviation stands for now.
  Result<std::string> resolve_revision(const RepoId& repo);

  // All files of a commit, sorted by path; names and hashes are checked.
  Result<std::vector<RepoFile>> list_files(const RepoId& repo, const std::string& commit);

  // A whole file whose size and hash are as listed. kExhausted when it is larger than `max_bytes`.
  Result<std::string> fetch_small_file(const RepoId& repo,
                                       const std::string& commit,
                                       const RepoFile& file,
                                       int64_t max_bytes);

  // The headers of weight files, `num_connections` at a time and never a byte of weights beyond the
  // first range: one range per file, two where the header is longer. `on_progress` (may be null)
  // gets the number of headers read so far, from any thread but never from two at once.
  Result<HeaderReads> read_header_ranges(const RepoId& repo,
                                         const std::string& commit,
                                         std::span<const HeaderRequest> requests,
                                         const std::function<void(size_t num_done)>& on_progress);

  // For readers of ranges. The source and the fetcher must not outlive this client.
  std::unique_ptr<FileSource> source(const RepoId& repo,
                                     const std::string& commit,
                                     const RepoFile& file) const;
  std::unique_ptr<Fetcher> fetcher(TransferCounter& counter) const;

 private:
  Client(HubConfig config, Url endpoint, const Cancel& cancel);
  Result<Url> api_url(const std::string& path) const;

  const HubConfig config_;
  const Url endpoint_;
  const Cancel& cancel_;
};

}  // namespace nibble::hub
