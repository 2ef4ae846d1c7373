// The completions that are being computed, by the ids that their clients know, and whose they are.
// Owner: the I/O thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/generation.h"
#include "server/key_id.h"

namespace nibble::server {

class LiveRequests final {
 public:
  // `id`: of the HTTP request. Clients choose it, so several requests may have the same. The id in
  // the body, if there is one, is as good.
  void add(const std::string& id, KeyId owner, std::weak_ptr<Generation> generation);
  // Forgets those that have ended.
  void remove_ended();

  // End the requests; how many there were. Ids of other owners are unknown ids.
  int32_t abort(const std::string& id, KeyId owner);
  int32_t abort_of_any_owner(const std::string& id);
  int32_t abort_all();

  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::string id;
    KeyId owner;
    std::weak_ptr<Generation> generation;
  };
  int32_t abort_where(const std::function<bool(const Entry&, const Generation&)>& matches);

  std::vector<Entry> entries_;  // at most one per connection and per request in the background
};

}  // namespace nibble::server
