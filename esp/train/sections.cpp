#include "esp/train/sections.h"

#include <algorithm>

#include "esp/device/gpu.h"

namespace esp::train {
namespace {

using tensor::Tensor;

enum class Direction { pack, unpack };

// f(at, end) for the runs of elements [i, j) of a section that lie together.
template <typename F>
void for_each_run(const Section& section, int64_t i, int64_t j, F&& f) {
  for (int64_t at = i; at < j;) {
    const int64_t end = std::min(j, (at / section.length + 1) * section.length);
    f(at, end);
    at = end;
  }
}

// Elements [i, j) of a section between `packed`, where they lie together, and `values`, whose first is element `begin`
// of the parameter.
void copy(const Section& section, int64_t i, int64_t j, const Tensor& packed, const Tensor& values, int64_t begin,
          Direction direction) {
  const size_t element = size_of(values.dtype());
  for_each_run(section, i, j, [&](int64_t at, int64_t end) {
    std::byte* one = packed.as<std::byte>() + static_cast<size_t>(at - i) * element;
    std::byte* other = values.as<std::byte>() + static_cast<size_t>(section.place(at) - begin) * element;
    if (direction == Direction::unpack) std::swap(one, other);
    device::transfer(one, other, static_cast<size_t>(end - at) * element);
  });
}

// Reads elements of a section, from `i` on, out of what `read` reads, whose first is element `begin` of the parameter.
tensor::ReadRun of_section(const Section& section, int64_t i, int64_t begin, const tensor::ReadRun& read) {
  return [section, i, begin, read](int64_t first, const Tensor& to) {
    for_each_run(section, i + first, i + first + to.count(), [&](int64_t at, int64_t end) {
      read(section.place(at) - begin, to.slice(at - i - first, end - i - first));
    });
  };
}

// f(section, i, j) for the sections that elements [begin, end) of the parameter meet: elements [i, j) of each.
template <typename F>
void for_each_section(const nn::Parameter& parameter, int64_t begin, int64_t end, F&& f) {
  for (const Section& section : sections_of(parameter))
    if (const int64_t i = section.before(begin), j = section.before(end); i < j) f(section, i, j);
}

ckpt::Piece piece_of(const nn::Parameter& parameter, const std::string& name, const Section& section, int64_t first,
                     Tensor values) {
  return {name, parameter.global_shape, section.begin, section.extent, first, std::move(values)};
}

}  // namespace

int64_t Section::before(int64_t count) const {
  return count / row * length + std::clamp<int64_t>(count % row - first, 0, length);
}

std::vector<Section> sections_of(const nn::Parameter& p) {
  if (p.cut_dim < 0) return {{{}, {}, p.count(), 0, p.count()}};
  int64_t inner = 1;
  for (int i = p.cut_dim + 1; i < p.shape.rank(); ++i) inner *= p.shape.dim(i);
  std::vector<Section> sections;
  int64_t at = 0;
  for (const nn::IndexRange& part : p.sections) {
    Section section;
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

std::vector<ckpt::Piece> pieces_of(const nn::Parameter& parameter, const std::string& name, int64_t begin, int64_t end,
                                   const Tensor& values, const tensor::Context& packing, const tensor::ReadRun& read) {
  std::vector<ckpt::Piece> pieces;
  for_each_section(parameter, begin, end, [&](const Section& section, int64_t i, int64_t j) {
    Tensor elements;
    if (read) {
      elements = Tensor::borrow(nullptr, {j - i}, values.dtype());
    } else if (section.together(i, j)) {
      elements = values.slice(section.place(i) - begin, section.place(i) - begin + j - i);
    } else {
      elements = tensor::empty(packing, {j - i}, values.dtype(), device::MemoryCategory::buffer);
      copy(section, i, j, elements, values, begin, Direction::pack);
    }
    ckpt::Piece& piece = pieces.emplace_back(piece_of(parameter, name, section, i, std::move(elements)));
    if (read) piece.read = of_section(section, i, begin, read);
  });
  return pieces;
}

void fill_pieces(const nn::Parameter& parameter, const std::string& name, int64_t begin, int64_t end,
                 const Tensor& values, const std::function<void(const ckpt::Piece&)>& read) {
  for_each_section(parameter, begin, end, [&](const Section& section, int64_t i, int64_t j) {
    if (section.together(i, j)) {
      const int64_t at = section.place(i) - begin;
      return read(piece_of(parameter, name, section, i, values.slice(at, at + j - i)));
    }
    std::vector<std::byte> packed(static_cast<size_t>(j - i) * size_of(values.dtype()));
    const Tensor of_section = Tensor::borrow(packed.data(), {j - i}, values.dtype());
    read(piece_of(parameter, name, section, i, of_section));
    copy(section, i, j, of_section, values, begin, Direction::unpack);
  });
}

void cut_out(const nn::Parameter& p, const Tensor& whole, const Tensor& values) {
  if (p.cut_dim < 0) {
    device::transfer(values.data(), whole.data(), values.bytes());
    return;
  }
  const auto size = [&](int64_t count) { return static_cast<size_t>(count) * size_of(values.dtype()); };
  for (const Section& section : sections_of(p)) {
    const int64_t inner = section.length / section.extent[static_cast<size_t>(p.cut_dim)];
    const int64_t whole_row = p.global_shape.dim(p.cut_dim) * inner;
    const int64_t at = section.begin[static_cast<size_t>(p.cut_dim)] * inner;
    for (int64_t r = 0; r < p.count() / section.row; ++r)
      device::transfer(values.as<std::byte>() + size(r * section.row + section.first),
                       whole.as<std::byte>() + size(r * whole_row + at), size(section.length));
  }
}

}  // namespace esp::train
