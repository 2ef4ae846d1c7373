// Everything that a hub, a cache shared with strangers or a command line hands to hub/: file lists,
// revisions, headers, records, safetensors headers, names. The first byte picks the parser.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/check.h"
#include "hub/blob_lock.h"
#include "hub/blob_record.h"
#include "hub/listing.h"
#include "hub/repo.h"
#include "hub/url.h"

namespace nibble::hub {
namespace {

void fuzz_listing(std::string_view text) {
  Result<std::vector<RepoFile>> files = parse_tree_page(text);
  if (!files.ok() || !check_listing(*files).ok()) return;
  for (const RepoFile& file : *files) {
    CHECK(check_repo_path(file.path).ok() && is_blob_name(file.etag) && file.size >= 0);
  }
}

void fuzz_revision(std::string_view text) {
  const Result<std::string> commit = parse_revision(text);
  CHECK(!commit.ok() || is_commit(*commit));
}

void fuzz_headers(std::string_view text) {
  static_cast<void>(next_link(text));
  static_cast<void>(strip_etag(text));
  const std::optional<ContentRange> range = parse_content_range(text);
  CHECK(!range || (range->begin >= 0 && range->begin < range->end));
}

void fuzz_record(std::string_view text) {
  const Result<BlobRecord> record = BlobRecord::parse(text);
  if (record.ok()) CHECK(BlobRecord::parse(record->to_json()).ok());
}

// Fed in uneven pieces: the hashes must not depend on where the bytes are cut.
void fuzz_tensors(std::string_view text) {
  const auto hash = [&](size_t piece) {
    TensorHasher hasher(static_cast<int64_t>(text.size()));
    for (size_t at = 0; at < text.size(); at += piece) {
      hasher.update(std::as_bytes(std::span(text.substr(at, piece))));
    }
    return hasher.finish();
  };
  const std::vector<TensorHash> whole = hash(std::max<size_t>(1, text.size()));
  const std::vector<TensorHash> pieces = hash(7);
  CHECK(whole.size() == pieces.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    CHECK(whole[i].name == pieces[i].name && whole[i].xxh3 == pieces[i].xxh3);
  }
}

void fuzz_names(std::string_view text) {
  const Result<RepoId> repo = parse_repo_id(text);
  CHECK(!repo.ok() || check_repo_path(repo->name).ok());
  static_cast<void>(LockOwner::parse(text));
  const size_t middle = text.size() / 2;
  static_cast<void>(matches_glob(text.substr(0, middle), text.substr(middle)));
  CHECK(matches_glob("*", text));
}

void fuzz_url(std::string_view text) {
  const Result<Url> url = parse_url(text);
  if (!url.ok()) return;
  const Result<Url> again = parse_url(url->text);
  CHECK(again.ok() && again->origin() == url->origin()) << url->text;
}

}  // namespace
}  // namespace nibble::hub

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble::hub;
  constexpr std::array kParsers = {
      fuzz_listing, fuzz_revision, fuzz_headers, fuzz_record, fuzz_tensors, fuzz_names, fuzz_url};
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  kParsers[data[0] % kParsers.size()](text);
  return 0;
}
