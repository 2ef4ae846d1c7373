#include "models/deepseek_v4/gpu/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "device/emulated_gpu.h"
#include "device/event.h"
#include "device/graph.h"
#include "models/deepseek_v4/gpu/pass.h"
#include "models/deepseek_v4/model_info.h"

namespace nibble::models::deepseek_v4::gpu {
namespace {

static_assert(kLogitsNotFinite == kernels::DeviceSampleArgs::kNotFinite &&
              kLogitsAllEqual == kernels::DeviceSampleArgs::kAllEqual);

// Rows of logits in host memory.
class HostLogits final {
 public:
  static Result<HostLogits> make(int32_t rows, int64_t vocab, device::Device& device) {
    HostLogits logits;
    logits.vocab_ = vocab;
    TRY_ASSIGN(logits.storage_, device.allocate_host(rows * vocab * int64_t{sizeof(float)}));
    return logits;
  }

  // Grows for prompts whose every token is asked for, which no steady state does.
  Result<TensorView> rows(int64_t count, device::Device& device) {
    const int64_t num_bytes = count * vocab_ * int64_t{sizeof(float)};
    if (num_bytes > storage_.num_bytes()) {
      TRY_ASSIGN(storage_, device.allocate_host(num_bytes));
    }
    return TensorView::contiguous(storage_.data(), DType::kF32, {count, vocab_});
  }
  int64_t num_bytes() const { return storage_.num_bytes(); }

 private:
  device::Buffer storage_;
  int64_t vocab_ = 0;
};

// A decode step whose tokens have not been fetched.
struct QueuedStep {
  std::vector<SlotId> slots;
  device::Buffer ids;   // [slots] outcomes of sampling, in host memory
  device::Event event;  // marks their arrival
};

// Queued steps in a ring, reused so that a steady state allocates nothing.
struct DecodeQueue {
  QueuedStep steps[kMaxQueuedSteps];
  int32_t begin = 0;
  int32_t count = 0;

  QueuedStep& oldest() { return steps[begin]; }
  QueuedStep& next() { return steps[(begin + count) % kMaxQueuedSteps]; }
  // The one queued last, fetched or not.
  const QueuedStep& newest() const {
    return steps[(begin + count + kMaxQueuedSteps - 1) % kMaxQueuedSteps];
  }
};

// Everything whose size reserve_state() decides.
struct Reserved {
  State state;
  StepPlan plan;
  Workspace workspace;
  HostLogits logits;
  HostLogits mtp_logits;
  std::map<int32_t, device::Graph> graphs;  // by bucket
  double recording_seconds = 0;
  DecodeQueue queue;
};

class GpuModel final : public Model {
 public:
  GpuModel(Config config,
           Numerics numerics,
           Weights weights,
           Ops ops,
           Frequencies frequencies,
           device::Device& device)
      : config_(std::move(config)),
        numerics_(numerics),
        weights_(std::move(weights)),
        ops_(std::move(ops)),
        frequencies_(std::move(frequencies)),
        device_(device),
        info_(model_info(config_,
                         numerics_,
                         weights_.mtp.has_value(),
                         weights_.fingerprint,
                         gpu::state_bytes(config_, numerics_, weights_.mtp.has_value()))) {}

  const ModelInfo& info() const override { return info_; }
  const std::vector<RoutedModule>& routed_modules() const override { return weights_.modules; }
  int64_t weights_bytes() const override { return weights_.num_bytes; }
  int64_t state_bytes() const override {
    if (!reserved_) return 0;
    return reserved_->state.num_bytes() + reserved_->workspace.storage.num_bytes() +
           StepPlan::num_bytes(reserved_->state.options());
  }

  Result<void> reserve_state(const StateOptions& requested) override;
  RecordedGraphs graphs() const override {
    if (!reserved_) return {};
    return {.count = static_cast<int32_t>(reserved_->graphs.size()),
            .seconds = reserved_->recording_seconds};
  }

