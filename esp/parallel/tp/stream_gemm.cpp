#include "esp/parallel/tp/stream_gemm.h"

#include <algorithm>
#include <array>

namespace esp::parallel {

using device::MemoryCategory;
using kernel::GemmOptions;
using tensor::Shape;
using tensor::Tensor;

namespace {

// Limits the number of pieces, so that each GEMM has enough rows.
constexpr int64_t kMaxPieces = 4;

int64_t num_pieces(const TensorAxis& axis, int64_t rows, int64_t row_bytes) {
  if (!axis.overlap) return 1;
  return std::clamp<int64_t>(rows * row_bytes / axis.piece_bytes, 1, std::min(kMaxPieces, rows));
}

template <typename T>
T* ahead(T* data, size_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return data ? static_cast<Byte*>(data) + bytes : nullptr;
}

// Computes rows [first, first + x.rows()) of y.
void gemm_rows(const tensor::Context& context, const Tensor& y, int64_t first, const Tensor& x, const Tensor& w,
               GemmOptions options) {
  if (x.rows() == 0) return;
  const size_t skip = static_cast<size_t>(first * y.dim(-1)) * size_of(y.dtype());
  options.pre_activation = ahead(options.pre_activation, skip);
  options.pre_activation_in = ahead(options.pre_activation_in, skip);
  kernel::gemm(ahead(y.data(), skip), x.data(), w.data(), x.rows(), y.dim(-1), x.dim(-1), options, y.dtype(),
               context.stream);
}

Tensor flat(const Tensor& x) {
  return x.reshape({x.rows(), x.dim(-1)});
}

// Calls f(rows, first) for contiguous ranges that together cover all rows. The first call has the local rows; at the
// same time an all-gather into `all` brings the remote rows.
template <typename F>
void gather_under(const TensorAxis& axis, const Tensor& part, const Tensor& all, F f) {
  const Tensor rows = flat(all);
  if (!axis.overlap) {
    axis.tp_comm->run_all_gather(part, all);
    return f(rows, int64_t{0});
  }
  const int64_t first = axis.tp_comm->rank() * part.rows(), last = first + part.rows();
  const Work work = axis.tp_comm->start_all_gather(part, all);
  f(flat(part), first);
  axis.tp_comm->wait(work, "rows of the stream");
  if (first > 0) f(rows.slice(0, first), int64_t{0});
  if (last < rows.dim(0)) f(rows.slice(last, rows.dim(0)), last);
}

Tensor reduced(const tensor::Context& context, const TensorAxis& axis, const Tensor& h, const Tensor& w) {
  Tensor y = tensor::empty(context, h.shape().with_last(w.dim(1)), h.dtype(), MemoryCategory::activation);
  const Tensor from = flat(h), to = flat(y);
  const int64_t rows = to.dim(0), pieces = num_pieces(axis, rows, to.dim(1) * static_cast<int64_t>(size_of(y.dtype())));
  if (pieces == 1) {
    gemm_rows(context, y, 0, from, w, {});
    axis.tp_comm->run_all_reduce(y);
    return y;
  }
  std::array<Work, kMaxPieces> moving;
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t first = rows * i / pieces, last = rows * (i + 1) / pieces;
    gemm_rows(context, y, first, from.slice(first, last), w, {});
    moving[static_cast<size_t>(i)] = axis.tp_comm->start_all_reduce(to.slice(first, last));
  }
  for (const Work& work : moving) axis.tp_comm->wait(work, "sums of a row-parallel GEMM");
  return y;
}

// GEMM and reduce-scatter in pieces. A piece contains the same range of rows of every rank: [ranks, rows of the range,
// dim].
Tensor gemm_reduce_scatter(const tensor::Context& context, const TensorAxis& axis, const Tensor& h, const Tensor& w) {
  const int64_t ranks = axis.tp_comm->size(), out = w.dim(1);
  ESP_CHECK(h.rows() % ranks == 0, "sequence parallel: got {} rows; expected a multiple of the {} ranks", h.rows(),
            ranks);
  const int64_t share = h.rows() / ranks;
  Tensor y = tensor::empty(context, {1, share, out}, h.dtype(), MemoryCategory::activation);
  const Tensor from = flat(h), to = flat(y);
  const int64_t row_bytes = out * static_cast<int64_t>(size_of(y.dtype()));
  const int64_t pieces = num_pieces(axis, share, row_bytes * ranks);
  if (pieces == 1) {
    const Tensor all = tensor::empty(context, {h.rows(), out}, h.dtype(), MemoryCategory::buffer);
    gemm_rows(context, all, 0, from, w, {});
    axis.tp_comm->run_reduce_scatter(all, to);
    return y;
  }
  std::array<Work, kMaxPieces> moving;
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t first = share * i / pieces, last = share * (i + 1) / pieces;
    const Tensor all = tensor::empty(context, {ranks * (last - first), out}, h.dtype(), MemoryCategory::buffer);
    for (int64_t r = 0; r < ranks; ++r)
      gemm_rows(context, all, r * (last - first), from.slice(r * share + first, r * share + last), w, {});
    moving[static_cast<size_t>(i)] = axis.tp_comm->start_reduce_scatter(all, to.slice(first, last));
  }
  for (const Work& work : moving) axis.tp_comm->wait(work, "sums of a row-parallel GEMM");
  return y;
}

}  // namespace

