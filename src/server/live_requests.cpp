#include "server/live_requests.h"

#include <utility>

namespace nibble::server {

void LiveRequests::add(const std::string& id, KeyId owner, std::weak_ptr<Generation> generation) {
  if (!generation.expired()) entries_.push_back({id, owner, std::move(generation)});
}

void LiveRequests::remove_ended() {
  std::erase_if(entries_, [](const Entry& entry) {
    const std::shared_ptr<Generation> generation = entry.generation.lock();
    return generation == nullptr || generation->is_over();
  });
}

int32_t LiveRequests::abort(const std::string& id, KeyId owner) {
  return abort_where([&](const Entry& entry, const Generation& generation) {
    return entry.owner == owner && (entry.id == id || generation.client_id() == id);
  });
}

int32_t LiveRequests::abort_of_any_owner(const std::string& id) {
  return abort_where([&](const Entry& entry, const Generation& generation) {
    return entry.id == id || generation.client_id() == id;
  });
}

int32_t LiveRequests::abort_all() {
  return abort_where([](const Entry&, const Generation&) { return true; });
}

int32_t LiveRequests::abort_where(
    const std::function<bool(const Entry&, const Generation&)>& matches) {
  std::vector<std::shared_ptr<Generation>> aborted;  // ending one changes the entries
  for (const Entry& entry : entries_) {
    auto generation = entry.generation.lock();
    const bool is_meant = generation != nullptr && matches(entry, *generation);
    if (is_meant && !generation->is_over()) aborted.push_back(std::move(generation));
  }
  for (const auto& generation : aborted) generation->abort();
  return static_cast<int32_t>(aborted.size());
}

}  // namespace nibble::server
