#include "hub/repo_cache.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <system_error>
#include <utility>

#include "hub/digest.h"
#include "hub/disk.h"
#include "hub/errors.h"

namespace nibble::hub {
namespace {

constexpr const char* kPrivateFolder = ".nibble";  // beside blobs/, refs/ and snapshots/
constexpr std::string_view kPartialSuffix = ".nibble.incomplete";
constexpr std::string_view kJournalSuffix = ".nibble.journal";

std::string folder_name(const RepoId& repo) {
  std::string name = "models--" + repo.name;
  const size_t slash = name.find('/');
  if (slash != std::string::npos) name.replace(slash, 1, "--");
  return name;
}

// Creates the directories of `relative` below `base`, none of which may be a link to elsewhere.
Result<void> make_plain_directories(const Path& base, const Path& relative) {
  Path at = base;
  for (const Path& part : relative) {
    at /= part;
    if (::mkdir(at.c_str(), 0777) != 0 && errno != EEXIST)
      return disk_fault(at, "create the directory");
    struct stat info = {};
    if (::lstat(at.c_str(), &info) != 0) return disk_fault(at, "stat");
    if (!S_ISDIR(info.st_mode)) {
      return disk_error(at.string() +
                        ": is no directory, expected one. Move it away and try again.");
    }
  }
  return {};
}

// "../" for each directory between a snapshot's file and the repository's root.
Path blob_link(const RepoFile& file) {
  std::string text = "../../";
  for (const char c : file.path) {
    if (c == '/') text += "../";
  }
  return text + "blobs/" + file.etag;
}

using Inode = std::pair<dev_t, ino_t>;

Inode inode_of(const struct stat& info) { return {info.st_dev, info.st_ino}; }

// The names of the blobs by what they are on the disk, to tell where hard links lead.
std::map<Inode, std::string> blobs_by_inode(const Path& blobs) {
  std::map<Inode, std::string> names;
  std::error_code fault;
  for (auto it = std::filesystem::directory_iterator(blobs, fault);
       !fault && it != std::filesystem::directory_iterator();
       it.increment(fault)) {
    struct stat info = {};
    const std::string name = it->path().filename().string();
    if (is_blob_name(name) && ::stat(it->path().c_str(), &info) == 0) {
      names.emplace(inode_of(info), name);
    }
  }
  return names;
}

// The repository that a file of a snapshot belongs to, by its path; empty for any other file.
Path repo_root_of(const Path& file) {
  for (Path at = file.parent_path(); at.has_relative_path(); at = at.parent_path()) {
    if (at.filename() == "snapshots") return at.parent_path();
  }
  return {};
}

bool has_suffix(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

CacheUse measure_repo(const Path& root) {
  CacheUse use{.root = root};
  std::error_code fault;
  for (auto it = std::filesystem::directory_iterator(root / "blobs", fault);
       !fault && it != std::filesystem::directory_iterator();
       it.increment(fault)) {
    struct stat info = {};
    if (::lstat(it->path().c_str(), &info) != 0) continue;
    const int64_t bytes = static_cast<int64_t>(info.st_blocks) * 512;
    use.bytes += bytes;
    if (has_suffix(it->path().string(), ".incomplete")) use.partial_bytes += bytes;
  }
  return use;
}

}  // namespace

RepoCache::RepoCache(Path cache_dir, const RepoId& repo)
    : cache_dir_(std::move(cache_dir)), folder_(folder_name(repo)), root_(cache_dir_ / folder_) {}

Path RepoCache::blob(std::string_view etag) const { return blobs() / etag; }

Path RepoCache::partial(std::string_view etag) const {
  return blobs() / fmt::format("{}{}", etag, kPartialSuffix);
}

Path RepoCache::journal(std::string_view etag) const {
  return blobs() / fmt::format("{}{}", etag, kJournalSuffix);
}

Path RepoCache::record(std::string_view etag) const {
  return scratch() / fmt::format("{}.json", etag);
}

Path RepoCache::scratch() const { return root_ / kPrivateFolder; }

Path RepoCache::lock(std::string_view etag) const {
  return cache_dir_ / ".locks" / folder_ / fmt::format("{}.lock", etag);
}

Path RepoCache::snapshot(std::string_view commit) const { return root_ / "snapshots" / commit; }

Result<void> RepoCache::create_directories() const {
  TRY(make_directories(blobs()));
  TRY(make_directories(root_ / "refs"));
  TRY(make_directories(root_ / "snapshots"));
  TRY(make_directories(scratch()));
  return make_directories(cache_dir_ / ".locks" / folder_);
}

Result<std::optional<std::string>> RepoCache::read_ref(const std::string& revision) const {
  const Path path = root_ / "refs" / revision;
  Result<std::string> text = read_file(path, 4096);
  if (!text.ok()) {
    if (text.error().code == Errc::kNotFound) return std::optional<std::string>();
    return disk_error(text.error().message);
  }
  while (!text->empty() && (text->back() == '\n' || text->back() == ' ')) text->pop_back();
  if (!is_commit(*text)) {
    return integrity_error(path.string() +
                           ": holds no commit of 40 hexadecimal digits. Remove it.");
  }
  return std::optional<std::string>(std::move(text).value());
}

Result<void> RepoCache::write_ref(const std::string& revision, const std::string& commit) const {
  const Path relative(revision);
  TRY(make_plain_directories(root_ / "refs", relative.parent_path()));
  return write_atomically(root_ / "refs" / relative, commit, scratch());
}

Result<void> RepoCache::link_file(const std::string& commit,
                                  const RepoFile& file,
                                  LinkKind kind) const {
  TRY(make_plain_directories(root_ / "snapshots", commit));
  const Path relative(file.path);
  TRY(make_plain_directories(snapshot(commit), relative.parent_path()));
  const Path path = snapshot(commit) / relative;
  const Path target = blob_link(file);
  std::error_code fault;
  const bool is_link = std::filesystem::read_symlink(path, fault) == target && !fault;
  // Renaming one hard link over another does nothing, not even remove the first.
  const bool is_same_file = std::filesystem::equivalent(path, blob(file.etag), fault);
  if (is_link || (is_same_file && !std::filesystem::is_symlink(path, fault))) return {};
  // A new link is renamed over the old one, so that a reader always finds the file.
  const Path temporary = scratch() / fmt::format("link.{}", ::getpid());
  TRY(remove_file(temporary));
  // File systems without symbolic links mostly have hard ones.
  const bool is_symbolic =
      kind == LinkKind::kSymbolic && ::symlink(target.c_str(), temporary.c_str()) == 0;
  if (!is_symbolic && ::link(blob(file.etag).c_str(), temporary.c_str()) != 0) {
    return disk_fault(path, "create the link");
  }
  return rename_file(temporary, path);
}

void RepoCache::adopt_file(const std::string& commit, const RepoFile& file) const {
  const Path path = snapshot(commit) / file.path;
  struct stat info = {};
  const bool is_whole = ::lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
                        static_cast<int64_t>(info.st_size) == file.size;
  // A blob that is there already stays; without hard links the file is received again.
  std::error_code no_link;
  if (is_whole) std::filesystem::create_hard_link(path, blob(file.etag), no_link);
}

Result<std::vector<RepoFile>> RepoCache::snapshot_files(const std::string& commit) const {
  std::vector<RepoFile> files;
  const Path base = snapshot(commit);
  const std::map<Inode, std::string> hard_links = blobs_by_inode(blobs());
  std::error_code fault;
  for (auto it = std::filesystem::recursive_directory_iterator(base, fault);
       !fault && it != std::filesystem::recursive_directory_iterator();
       it.increment(fault)) {
    RepoFile file{it->path().lexically_relative(base).string(), -1, {}};
    struct stat info = {};
    const bool is_there = ::stat(it->path().c_str(), &info) == 0;
    if (is_there) file.size = static_cast<int64_t>(info.st_size);
    std::error_code no_link;
    const Path target = std::filesystem::read_symlink(it->path(), no_link);
    if (!no_link) {
      file.etag = target.filename().string();
      if (!is_blob_name(file.etag) || target != blob_link(file)) continue;
    } else {
      const auto blob = is_there ? hard_links.find(inode_of(info)) : hard_links.end();
      if (blob == hard_links.end()) continue;
      file.etag = blob->second;
    }
    files.push_back(std::move(file));
  }
  if (fault) {
    errno = fault.value();
    return disk_fault(base, "list");
  }
  std::sort(files.begin(), files.end(), [](const RepoFile& a, const RepoFile& b) {
    return a.path < b.path;
  });
  return files;
}

std::optional<Path> record_of_snapshot_file(const Path& file) {
  std::error_code fault;
  const Path blob = std::filesystem::canonical(file, fault);
  if (fault) return std::nullopt;
  Path root = blob.parent_path().parent_path();
  std::string name = blob.filename().string();
  if (blob.parent_path().filename() != "blobs" || !is_blob_name(name)) {
    struct stat info = {};
    root = repo_root_of(blob);
    if (root.empty() || ::stat(blob.c_str(), &info) != 0 || info.st_nlink < 2) return std::nullopt;
    const auto names = blobs_by_inode(root / "blobs");
    const auto found = names.find(inode_of(info));
    if (found == names.end()) return std::nullopt;
    name = found->second;
  }
  return root / kPrivateFolder / (name + ".json");
}

std::vector<CacheUse> measure_cache(const Path& cache_dir) {
  std::vector<CacheUse> uses;
  std::error_code fault;
  for (auto it = std::filesystem::directory_iterator(cache_dir, fault);
       !fault && it != std::filesystem::directory_iterator();
       it.increment(fault)) {
    if (it->path().filename().string().find("--") == std::string::npos) continue;
    CacheUse use = measure_repo(it->path());
    if (use.bytes > 0) uses.push_back(std::move(use));
  }
  std::sort(uses.begin(), uses.end(), [](const CacheUse& a, const CacheUse& b) {
    return a.bytes > b.bytes;
  });
  return uses;
}

}  // namespace nibble::hub
