#include "hub/file_source.h"

#include <fmt/format.h>

#include "base/utf8.h"
#include "hub/digest.h"
#include "hub/errors.h"
#include "hub/listing.h"

namespace nibble::hub {

// What one transfer has found out so far.
struct FileSource::Progress {
  ByteRange range;  // as asked
  IgnoredRange ignored = IgnoredRange::kStop;
  std::string expected_etag;  // of the storage host; empty: any
  bool has_head = false;
  bool are_ranges_ignored = false;
  int64_t offset = 0;  // of the next byte
  int64_t end = 0;     // of what the answer promises
  std::optional<Failure> failure;
};

FileSource::FileSource(Url resolve_url, std::string commit, RepoFile file, std::string what)
    : resolve_url_(std::move(resolve_url)),
      commit_(std::move(commit)),
      file_(std::move(file)),
      what_(std::move(what)) {}

Error FileSource::wrong_length(const std::string& found) const {
  return integrity_error(
      fmt::format("{}: wrong length: the server has {}, expected {} bytes of the commit's file "
                  "list. Nothing wrong "
                  "was kept; try again later or check HF_ENDPOINT.",
                  what_,
                  found,
                  file_.size));
}

std::optional<Failure> FileSource::check_hub_head(const HttpHead& head) const {
  const std::string* commit = head.find("x-repo-commit");
  if (commit != nullptr && *commit != commit_) {
    return retryable(integrity_error(fmt::format("{}: the hub answered for commit {}, expected {}",
                                                 what_,
                                                 escape_for_display(*commit),
                                                 commit_)));
  }
  const std::string* size = head.find("x-linked-size");
  if (size != nullptr && *size != std::to_string(file_.size)) {
    return retryable(wrong_length(escape_for_display(*size)));
  }
  const bool is_redirect = head.status >= 300;
  const std::string* etag = head.find("x-linked-etag");
  if (etag == nullptr && !is_redirect) etag = head.find("etag");  // a redirect's own says nothing
  if (etag == nullptr) return std::nullopt;
  const std::string_view name = strip_etag(*etag);
  // Mirrors invent tags of other forms; those say nothing about the content.
  if (!is_blob_name(name) || name.size() != file_.etag.size() || name == file_.etag) {
    return std::nullopt;
  }
  return retryable(integrity_error(fmt::format(
      "{}: the file changed on the hub: ETag {}, expected {} of the commit's file list. "
      "Nothing wrong was kept; try again later.",
      what_,
      name,
      file_.etag)));
}

std::optional<Failure> FileSource::check_body_head(const HttpHead& head, Progress& progress) const {
  const std::string* etag = head.find("etag");
  if (!progress.expected_etag.empty() && etag != nullptr && *etag != progress.expected_etag) {
    return retryable(integrity_error(fmt::format(
        "{}: the file changed on the storage host: ETag {}, expected {} as in the ranges before",
        what_,
        escape_for_display(*etag),
        escape_for_display(progress.expected_etag))));
  }
  const std::optional<int64_t> length = head.content_length();
  if (head.status == 200) {
    if (length && *length != file_.size) return retryable(wrong_length(std::to_string(*length)));
    progress.are_ranges_ignored =
        progress.range.begin > 0 && progress.ignored == IgnoredRange::kStop;
    progress.offset = 0;
    progress.end = file_.size;
    return std::nullopt;
  }
  const std::string* text = head.find("content-range");
  const std::optional<ContentRange> content =
      text == nullptr ? std::nullopt : parse_content_range(*text);
  if (!content || content->begin != progress.range.begin || content->end > progress.range.end) {
    return retryable(
        network_error(fmt::format("{}: asked for bytes {}-{}, the server answered \"{}\"",
                                  what_,
                                  progress.range.begin,
                                  progress.range.end - 1,
                                  text == nullptr ? "" : escape_for_display(*text))));
  }
  if (content->total >= 0 && content->total != file_.size) {
    return retryable(wrong_length(std::to_string(content->total)));
  }
  if (length && *length != content->end - content->begin) {
    return retryable(network_error(
        fmt::format("{}: the server promised bytes {} and a length of {}", what_, *text, *length)));
  }
  progress.offset = content->begin;
  progress.end = content->end;
  return std::nullopt;
}

ReadOutcome FileSource::read(Fetcher& fetcher,
                             ByteRange range,
                             IgnoredRange ignored,
                             const RangeSink& sink) {
  int32_t status = 0;
  Progress progress{.range = range, .ignored = ignored};
  if (const std::optional<Location> known = location()) {
    progress.expected_etag = known->etag;
    ReadOutcome outcome = read_at(fetcher, known, progress, sink, status);
    if (outcome.failure) set_location(std::nullopt);
    const bool is_expired = status == 401 || status == 403 || status == 404 || status == 410;
    if (!is_expired) return outcome;
    progress.expected_etag.clear();
  }
  return read_at(fetcher, std::nullopt, progress, sink, status);
}

ReadOutcome FileSource::read_at(Fetcher& fetcher,
                                const std::optional<Location>& location,
                                Progress progress,
                                const RangeSink& sink,
                                int32_t& status) {
  const FetchRequest request{
      location ? location->url : resolve_url_, progress.range, what_, [&](const HttpHead& head) {
        return check_hub_head(head);
      }};
  FetchOutcome outcome =
      fetcher.get(request, [&](const HttpHead& head, std::span<const std::byte> bytes) {
        if (!progress.has_head) progress.failure = check_body_head(head, progress);
        progress.has_head = true;
        if (progress.failure || progress.are_ranges_ignored) return false;
        const int64_t offset = progress.offset;
        progress.offset += static_cast<int64_t>(bytes.size());
        if (progress.offset > progress.end) {
          progress.failure = retryable(wrong_length("more"));
          return false;
        }
        return sink(offset, bytes);
      });
  status = outcome.head.status;
  if (progress.failure) return {std::move(progress.failure), false};
  if (outcome.failure) {
    if (status == 416) outcome.failure = retryable(wrong_length("less"));
    return {std::move(outcome.failure), false};
  }
  if (outcome.end == TransferEnd::kComplete && !progress.has_head) {
    return {retryable(wrong_length("nothing")), false};
  }
  if (outcome.end == TransferEnd::kComplete && progress.offset < progress.end) {
    const std::string text = fmt::format(
        "{}: the connection ended at byte {} of {}", what_, progress.offset, progress.end);
    return {retryable(network_error(text)), false};
  }
  if (!location && outcome.final_url.text != resolve_url_.text) {
    const std::string* etag = outcome.head.find("etag");
    set_location(Location{outcome.final_url, etag == nullptr ? std::string() : *etag});
  }
  return {std::nullopt, progress.are_ranges_ignored};
}

std::optional<FileSource::Location> FileSource::location() const {
  const std::lock_guard lock(mutex_);
  return location_;
}

void FileSource::set_location(std::optional<Location> location) {
  const std::lock_guard lock(mutex_);
  location_ = std::move(location);
}

}  // namespace nibble::hub
