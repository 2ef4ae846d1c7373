// Who gets how much: max-min fair splits of a token budget, and a record of what each owner has
// had. Owner: the engine thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace nibble::engine {

// Splits `budget` so that nobody gets more than asked and nobody who is left wanting gets less than
// another: max-min fair. The remainder of the division goes to the first ones.
std::vector<int32_t> fair_split(int32_t budget, std::span<const int32_t> demands);

// Tokens computed for each owner of live requests, as a virtual time: who starts begins with the
// least of those present, so that idling earns no credit.
class OwnerShares final {
 public:
  void join(const std::string& owner);
  void leave(const std::string& owner);
  void charge(const std::string& owner, int64_t num_tokens);
  int64_t served(const std::string& owner) const;

 private:
  struct Share {
    int64_t served = 0;
    int32_t num_live = 0;
  };
  std::map<std::string, Share> shares_;  // owners of live requests only
};

}  // namespace nibble::engine
