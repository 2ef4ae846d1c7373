// Names of the hub: repositories, revisions, files; and which files of a repository are wanted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace nibble::hub {

struct RepoId {
  std::string name;               // "org/name"; old repositories have no organisation
  std::string revision = "main";  // branch, tag, refs/pr/N or commit
  std::string endpoint;           // origin of a URL target; empty: the configured endpoint

  std::string display() const { return name + '@' + revision; }
};

// "org/name", "org/name@revision", or a page's URL such as https://HOST/org/name/tree/revision.
// kInvalidArgument says what was expected.
Result<RepoId> parse_repo_id(std::string_view text);

// Whether `text` reads like a repository id or URL (and not like a path): "org/name[@rev]" or URL.
bool looks_like_repo_id(std::string_view text);

bool is_commit(std::string_view revision);  // 40 lower-case hexadecimal digits

struct RepoFile {
  std::string path;  // relative, checked by check_repo_path
  int64_t size = 0;
  std::string etag;  // name of the blob: SHA-256 of large files, git's SHA-1 of the rest
};

// A name from outside that becomes a path below a directory of ours. Refuses absolute names, "."
// and
// "..", empty parts, backslashes, control characters, ill-formed UTF-8 and excessive lengths.
Result<void> check_repo_path(std::string_view path);

// Shell-like: '*' (also across '/'), '?', [abc], [a-z], [!a]. A pattern that ends in '/' means
// everything below. Time is at most the product of both lengths.
bool matches_glob(std::string_view pattern, std::string_view text);

struct FileFilter {
  std::vector<std::string> include;  // empty: everything
  std::vector<std::string> exclude;
};

struct Selection {
  std::vector<RepoFile> files;
  // Left out although no pattern says so: other formats of weights that exist as safetensors.
  std::vector<RepoFile> duplicates;
};

Selection select_files(const std::vector<RepoFile>& files, const FileFilter& filter);

}  // namespace nibble::hub
