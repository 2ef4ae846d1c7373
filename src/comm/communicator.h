// Collectives between the ranks of one model. One of the program's six virtual seams; local (one
// rank) for now.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "device/device.h"
#include "tensor/tensor_view.h"

namespace nibble::comm {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;
  // Sums `tensor` (f32, any shape) over all ranks in rank order, in place.
  virtual Result<void> all_reduce_sum(TensorView tensor, device::Stream& stream) = 0;
};

// One rank: every collective is the identity.
std::unique_ptr<Communicator> make_local_communicator();

}  // namespace nibble::comm
