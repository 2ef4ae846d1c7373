#include "cli/plan_target.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
#include <system_error>

#include "base/utf8.h"
#include "checkpoint/shard_index.h"
#include "cli/console.h"
#include "cli/hub_environment.h"
#include "cli/interrupt.h"
#include "hub/client.h"

namespace nibble::cli {
namespace {

constexpr int64_t kMaxConfigBytes = 64 << 20;
constexpr const char* kSingleFile = "model.safetensors";
// Of all files of a repository. Larger claims are lies, and would overflow the sums of a plan.
constexpr int64_t kMaxRepositoryBytes = int64_t{1} << 50;

bool has_suffix(const std::string& path, std::string_view suffix) {
  return path.size() >= suffix.size() &&
         path.compare(path.size() - suffix.size(), suffix.size(), suffix) == 0;
}

Result<void> check_sizes(const std::string& repo, const std::vector<hub::RepoFile>& files) {
  int64_t left = kMaxRepositoryBytes;
  for (const hub::RepoFile& file : files) {
    if (file.size <= left) {
      left -= file.size;
      continue;
    }
    return data_loss(
        fmt::format("{}: the hub lists {} with {} bytes; expected all files together "
                    "to have at most {}. Fix: check the endpoint.",
                    escape_for_display(repo),
                    escape_for_display(file.path),
                    file.size,
                    kMaxRepositoryBytes));
  }
  return {};
}

// Fewer bytes than the header of a shard has, from the names that the index puts there: the first
// range then never reaches the weights, and the second fetches what is left.
std::map<std::string, int64_t> least_header_bytes(const checkpoint::ShardIndex& index) {
  constexpr int64_t kAroundName = 56;  // {"dtype":"U8","shape":[1],"data_offsets":[0,1]} and commas
  std::map<std::string, int64_t> bytes;
  for (const auto& [name, shard] : index.tensors) {
    bytes[index.shards[static_cast<size_t>(shard)]] +=
        static_cast<int64_t>(name.size()) + kAroundName;
  }
  return bytes;
}

class RemoteReader final {
 public:
  RemoteReader(hub::Client& client, const hub::RepoId& repo, std::string commit)
      : client_(client), repo_(repo), commit_(std::move(commit)) {}

  Result<checkpoint::ModelDescription> read() {
    TRY_ASSIGN(const std::vector<hub::RepoFile> files, client_.list_files(repo_, commit_));
    TRY(check_sizes(repo_.name, files));
    checkpoint::ModelDescriptionBuilder builder(repo_.name + "@" + commit_.substr(0, 12));
    std::optional<checkpoint::ShardIndex> index;
    for (const hub::RepoFile& file : files) TRY(take_config(file, builder, index));
    std::vector<hub::HeaderRequest> requests;
    const std::map<std::string, int64_t> least =
        index ? least_header_bytes(*index) : std::map<std::string, int64_t>();
    for (const hub::RepoFile& file : files) {
      const bool is_shard = index ? least.contains(file.path) : file.path == kSingleFile;
      if (is_shard) {
        const auto bytes = least.find(file.path);
        const int64_t first = bytes == least.end() ? 8 : bytes->second;
        requests.push_back({.file = file, .first_range_bytes = std::max<int64_t>(first, 8)});
      } else if (!is_other_weights(file.path) && !is_config(file.path)) {
        builder.add_other_file(file.size);
      }
    }
    ProgressBar progress(fmt::format("headers of {}", repo_.name));
    const auto total = static_cast<int64_t>(requests.size());
    TRY_ASSIGN(const hub::HeaderReads reads,
               client_.read_header_ranges(repo_, commit_, requests, [&](size_t num_done) {
                 progress.update(static_cast<int64_t>(num_done), total);
               }));
    for (const hub::ShardHeader& shard : reads.shards) {
      builder.add_shard(shard.path,
                        shard.file_bytes,
                        std::as_bytes(std::span(shard.bytes.data(), shard.bytes.size())));
    }
    return builder.finish();
  }

 private:
  static bool is_config(const std::string& path) {
    const auto names = checkpoint::config_file_names();
    return path == checkpoint::kIndexFileName ||
           std::find(names.begin(), names.end(), path) != names.end();
  }
  // Weights that `pull` leaves out where safetensors exist.
  static bool is_other_weights(const std::string& path) {
    return has_suffix(path, ".safetensors") || has_suffix(path, ".bin") ||
           has_suffix(path, ".pth") || has_suffix(path, ".pt") || has_suffix(path, ".gguf");
  }

  Result<void> take_config(const hub::RepoFile& file,
                           checkpoint::ModelDescriptionBuilder& builder,
                           std::optional<checkpoint::ShardIndex>& index) {
    if (!is_config(file.path)) return {};
    TRY_ASSIGN(std::string text, client_.fetch_small_file(repo_, commit_, file, kMaxConfigBytes));
    if (file.path == checkpoint::kIndexFileName) {
      Result<checkpoint::ShardIndex> parsed = checkpoint::parse_shard_index(text, file.path);
      if (parsed.ok()) index = std::move(parsed).value();
    }
    builder.add_config(file.path, std::move(text));
    return {};
  }

  hub::Client& client_;
  const hub::RepoId& repo_;
  const std::string commit_;
};

Result<checkpoint::ModelDescription> describe_remote(const std::string& target,
                                                     const PlanFlags& flags) {
  TRY_ASSIGN(const hub::RepoId repo, hub::parse_repo_id(target));
  TRY_ASSIGN(hub::HubConfig config, hub_config_from_environment());
  config.num_connections = flags.connections;
  const InterruptGuard interrupt;
  const hub::Cancel cancel([&] { return interrupt.is_set(); });
  TRY_ASSIGN(const std::unique_ptr<hub::Client> client,
             hub::Client::create(std::move(config), repo.endpoint, cancel));
  TRY_ASSIGN(const std::string commit, client->resolve_revision(repo));
  return RemoteReader(*client, repo, commit).read();
}

}  // namespace

quant::ReadTensorBytes PlanTarget::reader() const {
  if (!is_local) return {};
  return [this](size_t tensor, int64_t begin, int64_t count) {
    return model.read(tensor, begin, count);
  };
}

Result<PlanTarget> open_plan_target(const std::string& target, const PlanFlags& flags) {
  PlanTarget opened;
  std::error_code ignored;
  if (has_suffix(target, ".gguf") && std::filesystem::is_regular_file(target, ignored)) {
    TRY_ASSIGN(opened.model, checkpoint::describe_gguf_file(target));
    return opened;
  }
  if (std::filesystem::is_directory(target, ignored) || !hub::looks_like_repo_id(target)) {
    TRY_ASSIGN(opened.model, checkpoint::describe_directory(target));
    return opened;
  }
  opened.is_local = false;
  TRY_ASSIGN(opened.model.description, describe_remote(target, flags));
  return opened;
}

}  // namespace nibble::cli
