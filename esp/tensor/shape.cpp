#include "esp/tensor/shape.h"

#include <algorithm>

#include <fmt/format.h>

#include "esp/base/check.h"

namespace esp::tensor {

Shape::Shape(std::initializer_list<int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}

Shape::Shape(std::span<const int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  ESP_CHECK(rank_ <= kMaxRank, "tensor: got {} dimensions; expected at most {}", rank_, kMaxRank);
  std::copy(dims.begin(), dims.end(), dims_.begin());
  for (int64_t dim : dims) ESP_CHECK(dim >= 0, "tensor dimension: got {}; expected >= 0", dim);
}

int64_t Shape::count() const {
  int64_t n = 1;
  for (int i = 0; i < rank_; ++i) n *= dims_[static_cast<size_t>(i)];
  return n;
}

int64_t Shape::rows() const {
  int64_t n = 1;
  for (int i = 0; i + 1 < rank_; ++i) n *= dims_[static_cast<size_t>(i)];
  return n;
}

Shape Shape::with_last(int64_t dim) const {
  ESP_CHECK(rank_ > 0);
  Shape shape = *this;
  shape.dims_[static_cast<size_t>(rank_ - 1)] = dim;
  return shape;
}

Shape Shape::with_first(int64_t dim) const {
  ESP_CHECK(rank_ > 0);
  Shape shape = *this;
  shape.dims_[0] = dim;
  return shape;
}

bool Shape::operator==(const Shape& other) const {
  return rank_ == other.rank_ && std::equal(dims_.begin(), dims_.begin() + rank_, other.dims_.begin());
}

std::string Shape::text() const {
  return fmt::format("[{}]", fmt::join(dims_.begin(), dims_.begin() + rank_, ", "));
}

}  // namespace esp::tensor
