// What `plan` asks a hub for, from a command line: hub_probe ENDPOINT REPO FIRST_RANGE_BYTES
// NAME... Prints the commit, the number of files, config.json, and per named file the length of its
// header; then bytes and requests. Errors: "REASON: MESSAGE" and exit code 1.
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "hub/client.h"

namespace nibble::hub {
namespace {

constexpr int64_t kMaxConfigBytes = 1 << 20;

const RepoFile* find_file(const std::vector<RepoFile>& files, const std::string& path) {
  for (const RepoFile& file : files) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

Result<void> print_config(Client& client,
                          const RepoId& repo,
                          const std::string& commit,
                          const RepoFile* config) {
  if (config == nullptr) return {};
  TRY_ASSIGN(const std::string text,
             client.fetch_small_file(repo, commit, *config, kMaxConfigBytes));
  std::printf("config %s\n", text.c_str());
  return {};
}

Result<void> probe(std::span<char*> arguments) {
  HubConfig config;
  config.endpoint = arguments[0];
  config.retry.first_delay = std::chrono::milliseconds(2);
  const Cancel cancel;
  TRY_ASSIGN(const RepoId repo, parse_repo_id(arguments[1]));
  TRY_ASSIGN(const std::unique_ptr<Client> client, Client::create(config, repo.endpoint, cancel));
  TRY_ASSIGN(const std::string commit, client->resolve_revision(repo));
  TRY_ASSIGN(const std::vector<RepoFile> files, client->list_files(repo, commit));
  std::printf("commit %s\nfiles %zu\n", commit.c_str(), files.size());
  TRY(print_config(*client, repo, commit, find_file(files, "config.json")));
  std::vector<HeaderRequest> requests;
  for (const char* path : arguments.subspan(3)) {
    const RepoFile* file = find_file(files, path);
    if (file == nullptr) return not_found(path);
    requests.push_back({*file, std::atoll(arguments[2])});
  }
  size_t last_done = 0;
  TRY_ASSIGN(const HeaderReads reads,
             client->read_header_ranges(
                 repo, commit, requests, [&](size_t num_done) { last_done = num_done; }));
  for (const ShardHeader& shard : reads.shards) {
    std::printf("header %s %zu\n", shard.path.c_str(), shard.bytes.size());
  }
  std::printf("done %zu\nbytes %lld\nrequests %lld\n",
              last_done,
              static_cast<long long>(reads.body_bytes),
              static_cast<long long>(reads.num_requests));
  return {};
}

}  // namespace
}  // namespace nibble::hub

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const nibble::Result<void> result =
      nibble::hub::probe(std::span(argv, static_cast<size_t>(argc)).subspan(1));
  if (result.ok()) return 0;
  std::printf("%s: %s\n", result.error().reason.c_str(), result.error().message.c_str());
  return 1;
}
