#include "golden/golden_testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <utility>

#include "base/checked_math.h"
#include "checkpoint/safetensors.h"

namespace nibble::golden {
namespace {

constexpr int32_t kPagesPerSequence = 64;

Rows to_rows(const TensorView& view) {
  const float* data = view.as<const float>();
  return {.width = view.shape[1],
          .values = std::vector<float>(data, data + view.shape.num_elements())};
}

}  // namespace

Path golden_dir(const std::string& name) {
  return Path(NIBBLE_BINARY_DIR) / "testdata/golden" / name;
}
Path tiny_v4_dir() { return Path(NIBBLE_SOURCE_DIR) / "models/tiny-v4"; }

Loaded load(const Path& dir, const LoadRequest& request) {
  Loaded loaded;
  loaded.device =
      device::make_host_device({.num_threads = request.num_threads, .isa = request.isa}).value();
  const checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(dir).value();
  models::LoadOptions options;
  options.precision = request.precision;
  options.kv_dtype = request.kv_dtype;
  options.routing.allow_reference = request.isa == device::IsaLevel::kScalar;
  loaded.model = models::load_model(checkpoint, *loaded.device, options).value();
  loaded.model->reserve_state(request.state).value();
  return loaded;
}

Sequence::Sequence(models::Model& model, int32_t slot, int32_t first_page)
    : model_(model), slot_{slot} {
  const int32_t pages =
      static_cast<int32_t>(ceil_div(model.info().max_position_embeddings, model.info().page_size));
  for (int32_t i = 0; i < std::min(pages, kPagesPerSequence); ++i)
    pages_.push_back({first_page + i});
}

RunResult Sequence::run(std::span<const int32_t> ids, const RunOptions& options) {
  RunResult result;
  result.logits.width = result.mtp_logits.width = model_.info().vocab_size;
  const size_t chunk = options.chunk == 0 ? 512 : static_cast<size_t>(options.chunk);
  for (size_t begin = 0; begin < ids.size(); begin += chunk) {
    const Part part{.sequence = this,
                    .ids = ids.subspan(begin, std::min(chunk, ids.size() - begin))};
    const RunResult pass = run_pass(model_, std::span(&part, 1), options);
    append(result.logits, pass.logits);
    append(result.mtp_logits, pass.mtp_logits);
  }
  return result;
}

RunResult run_pass(models::Model& model, std::span<const Part> parts, const RunOptions& options) {
  std::vector<int32_t> ids;
  std::vector<int32_t> positions;
  std::vector<int32_t> cu_seqlens = {0};
  std::vector<SlotId> slots;
  std::vector<std::span<const PageId>> tables;
  for (const Part& part : parts) {
    for (size_t i = 0; i < part.ids.size(); ++i) {
      ids.push_back(part.ids[i]);
      positions.push_back(part.sequence->length() + static_cast<int32_t>(i));
    }
    cu_seqlens.push_back(static_cast<int32_t>(ids.size()));
    slots.push_back(part.sequence->slot());
    tables.push_back(part.sequence->pages());
  }
  std::vector<int32_t> rows(ids.size());
  std::iota(rows.begin(), rows.end(), 0);
  models::ForwardOutput output;
  const Result<void> done = model.forward({.token_ids = ids,
                                           .positions = positions,
                                           .cu_seqlens = cu_seqlens,
                                           .slots = slots,
                                           .block_tables = tables,
                                           .logits_rows = rows,
                                           .compute_mtp = options.mtp,
                                           .record = options.record,
                                           .replay = options.replay},
                                          output);
  done.value();
  RunResult result{.logits = to_rows(output.logits), .mtp_logits = {}};
  if (options.mtp) result.mtp_logits = to_rows(output.mtp_logits);
  return result;
}

std::vector<int32_t> random_ids(const models::Model& model, int32_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(model.info().vocab_size)));
  }
  return ids;
}

void Sequence::truncate(int32_t length) { model_.truncate(slot_, length).value(); }

void append(Rows& rows, const Rows& more) {
  rows.width = std::max(rows.width, more.width);
  rows.values.insert(rows.values.end(), more.values.begin(), more.values.end());
}

int32_t argmax(std::span<const float> row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

float top_margin(std::span<const float> row) {
  std::vector<float> sorted(row.begin(), row.end());
  std::partial_sort(sorted.begin(), sorted.begin() + 2, sorted.end(), std::greater<>());
  return sorted[0] - sorted[1];
}

float max_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  float most = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    if (!(difference <= most)) most = difference;  // NaN counts as larger
  }
  return most;
}

Vectors::Vectors(const Path& file) : bytes_(read_file(file, int64_t{1} << 30).value()) {
  const auto bytes = std::as_bytes(std::span(bytes_.data(), bytes_.size()));
  const auto header =
      checkpoint::parse_safetensors_header(bytes, static_cast<int64_t>(bytes.size()), file.string())
          .value();
  for (const checkpoint::StoredTensor& tensor : header.tensors) {
    tensors_.emplace_back(
        tensor.meta.name,
        TensorView::read_only(bytes.data() + tensor.begin, tensor.meta.dtype, tensor.meta.shape));
  }
}

namespace {

const TensorView* find(const std::vector<std::pair<std::string, TensorView>>& tensors,
                       const std::string& name) {
  for (const auto& [known, view] : tensors) {
    if (known == name) return &view;
  }
  return nullptr;
}

}  // namespace

bool Vectors::has(const std::string& name) const { return find(tensors_, name) != nullptr; }

Rows Vectors::rows(const std::string& name) const {
  const TensorView* view = find(tensors_, name);
  CHECK(view != nullptr && view->dtype == DType::kF32) << name;
  const float* data = view->as<const float>();
  return {.width = view->shape[view->shape.rank() - 1],
          .values = std::vector<float>(data, data + view->shape.num_elements())};
}

std::vector<int32_t> Vectors::ids(const std::string& name) const {
  const TensorView* view = find(tensors_, name);
  CHECK(view != nullptr && view->dtype == DType::kI32) << name;
  const int32_t* data = view->as<const int32_t>();
  return std::vector<int32_t>(data, data + view->shape.num_elements());
}

}  // namespace nibble::golden
