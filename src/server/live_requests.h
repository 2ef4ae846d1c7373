// The completions that are being computed, by the id that their clients know, and whose they are.
// Owner: the I/O thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/generation.h"
#include "server/key_id.h"

namespace nibble::server {

class LiveRequests final {
 public:
  // `id`: of the HTTP request. Clients choose it, so several requests may have the same.
  void add(const std::string& id, KeyId owner, std::weak_ptr<Generation> generation);
  // Forgets those that have ended.
  void remove_ended(const std::string& id);

  // End the requests, which then call remove_ended; how many there were. Ids of other owners are
  // unknown ids.
  int32_t abort(const std::string& id, KeyId owner);
  int32_t abort_of_any_owner(const std::string& id);
  int32_t abort_all();

  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    KeyId owner;
    std::weak_ptr<Generation> generation;
  };
  int32_t abort_where(const std::function<bool(const std::string&, const Entry&)>& matches);

  std::unordered_multimap<std::string, Entry> entries_;  // at most as many as connections
};

}  // namespace nibble::server
