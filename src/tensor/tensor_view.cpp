#include "tensor/tensor_view.h"

#include <vector>

namespace nibble {

TensorView TensorView::rows(int64_t begin, int64_t count) const {
  DCHECK(begin >= 0 && count >= 0 && begin + count <= num_rows());
  std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
  dims[0] = count;
  TensorView view = *this;
  view.shape = *Shape::from(dims);
  view.data = static_cast<char*>(data) + begin * row_stride * dtype_size(dtype);
  return view;
}

}  // namespace nibble
