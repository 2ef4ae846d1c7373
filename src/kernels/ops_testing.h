// Owned tensors for tests of ops, and the rows of the kernel table that this machine can run.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "device/device.h"
#include "kernels/kernel.h"
#include "tensor/tensor_view.h"

namespace nibble::kernels {

template <class T>
struct HostTensor {
  Shape shape;
  DType dtype = DType::kF32;
  std::vector<T> values;

  TensorView view() { return TensorView::contiguous(values.data(), dtype, shape); }
};

inline HostTensor<float> f32_tensor(Shape shape, std::vector<float> values) {
  return {.shape = shape, .dtype = DType::kF32, .values = std::move(values)};
}
inline HostTensor<float> f32_zeros(Shape shape) {
  return f32_tensor(shape, std::vector<float>(static_cast<size_t>(shape.num_elements())));
}
inline HostTensor<int32_t> i32_zeros(Shape shape) {
  return {.shape = shape,
          .dtype = DType::kI32,
          .values = std::vector<int32_t>(static_cast<size_t>(shape.num_elements()))};
}

// The rows of `op` for such keys that this machine can run, as the registry orders them.
std::vector<const KernelInfo*> runnable_rows(Op op, KeyForm keys = KeyForm::kPlain);

// Launches `row` inline, without a pool.
template <class Args>
void launch_inline(const KernelInfo& row, const Args& args) {
  device::Stream stream;
  std::get<Launcher<Args>>(row.launch)(args, stream).value();
}

}  // namespace nibble::kernels
