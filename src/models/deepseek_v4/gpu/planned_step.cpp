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

// Rows that nobody has written yet do not say how they launch.
bool has_planned_experts(const Weights& weights) {
  const auto is_planned = [](const kernels::RangedRoute& ranged) {
    return ranged.route.kernel->status == kernels::Status::kPlanned;
  };
  return std::any_of(weights.layers.begin(), weights.layers.end(), [&](const BlockWeights& block) {
    const auto up = block.moe.w13.routes(), down = block.moe.w2.routes();
    return std::any_of(up.begin(), up.end(), is_planned) ||
           std::any_of(down.begin(), down.end(), is_planned);
  });
}

}  // namespace

Result<int32_t> count_decode_launches(const Config& config,
                                      const Numerics& numerics,
                                      const Weights& weights,
                                      const Ops& ops,
                                      const device::DeviceInfo& device,
                                      int32_t rows,
                                      int32_t max_context) {
  if (has_planned_experts(weights)) return unsupported("kernels of the experts are only planned");
  // Beyond the largest bucket a step runs without a graph, and launches the same.
  const int32_t bucket = std::max(bucket_of(rows), rows);
  const StateOptions options{.num_slots = bucket,
                             .num_pages = 1,
                             .max_context = max_context,
                             .max_tokens_per_pass = bucket};
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
  const StepLists lists = plan.lists(StepSize::decode(bucket));
  TRY(take_chosen(pass, lists.sample, bucket));
  TRY(run_decode_step(pass, lists, bucket));
  TRY(choose_tokens(pass, lists.sample, workspace.logits, bucket));
  return counting.num_launches();
}

}  // namespace nibble::models::deepseek_v4::gpu
