// Small messages: the data lies in the slot beside the tag, so the exchange of tags has already delivered it.
//
// Every rank waits for every other even where it needs only one (a broadcast): all are told of a differing call, and a
// rank that has seen everybody enter call k knows that nobody still reads its slot of k-1's predecessor.
#include <algorithm>

#include "esp/comm/fused/extent.h"
#include "esp/comm/fused/fused.h"
#include "esp/kernel/copy.h"

namespace esp::comm {

bool Fused::is_small(const Call& call) const {
  size_t bytes = call.count * size_of(call.dtype);
  switch (call.op) {
    case Op::all_to_all_v:
      return false;
    case Op::barrier:
      return true;
    case Op::all_gather:
    case Op::gather:
      return chunk_span(call, size(), 0).bytes() <= tuning_.small_bytes;
    default:
      return bytes <= tuning_.small_bytes;
  }
}

void Fused::run_small(const Call& call, const net::Tag& tag, Deadline deadline) {
  size_t slot = layout_.small_at(parity());
  bool gives = call.op != Op::barrier && (call.op != Op::broadcast || rank() == call.root);
  if (gives) kernel::copy(gate_.at(rank(), slot), call.in, extent_of(call, rank(), size()).in_bytes);
  announce(tag);
  meet(deadline);
  take_small(call, slot);
}

void Fused::take_small(const Call& call, size_t slot) {
  std::byte* out = bytes_out(call);
  Extent extent = extent_of(call, rank(), size());
  bool is_root = rank() == call.root;
  Span own = chunk_span(call, size(), rank());
  auto from = [&](int member) { return gate_.at(member, slot); };
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
        Span chunk = chunk_span(call, size(), member);
        take(out + chunk.begin, from(member), chunk.bytes());
      }
      return;
    case Op::all_to_all:
      for (int member = 0; member < size(); ++member)
        take(out + chunk_span(call, size(), member).begin, from(member) + own.begin, own.bytes());
      return;
    default:
      return;
  }
}

// out = the sources in rank order, then the division of an average. Sources are set up by the caller.
void Fused::combine(std::byte* out, const Call& call, size_t bytes) {
  size_t count = bytes / size_of(call.dtype);
  kernel::reduce_ordered(out, sources_.data(), size(), count, call.dtype, call.reduce);
  if (call.reduce == ReduceOp::avg) kernel::divide(out, count, call.dtype, size());
}

}  // namespace esp::comm
