#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/checked_math.h"
#include "checkpoint/output_file.h"
#include "checkpoint/safetensors.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/decision_trace.h"
#include "cli/id_arrays.h"
#include "cli/session.h"
#include "comm/communicator.h"

namespace nibble::cli {
namespace {

// Larger passes gain no speed and cost workspace.
constexpr int32_t kDefaultChunk = 2048;

Result<std::vector<int32_t>> read_ids(const LogitsFlags& flags) {
  if (!flags.ids_file) {
    if (flags.ids.empty()) return invalid_argument("logits: --ids or --ids-file is required");
    return flags.ids;
  }
  TRY_ASSIGN(const std::string text, read_file(*flags.ids_file, kIdArrayLimits.max_bytes));
  TRY_ASSIGN(const json::Value document, parse_id_arrays(text, flags.ids_file->string()));
  TRY_ASSIGN(std::vector<int32_t> ids, ids_from_document(document, flags.ids_file->string()));
  if (ids.empty()) return invalid_argument(flags.ids_file->string() + ": holds no token ids");
  return ids;
}

// Appends rows of logits, the first of which belongs to `position`. kDataLoss names the position of
// one that is not finite.
Result<void> append_rows(TensorView rows,
                         std::string_view name,
                         int32_t position,
                         std::vector<float>& out) {
  for (int64_t i = 0; i < rows.num_rows() && rows.data != nullptr; ++i) {
    const float* row = rows.row<float>(i);
    const float* end = row + rows.shape[1];
    const float* fault = std::find_if(row, end, [](float x) { return !std::isfinite(x); });
    if (fault != end) {
      return data_loss(
          fmt::format("{} of position {}: token {} has {}; the weights are damaged, or "
                      "this model does not fit the precision. See nibble check.",
                      name,
                      position + i,
                      fault - row,
                      std::isnan(*fault) ? "NaN" : "an infinite value"));
    }
    out.insert(out.end(), row, end);
  }
  return {};
}

// One sequence through a model, chunk by chunk.
class Prefill final {
 public:
  struct Options {
    int32_t chunk = 0;
    int32_t first_logits = 0;  // position
    bool mtp = false;
    models::Decisions* record = nullptr;
    const models::Decisions* replay = nullptr;
  };

  // `model` has state for `ids` in slot 0, with pages 0, 1, 2, ...
  Prefill(models::Model& model, std::span<const int32_t> ids, const Options& options)
      : model_(model),
        ids_(ids),
        options_(options),
        communicator_(comm::make_local_communicator()),
        pages_(static_cast<size_t>(
            ceil_div(static_cast<int64_t>(ids.size()), model.info().page_size))) {
    for (size_t i = 0; i < pages_.size(); ++i) pages_[i] = PageId{static_cast<int32_t>(i)};
  }

  Result<void> run() {
    const auto num_ids = static_cast<int32_t>(ids_.size());
    for (int32_t begin = 0; begin < num_ids; begin += options_.chunk) {
      TRY(pass(begin, std::min(begin + options_.chunk, num_ids)));
    }
    return {};
  }

  std::vector<float>& logits() { return logits_; }
  std::vector<float>& mtp_logits() { return mtp_logits_; }

 private:
  Result<void> pass(int32_t begin, int32_t end) {
    const int32_t count = end - begin;
    std::vector<int32_t> positions(static_cast<size_t>(count));
    std::iota(positions.begin(), positions.end(), begin);
    std::vector<int32_t> rows;
    for (int32_t p = std::max(begin, options_.first_logits); p < end; ++p)
      rows.push_back(p - begin);
    const int32_t cu_seqlens[] = {0, count};
    const SlotId slots[] = {SlotId{0}};
    const std::span<const PageId> block_tables[] = {pages_};
    const models::ForwardInput input{
        .token_ids = ids_.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
        .positions = positions,
        .cu_seqlens = cu_seqlens,
        .slots = slots,
        .block_tables = block_tables,
        .logits_rows = rows,
        .compute_mtp = options_.mtp,
        .communicator = communicator_.get(),
        .record = options_.record,
        .replay = options_.replay,
    };
    models::ForwardOutput output;
    TRY(model_.forward(input, output));
    TRY(append_rows(output.logits, "logits", std::max(begin, options_.first_logits), logits_));
    return append_rows(output.mtp_logits, "mtp_logits", std::max(begin, 1) - 1, mtp_logits_);
  }

  models::Model& model_;
  std::span<const int32_t> ids_;
  Options options_;
  std::unique_ptr<comm::Communicator> communicator_;
  std::vector<PageId> pages_;
  std::vector<float> logits_;
  std::vector<float> mtp_logits_;
};

TensorView as_rows(std::vector<float>& values, int32_t width) {
  const auto num_rows = static_cast<int64_t>(values.size()) / width;
  return TensorView::contiguous(values.data(), DType::kF32, {num_rows, width});
}

}  // namespace

Result<void> run_logits(const LogitsFlags& flags) {
  TRY_ASSIGN(const std::vector<int32_t> ids, read_ids(flags));
  TRY(checkpoint::check_output(flags.output));
  if (flags.record) TRY(checkpoint::check_output(*flags.record));
  models::Decisions replay;
  if (flags.replay) {
    TRY_ASSIGN(replay, read_decisions(*flags.replay));
  }
  TRY_ASSIGN(const checkpoint::Checkpoint checkpoint, open_model(flags.model));
  const auto num_ids = static_cast<int32_t>(ids.size());
  const int32_t chunk = std::min(flags.chunk > 0 ? flags.chunk : kDefaultChunk, num_ids);
  TRY_ASSIGN(LoadedModel loaded,
             load_model(checkpoint,
                        flags.model,
                        {.context = num_ids, .pass_tokens = chunk, .needs_draft = flags.mtp},
                        Report::kPlan));
  models::Model& model = *loaded.model;
  if (flags.mtp && !model.info().has_mtp) {
    return unsupported(fmt::format("{}: has no MTP layer", flags.model.model.string()));
  }
  TRY(model.reserve_state(engine::planned_state(loaded.plan)));

  models::Decisions record;
  Prefill prefill(model,
                  ids,
                  {.chunk = chunk,
                   .first_logits = flags.last > 0 ? std::max(0, num_ids - flags.last) : 0,
                   .mtp = flags.mtp,
                   .record = flags.record ? &record : nullptr,
                   .replay = flags.replay ? &replay : nullptr});
  TRY(prefill.run());

  const int32_t vocab_size = model.info().vocab_size;
  std::vector<checkpoint::NamedTensor> tensors;
  tensors.push_back({.name = "logits", .view = as_rows(prefill.logits(), vocab_size)});
  if (flags.mtp) {
    tensors.push_back({.name = "mtp_logits", .view = as_rows(prefill.mtp_logits(), vocab_size)});
  }
  TRY(checkpoint::write_safetensors(flags.output, tensors));
  if (flags.record) TRY(write_decisions(*flags.record, record));
  return {};
}

}  // namespace nibble::cli
