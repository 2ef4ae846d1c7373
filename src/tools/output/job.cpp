#include "tools/output/job.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include "base/utf8.h"
#include "checkpoint/output_file.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/shard_layout.h"
#include "tools/output/journal.h"

namespace nibble::tools {
namespace {

namespace fs = std::filesystem;
using checkpoint::OutputFile;
using checkpoint::ShardLayout;

// Output between two looks at progress and memory.
constexpr int64_t kBatchBytes = 64 << 20;
constexpr int64_t kMaxCopiedFileBytes = 1 << 30;

// "dir/" means "dir".
Path without_trailing_slash(const Path& path) {
  return path.has_filename() ? path : path.parent_path();
}

std::string shown(const Path& path) { return escape_for_display(path.string()); }

// Pieces [begin, end) form one shard.
struct Shard {
  size_t begin = 0;
  size_t end = 0;
  ShardLayout layout;
  std::vector<size_t> first_tensor;  // of each piece, in layout.tensors

  int64_t data_bytes() const {
    return layout.file_bytes - static_cast<int64_t>(layout.prefix.size());
  }
};

class Runner final {
 public:
  Runner(const Job& job, const JobContext& context)
      : job_(job),
        context_(context),
        out_(without_trailing_slash(job.out)),
        dir_(incomplete_path(job.out)),
        identity_(job.identity) {
    identity_.set("shard_bytes", job.shard_bytes);
  }

  Result<JobResult> run();

 private:
  Result<void> step(const std::string& what) const {
    return context_.before_step ? context_.before_step(what) : Result<void>();
  }
  Result<JobResult> finish_existing() const;
  Result<void> prepare_directory() const;
  Result<void> lay_out();
  bool is_finished(const Journal& journal, const Shard& shard) const;
  Result<void> check_disk(int64_t needed_bytes) const;
  Result<ClassStatistics> write_shard(const Shard& shard);
  Result<ClassStatistics> make_pieces(const Shard& shard, const OutputFile& file);
  Result<void> write_small_files(const JobResult& result) const;
  Result<void> commit() const;
  void report(int64_t newly_done_bytes);

