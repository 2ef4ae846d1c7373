// TensorView describes memory without owning it: copying one is free.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/check.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace nibble {

enum class MemoryKind : uint8_t { kHost, kDevice };

// A dense, row-major tensor, except that rows (the outermost dimension) may be spaced by
// `row_stride` elements.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;
  int64_t row_stride = 0;  // elements between consecutive outermost indices
  MemoryKind memory = MemoryKind::kHost;

  static TensorView contiguous(void* data, DType dtype, Shape shape) {
    int64_t stride = 1;
    for (int32_t i = 1; i < shape.rank(); ++i) stride *= shape[i];
    return {.data = data, .dtype = dtype, .shape = shape, .row_stride = stride};
  }
  // Read-only bytes (a mapped checkpoint); writing through such a view is a bug.
  static TensorView read_only(const void* data, DType dtype, Shape shape) {
    return contiguous(const_cast<void*>(data), dtype, shape);
  }

  int64_t num_rows() const { return shape.rank() == 0 ? 1 : shape[0]; }
  bool is_contiguous() const {
    return shape.rank() == 0 || num_rows() <= 1 || row_stride * num_rows() == shape.num_elements();
  }
  int64_t num_bytes() const { return shape.num_elements() * dtype_size(dtype); }

  // Typed host access to the first element, or to row `i`. T must match the dtype's size.
  template <class T>
  T* as() const {
    DCHECK(static_cast<int64_t>(sizeof(T)) == dtype_size(dtype));
    return static_cast<T*>(data);
  }
  template <class T>
  T* row(int64_t i) const {
    return as<T>() + i * row_stride;
  }
  // Rows [begin, begin + count).
  TensorView rows(int64_t begin, int64_t count) const;
  // Columns [begin, begin + count) of a matrix; rows keep their spacing.
  TensorView columns(int64_t begin, int64_t count) const;
  // The same elements in another shape. A view whose rows are spaced keeps its outermost dimension.
  TensorView reshaped(Shape new_shape) const;
};

// What a checkpoint header says of one tensor; no bytes attached.
struct TensorMeta {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};

}  // namespace nibble
