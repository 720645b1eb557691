// Small path: the data is in the slot beside the tag, so the exchange of tags also delivers the data.
//
// Every rank waits for every other rank, even if it needs data from only one of them (a broadcast), so every rank
// reports a mismatching call. A rank that has seen all ranks enter call k knows that no rank still reads its slot of
// call k-2.
#include <algorithm>

#include "esp/comm/fused/buffer_bytes.h"
#include "esp/comm/fused/fused_collectives.h"
#include "esp/kernel/copy.h"

namespace esp::comm {

bool FusedCollectives::is_small(const Call& call) const {
  size_t bytes = call.count * size_of(call.dtype);
  switch (call.op) {
    case Op::all_to_all_v:
      return false;
    case Op::barrier:
      return true;
    case Op::all_gather:
    case Op::gather:
      return chunk_range(call, size(), 0).bytes() <= tuning_.small_bytes;
    default:
      return bytes <= tuning_.small_bytes;
  }
}

void FusedCollectives::run_small(const Call& call, const net::Tag& tag, Deadline deadline) {
  size_t slot = layout_.small_at(parity());
  bool gives = call.op != Op::barrier && (call.op != Op::broadcast || rank() == call.root);
  if (gives) kernel::copy(barrier_.at(rank(), slot), call.in, buffer_bytes_of(call, rank(), size()).in_bytes);
  announce(tag);
  wait_for_all(deadline);
  take_small(call, slot);
}

void FusedCollectives::take_small(const Call& call, size_t slot) {
  std::byte* out = bytes_out(call);
  BufferBytes extent = buffer_bytes_of(call, rank(), size());
  bool is_root = rank() == call.root;
  ByteRange own = chunk_range(call, size(), rank());
  auto from = [&](int member) { return barrier_.at(member, slot); };
  auto take = [&](std::byte* to, const std::byte* at, size_t bytes) { kernel::copy(to, at, bytes); };
  switch (call.op) {
    case Op::all_reduce:
    case Op::reduce:
    case Op::reduce_scatter: {
      if (extent.out_bytes == 0) return;
      size_t at = call.op == Op::reduce_scatter ? own.begin : 0;
      for (int member = 0; member < size(); ++member) sources_[static_cast<size_t>(member)] = from(member) + at;
      sources_[static_cast<size_t>(rank())] = bytes_in(call) + at;
      combine(out, call, extent.out_bytes);
      return;
    }
    case Op::broadcast:
      if (is_root ? call.in != call.out : true) take(out, from(call.root), extent.out_bytes);
      return;
    case Op::scatter:
      return take(out, from(call.root) + own.begin, own.bytes());
    case Op::all_gather:
    case Op::gather:
      if (extent.out_bytes == 0) return;
      for (int member = 0; member < size(); ++member) {
        ByteRange chunk = chunk_range(call, size(), member);
        take(out + chunk.begin, from(member), chunk.bytes());
      }
      return;
    case Op::all_to_all:
      for (int member = 0; member < size(); ++member)
        take(out + chunk_range(call, size(), member).begin, from(member) + own.begin, own.bytes());
      return;
    default:
      return;
  }
}

// Computes out = the sources reduced in rank order, then divided for an average. The caller sets up the sources.
void FusedCollectives::combine(std::byte* out, const Call& call, size_t bytes) {
  size_t count = bytes / size_of(call.dtype);
  kernel::reduce_ordered(out, sources_.data(), size(), count, call.dtype, call.reduce);
  if (call.reduce == ReduceOp::avg) kernel::divide(out, count, call.dtype, size());
}

}  // namespace esp::comm
