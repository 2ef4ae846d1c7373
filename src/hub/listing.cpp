#include "hub/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <unordered_set>

#include "base/json.h"
#include "hub/digest.h"
#include "hub/errors.h"

namespace nibble::hub {
namespace {

constexpr json::Limits kListingLimits{
    .max_depth = 32, .max_nodes = 4'000'000, .max_bytes = 64 << 20};

Result<json::Value> parse_json(std::string_view text, std::string_view what) {
  Result<json::Value> parsed = json::parse(text, kListingLimits);
  if (parsed.ok()) return parsed;
  return integrity_error(
      fmt::format("the hub's {}: {}. Check HF_ENDPOINT.", what, parsed.error().message));
}

Error bad_entry(size_t index, std::string_view why) {
  return integrity_error(
      fmt::format("the hub's file list: entry {}: {}. Check HF_ENDPOINT.", index, why));
}

const std::string* string_member(const json::Value& value, std::string_view key) {
  const json::Value* member = value.find(key);
  return member == nullptr ? nullptr : member->as_string();
}

std::optional<int64_t> size_member(const json::Value& value) {
  const json::Value* member = value.find("size");
  const std::optional<int64_t> size = member == nullptr ? std::nullopt : member->as_int64();
  return size && *size >= 0 ? size : std::nullopt;
}

Result<RepoFile> parse_file(const json::Value& entry, size_t index) {
  const std::string* path = string_member(entry, "path");
  if (path == nullptr) return bad_entry(index, "has no path");
  TRY(check_repo_path(*path));
  const json::Value* lfs = entry.find("lfs");
  const bool is_lfs = lfs != nullptr && lfs->is_object();
  const std::string* oid = string_member(is_lfs ? *lfs : entry, "oid");
  const std::optional<int64_t> size = size_member(is_lfs ? *lfs : entry);
  if (!size) return bad_entry(index, *path + " has no size");
  const size_t num_digits = is_lfs ? 64 : 40;
  if (oid == nullptr || oid->size() != num_digits || !is_blob_name(*oid)) {
    return bad_entry(index,
                     fmt::format("{} has no oid of {} hexadecimal digits", *path, num_digits));
  }
  return RepoFile{*path, *size, *oid};
}

std::string_view trim_blanks(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool is_next_parameter(std::string_view parameter) {
  parameter = trim_blanks(parameter);
  return parameter == "rel=\"next\"" || parameter == "rel=next";
}

// Reads digits from the front of `text`; nullopt when there are none or too many.
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || value < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

Result<std::string> parse_revision(std::string_view json_text) {
  TRY_ASSIGN(const json::Value document, parse_json(json_text, "description of the revision"));
  const std::string* sha = string_member(document, "sha");
  if (sha == nullptr || !is_commit(*sha)) {
    return integrity_error(
        "the hub's description of the revision: \"sha\" is not a commit of 40 hexadecimal digits. "
        "Check HF_ENDPOINT.");
  }
  return *sha;
}

Result<std::vector<RepoFile>> parse_tree_page(std::string_view json_text) {
  TRY_ASSIGN(const json::Value document, parse_json(json_text, "file list"));
  const json::Array* entries = document.as_array();
  if (entries == nullptr) {
    return integrity_error(fmt::format(
        "the hub's file list: is {}, expected an array. Check HF_ENDPOINT.", document.kind_name()));
  }
  std::vector<RepoFile> files;
  for (size_t i = 0; i < entries->size(); ++i) {
    const std::string* type = string_member((*entries)[i], "type");
    if (type == nullptr) return bad_entry(i, "has no type");
    if (*type != "file") continue;
    TRY_ASSIGN(RepoFile file, parse_file((*entries)[i], i));
    files.push_back(std::move(file));
  }
  return files;
}

Result<void> check_listing(std::vector<RepoFile>& files) {
  std::sort(files.begin(), files.end(), [](const RepoFile& a, const RepoFile& b) {
    return a.path < b.path;
  });
  std::unordered_set<std::string_view> names;
  for (const RepoFile& file : files) {
    if (!names.insert(file.path).second) {
      return integrity_error(fmt::format("the hub's file list: {} appears twice", file.path));
    }
  }
  for (const RepoFile& file : files) {
    for (size_t at = file.path.find('/'); at != std::string::npos;
         at = file.path.find('/', at + 1)) {
      const std::string_view parent = std::string_view(file.path).substr(0, at);
      if (names.count(parent) != 0) {
        return integrity_error(
            fmt::format("the hub's file list: {} is a file and a directory", parent));
      }
    }
  }
  return {};
}

std::optional<std::string> next_link(std::string_view link_header) {
  while (true) {
    const size_t open = link_header.find('<');
    const size_t close = link_header.find('>', open);
    if (open == std::string_view::npos || close == std::string_view::npos) return std::nullopt;
    const std::string_view target = link_header.substr(open + 1, close - open - 1);
    link_header.remove_prefix(close + 1);
    std::string_view parameters = link_header.substr(0, link_header.find(','));
    while (!parameters.empty()) {
      const size_t semicolon = parameters.find(';');
      if (is_next_parameter(parameters.substr(0, semicolon))) return std::string(target);
      parameters.remove_prefix(semicolon == std::string_view::npos ? parameters.size()
                                                                   : semicolon + 1);
    }
  }
}

std::string_view strip_etag(std::string_view etag) {
  take_prefix(etag, "W/");
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') {
    etag = etag.substr(1, etag.size() - 2);
  }
  return etag;
}

std::optional<ContentRange> parse_content_range(std::string_view text) {
  ContentRange range;
  if (!take_prefix(text, "bytes ")) return std::nullopt;
  const std::optional<int64_t> first = take_number(text);
  if (!first || !take_prefix(text, "-")) return std::nullopt;
  const std::optional<int64_t> last = take_number(text);
  if (!last || *last < *first || *last == INT64_MAX || !take_prefix(text, "/")) return std::nullopt;
  range.begin = *first;
  range.end = *last + 1;
  if (text == "*") return range;
  const std::optional<int64_t> total = take_number(text);
  if (!total || !text.empty() || *total < range.end) return std::nullopt;
  range.total = *total;
  return range;
}

}  // namespace nibble::hub
