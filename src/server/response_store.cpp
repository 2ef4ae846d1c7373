#include "server/response_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace nibble::server {
namespace {

// Of the entry itself, its node and its place in the index.
constexpr size_t kEntryBytes = 256;

// What clients sent was within limits; an answer nests it a little deeper.
constexpr json::Limits kUnlimited = {
    .max_depth = 256, .max_nodes = INT64_MAX, .max_bytes = INT64_MAX};

size_t bytes_of(const std::string& id, const StoredResponse& response) {
  return kEntryBytes + 2 * id.size() + response.body.size() + response.input.size() +
         response.events.size();
}

}  // namespace

Result<json::Value> StoredResponse::parse_body() const { return json::parse(body, kUnlimited); }

Result<json::Array> StoredResponse::parse_input() const {
  TRY_ASSIGN(json::Value items, json::parse(input, kUnlimited));
  return std::move(*items.as_array());
}

bool ResponseStore::takes(const std::string& id, const StoredResponse& response) const {
  return bytes_of(id, response) <= limits_.bytes_max && limits_.responses_max > 0;
}

Result<void> ResponseStore::put(KeyId owner, const std::string& id, StoredResponse response) {
  const size_t bytes = bytes_of(id, response);
  if (!takes(id, response)) {
    return exhausted(
        fmt::format("the response takes {} bytes; at most {} bytes of responses are "
                    "kept",
                    bytes,
                    limits_.bytes_max));
  }
  const std::lock_guard lock(mutex_);
  remove(owner, id);
  Shelf& shelf = shelves_[owner];
  shelf.order.push_front({id, std::make_shared<const StoredResponse>(std::move(response)), bytes});
  shelf.by_id[id] = shelf.order.begin();
  shelf.bytes += bytes;
  usage_.bytes += bytes;
  ++usage_.num_responses;
  while (is_full()) evict_one();
  return {};
}

std::shared_ptr<const StoredResponse> ResponseStore::find(KeyId owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto shelf = shelves_.find(owner);
  if (shelf == shelves_.end()) return nullptr;
  const auto found = shelf->second.by_id.find(id);
  if (found == shelf->second.by_id.end()) return nullptr;
  std::list<Entry>& order = shelf->second.order;
  order.splice(order.begin(), order, found->second);
  return found->second->response;
}

bool ResponseStore::erase(KeyId owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  return remove(owner, id);
}

ResponseStore::Usage ResponseStore::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

bool ResponseStore::is_full() const {
  return usage_.num_responses > limits_.responses_max || usage_.bytes > limits_.bytes_max;
}

// The newest response of a shelf is its front, so a shelf that was just filled loses older ones
// first; one of several that hold the same loses its own.
void ResponseStore::evict_one() {
  const auto fullest =
      std::max_element(shelves_.begin(), shelves_.end(), [](const auto& a, const auto& b) {
        return a.second.bytes < b.second.bytes;
      });
  const std::string id = fullest->second.order.back().id;
  remove(fullest->first, id);
}

bool ResponseStore::remove(KeyId owner, const std::string& id) {
  const auto shelf = shelves_.find(owner);
  if (shelf == shelves_.end()) return false;
  const auto found = shelf->second.by_id.find(id);
  if (found == shelf->second.by_id.end()) return false;
  const size_t bytes = found->second->bytes;
  shelf->second.order.erase(found->second);
  shelf->second.by_id.erase(found);
  shelf->second.bytes -= bytes;
  usage_.bytes -= bytes;
  --usage_.num_responses;
  if (shelf->second.order.empty()) shelves_.erase(shelf);
  return true;
}

}  // namespace nibble::server