StreamInput::StreamInput(const TensorAxis& axis, const autograd::Variable& x, int64_t batch)
    : axis_(axis), x_(x), shape_(shape_of_all(axis, x.value(), batch)), slot_(x.slot()) {
  if (!axis.sequence) all_ = x.value();
}

void StreamInput::gemm_into(const tensor::Context& context, const Tensor& y, const Tensor& w,
                            const GemmOptions& options) {
  if (!axis_.sequence) return gemm_rows(context, y, 0, x_.value(), w, options);
  const Tensor all = tensor::empty(context, shape_, x_.dtype(),
                                   axis_.keep_gathered ? MemoryCategory::activation : MemoryCategory::buffer);
  gather_under(axis_, x_.value(), all,
               [&](const Tensor& rows, int64_t first) { gemm_rows(context, y, first, rows, w, options); });
  if (axis_.keep_gathered) all_ = all;
}

void StreamInput::record(autograd::Tape& tape) {
  slot_ = copy_to_tp_slot(tape, axis_, x_, shape_);
}

void StreamInput::start_regather(const tensor::Context& context) {
  if (all_.defined()) return;
  all_ = tensor::empty(context, shape_, x_.dtype(), MemoryCategory::buffer);
  if (axis_.overlap) {
    work_ = axis_.tp_comm->start_all_gather(x_.value(), all_);
  } else {
    axis_.tp_comm->run_all_gather(x_.value(), all_);
  }
}

const Tensor& StreamInput::regathered() {
  axis_.tp_comm->wait(work_, "rows of the stream, gathered again");
  return all_;
}

Tensor gemm_to_stream(const tensor::Context& context, const TensorAxis& axis, const Tensor& h, const Tensor& w) {
  return axis.sequence ? gemm_reduce_scatter(context, axis, h, w) : reduced(context, axis, h, w);
}

Tensor gemm_from_stream(const tensor::Context& context, const TensorAxis& axis, const autograd::GradientTarget& into,
                        const Tensor& dy, const Tensor& w, const GemmOptions& options) {
  GemmOptions all = options;
  all.transpose_b = true;
  all.beta = into.accumulate ? 1 : 0;
  const auto multiply = [&](const Tensor& rows, int64_t first) {
    if (into.tensor.defined()) gemm_rows(context, into.tensor, first, rows, w, all);
  };
  if (!axis.sequence) {
    multiply(flat(dy), 0);
    return dy;
  }
  Tensor whole =
      tensor::empty(context, {dy.rows() * axis.tp_comm->size(), dy.dim(-1)}, dy.dtype(), MemoryCategory::buffer);
  gather_under(axis, dy, whole, multiply);
  return whole;
}

}  // namespace esp::parallel