  const Job& job_;
  const JobContext& context_;
  Path out_;
  Path dir_;
  json::Object identity_;
  std::vector<Shard> shards_;
  int64_t done_bytes_ = 0;
  int64_t total_bytes_ = 0;
};

void Runner::report(int64_t newly_done_bytes) {
  done_bytes_ += newly_done_bytes;
  if (context_.progress) context_.progress(done_bytes_, total_bytes_);
}

// OUT exists: that is the end of this very job, or a refusal.
Result<JobResult> Runner::finish_existing() const {
  const Error refusal = invalid_argument(fmt::format(
      "{}: exists, expected a new directory. Remove it or choose another name.", shown(out_)));
  if (!job_.resume) return refusal;
  const Result<std::string> text = read_file(out_ / job_.record_name, 256 << 20);
  if (!text.ok()) return refusal;
  const Result<json::Value> record = json::parse(*text);
  const json::Value* identity = record.ok() ? record->find("identity") : nullptr;
  const json::Value* statistics = record.ok() ? record->find("statistics") : nullptr;
  if (identity == nullptr || statistics == nullptr ||
      json::dump(*identity, json::Style::kPython) != json::dump(identity_, json::Style::kPython)) {
    return refusal;
  }
  std::error_code ignored;
  fs::remove(out_ / kJournalName, ignored);  // an interruption after the last rename leaves it
  JobResult result;
  TRY_ASSIGN(result.statistics, statistics_from_json(*statistics));
  result.was_complete = true;
  return result;
}

Result<void> Runner::prepare_directory() const {
  std::error_code fault;
  if (fs::exists(dir_, fault)) {
    if (job_.resume) return {};
    return invalid_argument(
        fmt::format("{}: an earlier run was interrupted. Continue it with --resume, or remove the "
                    "directory.",
                    shown(dir_)));
  }
  fs::create_directory(dir_, fault);
  if (!fault) return {};
  std::string text = fmt::format("{}: cannot create: {}", shown(dir_), fault.message());
  if (fault == std::errc::no_space_on_device) return exhausted(std::move(text));
  return fault == std::errc::no_such_file_or_directory ? not_found(std::move(text))
                                                       : invalid_argument(std::move(text));
}

Result<void> Runner::lay_out() {
  int64_t shard_bytes = 0;
  for (size_t i = 0; i < job_.pieces.size(); ++i) {
    const int64_t bytes = job_.pieces[i].num_bytes();
    if (shards_.empty() || shard_bytes + bytes > job_.shard_bytes) {
      shards_.push_back({.begin = i});
      shard_bytes = 0;
    }
    shards_.back().end = i + 1;
    shard_bytes += bytes;
    total_bytes_ += bytes;
  }
  for (size_t s = 0; s < shards_.size(); ++s) {
    Shard& shard = shards_[s];
    std::vector<TensorMeta> tensors;
    for (size_t i = shard.begin; i < shard.end; ++i) {
      shard.first_tensor.push_back(tensors.size());
      tensors.insert(tensors.end(), job_.pieces[i].tensors.begin(), job_.pieces[i].tensors.end());
    }
    const std::pair<std::string, std::string> metadata[] = {{"format", "pt"}};
    TRY_ASSIGN(
        shard.layout,
        checkpoint::lay_out_shard(checkpoint::shard_file_name(static_cast<int32_t>(s),
                                                              static_cast<int32_t>(shards_.size())),
                                  tensors,
                                  metadata));
  }
  return {};
}

bool Runner::is_finished(const Journal& journal, const Shard& shard) const {
  if (journal.find(shard.layout.file_name) == nullptr) return false;
  std::error_code fault;
  const auto size = fs::file_size(dir_ / shard.layout.file_name, fault);
  return !fault && static_cast<int64_t>(size) == shard.layout.file_bytes;
}

Result<void> Runner::check_disk(int64_t needed_bytes) const {
  std::error_code fault;
  const fs::space_info space = fs::space(dir_, fault);
  if (fault || static_cast<int64_t>(space.available) >= needed_bytes) return {};
  return exhausted(
      fmt::format("{}: {} bytes free on the disk, expected at least {}. Free {} bytes and repeat "
                  "the command with --resume.",
                  shown(dir_),
                  space.available,
                  needed_bytes,
                  needed_bytes - static_cast<int64_t>(space.available)));
}

Result<ClassStatistics> Runner::make_pieces(const Shard& shard, const OutputFile& file) {
  ClassStatistics statistics;
  for (size_t begin = shard.begin; begin < shard.end;) {
    size_t end = begin;
    int64_t batch_bytes = 0;
    while (end < shard.end && (end == begin || batch_bytes < kBatchBytes)) {
      batch_bytes += job_.pieces[end++].num_bytes();
    }
    std::vector<std::optional<Result<ErrorStatistics>>> results(end - begin);
    context_.pool.parallel_for(static_cast<int64_t>(results.size()), [&](int64_t task) {
      const size_t i = begin + static_cast<size_t>(task);
      const size_t first = shard.first_tensor[i - shard.begin];
      results[static_cast<size_t>(task)] = job_.pieces[i].make(
          [&](size_t index, int64_t offset, std::span<const std::byte> bytes) -> Result<void> {
            const checkpoint::StoredTensor& place = shard.layout.tensors[first + index];
            CHECK(place.begin + offset + static_cast<int64_t>(bytes.size()) <= place.end)
                << place.meta.name;
            return file.write_at(place.begin + offset, bytes);
          });
    });
    // In the order of the pieces, so that sums do not depend on threads.
    for (size_t i = begin; i < end; ++i) {
      TRY_ASSIGN(const ErrorStatistics piece, std::move(*results[i - begin]));
      statistics[job_.pieces[i].module_class].merge(piece);
    }
    file.start_writeback();
    if (context_.release_inputs) context_.release_inputs();
    report(batch_bytes);
    begin = end;
  }
  return statistics;
}

Result<ClassStatistics> Runner::write_shard(const Shard& shard) {
  const std::string& name = shard.layout.file_name;
  TRY(step("create " + name));
  TRY_ASSIGN(OutputFile file, OutputFile::create(dir_ / name, ".part"));
  TRY(file.reserve(shard.layout.file_bytes));
  TRY(file.write_at(0, std::as_bytes(std::span(shard.layout.prefix))));
  TRY(step("fill " + name));
  TRY_ASSIGN(ClassStatistics statistics, make_pieces(shard, file));
  TRY(step("sync " + name));
  TRY(file.sync());
  TRY(step("publish " + name));
  TRY(file.publish());
  return statistics;
}

Result<void> Runner::write_small_files(const JobResult& result) const {
  for (const CopiedFile& copy : job_.copies) {
    TRY(step("copy " + copy.name));
    TRY_ASSIGN(const std::string text, read_file(copy.source, kMaxCopiedFileBytes));
    TRY(checkpoint::write_file(dir_ / copy.name, text));
  }
  for (const TextFile& file : job_.texts) {
    TRY(step("write " + file.name));
    TRY(checkpoint::write_file(dir_ / file.name, file.text));
  }
  TRY(step("write " + job_.record_name));
  const json::Object record = json::make_object(
      {{"identity", identity_}, {"statistics", statistics_to_json(result.statistics)}});
  TRY(checkpoint::write_file(dir_ / job_.record_name,
                             json::dump(record, json::Style::kPython) + '\n'));
  if (shards_.size() == 1) return {};
  std::vector<ShardLayout> layouts;
  for (const Shard& shard : shards_) layouts.push_back(shard.layout);
  TRY(step("write index"));
  return checkpoint::write_file(dir_ / checkpoint::kIndexFileName,
                                checkpoint::shard_index_text(layouts) + '\n');
}

Result<void> Runner::commit() const {
  TRY(step("commit"));
  std::error_code fault;
  fs::rename(dir_, out_, fault);
  if (fault) {
    return invalid_argument(
        fmt::format("{}: cannot rename to {}: {}", shown(dir_), shown(out_), fault.message()));
  }
  const Path parent = fs::absolute(out_).parent_path();
  TRY(checkpoint::sync_directory(parent));
  TRY(step("clean up"));
  fs::remove(out_ / kJournalName, fault);
  return {};
}

Result<JobResult> Runner::run() {
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(out_, ignored))) return finish_existing();
  TRY(lay_out());
  TRY(step("create directory"));
  TRY(prepare_directory());
  TRY(step("open journal"));
  TRY_ASSIGN(Journal journal, Journal::open(dir_, identity_));
  JobResult result{.num_bytes = total_bytes_, .num_shards = static_cast<int32_t>(shards_.size())};
  int64_t needed_bytes = 0;
  for (const Shard& shard : shards_) {
    if (!is_finished(journal, shard)) needed_bytes += shard.layout.file_bytes;
  }
  TRY(check_disk(needed_bytes));
  for (const Shard& shard : shards_) {
    if (is_finished(journal, shard)) {
      ++result.num_shards_resumed;
      report(shard.data_bytes());
    } else {
      TRY_ASSIGN(const ClassStatistics statistics, write_shard(shard));
      TRY(step("record " + shard.layout.file_name));
      TRY(journal.append(shard.layout.file_name, statistics));
    }
    for (const auto& [module_class, sums] : *journal.find(shard.layout.file_name)) {
      result.statistics[module_class].merge(sums);
    }
  }
  TRY(write_small_files(result));
  TRY(commit());
  return result;
}

}  // namespace

int64_t Piece::num_bytes() const {
  int64_t bytes = 0;
  for (const TensorMeta& tensor : tensors)
    bytes += tensor.shape.num_elements() * dtype_size(tensor.dtype);
  return bytes;
}

Path incomplete_path(const Path& out) {
  Path path = without_trailing_slash(out);
  path += ".incomplete";
  return path;
}

Result<JobResult> run_job(const Job& job, const JobContext& context) {
  CHECK(!job.pieces.empty());
  return Runner(job, context).run();
}

}  // namespace nibble::tools
