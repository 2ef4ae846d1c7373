// Shapes are values of at most five dimensions, outermost first.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

namespace nibble {

class Shape final {
 public:
  static constexpr int32_t kMaxRank = 5;

  Shape() = default;  // rank 0: a scalar
  Shape(std::initializer_list<int64_t> dims);
  // nullopt for more than kMaxRank dimensions or a negative one.
  static std::optional<Shape> from(std::span<const int64_t> dims);

  int32_t rank() const { return rank_; }
  int64_t operator[](int32_t i) const { return dims_[static_cast<size_t>(i)]; }
  // The same shape with dimension `i` replaced.
  Shape with(int32_t i, int64_t dim) const {
    Shape shape = *this;
    shape.dims_[static_cast<size_t>(i)] = dim;
    return shape;
  }
  std::span<const int64_t> dims() const { return {dims_.data(), static_cast<size_t>(rank_)}; }

  // Product of the dimensions; the checked form reports overflow for shapes from outside.
  int64_t num_elements() const;
  std::optional<int64_t> checked_num_elements() const;

  std::string to_string() const;  // "[2048, 64]"

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<int64_t, kMaxRank> dims_{};  // unused entries stay 0, so comparison is member-wise
  int32_t rank_ = 0;
};

}  // namespace nibble
