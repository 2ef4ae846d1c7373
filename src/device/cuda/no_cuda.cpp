// The CUDA backend of builds that have none.
#include "device/cuda.h"
#include "device/event.h"
#include "device/graph.h"
#include "device/kernel_trace.h"

namespace nibble::device {
namespace {

Error not_built() {
  return unsupported(
      "this build has no CUDA backend; build with `cmake --preset cuda` where nvcc is installed");
}

}  // namespace

bool has_cuda_backend() { return false; }

Result<std::vector<DeviceInfo>> list_cuda_devices() { return not_built(); }

Result<std::unique_ptr<Device>> make_cuda_device(int32_t /*ordinal*/) { return not_built(); }

Result<void> copy_to_device(void* /*device*/,
                            const void* /*host*/,
                            int64_t /*num_bytes*/,
                            Stream& /*stream*/) {
  return not_built();
}

Result<void> copy_to_host(void* /*host*/,
                          const void* /*device*/,
                          int64_t /*num_bytes*/,
                          Stream& /*stream*/) {
  return not_built();
}

Result<void> fill_device(void* /*device*/,
                         uint8_t /*byte*/,
                         int64_t /*num_bytes*/,
                         Stream& /*stream*/) {
  return not_built();
}

Result<void> synchronize(Stream& /*stream*/) { return not_built(); }

Result<Graph> Graph::capture(Stream& /*stream*/, const std::function<Result<void>()>& /*enqueue*/) {
  return not_built();
}
Result<void> Graph::launch(Stream& /*stream*/) const { return not_built(); }
Graph::~Graph() = default;

// Streams of other devices have nothing to wait for.
Result<void> Event::record(Stream& /*stream*/) { return {}; }
Result<void> Event::wait() const { return {}; }
Event::~Event() = default;

Result<double> elapsed_us(Stream& /*stream*/, const std::function<Result<void>()>& /*enqueue*/) {
  return not_built();
}

Result<KernelTrace> KernelTrace::start() { return not_built(); }
Result<void> KernelTrace::set_label(uint64_t /*label*/) { return not_built(); }
Result<std::vector<KernelActivity>> KernelTrace::finish() { return not_built(); }
KernelTrace::~KernelTrace() = default;

}  // namespace nibble::device
