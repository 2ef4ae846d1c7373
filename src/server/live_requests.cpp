#include "server/live_requests.h"

#include <utility>

namespace nibble::server {

void LiveRequests::add(const std::string& id, KeyId owner, std::weak_ptr<Generation> generation) {
  if (!generation.expired()) entries_.emplace(id, Entry{owner, std::move(generation)});
}

void LiveRequests::remove_ended(const std::string& id) {
  const auto [first, last] = entries_.equal_range(id);
  for (auto entry = first; entry != last;) {
    const std::shared_ptr<Generation> generation = entry->second.generation.lock();
    const bool has_ended = generation == nullptr || generation->is_over();
    entry = has_ended ? entries_.erase(entry) : std::next(entry);
  }
}

int32_t LiveRequests::abort(const std::string& id, KeyId owner) {
  return abort_where(
      [&](const std::string& of, const Entry& entry) { return of == id && entry.owner == owner; });
}

int32_t LiveRequests::abort_of_any_owner(const std::string& id) {
  return abort_where([&](const std::string& of, const Entry&) { return of == id; });
}

int32_t LiveRequests::abort_all() {
  return abort_where([](const std::string&, const Entry&) { return true; });
}

int32_t LiveRequests::abort_where(
    const std::function<bool(const std::string&, const Entry&)>& matches) {
  std::vector<std::shared_ptr<Generation>> aborted;  // ending one changes the entries
  for (const auto& [id, entry] : entries_) {
    if (!matches(id, entry)) continue;
    if (auto generation = entry.generation.lock()) aborted.push_back(std::move(generation));
  }
  for (const auto& generation : aborted) generation->abort();
  return static_cast<int32_t>(aborted.size());
}

}  // namespace nibble::server
