#include "esp/train/shard_sections.h"

#include <algorithm>

#include "esp/device/gpu.h"

namespace esp::train {
namespace {

using tensor::Tensor;

enum class Direction { pack, unpack };

// Calls f(at, end) for each contiguous range of elements in [i, j) of a section.
template <typename F>
void for_each_range(const ShardSection& section, int64_t i, int64_t j, F&& f) {
  for (int64_t at = i; at < j;) {
    const int64_t end = std::min(j, (at / section.length + 1) * section.length);
    f(at, end);
    at = end;
  }
}

// Copies elements [i, j) of a section between `packed` (contiguous) and `values`. The first element of `values` is
// element `begin` of the parameter.
void copy(const ShardSection& section, int64_t i, int64_t j, const Tensor& packed, const Tensor& values, int64_t begin,
          Direction direction) {
  const size_t element = size_of(values.dtype());
  for_each_range(section, i, j, [&](int64_t at, int64_t end) {
    std::byte* one = packed.as<std::byte>() + static_cast<size_t>(at - i) * element;
    std::byte* other = values.as<std::byte>() + static_cast<size_t>(section.index_of(at) - begin) * element;
    if (direction == Direction::unpack) std::swap(one, other);
    device::transfer(one, other, static_cast<size_t>(end - at) * element);
  });
}

// Makes a reader of a section's elements from `i` on. It calls `read`, whose first element is element `begin` of the
// parameter.
tensor::OffloadReader section_reader(const ShardSection& section, int64_t i, int64_t begin,
                                     const tensor::OffloadReader& read) {
  return [section, i, begin, read](int64_t first, const Tensor& to) {
    for_each_range(section, i + first, i + first + to.count(), [&](int64_t at, int64_t end) {
      read(section.index_of(at) - begin, to.slice(at - i - first, end - i - first));
    });
  };
}

// Calls f(section, i, j) for each section that overlaps elements [begin, end) of the parameter. [i, j) is the overlap,
// counted in elements of the section.
template <typename F>
void for_each_section(const nn::Parameter& parameter, int64_t begin, int64_t end, F&& f) {
  for (const ShardSection& section : shard_sections(parameter))
    if (const int64_t i = section.count_before(begin), j = section.count_before(end); i < j) f(section, i, j);
}

ckpt::TensorSlice whole_slice(const nn::Parameter& parameter, const std::string& name, const ShardSection& section,
                              int64_t first, Tensor values) {
  return {name, parameter.global_shape, section.begin, section.extent, first, std::move(values)};
}

}  // namespace

int64_t ShardSection::count_before(int64_t count) const {
  return count / row * length + std::clamp<int64_t>(count % row - first, 0, length);
}

std::vector<ShardSection> shard_sections(const nn::Parameter& p) {
  if (p.cut_dim < 0) return {{{}, {}, p.count(), 0, p.count()}};
  int64_t inner = 1;
  for (int i = p.cut_dim + 1; i < p.shape.rank(); ++i) inner *= p.shape.dim(i);
  std::vector<ShardSection> sections;
  int64_t at = 0;
  for (const nn::IndexRange& part : p.sections) {
    ShardSection section;
    section.begin.assign(static_cast<size_t>(p.shape.rank()), 0);
    section.extent.assign(p.shape.dims().begin(), p.shape.dims().end());
    section.begin[static_cast<size_t>(p.cut_dim)] = part.begin;
    section.extent[static_cast<size_t>(p.cut_dim)] = part.count();
    section.row = p.shape.dim(p.cut_dim) * inner;
    section.first = at;
    section.length = part.count() * inner;
    at += section.length;
    if (section.length > 0) sections.push_back(std::move(section));
  }
  return sections;
}

std::vector<ckpt::TensorSlice> parameter_slices(const nn::Parameter& parameter, const std::string& name, int64_t begin,
                                                int64_t end, const Tensor& values, const tensor::Context& packing,
                                                const tensor::OffloadReader& read) {
  std::vector<ckpt::TensorSlice> slices;
  for_each_section(parameter, begin, end, [&](const ShardSection& section, int64_t i, int64_t j) {
    Tensor elements;
    if (read) {
      elements = Tensor::borrow(nullptr, {j - i}, values.dtype());
    } else if (section.is_contiguous(i, j)) {
      elements = values.slice(section.index_of(i) - begin, section.index_of(i) - begin + j - i);
    } else {
      elements = tensor::empty(packing, {j - i}, values.dtype(), device::MemoryCategory::buffer);
      copy(section, i, j, elements, values, begin, Direction::pack);
    }
    ckpt::TensorSlice& slice = slices.emplace_back(whole_slice(parameter, name, section, i, std::move(elements)));
    if (read) slice.read = section_reader(section, i, begin, read);
  });
  return slices;
}

void read_slices(const nn::Parameter& parameter, const std::string& name, int64_t begin, int64_t end,
                 const Tensor& values, const std::function<void(const ckpt::TensorSlice&)>& read) {
  for_each_section(parameter, begin, end, [&](const ShardSection& section, int64_t i, int64_t j) {
    if (section.is_contiguous(i, j)) {
      const int64_t at = section.index_of(i) - begin;
      return read(whole_slice(parameter, name, section, i, values.slice(at, at + j - i)));
    }
    std::vector<std::byte> packed(static_cast<size_t>(j - i) * size_of(values.dtype()));
    const Tensor section_reader = Tensor::borrow(packed.data(), {j - i}, values.dtype());
    read(whole_slice(parameter, name, section, i, section_reader));
    copy(section, i, j, section_reader, values, begin, Direction::unpack);
  });
}

void copy_shard(const nn::Parameter& p, const Tensor& whole, const Tensor& values) {
  if (p.cut_dim < 0) {
    device::transfer(values.data(), whole.data(), values.bytes());
    return;
  }
  const auto size = [&](int64_t count) { return static_cast<size_t>(count) * size_of(values.dtype()); };
  for (const ShardSection& section : shard_sections(p)) {
    const int64_t inner = section.length / section.extent[static_cast<size_t>(p.cut_dim)];
    const int64_t whole_row = p.global_shape.dim(p.cut_dim) * inner;
    const int64_t at = section.begin[static_cast<size_t>(p.cut_dim)] * inner;
    for (int64_t r = 0; r < p.count() / section.row; ++r)
      device::transfer(values.as<std::byte>() + size(r * section.row + section.first),
                       whole.as<std::byte>() + size(r * whole_row + at), size(section.length));
  }
}

}  // namespace esp::train
