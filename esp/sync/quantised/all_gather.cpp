#include "esp/sync/quantised/all_gather.h"

#include "esp/kernel/floating.h"

namespace esp::sync {

using tensor::Tensor;

QuantisedGather::QuantisedGather(const NodeGrid& nodes, const tensor::Context& context, int64_t count, DType storage,
                                 const Encoding& encoding)
    : nodes_(nodes),
      context_(context),
      count_(static_cast<size_t>(count)),
      storage_(storage),
      encoding_(encoding),
      inter_node_(nodes.inter_node.get()),
      intra_node_(nodes.intra_node.get()) {
  check(encoding);
  size_t at = 0;
  for (int node = 0; node < nodes.num_nodes(); ++node) {
    const size_t theirs = bytes_of(nodes.rank_of(node, nodes.local()));
    inter_node_.set_send(node, 0, bytes_of(nodes.rank()));
    inter_node_.set_receive(node, at, theirs);
    at += theirs;
  }
  at = 0;
  for (int local = 0; local < nodes.ranks_per_node(); ++local) {
    if (local == nodes.local()) continue;  // these chunks arrived by the exchange across nodes
    intra_node_.set_send(local, 0, column_bytes(nodes.local()));
    intra_node_.set_receive(local, at, column_bytes(local));
    at += column_bytes(local);
  }
}

comm::Chunk QuantisedGather::chunk(int rank) const {
  return comm::chunk_of(count_, nodes_.size(), rank);
}

size_t QuantisedGather::bytes_of(int rank) const {
  return encoded_bytes(chunk(rank).count, storage_, encoding_);
}

size_t QuantisedGather::column_bytes(int local) const {
  size_t bytes = 0;
  for (int node = 0; node < nodes_.num_nodes(); ++node) bytes += bytes_of(nodes_.rank_of(node, local));
  return bytes;
}

void QuantisedGather::start(const Tensor& values) {
  ESP_CHECK(!in_flight(), "quantised all-gather: start was called while a gather of this unit is in flight");
  const comm::Chunk own = chunk(nodes_.rank());
  ESP_CHECK(values.count() == static_cast<int64_t>(own.count),
            "quantised all-gather: got {} values; expected {} (this rank's chunk)", values.count(), own.count);
  own_chunk_ = staging(context_, bytes_of(nodes_.rank()));
  encode(own_chunk_.data(), storage_, values.data(), values.dtype(), own.count, encoding_, context_.stream);
  advanced_ = false;
  if (inter_node_.is_single_rank()) return advance(Deadline::after(Duration::zero()));
  column_ = staging(context_, column_bytes(nodes_.local()));
  inter_node_.start(own_chunk_.data(), column_.data());
}

void QuantisedGather::advance(Deadline deadline) {
  ESP_CHECK(in_flight(), "quantised all-gather: no gather of this unit is in flight. Call start first");
  if (advanced_) return;
  if (inter_node_.is_single_rank()) {
    column_ = own_chunk_;
  } else {
    inter_node_.wait(deadline);
  }
  advanced_ = true;
  if (intra_node_.is_single_rank()) return;
  size_t bytes = 0;
  for (int local = 0; local < nodes_.ranks_per_node(); ++local)
    if (local != nodes_.local()) bytes += column_bytes(local);
  peer_chunks_ = staging(context_, bytes);
  intra_node_.start(column_.data(), peer_chunks_.data());
}

void QuantisedGather::finish(const Tensor& whole, Deadline deadline) {
  ESP_CHECK(whole.count() == static_cast<int64_t>(count_),
            "quantised all-gather: got an output of {} elements; expected {} (the whole unit)", whole.count(), count_);
  advance(deadline);
  intra_node_.wait(deadline);
  const std::byte* from = peer_chunks_.as<std::byte>();
  for (int local = 0; local < nodes_.ranks_per_node(); ++local) {
    const bool own = local == nodes_.local();
    decode_column(whole, local, own ? column_.as<std::byte>() : from);
    if (!own) from += column_bytes(local);
  }
  own_chunk_ = column_ = peer_chunks_ = {};
}

void QuantisedGather::decode_column(const Tensor& whole, int local, const std::byte* from) const {
  for (int node = 0; node < nodes_.num_nodes(); ++node) {
    const int rank = nodes_.rank_of(node, local);
    const comm::Chunk to = chunk(rank);
    decode(kernel::at(whole.data(), static_cast<int64_t>(to.offset), whole.dtype()), whole.dtype(), from, storage_,
           to.count, encoding_, context_.stream);
    from += bytes_of(rank);
  }
}

}  // namespace esp::sync