  void reset_slot(SlotId slot) override {
    CHECK(reserved_ && slots().has(slot)) << slot.value;
    slots().status(slot) = {};
  }
  int32_t length(SlotId slot) const override {
    CHECK(reserved_ && slots().has(slot)) << slot.value;
    return slots().status(slot).length;
  }
  Result<void> truncate(SlotId slot, int32_t length) override {
    TRY(require_slot(slot));
    return slots().truncate(slot, length);
  }
  Result<std::vector<std::byte>> save_slot(SlotId slot) const override {
    TRY(require_slot(slot));
    return reserved_->state.save(slot, info_.fingerprint);
  }
  Result<void> restore_slot(SlotId slot, std::span<const std::byte> snapshot) override {
    TRY(require_slot(slot));
    return reserved_->state.restore(slot, snapshot, info_.fingerprint);
  }
  Result<void> save_page(PageId page, std::span<std::byte> out) const override {
    TRY(require_page(page, static_cast<int64_t>(out.size())));
    return reserved_->state.save_page(page, out);
  }
  Result<void> restore_page(PageId page, std::span<const std::byte> entries) override {
    TRY(require_page(page, static_cast<int64_t>(entries.size())));
    return reserved_->state.restore_page(page, entries);
  }

  Result<void> forward(const ForwardInput& input, ForwardOutput& output) override;

  int32_t max_queued_steps() const override { return kMaxQueuedSteps; }
  int32_t max_queued_rows() const override { return kMaxDecodeRows; }
  Result<void> queue_decode(const DecodeInput& input) override;
  Result<std::span<const int32_t>> fetch_decoded() override;

 private:
  SlotTable& slots() { return reserved_->state.slots(); }
  const SlotTable& slots() const { return reserved_->state.slots(); }
  Result<void> require_reserved() const {
    if (reserved_) return {};
    return unavailable("decoding state is not reserved; call reserve_state() first");
  }
  Result<void> require_slot(SlotId slot) const {
    TRY(require_reserved());
    return slots().require_slot(slot);
  }
  Result<void> require_page(PageId page, int64_t num_bytes) const {
    TRY(require_reserved());
    return slots().require_page(page, num_bytes, info_.page_bytes);
  }

  Pass make_pass(const ForwardInput* input) const;
  // A decode step of a bucket: only launches, the same ones every time.
  Result<void> enqueue_decode(int32_t bucket) const;
  Result<void> run_decode(int32_t bucket);
  Result<void> run_eager(const ForwardInput& input, const StepSize& size, ForwardOutput& output);
  Result<void> fetch_logits(const Pass& pass,
                            const HeadWeights& head,
                            const float* streams,
                            const int32_t* logits_rows,
                            const TensorView& out) const;
  Result<void> record_graphs();
  void advance(bool has_mtp);
  const float* decode_logits(int32_t bucket) const;
  Result<void> find_sources(const DecodeInput& input);

  Config config_;
  Numerics numerics_;
  Weights weights_;
  Ops ops_;
  Frequencies frequencies_;
  device::Device& device_;
  ModelInfo info_;

