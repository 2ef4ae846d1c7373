#include "kernels/cuda/peers.h"
#include "kernels/cuda/stream_read/launch.h"

namespace nibble::kernels::cuda {

Result<ReadStream> ReadStream::make(device::Device& device) {
  ReadStream read;
  TRY_ASSIGN(read.sink_, device.allocate(4));
  read.num_units_ = device.info().num_units;
  return read;
}

Result<void> ReadStream::launch(const std::byte* data,
                                int64_t num_bytes,
                                device::Stream& stream) const {
  constexpr int64_t kUnit = 8192;  // what the kernel reads at a time
  return launch_stream_read(data,
                            num_bytes / kUnit * kUnit,
                            num_units_,
                            reinterpret_cast<uint32_t*>(sink_.data()),
                            stream);
}

}  // namespace nibble::kernels::cuda
