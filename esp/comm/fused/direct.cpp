// Direct path: every rank can address the peers' buffers, so each element is read from its source and written to its
// destination, without a copy in between.
//
// The path starts after all ranks have entered the call, so every input is ready. No rank leaves before all ranks are
// done with its memory. Each element is read and written by one rank only (in a reduction the owner of the share, in a
// copy the receiver), so in-place calls are safe.
#include <algorithm>

#include "esp/comm/fused/buffer_bytes.h"
#include "esp/comm/fused/fused_collectives.h"
#include "esp/kernel/copy.h"

namespace esp::comm {

void FusedCollectives::run_direct(const Call& call, Deadline deadline) {
  bool is_root = rank() == call.root;
  auto me = static_cast<size_t>(rank());
  std::byte* out = bytes_out(call);
  size_t all = call.count * size_of(call.dtype);
  ByteRange own = chunk_range(call, size(), rank());
  bool streams = bypasses_cache(call);
  auto pick = [&](std::byte* to, const std::byte* at, size_t bytes) {
    if (to == at) return;
    move(to, at, bytes, streams);
  };
  switch (call.op) {
    case Op::all_reduce:
      reduce_share(call, even_share(all), views_.out.data(), size(), streams);
      break;
    case Op::reduce:
      reduce_share(call, even_share(all), &views_.out[static_cast<size_t>(call.root)], 1, streams);
      break;
    case Op::reduce_scatter: {
      std::byte* shifted = out - own.begin;
      reduce_share(call, own, &shifted, 1, streams);
      break;
    }
    case Op::broadcast:
      pick(out, views_.in[static_cast<size_t>(call.root)], all);
      break;
    case Op::scatter:
      pick(out, views_.in[static_cast<size_t>(call.root)] + own.begin, own.bytes());
      break;
    case Op::all_gather:
    case Op::gather:
      if (call.op == Op::gather && !is_root) break;
      for (int i = 0; i < size(); ++i) {
        int member = (rank() + i) % size();
        ByteRange chunk = chunk_range(call, size(), member);
        pick(out + chunk.begin, views_.in[static_cast<size_t>(member)], chunk.bytes());
      }
      break;
    case Op::all_to_all:
      for (int i = 0; i < size(); ++i) {
        int member = (rank() + i) % size();
        pick(out + chunk_range(call, size(), member).begin, views_.in[static_cast<size_t>(member)] + own.begin,
             own.bytes());
      }
      break;
    case Op::all_to_all_v:
      for (int i = 0; i < size(); ++i) {
        auto member = (me + static_cast<size_t>(i)) % sources_.size();
        const AllToAllSegment& segment = segments_of(static_cast<int>(member))[me];
        pick(out + call.recv_offsets[member] * size_of(call.dtype), views_.in[member] + segment.send_at,
             segment.send_bytes);
      }
      break;
    default:
      break;
  }
  count_step(++step_);
  barrier_.wait_for_peers(ShmBarrier::FlagKind::step, step_, deadline);
}

// The part of [0, bytes) that this rank processes: whole cache lines, except at the end.
ByteRange FusedCollectives::even_share(size_t bytes) const {
  constexpr size_t kLine = 64;
  size_t lines = (bytes + kLine - 1) / kLine;
  Chunk share = chunk_of(lines, size(), rank());
  return {std::min(bytes, share.offset * kLine), std::min(bytes, (share.offset + share.count) * kLine)};
}

// Reduces one share of all inputs and writes the result to every buffer of `outs`. Works in strips that stay in the L1
// cache between reduction and copies. The reduction can only store into the cache, so with streaming stores its result
// goes to scratch first.
void FusedCollectives::reduce_share(const Call& call, ByteRange share, std::byte* const* outs, int num_outs,
                                    bool streams) {
  const size_t strip = strip_bytes(streams);
  for (size_t at = share.begin; at < share.end; at += strip) {
    size_t bytes = std::min(strip, share.end - at);
    for (size_t k = 0; k < sources_.size(); ++k) sources_[k] = views_.in[k] + at;
    std::byte* first = streams ? scratch() : outs[0] + at;
    combine(first, call, bytes);
    for (int k = streams ? 0 : 1; k < num_outs; ++k) move(outs[k] + at, first, bytes, streams);
  }
}

}  // namespace esp::comm
