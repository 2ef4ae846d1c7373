// A checkpoint being written: pieces of known size into shards, in bounded memory, on all threads,
// and so that an interruption at any moment costs at most one shard. Knows nothing of formats.
//
// While a job runs, everything is in OUT.incomplete beside OUT:
//   model-*.safetensors.part   the shard in work; worthless after an interruption
//   model-*.safetensors        finished shards
//   journal.jsonl              line 1: what the job is; then one line per finished shard
// The last step renames OUT.incomplete to OUT, so OUT is complete whenever it exists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/result.h"
#include "device/thread_pool.h"
#include "tensor/tensor_view.h"
#include "tools/output/statistics.h"

namespace nibble::tools {

// Stores bytes of tensor `index` of a piece, `offset` bytes after its first.
using WriteBytes =
    std::function<Result<void>(size_t index, int64_t offset, std::span<const std::byte> bytes)>;

// Tensors that are made together and stored in one shard.
struct Piece {
  std::string module_class;         // under which its statistics are counted
  std::vector<TensorMeta> tensors;  // what will be written, in full
  // Makes the tensors. Runs on any thread, beside others; holds little memory.
  std::function<Result<ErrorStatistics>(const WriteBytes&)> make;

  int64_t num_bytes() const;
};

struct TextFile {
  std::string name;
  std::string text;
};

struct CopiedFile {
  Path source;
  std::string name;
};

using ClassStatistics = std::map<std::string, ErrorStatistics>;  // by module class

struct Job {
  Path out;
  std::vector<Piece> pieces;
  std::vector<TextFile> texts;
  std::vector<CopiedFile> copies;
  // What the job is: equal identity, equal output. A resumed job must have the identity of the one
  // that was interrupted.
  json::Object identity;
  std::string record_name;  // a file in OUT that holds identity and statistics
  bool resume = false;
  int64_t shard_bytes = int64_t{2} << 30;  // upper bound, unless a single piece is larger
};

struct JobContext {
  device::ThreadPool& pool;
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress = {};
  // After some pieces were made: lets go of memory that their inputs occupy.
  std::function<void()> release_inputs = {};
  // Before each step that changes the disk. An error ends the job there, as a crash would: tests
  // stop at every step and resume.
  std::function<Result<void>(std::string_view step)> before_step = {};
};

struct JobResult {
  ClassStatistics statistics;
  int64_t num_bytes = 0;  // of all tensors
  int32_t num_shards = 0;
  int32_t num_shards_resumed = 0;  // finished before this run
  bool was_complete = false;       // nothing was left to do
};

// Writes the checkpoint. kInvalidArgument when OUT exists, when OUT.incomplete exists without
// `resume`, or belongs to another job; kUnavailable when another process works on it; kExhausted
// when the disk is too small (checked first) or fills up; and whatever a piece reports. After any
// error the job can be resumed.
Result<JobResult> run_job(const Job& job, const JobContext& context);

// "OUT.incomplete"
Path incomplete_path(const Path& out);

}  // namespace nibble::tools
