#include "tensor/tensor_view.h"

namespace nibble {

TensorView TensorView::rows(int64_t begin, int64_t count) const {
  DCHECK(begin >= 0 && count >= 0 && begin + count <= num_rows());
  TensorView view = *this;
  view.shape = shape.with(0, count);
  view.data = static_cast<char*>(data) + begin * row_stride * dtype_size(dtype);
  return view;
}

TensorView TensorView::columns(int64_t begin, int64_t count) const {
  DCHECK(shape.rank() == 2 && begin >= 0 && count >= 0 && begin + count <= shape[1]);
  TensorView view = *this;
  view.shape = shape.with(1, count);
  view.data = static_cast<char*>(data) + begin * dtype_size(dtype);
  return view;
}

TensorView TensorView::reshaped(Shape new_shape) const {
  DCHECK(new_shape.num_elements() == shape.num_elements());
  if (is_contiguous()) return contiguous(data, dtype, new_shape);
  DCHECK(new_shape.rank() > 0 && new_shape[0] == num_rows());
  TensorView view = *this;
  view.shape = new_shape;
  return view;
}

}  // namespace nibble
