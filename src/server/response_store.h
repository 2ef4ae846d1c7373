// Responses that clients asked to keep (Responses API, `store`): each is visible only with the key
// that made it. Bounded in number and bytes; the least recently used one of the key that holds the
// most goes first. Safe to use from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/json.h"
#include "base/result.h"
#include "server/key_id.h"

namespace nibble::server {

struct StoredResponse {
  // Both were written by this server.
  Result<json::Value> parse_body() const;
  Result<json::Array> parse_input() const;

  std::string body;  // JSON of the response object, as GET returns it
  // JSON array of the items that it answers, those of earlier responses included.
  std::string input;
  // Of a response that was made in the background and has ended: its stream.
  std::string events;
};

class ResponseStore final {
 public:
  struct Limits {
    size_t responses_max = 4096;
    size_t bytes_max = 64 << 20;  // of all bodies and items
  };
  struct Usage {
    size_t num_responses = 0;
    size_t bytes = 0;
  };

  explicit ResponseStore(const Limits& limits) : limits_(limits) {}

  // Whether put() can succeed.
  bool takes(const std::string& id, const StoredResponse& response) const;
  // Replaces the response of that owner and id. kExhausted when it alone exceeds the limits.
  Result<void> put(KeyId owner, const std::string& id, StoredResponse response);
  // Null when there is none, or when it is another key's.
  std::shared_ptr<const StoredResponse> find(KeyId owner, const std::string& id);
  // False when there was none to remove.
  bool erase(KeyId owner, const std::string& id);

  Usage usage() const;

 private:
  struct Entry {
    std::string id;
    // Shared with readers, which may still use it when it is evicted.
    std::shared_ptr<const StoredResponse> response;
    size_t bytes = 0;
  };
  struct Shelf {             // of one key
    std::list<Entry> order;  // most recently used first
    std::unordered_map<std::string, std::list<Entry>::iterator> by_id;
    size_t bytes = 0;
  };

  bool is_full() const;
  void evict_one();
  bool remove(KeyId owner, const std::string& id);

  const Limits limits_;
  mutable std::mutex mutex_;
  std::map<KeyId, Shelf> shelves_;  // none is empty
  Usage usage_;
};

}  // namespace nibble::server
