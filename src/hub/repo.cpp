#include "hub/repo.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"
#include "hub/errors.h"
#include "hub/url.h"

namespace nibble::hub {
namespace {

constexpr size_t kMaxNameBytes = 96;       // the hub's own limit of each part
constexpr size_t kMaxRevisionBytes = 250;  // becomes a file name below refs/
constexpr size_t kMaxPathBytes = 1024;
constexpr size_t kMaxPartBytes = 240;  // file systems take 255; temporary names need a few

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

// "--" is the separator of cache directories.
bool is_name_part(std::string_view part) {
  return !part.empty() && part.size() <= kMaxNameBytes &&
         std::all_of(part.begin(), part.end(), is_name_character) && part.front() != '.' &&
         part.front() != '-' && part.back() != '.' && part.back() != '-' &&
         part.find("..") == std::string_view::npos && part.find("--") == std::string_view::npos;
}

bool is_repo_name(std::string_view name) {
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos) return is_name_part(name);
  return is_name_part(name.substr(0, slash)) && is_name_part(name.substr(slash + 1));
}

bool is_url(std::string_view text) {
  return text.rfind("https://", 0) == 0 || text.rfind("http://", 0) == 0;
}

Error bad_repo_id(std::string_view text) {
  return invalid_argument(
      fmt::format("{}: is no repository, expected org/name, org/name@revision or "
                  "https://HOST/org/name[/tree/revision]",
                  escape_for_display(text.substr(0, 300))));
}

std::string percent_decode(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_escape =
        text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0;
    out += is_escape ? static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2])) : text[i];
    if (is_escape) i += 2;
  }
  return out;
}

// "/org/name", "/org/name/tree/revision" and nothing else.
Result<RepoId> parse_repo_url(std::string_view text) {
  TRY_ASSIGN(const Url url, parse_url(text));
  RepoId id;
  id.endpoint = url.origin();
  std::string path = percent_decode(url.path).substr(1);
  while (!path.empty() && path.back() == '/') path.pop_back();
  const size_t tree = path.find("/tree/");
  if (tree != std::string::npos) {
    id.revision = path.substr(tree + 6);
    path.resize(tree);
  }
  id.name = path;
  return id;
}

// The next element of a bracket expression; false at its end.
struct Bracket {
  size_t end = 0;  // index behind ']', 0 when there is none and '[' is literal
  bool matches = false;
};

Bracket match_bracket(std::string_view pattern, size_t begin, char c) {
  size_t at = begin + 1;
  const bool is_negated = at < pattern.size() && pattern[at] == '!';
  if (is_negated) ++at;
  const size_t close = pattern.find(']', at + 1);  // a ']' in the first place is literal
  if (close == std::string_view::npos) return {};
  bool found = false;
  while (at < close) {
    const bool is_range = at + 2 < close && pattern[at + 1] == '-';
    const char last = is_range ? pattern[at + 2] : pattern[at];
    found = found || (pattern[at] <= c && c <= last);
    at += is_range ? 3 : 1;
  }
  return {close + 1, found != is_negated};
}

bool is_other_weight_format(std::string_view path) {
  constexpr std::string_view kSuffixes[] = {
      ".bin", ".pt", ".pth", ".pkl", ".ckpt", ".h5", ".msgpack", ".ot", ".onnx", ".gguf"};
  return std::any_of(std::begin(kSuffixes), std::end(kSuffixes), [&](std::string_view suffix) {
    return path.size() > suffix.size() && path.substr(path.size() - suffix.size()) == suffix;
  });
}

bool has_safetensors(const std::vector<RepoFile>& files) {
  return std::any_of(files.begin(), files.end(), [](const RepoFile& file) {
    return matches_glob("*.safetensors", file.path);
  });
}

}  // namespace

Result<RepoId> parse_repo_id(std::string_view text) {
  RepoId id;
  if (is_url(text)) {
    TRY_ASSIGN(id, parse_repo_url(text));
  } else {
    const size_t at = text.find('@');
    id.name = text.substr(0, at);
    if (at != std::string_view::npos) id.revision = text.substr(at + 1);
  }
  if (!is_repo_name(id.name)) return bad_repo_id(text);
  if (id.revision.size() > kMaxRevisionBytes || !check_repo_path(id.revision).ok()) {
    return bad_repo_id(text);
  }
  return id;
}

bool looks_like_repo_id(std::string_view text) {
  return (is_url(text) || text.find('/') != std::string_view::npos) && parse_repo_id(text).ok();
}

bool is_commit(std::string_view revision) {
  return revision.size() == 40 &&
         revision.find_first_not_of("0123456789abcdef") == std::string::npos;
}

Result<void> check_repo_path(std::string_view path) {
  const auto refuse = [&](const char* why) {
    return integrity_error(
        fmt::format("the file name \"{}\" {}; refused, expected a plain relative path",
                    escape_for_display(path.substr(0, 300)),
                    why));
  };
  if (path.empty()) return refuse("is empty");
  if (path.size() > kMaxPathBytes) return refuse("is longer than 1024 bytes");
  if (!is_valid_utf8(path)) return refuse("is not UTF-8");
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
      return refuse("holds a control character");
    if (c == '\\') return refuse("holds a backslash");
  }
  std::string_view rest = path;
  while (true) {
    const size_t slash = rest.find('/');
    const std::string_view part = rest.substr(0, slash);
    if (part.empty()) return refuse("is absolute or has an empty part");
    if (part == "." || part == "..") return refuse("leaves its directory");
    if (part.size() > kMaxPartBytes) return refuse("has a part longer than 240 bytes");
    if (slash == std::string_view::npos) return {};
    rest.remove_prefix(slash + 1);
  }
}

bool matches_glob(std::string_view pattern, std::string_view text) {
  if (!pattern.empty() && pattern.back() == '/')
    return matches_glob(std::string(pattern) + '*', text);
  // Only the last '*' ever needs to take more: an earlier one already matched as little as it
  // could.
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string_view::npos;
  size_t star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
      continue;
    }
    const Bracket bracket =
        p < pattern.size() && pattern[p] == '[' ? match_bracket(pattern, p, text[t]) : Bracket{};
    if (bracket.end != 0 && bracket.matches) {
      p = bracket.end;
      ++t;
    } else if (bracket.end == 0 && p < pattern.size() &&
               (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

Selection select_files(const std::vector<RepoFile>& files, const FileFilter& filter) {
  const auto matches_any = [](const std::vector<std::string>& patterns, const RepoFile& file) {
    return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
      return matches_glob(pattern, file.path);
    });
  };
  const bool skips_duplicates = filter.include.empty() && has_safetensors(files);
  Selection selection;
  for (const RepoFile& file : files) {
    if (!filter.include.empty() && !matches_any(filter.include, file)) continue;
    if (matches_any(filter.exclude, file)) continue;
    const bool is_duplicate = skips_duplicates && is_other_weight_format(file.path);
    (is_duplicate ? selection.duplicates : selection.files).push_back(file);
  }
  return selection;
}

}  // namespace nibble::hub
