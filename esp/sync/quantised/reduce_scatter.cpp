#include "esp/sync/quantised/reduce_scatter.h"

#include "esp/kernel/elementwise.h"
#include "esp/kernel/floating.h"

namespace esp::sync {

using tensor::Tensor;

QuantisedScatter::QuantisedScatter(const NodeGrid& nodes, const tensor::Context& context, int64_t count, DType dtype,
                                   const Encoding& encoding)
    : nodes_(nodes),
      context_(context),
      count_(static_cast<size_t>(count)),
      dtype_(dtype),
      sum_dtype_(encoding.plain() ? kernel::accumulator_of(dtype) : DType::f32),
      encoding_(encoding),
      intra_node_(nodes.intra_node.get()),
      inter_node_(nodes.inter_node.get()) {
  check(encoding);
  size_t from = 0, to = 0;
  for (int local = 0; local < nodes.ranks_per_node(); ++local) {
    if (local != nodes.local()) {
      intra_node_.set_send(local, from, column_bytes(local));
      intra_node_.set_receive(local, to, column_bytes(nodes.local()));
      to += column_bytes(nodes.local());
    }
    from += column_bytes(local);
  }
  from = to = 0;
  for (int node = 0; node < nodes.num_nodes(); ++node) {
    const size_t theirs = bytes_of(nodes.rank_of(node, nodes.local()), sum_dtype_);
    if (node != nodes.node()) {
      inter_node_.set_send(node, from, theirs);
      inter_node_.set_receive(node, to, bytes_of(nodes.rank(), sum_dtype_));
      to += bytes_of(nodes.rank(), sum_dtype_);
    }
    from += theirs;
  }
}

comm::Chunk QuantisedScatter::chunk(int rank) const {
  return comm::chunk_of(count_, nodes_.size(), rank);
}

size_t QuantisedScatter::bytes_of(int rank, DType wire) const {
  return encoded_bytes(chunk(rank).count, wire, encoding_);
}

size_t QuantisedScatter::column_bytes(int local) const {
  size_t bytes = 0;
  for (int node = 0; node < nodes_.num_nodes(); ++node) bytes += bytes_of(nodes_.rank_of(node, local), dtype_);
  return bytes;
}

size_t QuantisedScatter::column_count(int local) const {
  size_t count = 0;
  for (int node = 0; node < nodes_.num_nodes(); ++node) count += chunk(nodes_.rank_of(node, local)).count;
  return count;
}

void QuantisedScatter::start(const Tensor& all) {
  ESP_CHECK(!in_flight_, "quantised reduce-scatter: start was called while a scatter of this bucket is in flight");
  ESP_CHECK(all.count() == static_cast<int64_t>(count_) && all.dtype() == dtype_,
            "quantised reduce-scatter: got {} values of type {}; expected {} of type {} (the bucket)", all.count(),
            name_of(all.dtype()), count_, name_of(dtype_));
  in_flight_ = true;
  advanced_ = false;
  if (intra_node_.is_single_rank()) {  // one rank per node: the rank's own values are already the sum of the node
    sums_ = tensor::cast_to(context_, all, sum_dtype_, device::MemoryCategory::buffer);
    return advance(Deadline::after(Duration::zero()));
  }
  size_t bytes = 0;
  for (int local = 0; local < nodes_.ranks_per_node(); ++local) bytes += column_bytes(local);
  outgoing_ = staging(context_, bytes);
  auto* to = outgoing_.as<std::byte>();
  for (int local = 0; local < nodes_.ranks_per_node(); ++local)
    for (int node = 0; node < nodes_.num_nodes(); ++node) {
      const int rank = nodes_.rank_of(node, local);
      const comm::Chunk from = chunk(rank);
      encode(to, dtype_, kernel::at(all.data(), static_cast<int64_t>(from.offset), dtype_), dtype_, from.count,
             encoding_, context_.stream);
      to += bytes_of(rank, dtype_);
    }
  incoming_ = staging(context_, static_cast<size_t>(nodes_.ranks_per_node() - 1) * column_bytes(nodes_.local()));
  intra_node_.start(outgoing_.data(), incoming_.data());
}

void QuantisedScatter::advance(Deadline deadline) {
  ESP_CHECK(in_flight_, "quantised reduce-scatter: no scatter of this bucket is in flight. Call start first");
  if (advanced_) return;
  if (!intra_node_.is_single_rank()) {
    intra_node_.wait(deadline);
    sum_in_node();
  }
  advanced_ = true;
  if (inter_node_.is_single_rank()) return;
  encode_sums();
  incoming_sums_ = staging(context_, static_cast<size_t>(nodes_.num_nodes() - 1) * bytes_of(nodes_.rank(), sum_dtype_));
  inter_node_.start(encoded_sums_.data(), incoming_sums_.data());
}

void QuantisedScatter::sum_in_node() {
  const int here = nodes_.local();
  const size_t column = column_bytes(here);
  size_t own_at = 0;
  for (int local = 0; local < here; ++local) own_at += column_bytes(local);
  sums_ =
      tensor::empty(context_, {static_cast<int64_t>(column_count(here))}, sum_dtype_, device::MemoryCategory::buffer);
  const std::byte* other = incoming_.as<std::byte>();
  for (int local = 0; local < nodes_.ranks_per_node(); ++local) {
    const std::byte* from = local == here ? outgoing_.as<std::byte>() + own_at : other;
    if (local != here) other += column;
    int64_t at = 0;
    for (int node = 0; node < nodes_.num_nodes(); ++node) {
      const int rank = nodes_.rank_of(node, here);
      const size_t count = chunk(rank).count;
      void* to = kernel::at(sums_.data(), at, sum_dtype_);
      if (local == 0) {
        decode(to, sum_dtype_, from, dtype_, count, encoding_, context_.stream);
      } else {
        decode_add(to, sum_dtype_, from, dtype_, count, encoding_, context_);
      }
      from += bytes_of(rank, dtype_);
      at += static_cast<int64_t>(count);
    }
  }
  outgoing_ = incoming_ = {};
}

void QuantisedScatter::encode_sums() {
  size_t bytes = 0;
  for (int node = 0; node < nodes_.num_nodes(); ++node)
    bytes += bytes_of(nodes_.rank_of(node, nodes_.local()), sum_dtype_);
  encoded_sums_ = staging(context_, bytes);
  auto* to = encoded_sums_.as<std::byte>();
  int64_t at = 0;
  for (int node = 0; node < nodes_.num_nodes(); ++node) {
    const int rank = nodes_.rank_of(node, nodes_.local());
    encode(to, sum_dtype_, kernel::at(sums_.data(), at, sum_dtype_), sum_dtype_, chunk(rank).count, encoding_,
           context_.stream);
    to += bytes_of(rank, sum_dtype_);
    at += static_cast<int64_t>(chunk(rank).count);
  }
  sums_ = {};
}

void QuantisedScatter::finish(const Tensor& sum, Deadline deadline, double factor) {
  const size_t count = chunk(nodes_.rank()).count, bytes = bytes_of(nodes_.rank(), sum_dtype_);
  ESP_CHECK(sum.count() == static_cast<int64_t>(count),
            "quantised reduce-scatter: got an output of {} elements; expected {} (this rank's chunk)", sum.count(),
            count);
  advance(deadline);
  if (!inter_node_.is_single_rank()) {
    inter_node_.wait(deadline);
    const bool direct = sum.dtype() == sum_dtype_;
    sums_ = direct ? sum : tensor::empty(context_, {sum.count()}, sum_dtype_, device::MemoryCategory::buffer);
    size_t own_at = 0;
    for (int node = 0; node < nodes_.node(); ++node)
      own_at += bytes_of(nodes_.rank_of(node, nodes_.local()), sum_dtype_);
    const std::byte* other = incoming_sums_.as<std::byte>();
    for (int node = 0; node < nodes_.num_nodes(); ++node) {
      const bool own = node == nodes_.node();
      const std::byte* from = own ? encoded_sums_.as<std::byte>() + own_at : other;
      if (!own) other += bytes;
      if (node == 0) {
        decode(sums_.data(), sum_dtype_, from, sum_dtype_, count, encoding_, context_.stream);
      } else {
        decode_add(sums_.data(), sum_dtype_, from, sum_dtype_, count, encoding_, context_);
      }
    }
  }
  if (factor != 1) kernel::scale(sums_.data(), factor, sum.count(), sum_dtype_, context_.stream);
  if (sums_.data() != sum.data())
    kernel::cast(sum.data(), sum.dtype(), sums_.data(), sum_dtype_, sum.count(), context_.stream);
  sums_ = encoded_sums_ = incoming_sums_ = {};
  in_flight_ = false;
}

}  // namespace esp::sync
