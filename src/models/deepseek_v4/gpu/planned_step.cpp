#include "models/deepseek_v4/gpu/planned_step.h"

#include <algorithm>

#include "device/launch_observer.h"
#include "models/deepseek_v4/gpu/pass.h"

namespace nibble::models::deepseek_v4::gpu {
namespace {

// Takes launches for a GPU that need not be here. Its memory is addresses to pass on: nobody writes
// there, so that the system provides no pages.
class CountingDevice final : public device::Device {
 public:
  explicit CountingDevice(const device::DeviceInfo& info) : info_(info) {
    stream_.observer = &observer_;
  }
  const device::DeviceInfo& info() const override { return info_; }
  Result<device::Buffer> allocate(int64_t num_bytes) override {
    return device::Buffer::allocate(num_bytes);
  }
  Result<device::Buffer> allocate_host(int64_t num_bytes) override {
    return device::Buffer::allocate(num_bytes);
  }
  Result<int64_t> free_bytes() const override { return info_.memory_bytes; }
  device::Stream& stream() override { return stream_; }
  Result<void> copy_in(void* /*device*/, const void* /*host*/, int64_t /*num_bytes*/) override {
    return {};
  }
  Result<void> copy_out(void* /*host*/, const void* /*device*/, int64_t /*num_bytes*/) override {
    return {};
  }
  Result<void> synchronize() override { return {}; }

  int32_t num_launches() const { return num_launches_; }

 private:
  device::DeviceInfo info_;
  device::Stream stream_;
  int32_t num_launches_ = 0;
  const device::LaunchObserver observer_{
      [this](const device::ObservedLaunch& /*launch*/) -> Result<void> {
        ++num_launches_;
        return {};
      }};
};

// Whether a product of a decode step of that many rows takes a table row that nobody has written
// yet: such rows do not say in what form they read x, nor what else they launch.
bool has_planned_products(const Weights& weights, int64_t rows) {
  const auto is_planned = [rows](const auto& weight) {
    return !weight.routes().empty() &&
           kernels::route_for(weight.routes(), rows).kernel->status == kernels::Status::kPlanned;
  };
  const auto has_planned = [&](const BlockWeights& block) {
    const AttentionWeights& attention = block.attention;
    const MoeWeights& moe = block.moe;
    return is_planned(attention.wqa_wkv) || is_planned(attention.wq_b) ||
           is_planned(attention.wo_a) || is_planned(attention.wo_b) ||
           is_planned(attention.compressor_projections) || is_planned(attention.index_wq_b) ||
           is_planned(moe.gate) || is_planned(moe.w13) || is_planned(moe.w2) ||
           is_planned(moe.shared_w13) || is_planned(moe.shared_w2);
  };
  return is_planned(weights.lm_head) ||
         std::any_of(weights.layers.begin(), weights.layers.end(), has_planned);
}

// A step that Model::queue_decode() takes.
Result<void> run_queued(const Pass& pass, const StepPlan& plan, int32_t bucket) {
  const StepLists lists = plan.lists(StepSize::decode(bucket));
  TRY(take_chosen(pass, lists.sample, bucket));
  TRY(run_decode_step(pass, lists, bucket));
  return choose_tokens(pass, lists.sample, pass.ws.logits, bucket);
}

// One of more rows than any bucket: Model::forward(), after which the host chooses.
Result<void> run_forward(const Pass& pass, const StepPlan& plan, int32_t num_rows) {
  const StepLists lists = plan.lists({.rows = num_rows, .sequences = num_rows});
  const Rows rows{.lists = lists.main, .streams = pass.ws.streams};
  const HeadWeights& head = pass.weights.head;
  TRY(run_layers(pass, rows, head_dots(pass, head)));
  TRY(run_head(pass, head, rows.streams, lists.logits_rows, 0, num_rows));
  if (pass.weights.mtp) TRY(store_streams(pass, lists, rows));
  return {};
}

}  // namespace

Result<int32_t> count_decode_launches(const Config& config,
                                      const Numerics& numerics,
                                      const Weights& weights,
                                      const Ops& ops,
                                      const device::DeviceInfo& device,
                                      int32_t rows,
                                      int32_t max_context) {
  const bool is_queued = rows <= kMaxDecodeRows;
  const int32_t step_rows = is_queued ? bucket_of(rows) : rows;
  if (has_planned_products(weights, step_rows)) return unsupported("kernels are only planned");
  const StateOptions options{.num_slots = step_rows,
                             .num_pages = 1,
                             .max_context = max_context,
                             .max_tokens_per_pass = step_rows};
  CountingDevice counting(device);
  TRY_ASSIGN(const State state,
             State::make(config, numerics, weights.mtp.has_value(), options, counting));
  TRY_ASSIGN(const StepPlan plan, StepPlan::make(options, counting));
  TRY_ASSIGN(const Workspace workspace, Workspace::make(config, weights, ops, options, counting));
  const Frequencies frequencies;
  const Pass pass{.config = config,
                  .numerics = numerics,
                  .weights = weights,
                  .ops = ops,
                  .frequencies = frequencies,
                  .state = state,
                  .ws = workspace,
                  .device = counting,
                  .num_units = device.num_units};
  TRY(is_queued ? run_queued(pass, plan, step_rows) : run_forward(pass, plan, step_rows));
  return counting.num_launches();
}

}  // namespace nibble::models::deepseek_v4::gpu
