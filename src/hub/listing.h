// What the hub's API answers: parsed from JSON and headers of strangers, checked, and nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hub/repo.h"

namespace nibble::hub {

// The commit of an answer of /api/models/NAME/revision/REV. kDataLoss.
Result<std::string> parse_revision(std::string_view json_text);

// The files of one page of /api/models/NAME/tree/COMMIT. Directories are left out. kDataLoss for
// unsafe names, missing sizes and names of blobs that are no hashes.
Result<std::vector<RepoFile>> parse_tree_page(std::string_view json_text);

// kDataLoss when two entries have one name, or one is a directory of another.
Result<void> check_listing(std::vector<RepoFile>& files);

// The target of rel="next" in a Link header.
std::optional<std::string> next_link(std::string_view link_header);

// An entity tag without W/ and quotes.
std::string_view strip_etag(std::string_view etag);

struct ContentRange {
  int64_t begin = 0;
  int64_t end = 0;     // exclusive
  int64_t total = -1;  // -1: not stated
};

// "bytes 0-99/1000" and "bytes 0-99/*".
std::optional<ContentRange> parse_content_range(std::string_view text);

}  // namespace nibble::hub