  std::optional<Reserved> reserved_;
  PassRows rows_;
  PassRows mtp_rows_;
  // Of the step that is being queued.
  std::vector<int32_t> token_ids_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> from_rows_;
  std::vector<int32_t> ordinals_;  // 0, 1, ..
};

Result<void> GpuModel::reserve_state(const StateOptions& requested) {
  TRY_ASSIGN(const StateOptions options,
             resolve_state_options(requested, config_.max_position_embeddings));
  reserved_.reset();
  TRY_ASSIGN(State state, State::make(config_, numerics_, info_.has_mtp, options, device_));
  TRY_ASSIGN(StepPlan plan, StepPlan::make(options, device_));
  TRY_ASSIGN(Workspace workspace, Workspace::make(config_, weights_, ops_, options, device_));
  TRY_ASSIGN(HostLogits logits, HostLogits::make(head_rows(options), config_.vocab_size, device_));
  TRY_ASSIGN(HostLogits mtp_logits, HostLogits::make(1, config_.vocab_size, device_));
  rows_.reserve(options);
  mtp_rows_.reserve(options);
  DecodeQueue queue;
  for (QueuedStep& step : queue.steps) {
    TRY_ASSIGN(step.ids, device_.allocate_host(options.num_slots * int64_t{sizeof(int32_t)}));
    step.slots.reserve(static_cast<size_t>(options.num_slots));
  }
  for (std::vector<int32_t>* list : {&token_ids_, &positions_, &from_rows_}) {
    list->reserve(static_cast<size_t>(options.num_slots));
  }
  ordinals_.resize(static_cast<size_t>(options.num_slots) + 1);
  std::iota(ordinals_.begin(), ordinals_.end(), 0);
  reserved_.emplace(Reserved{.state = std::move(state),
                             .plan = std::move(plan),
                             .workspace = std::move(workspace),
                             .logits = std::move(logits),
                             .mtp_logits = std::move(mtp_logits),
                             .graphs = {},
                             .recording_seconds = 0,
                             .queue = std::move(queue)});
  Result<void> recorded = record_graphs();
  if (!recorded.ok()) reserved_.reset();
  return recorded;
}

Pass GpuModel::make_pass(const ForwardInput* input) const {
  return {.config = config_,
          .numerics = numerics_,
          .weights = weights_,
          .ops = ops_,
          .frequencies = frequencies_,
          .state = reserved_->state,
          .ws = reserved_->workspace,
          .device = device_,
          .num_units = device_.info().num_units,
          .record = input == nullptr ? nullptr : input->record,
          .replay = input == nullptr ? nullptr : input->replay};
}

Result<void> GpuModel::enqueue_decode(int32_t bucket) const {
  const StepLists lists = reserved_->plan.lists(StepSize::decode(bucket));
  const Pass pass = make_pass(nullptr);
  return run_decode_step(pass, lists, bucket);
}

Result<void> GpuModel::run_decode(int32_t bucket) {
  const auto found = reserved_->graphs.find(bucket);
  const bool is_observed = device_.stream().observer != nullptr;  // who wants to see launches
  if (found == reserved_->graphs.end() || is_observed) return enqueue_decode(bucket);
  return found->second.launch(device_.stream());
}

// Graphs of every bucket that the slots can fill. The emulated GPU has none: there the launches run
// as they are.
Result<void> GpuModel::record_graphs() {
  if (device_.info().sm == device::kEmulatedSm) return {};
  const auto begin = std::chrono::steady_clock::now();
  const int32_t largest = bucket_of(std::min(reserved_->state.options().num_slots, kMaxDecodeRows));
  const PassRows no_rows;  // padding alone
  for (const int32_t bucket : kBuckets) {
    if (bucket > largest) break;
    const StepSize size = StepSize::decode(bucket);
    reserved_->plan.fill(size, no_rows, nullptr, {}, reserved_->state);
    reserved_->plan.fill_sampling(size, {}, {});
    TRY(reserved_->plan.upload(device_));
    TRY(enqueue_decode(bucket));  // kernels are loaded when they first run
    TRY(device_.synchronize());
    TRY_ASSIGN(device::Graph graph,
               device::Graph::capture(device_.stream(), [&] { return enqueue_decode(bucket); }));
    reserved_->graphs.emplace(bucket, std::move(graph));
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  reserved_->recording_seconds = seconds.count();
  log_info("{} decode graphs of up to {} sequences in {:.2f} s",
           reserved_->graphs.size(),
           largest,
           seconds.count());
  return {};
}

Result<void> GpuModel::fetch_logits(const Pass& pass,
                                    const HeadWeights& head,
                                    const float* streams,
                                    const int32_t* logits_rows,
                                    const TensorView& out) const {
  const auto count = static_cast<int32_t>(out.num_rows());
  const int32_t most = head_rows(reserved_->state.options());
  for (int32_t begin = 0; begin < count; begin += most) {
    const int32_t rows = std::min(most, count - begin);
    TRY_ASSIGN(const float* logits, run_head(pass, head, streams, logits_rows, begin, rows));
    const TensorView part = out.rows(begin, rows);
    TRY(device_.copy_out(part.data, logits, part.num_bytes()));
  }
  return {};
}

Result<void> GpuModel::run_eager(const ForwardInput& input,
                                 const StepSize& size,
                                 ForwardOutput& output) {
  const StepLists lists = reserved_->plan.lists(size);
  const Workspace& ws = reserved_->workspace;
  const Pass pass = make_pass(&input);
  const Rows rows{
      .lists = lists.main, .host = &rows_, .is_direct = is_direct(rows_), .streams = ws.streams};
  TRY(run_layers(pass, rows, head_dots(pass, weights_.head)));
  TRY(fetch_logits(pass, weights_.head, rows.streams, lists.logits_rows, output.logits));
  if (size.mtp_rows > 0) {
    const Rows mtp{.lists = lists.mtp,
                   .host = &mtp_rows_,
                   .is_direct = is_direct(mtp_rows_),
                   .streams = ws.mtp_streams};
    TRY(run_mtp(pass, lists, rows, mtp));
    TRY(fetch_logits(pass, weights_.mtp->head, mtp.streams, nullptr, output.mtp_logits));
  }
  if (info_.has_mtp) TRY(store_streams(pass, lists, rows));
  return {};
}

void GpuModel::advance(bool has_mtp) {
  for (const SequenceSpan& sequence : rows_.sequences) {
    slots().status(sequence.slot).advance(sequence.position_end());
  }
  if (!has_mtp) return;
  for (const SequenceSpan& sequence : mtp_rows_.sequences) {
    SlotStatus& status = slots().status(sequence.slot);
    status.mtp_begin = sequence.window_begin;
    status.mtp_end = sequence.position_end();
  }
}

Result<void> GpuModel::forward(const ForwardInput& input, ForwardOutput& output) {
  TRY(require_reserved());
  TRY(validate(input, config_, slots()));
  if (input.compute_mtp && !info_.has_mtp) {
    return invalid_argument(
        "MTP logits asked for, but the model has no MTP layer or it was not loaded");
  }
  output = {};
  rows_.assign(input);
  if (input.compute_mtp) mtp_rows_.assign_mtp(rows_, slots());
  StepSize size{.rows = rows_.num_tokens(),
                .sequences = static_cast<int32_t>(rows_.sequences.size()),
                .mtp_rows = input.compute_mtp ? mtp_rows_.num_tokens() : 0};
  const auto num_logits = static_cast<int64_t>(input.logits_rows.size());
  TRY_ASSIGN(output.logits, reserved_->logits.rows(num_logits, device_));
  TRY_ASSIGN(output.mtp_logits, reserved_->mtp_logits.rows(size.mtp_rows, device_));

  const bool is_decode = size.rows == size.sequences && !input.compute_mtp &&
                         input.record == nullptr && input.replay == nullptr;
  const int32_t bucket = is_decode ? bucket_of(size.rows) : 0;
  if (bucket != 0) size = StepSize::decode(bucket);
  reserved_->plan.fill(
      size, rows_, input.compute_mtp ? &mtp_rows_ : nullptr, input.logits_rows, reserved_->state);
  TRY(reserved_->plan.upload(device_));
  if (bucket != 0) {
    TRY(run_decode(bucket));
    TRY(device_.copy_out(output.logits.data, decode_logits(bucket), output.logits.num_bytes()));
  } else {
    TRY(run_eager(input, size, output));
  }
  TRY(device_.synchronize());
  advance(input.compute_mtp);
  return {};
}

// Where run_head() left a decode step's logits.
const float* GpuModel::decode_logits(int32_t bucket) const {
  const Workspace& ws = reserved_->workspace;
  return weights_.lm_head.num_splits(bucket) > 1 ? ws.logits : ws.logit_sums;
}

// Splits token_ids into those that are known and the rows of the step before that choose them.
Result<void> GpuModel::find_sources(const DecodeInput& input) {
  const DecodeQueue& queue = reserved_->queue;
  token_ids_.clear();
  positions_.clear();
  from_rows_.clear();
  for (size_t i = 0; i < input.slots.size(); ++i) {
    const SlotId slot = input.slots[i];
    TRY(require_slot(slot));
    int32_t from_row = -1;
    if (input.token_ids[i] == DecodeInput::kChosenBefore) {
      const std::vector<SlotId>& before = queue.newest().slots;
      const auto found = std::find(before.begin(), before.end(), slot);
      if (found == before.end()) {
        return invalid_argument(fmt::format("slot {}: no step before chose its token", slot.value));
      }
      from_row = static_cast<int32_t>(found - before.begin());
    }
    from_rows_.push_back(from_row);
    token_ids_.push_back(from_row < 0 ? input.token_ids[i] : 0);
    positions_.push_back(slots().status(slot).length);
  }
  return {};
}

Result<void> GpuModel::queue_decode(const DecodeInput& input) {
  TRY(require_reserved());
  DecodeQueue& queue = reserved_->queue;
  const size_t count = input.slots.size();
  if (queue.count == kMaxQueuedSteps) {
    return invalid_argument(fmt::format("{} decode steps are queued already", queue.count));
  }
  const int32_t bucket = bucket_of(static_cast<int32_t>(count));
  if (count == 0 || bucket == 0 || input.token_ids.size() != count ||
      input.sampling.size() != count ||
      count > static_cast<size_t>(reserved_->state.options().num_slots)) {
    return invalid_argument(fmt::format(
        "decode step of {} slots, {} tokens, {} samplings; expected as many of each, 1 to {}",
        count,
        input.token_ids.size(),
        input.sampling.size(),
        std::min(reserved_->state.options().num_slots, kMaxDecodeRows)));
  }
  TRY(find_sources(input));
  const ForwardInput step{.token_ids = token_ids_,
                          .positions = positions_,
                          .cu_seqlens = std::span(ordinals_).first(count + 1),
                          .slots = input.slots,
                          .block_tables = input.block_tables,
                          .logits_rows = std::span(ordinals_).first(count)};
  TRY(validate(step, config_, slots()));
  rows_.assign(step);
  const StepSize size = StepSize::decode(bucket);
  reserved_->plan.fill(size, rows_, nullptr, step.logits_rows, reserved_->state);
  reserved_->plan.fill_sampling(size, input.sampling, from_rows_);
  TRY(reserved_->plan.upload(device_));
  const Pass pass = make_pass(nullptr);
  const SampleLists lists = reserved_->plan.lists(size).sample;
  TRY(take_chosen(pass, lists, bucket));
  TRY(run_decode(bucket));
  TRY(choose_tokens(pass, lists, decode_logits(bucket), bucket));

  QueuedStep& queued = queue.next();
  queued.slots.assign(input.slots.begin(), input.slots.end());
  TRY(device_.copy_out(queued.ids.data(),
                       reserved_->workspace.outcomes,
                       static_cast<int64_t>(count * sizeof(int32_t))));
  TRY(queued.event.record(device_.stream()));
  ++queue.count;
  advance(false);
  return {};
}

Result<std::span<const int32_t>> GpuModel::fetch_decoded() {
  TRY(require_reserved());
  DecodeQueue& queue = reserved_->queue;
  if (queue.count == 0) return invalid_argument("no decode step is queued");
  QueuedStep& step = queue.oldest();
  queue.begin = (queue.begin + 1) % kMaxQueuedSteps;
  --queue.count;
  TRY(step.event.wait());
  return std::span(reinterpret_cast<const int32_t*>(step.ids.data()), step.slots.size());
}

}  // namespace

Result<std::unique_ptr<Model>> load(Config config,
                                    const checkpoint::Checkpoint& checkpoint,
                                    device::Device& device,
                                    const LoadOptions& options) {
  if (options.check_finite) {
    return unsupported("the check for NaN (--nan-check) runs on the CPU only. Fix: --device cpu.");
  }
  TRY_ASSIGN(const Numerics numerics, gpu_numerics_of(options.precision, options.kv_dtype));
  if (numerics.kv_dtype == DType::kF8E4m3) TRY(check_fp8_key_sizes(config));
  TRY_ASSIGN(Ops ops, route_ops(config, numerics, device.info(), options.routing));
  TRY_ASSIGN(Weights weights, load_weights(checkpoint, config, numerics, device, options));
  TRY_ASSIGN(Frequencies frequencies, Frequencies::make(config, device));
  return std::unique_ptr<Model>(std::make_unique<GpuModel>(std::move(config),
                                                           numerics,
                                                           std::move(weights),
                                                           std::move(ops),
                                                           std::move(frequencies),
                                                           device));
}

}  // namespace nibble::models::deepseek_v4::gpu
