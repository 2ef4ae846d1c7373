// The journal of a job: which shards are finished. Append-only lines, each synced before it counts;
// a line torn by a crash is as good as none.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "tools/output/job.h"

namespace nibble::tools {

inline constexpr std::string_view kJournalName = "journal.jsonl";

class Journal final {
 public:
  // Opens or starts the journal in `dir`. kInvalidArgument when it belongs to another job, with
  // both identities.
  static Result<Journal> open(const Path& dir, const json::Object& identity);

  Journal(Journal&& other) noexcept;
  Journal& operator=(Journal&& other) noexcept;
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  ~Journal();

  // The statistics of a finished shard; nullptr for one that is not.
  const ClassStatistics* find(const std::string& shard) const;
  Result<void> append(const std::string& shard, const ClassStatistics& statistics);

 private:
  Journal() = default;
  Result<void> append_line(const json::Object& object);

  Path path_;
  int fd_ = -1;
  std::map<std::string, ClassStatistics> finished_;
};

json::Object statistics_to_json(const ClassStatistics& statistics);
Result<ClassStatistics> statistics_from_json(const json::Value& value);

}  // namespace nibble::tools
