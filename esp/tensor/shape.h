// The sizes of a tensor's dimensions, outermost first. A value type that never allocates.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace esp::tensor {

class Shape {
 public:
  static constexpr int kMaxRank = 6;

  Shape() = default;  // a scalar: rank 0, one element
  Shape(std::initializer_list<int64_t> dims);
  explicit Shape(std::span<const int64_t> dims);

  int rank() const { return rank_; }
  // negative indices count from the end: -1 is the last dimension
  int64_t dim(int i) const { return dims_[static_cast<size_t>(i < 0 ? i + rank_ : i)]; }
  std::span<const int64_t> dims() const { return {dims_.data(), static_cast<size_t>(rank_)}; }
  int64_t count() const;
  int64_t rows() const;  // product of all dimensions but the last; kernels treat a tensor as a matrix of rows
  Shape with_last(int64_t dim) const;
  Shape with_first(int64_t dim) const;

  bool operator==(const Shape& other) const;
  std::string text() const;  // for example "[2, 3]"

 private:
  int rank_ = 0;
  std::array<int64_t, kMaxRank> dims_{};
};

}  // namespace esp::tensor
