#include "hub/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "base/log.h"
#include "base/utf8.h"
#include "hub/digest.h"
#include "hub/errors.h"
#include "hub/header_length.h"
#include "hub/listing.h"

namespace nibble::hub {
namespace {

constexpr int64_t kMaxDocumentBytes = 64 << 20;
constexpr int32_t kMaxPages = 1000;
constexpr size_t kMaxFiles = 200'000;

Result<void> check_token(const std::string& token) {
  const bool is_plain =
      std::all_of(token.begin(), token.end(), [](char c) { return c > 0x20 && c < 0x7F; });
  if (is_plain) return {};
  // Never the token itself.
  return invalid_argument(
      "the hub token holds blanks or control characters. Check HF_TOKEN or the token file.");
}

// The path of the endpoint without a slash at its end, for mirrors below a path.
std::string base_text(const Url& endpoint) {
  std::string text = endpoint.text.substr(0, endpoint.text.find('?'));
  while (!text.empty() && text.back() == '/') text.pop_back();
  return text;
}

// Length prefix and header; `head` holds at least the prefix.
Result<int64_t> header_end(const FileSource& source, std::string_view head) {
  const int64_t length = read_header_length(head);
  if (length > kMaxHeaderBytes || length > source.file().size - kHeaderLengthBytes) {
    return integrity_error(
        fmt::format("{}: header of {} bytes, expected at most {} in a file of {} bytes. It is no "
                    "safetensors file or it is damaged.",
                    source.what(),
                    length,
                    kMaxHeaderBytes,
                    source.file().size));
  }
  return kHeaderLengthBytes + length;
}

// Appends [bytes.size(), end) of the file to `bytes`.
Result<void> read_until(Fetcher& fetcher, FileSource& source, int64_t end, std::string& bytes) {
  return fetcher.with_retries([&](bool& has_progressed) -> std::optional<Failure> {
    const ByteRange range{static_cast<int64_t>(bytes.size()), end};
    if (range.begin >= range.end) return std::nullopt;
    ReadOutcome outcome = source.read(
        fetcher,
        range,
        IgnoredRange::kStream,
        [&](int64_t offset, std::span<const std::byte> part) {
          const auto have = static_cast<int64_t>(bytes.size());
          const int64_t skip = std::min(have - offset, static_cast<int64_t>(part.size()));
          part = part.subspan(static_cast<size_t>(std::max<int64_t>(0, skip)));
          part = part.first(std::min(part.size(), static_cast<size_t>(end - have)));
          has_progressed = has_progressed || !part.empty();
          bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
          return static_cast<int64_t>(bytes.size()) < end;  // a server that ignores ranges sends on
        });
    if (!outcome.failure && static_cast<int64_t>(bytes.size()) < end) {
      return retryable(
          network_error(source.what() + ": the server sent less than it was asked for"));
    }
    return std::move(outcome.failure);
  });
}

Result<ShardHeader> read_header(Fetcher& fetcher, FileSource& source, int64_t first_range_bytes) {
  const RepoFile& file = source.file();
  if (file.size < kHeaderLengthBytes) {
    return integrity_error(
        fmt::format("{}: {} bytes, too short for a safetensors file", source.what(), file.size));
  }
  ShardHeader header{file.path, file.size, {}};
  const int64_t first = std::clamp(first_range_bytes, kHeaderLengthBytes, file.size);
  TRY(read_until(fetcher, source, first, header.bytes));
  TRY_ASSIGN(const int64_t end, header_end(source, header.bytes));
  TRY(read_until(fetcher, source, end, header.bytes));
  header.bytes.resize(static_cast<size_t>(end));
  return header;
}

}  // namespace

Client::Client(HubConfig config, Url endpoint, const Cancel& cancel)
    : config_(std::move(config)), endpoint_(std::move(endpoint)), cancel_(cancel) {}

Result<std::unique_ptr<Client>> Client::create(HubConfig config,
                                               const std::string& endpoint_override,
                                               const Cancel& cancel) {
  TRY(check_token(config.token));
  TRY_ASSIGN(Url endpoint, parse_url(config.endpoint));
  if (!endpoint_override.empty()) {
    TRY_ASSIGN(const Url other, parse_url(endpoint_override));
    if (other.origin() != endpoint.origin()) {
      config.token.clear();
      endpoint = other;
    }
  }
  if (endpoint.scheme == "http" && !endpoint.is_loopback() && !config.token.empty()) {
    log_warning("hub: {} is not encrypted; the token can be read on the way", endpoint.display());
  }
  return std::unique_ptr<Client>(new Client(std::move(config), std::move(endpoint), cancel));
}

Result<Url> Client::api_url(const std::string& path) const {
  return parse_url(base_text(endpoint_) + "/api/models/" + path);
}

std::unique_ptr<Fetcher> Client::fetcher(TransferCounter& counter) const {
  return std::make_unique<Fetcher>(config_, endpoint_, cancel_, counter);
}

std::unique_ptr<FileSource> Client::source(const RepoId& repo,
                                           const std::string& commit,
                                           const RepoFile& file) const {
  Url url = endpoint_;
  const std::string path = fmt::format(
      "/{}/resolve/{}/{}", repo.name, commit, percent_encode(file.path, Slashes::kKeep));
  url.text = base_text(endpoint_) + path;
  url.path = (endpoint_.path == "/" ? "" : endpoint_.path) + path;
  return std::make_unique<FileSource>(std::move(url), commit, file, repo.name + ": " + file.path);
}

Result<std::string> Client::resolve_revision(const RepoId& repo) {
  TRY_ASSIGN(const Url url,
             api_url(repo.name + "/revision/" + percent_encode(repo.revision, Slashes::kEncode)));
  TransferCounter counter;
  TRY_ASSIGN(const Fetcher::Document document,
             fetcher(counter)->get_document(url, repo.display(), kMaxDocumentBytes));
  return parse_revision(document.body);
}

Result<std::vector<RepoFile>> Client::list_files(const RepoId& repo, const std::string& commit) {
  TRY_ASSIGN(Url url, api_url(repo.name + "/tree/" + commit + "?recursive=true&expand=false"));
  TransferCounter counter;
  const std::unique_ptr<Fetcher> fetcher = this->fetcher(counter);
  std::vector<RepoFile> files;
  for (int32_t page = 0; page < kMaxPages; ++page) {
    TRY_ASSIGN(const Fetcher::Document document,
               fetcher->get_document(url, repo.display(), kMaxDocumentBytes));
    TRY_ASSIGN(std::vector<RepoFile> some, parse_tree_page(document.body));
    files.insert(
        files.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
    if (files.size() > kMaxFiles) break;
    const std::string* link = document.head.find("link");
    const std::optional<std::string> next = link == nullptr ? std::nullopt : next_link(*link);
    if (!next) {
      TRY(check_listing(files));
      return files;
    }
    TRY_ASSIGN(Url next_url, resolve_url(url, *next));
    if (next_url.origin() != url.origin()) {
      return integrity_error(fmt::format("{}: the file list goes on at another host, {}; refused",
                                         repo.display(),
                                         next_url.display()));
    }
    url = std::move(next_url);
  }
  return integrity_error(
      fmt::format("{}: the file list does not end after {} files", repo.display(), files.size()));
}

Result<std::string> Client::fetch_small_file(const RepoId& repo,
                                             const std::string& commit,
                                             const RepoFile& file,
                                             int64_t max_bytes) {
  if (file.size > max_bytes) {
    return exhausted(fmt::format(
        "{}: {}: {} bytes, expected at most {}", repo.name, file.path, file.size, max_bytes));
  }
  TransferCounter counter;
  const std::unique_ptr<Fetcher> fetcher = this->fetcher(counter);
  const std::unique_ptr<FileSource> source = this->source(repo, commit, file);
  std::string bytes;
  const auto attempt = [&](bool& has_progressed) -> std::optional<Failure> {
    bytes.clear();
    if (file.size > 0) {
      ReadOutcome outcome =
          source->read(*fetcher,
                       {0, file.size},
                       IgnoredRange::kStream,
                       [&](int64_t, std::span<const std::byte> part) {
                         bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
                         return true;
                       });
      if (outcome.failure) return std::move(outcome.failure);
    }
    has_progressed = false;  // the file is read from its start every time
    Digest digest = Digest::for_name(file.etag, file.size);
    digest.update(std::as_bytes(std::span(bytes)));
    const std::string found = digest.finish_hex();
    if (found == file.etag) return std::nullopt;
    return retryable(integrity_error(
        fmt::format("{}: wrong bytes: hash {}, expected {}", source->what(), found, file.etag)));
  };
  TRY(fetcher->with_retries(attempt));
  return bytes;
}

Result<HeaderReads> Client::read_header_ranges(
    const RepoId& repo,
    const std::string& commit,
    std::span<const HeaderRequest> requests,
    const std::function<void(size_t num_done)>& on_progress) {
  TransferCounter counter;
  HeaderReads reads;
  reads.shards.resize(requests.size());
  std::atomic<size_t> next{0};
  std::mutex mutex;  // guards the two below and calls of on_progress
  std::optional<Error> failure;
  size_t num_done = 0;

  const auto work = [&] {
    const std::unique_ptr<Fetcher> fetcher = this->fetcher(counter);
    for (size_t i = next++; i < requests.size(); i = next++) {
      const std::unique_ptr<FileSource> source = this->source(repo, commit, requests[i].file);
      Result<ShardHeader> header = read_header(*fetcher, *source, requests[i].first_range_bytes);
      const std::lock_guard lock(mutex);
      if (!header.ok()) {
        if (!failure) failure = header.error();
        next = requests.size();
        return;
      }
      reads.shards[i] = std::move(header).value();
      ++num_done;
      if (on_progress) on_progress(num_done);
    }
  };
  {
    const size_t num_threads =
        std::min(requests.size(), static_cast<size_t>(std::max(1, config_.num_connections)));
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < num_threads; ++i) threads.emplace_back(work);
  }
  if (failure) return *std::move(failure);
  reads.body_bytes = counter.body_bytes();
  reads.num_requests = counter.requests();
  return reads;
}

}  // namespace nibble::hub
