#include "golden/golden_testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <numeric>
#include <random>
#include <utility>

#include "base/checked_math.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "device/cuda.h"
#include "device/emulated_gpu.h"

namespace nibble::golden {
namespace {

Rows to_rows(const TensorView& view) {
  const float* data = view.as<const float>();
  return {.width = view.shape[1],
          .values = std::vector<float>(data, data + view.shape.num_elements())};
}

}  // namespace

// On the machine that built this, or on one that got the tree and what tools/gpu staged.
Path golden_dir(const std::string& name) {
  const Path built = Path(NIBBLE_BINARY_DIR) / "testdata/golden" / name;
  return std::filesystem::exists(built) ? built : Path("build/gpu-stage/testdata/golden") / name;
}
Path tiny_v4_dir() {
  const Path source = Path(NIBBLE_SOURCE_DIR) / "models/tiny-v4";
  if (std::filesystem::exists(source)) return source;
  Path root = std::filesystem::current_path();
  while (!std::filesystem::exists(root / "models/tiny-v4") && root.has_relative_path()) {
    root = root.parent_path();
  }
  return root / "models/tiny-v4";
}

namespace {

std::unique_ptr<device::Device> make_device(const LoadRequest& request) {
  switch (request.device) {
    case On::kCpu:
      return device::make_host_device({.num_threads = request.num_threads, .isa = request.isa})
          .value();
    case On::kEmulatedGpu:
      return device::make_emulated_gpu(request.num_threads).value();
    case On::kGpu:
      return device::make_cuda_device(0).value();
  }
  return nullptr;
}

}  // namespace

Loaded load(const Path& dir, const LoadRequest& request) {
  return load(checkpoint::Checkpoint::open(dir).value(), request);
}

Loaded load(const checkpoint::Checkpoint& checkpoint, const LoadRequest& request) {
  Loaded loaded;
  loaded.device = make_device(request);
  models::LoadOptions options;
  options.precision = request.precision;
  options.kv_dtype = request.kv_dtype;
  options.routing.allow_reference =
      request.device == On::kEmulatedGpu || request.isa == device::IsaLevel::kScalar;
  options.routing.deterministic = request.is_deterministic;
  loaded.model = models::load_model(checkpoint, *loaded.device, options).value();
  loaded.model->reserve_state(request.state).value();
  return loaded;
}

Sequence::Sequence(models::Model& model, int32_t slot, int32_t first_page, int32_t max_pages)
    : model_(model), slot_{slot} {
  const int32_t pages =
      static_cast<int32_t>(ceil_div(model.info().max_position_embeddings, model.info().page_size));
  for (int32_t i = 0; i < std::min(pages, max_pages); ++i) pages_.push_back({first_page + i});
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

std::vector<int32_t> prose_ids(int32_t count) {
  const std::string text = read_file(golden_dir("tiny_v4") / "native.json", 1 << 20).value();
  const json::Value document = json::parse(text).value();
  for (const json::Value& prompt : *document.as_array()) {
    if (*prompt.find("name")->as_string() != "prose_long") continue;
    std::vector<int32_t> ids;
    for (const json::Value& id : *prompt.find("prompt_ids")->as_array()) {
      ids.push_back(static_cast<int32_t>(*id.as_int64()));
    }
    ids.resize(static_cast<size_t>(count));
    return ids;
  }
  return {};
}

namespace {

// The share of recorded roundings whose values differ.
double share_of_others(const models::Decisions& a, const models::Decisions& b) {
  int64_t others = 0, values = 0;
  for (size_t site = 0; site < b.roundings.size(); ++site) {
    for (size_t position = 0; position < b.roundings[site].size(); ++position) {
      const std::vector<float>& of_b = b.roundings[site][position];
      for (size_t i = 0; i < of_b.size(); ++i) {
        others += a.roundings[site][position][i] != of_b[i] ? 1 : 0;
      }
      values += static_cast<int64_t>(of_b.size());
    }
  }
  return values == 0 ? 0 : static_cast<double>(others) / static_cast<double>(values);
}

}  // namespace

Replayed replay_on(models::Model& device,
                   models::Model& reference,
                   const models::Decisions& decisions,
                   std::span<const int32_t> ids,
                   RunOptions options) {
  models::Decisions taken{.with_roundings = true};
  options.record = &taken;
  options.replay = &decisions;
  Replayed runs;
  device.reset_slot(SlotId{0});
  runs.device = Sequence(device).run(ids, options);
  models::Decisions own{.with_roundings = true};
  options.record = &own;
  options.replay = &taken;
  reference.reset_slot(SlotId{0});
  runs.reference = Sequence(reference).run(ids, options);
  runs.other_roundings = share_of_others(taken, own);
  testing::Test::RecordProperty("other_roundings", std::to_string(runs.other_roundings));
  return runs;
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

namespace {

double log_sum_exp(std::span<const float> row) {
  const double max = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float value : row) sum += std::exp(value - max);
  return max + std::log(sum);
}

// KL(p || q) of the distributions with logits p and q.
double kl_divergence(std::span<const float> p, std::span<const float> q) {
  const double p_norm = log_sum_exp(p);
  const double q_norm = log_sum_exp(q);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i] - p_norm;
    sum += std::exp(log_p) * (log_p - (q[i] - q_norm));
  }
  return sum;
}

}  // namespace

Distance distance_between(const Rows& expected, const Rows& logits) {
  Distance distance;
  double squares = 0;
  for (int64_t t = 0; t < expected.size(); ++t) {
    const auto p = expected[t];
    const auto q = logits[t];
    for (size_t i = 0; i < p.size(); ++i) squares += std::pow(double{p[i]} - q[i], 2);
    distance.max = std::max(distance.max, double{max_difference(p, q)});
    distance.mean_kl += kl_divergence(p, q);
    const bool is_equal = argmax(p) == argmax(q);
    distance.argmax_agreement += is_equal ? 1 : 0;
    distance.clear_flips += !is_equal && top_margin(p) > 1 ? 1 : 0;
  }
  const auto rows = static_cast<double>(expected.size());
  distance.rms = std::sqrt(squares / static_cast<double>(expected.values.size()));
  distance.mean_kl /= rows;
  distance.argmax_agreement /= rows;
  testing::Test::RecordProperty("max", std::to_string(distance.max));
  testing::Test::RecordProperty("rms", std::to_string(distance.rms));
  testing::Test::RecordProperty("mean_kl", std::to_string(distance.mean_kl));
  testing::Test::RecordProperty("argmax_agreement", std::to_string(distance.argmax_agreement));
  return distance;
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
