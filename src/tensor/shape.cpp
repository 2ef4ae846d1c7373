#include "tensor/shape.h"

#include "base/check.h"
#include "base/checked_math.h"

namespace nibble {

Shape::Shape(std::initializer_list<int64_t> dims) {
  const auto shape = from({dims.begin(), dims.size()});
  CHECK(shape.has_value()) << "rank " << dims.size();
  *this = *shape;
}

std::optional<Shape> Shape::from(std::span<const int64_t> dims) {
  if (dims.size() > kMaxRank) return std::nullopt;
  Shape shape;
  for (const int64_t dim : dims) {
    if (dim < 0) return std::nullopt;
    shape.dims_[static_cast<size_t>(shape.rank_++)] = dim;
  }
  return shape;
}

int64_t Shape::num_elements() const {
  const auto count = checked_num_elements();
  CHECK(count.has_value()) << to_string();
  return *count;
}

std::optional<int64_t> Shape::checked_num_elements() const {
  std::optional<int64_t> count = 1;
  for (const int64_t dim : dims()) {
    count = checked_mul(*count, dim);
    if (!count) return std::nullopt;
  }
  return count;
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (int32_t i = 0; i < rank_; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string((*this)[i]);
  }
  return text + "]";
}

}  // namespace nibble
