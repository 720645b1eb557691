// Staged path: private buffers are copied through slots in shared memory, as a pipeline of blocks.
//
// Step t of a rank has three parts. It writes block t to its slot. It reads (and reduces, if the call reduces) its
// share of every rank's block t-lag. If reduced pieces go to other ranks, it reads the peers' pieces of block t-2·lag.
// Then it announces the step as done. Before step t it waits until its peers have done step t-lag. By then their blocks
// t-lag are written and, because the slots rotate with twice the lag, no peer still reads the slot about to be
// overwritten. This holds across calls: the slots of a call's last blocks differ from the next call's first ones, and
// pieces are rewritten only after all ranks have entered the next call.
#include <algorithm>

#include "esp/base/check.h"
#include "esp/comm/fused/fused_collectives.h"
#include "esp/kernel/copy.h"

namespace esp::comm {

struct FusedCollectives::Staging {
  uint32_t num_blocks = 0;
  uint32_t num_stages = 1;  // number of times that a block is read: 2 if reduced pieces go to other ranks
  // the root, if all data passes through it: the other ranks then wait only for the root; -1: all wait for all
  int relay = -1;
};

template <typename Produce, typename Middle, typename Collect>
void FusedCollectives::pipeline(const Staging& staging, const net::Tag* tag, Deadline deadline, Produce&& produce,
                                Middle&& middle, Collect&& collect) {
  const uint32_t lag = tuning_.lag, num_steps = staging.num_blocks + staging.num_stages * lag;
  for (uint32_t t = 0; t < num_steps; ++t) {
    if (t >= lag) {
      uint32_t done = step_ + t - lag + 1;
      if (staging.relay < 0 || staging.relay == rank())
        barrier_.wait_for_peers(ShmBarrier::FlagKind::step, done, deadline);
      else
        barrier_.wait_for(staging.relay, ShmBarrier::FlagKind::step, done, deadline);
    }
    if (t < staging.num_blocks) produce(t);
    if (t >= lag && t - lag < staging.num_blocks) middle(t - lag);
    if (staging.num_stages == 2 && t >= 2 * lag && t - 2 * lag < staging.num_blocks) collect(t - 2 * lag);
    count_step(step_ + t + 1);
    if (t == 0 && tag) {
      announce(*tag);
      wait_for_all(deadline);
      follow_copy_policy(deadline);
    }
  }
  step_ += num_steps;
  block_ += staging.num_blocks;
}

void FusedCollectives::run_staged(const Call& call, const net::Tag* tag, Deadline deadline) {
  switch (call.op) {
    case Op::all_reduce:
    case Op::reduce:
    case Op::reduce_scatter:
      return stage_reduction(call, tag, deadline);
    case Op::broadcast:
    case Op::gather:
    case Op::scatter:
      return stage_rooted(call, tag, deadline);
    default:
      return stage_exchange(call, tag, deadline);
  }
}

namespace {

constexpr size_t kLine = 64;

uint32_t num_blocks(size_t bytes, size_t block_bytes) {
  return static_cast<uint32_t>(std::max<size_t>(1, (bytes + block_bytes - 1) / block_bytes));
}

// Size in bytes of one part when `bytes` is cut into `parts` equal parts of whole cache lines.
size_t even_part(size_t bytes, size_t parts) {
  return (((bytes + parts - 1) / parts) + kLine - 1) / kLine * kLine;
}

ByteRange cut(ByteRange whole, size_t begin, size_t bytes) {
  return {std::min(whole.end, whole.begin + begin), std::min(whole.end, whole.begin + begin + bytes)};
}

}  // namespace

// all_reduce and reduce cut every block into one piece per rank; reduce_scatter cuts every rank's chunk into pieces.
void FusedCollectives::stage_reduction(const Call& call, const net::Tag* tag, Deadline deadline) {
  const bool scatters = call.op == Op::reduce_scatter, to_all = call.op == Op::all_reduce;
  const auto n = static_cast<size_t>(size()), me = static_cast<size_t>(rank());
  const size_t all = call.count * size_of(call.dtype);
  const size_t share = scatters ? chunk_range(call, size(), 0).bytes() : even_part(all, n);
  const uint32_t blocks = num_blocks(share, block_limit() / n / kLine * kLine);
  const size_t piece = even_part(share, blocks);
  const bool streams = bypasses_cache(call);
  const std::byte* in = bytes_in(call);
  std::byte* out = bytes_out(call);
  const size_t strip = strip_bytes(streams || streams_copies_);

  auto range = [&](size_t k, uint32_t block) {
    if (scatters) return cut(chunk_range(call, size(), static_cast<int>(k)), block * piece, piece);
    return cut({0, all}, (block * n + k) * piece, piece);
  };
  auto block_slot = [&](size_t k, uint32_t block) {
    return barrier_.at(static_cast<int>(k), layout_.block_at((block_ + block) % depth()));
  };
  auto piece_slot = [&](size_t k, uint32_t block) {
    return barrier_.at(static_cast<int>(k), layout_.piece_at((block_ + block) % depth()));
  };
  auto produce = [&](uint32_t block) {
    for (size_t k = 0; k < n; ++k) {
      ByteRange span = range(k, block);
      if (k != me) move(block_slot(me, block) + k * piece, in + span.begin, span.bytes(), streams_copies_);
    }
  };
  // A piece goes to this rank's output, and to its piece slot if other ranks need it.
  const bool keeps = scatters || to_all || rank() == call.root;
  const bool shares = to_all || (!scatters && rank() != call.root);
  auto middle = [&](uint32_t block) {
    ByteRange span = range(me, block);
    for (size_t at = 0; at < span.bytes(); at += strip) {
      size_t bytes = std::min(strip, span.bytes() - at);
      for (size_t k = 0; k < n; ++k) sources_[k] = block_slot(k, block) + me * piece + at;
      sources_[me] = in + span.begin + at;
      std::byte* final = keeps ? out + (scatters ? span.begin - range(me, 0).begin : span.begin) + at : nullptr;
      // Only copies can use streaming stores. The reduction stores into the cache, so its destination should stay
      // cached.
      std::byte* shared = shares ? piece_slot(me, block) + at : nullptr;
      std::byte* first = shared && !streams_copies_ ? shared : final && !streams ? final : scratch();
      combine(first, call, bytes);
      if (final && first != final) move(final, first, bytes, streams);
      if (shared && first != shared) move(shared, first, bytes, streams_copies_);
    }
  };
  auto collect = [&](uint32_t block) {
    if (!keeps) return;
    for (size_t i = 1; i < n; ++i) {
      size_t k = (me + i) % n;
      ByteRange span = range(k, block);
      move(out + span.begin, piece_slot(k, block), span.bytes(), streams);
    }
  };
  pipeline({blocks, scatters ? 1u : 2u, -1}, tag, deadline, produce, middle, collect);
}

// Broadcast, gather and scatter: the root sends all data or receives all data.
void FusedCollectives::stage_rooted(const Call& call, const net::Tag* tag, Deadline deadline) {
  const bool is_root = rank() == call.root;
  const auto n = static_cast<size_t>(size());
  const size_t all = call.count * size_of(call.dtype);
  const bool scatters = call.op == Op::scatter, gathers = call.op == Op::gather;
  const size_t share = scatters || gathers ? chunk_range(call, size(), 0).bytes() : all;
  const uint32_t blocks = num_blocks(share, scatters ? block_limit() / n / kLine * kLine : block_limit());
  const size_t piece = even_part(share, blocks);
  const bool streams = bypasses_cache(call);
  const std::byte* in = bytes_in(call);
  std::byte* out = bytes_out(call);

  auto slot = [&](int k, uint32_t block) { return barrier_.at(k, layout_.block_at((block_ + block) % depth())); };
  auto keep = [&](std::byte* to, const std::byte* from, size_t bytes) {
    if (to != from) move(to, from, bytes, streams);
  };
  auto produce = [&](uint32_t block) {
    if (gathers) {
      ByteRange span = cut({0, chunk_range(call, size(), rank()).bytes()}, block * piece, piece);
      if (is_root)
        keep(out + chunk_range(call, size(), rank()).begin + span.begin, in + span.begin, span.bytes());
      else
        move(slot(rank(), block), in + span.begin, span.bytes(), streams_copies_);
      return;
    }
    if (!is_root) return;
    for (int k = 0; k < (scatters ? size() : 1); ++k) {
      ByteRange whole = scatters ? chunk_range(call, size(), k) : ByteRange{0, all};
      ByteRange span = cut(whole, block * piece, piece);
      if (scatters && k == rank())
        keep(out + span.begin - whole.begin, in + span.begin, span.bytes());
      else
        move(slot(rank(), block) + static_cast<size_t>(k) * piece, in + span.begin, span.bytes(), streams_copies_);
      if (!scatters) keep(out + span.begin, in + span.begin, span.bytes());
    }
  };
  auto pick = [&](std::byte* to, const std::byte* from, size_t bytes) { move(to, from, bytes, streams); };
  auto middle = [&](uint32_t block) {
    if (gathers && is_root) {
      for (int k = 0; k < size(); ++k) {
        ByteRange span = cut(chunk_range(call, size(), k), block * piece, piece);
        if (k != rank()) pick(out + span.begin, slot(k, block), span.bytes());
      }
    } else if (!gathers && !is_root) {
      ByteRange span = cut({0, scatters ? chunk_range(call, size(), rank()).bytes() : all}, block * piece, piece);
      pick(out + span.begin, slot(call.root, block) + (scatters ? static_cast<size_t>(rank()) * piece : 0),
           span.bytes());
    }
  };
  pipeline({blocks, 1, call.root}, tag, deadline, produce, middle, [](uint32_t) {});
}

// Every rank sends to every rank: the same data (all_gather) or one segment per peer (all_to_all).
void FusedCollectives::stage_exchange(const Call& call, const net::Tag* tag, Deadline deadline) {
  const bool same = call.op == Op::all_gather, irregular = call.op == Op::all_to_all_v;
  const auto n = static_cast<size_t>(size()), me = static_cast<size_t>(rank());
  const size_t element = size_of(call.dtype);
  const size_t share = irregular ? check_segments() : chunk_range(call, size(), 0).bytes();
  const uint32_t blocks = num_blocks(share, same ? block_limit() : block_limit() / n / kLine * kLine);
  const size_t piece = even_part(share, blocks);
  const bool streams = bypasses_cache(call);
  const std::byte* in = bytes_in(call);
  std::byte* out = bytes_out(call);
  std::vector<std::byte> copied;
  if (irregular) {
    // Segments may be anywhere, so in place an output could overwrite an input that has not been sent yet.
    if (needs_staging(call, rank(), size())) {
      copied.assign(in, in + buffer_bytes_of(call, rank(), size()).in_bytes);
      in = copied.data();
    }
    kernel::copy(out + call.recv_offsets[me] * element, in + call.send_offsets[me] * element,
                 call.send_counts[me] * element);
  }

  auto slot = [&](size_t k, uint32_t block) {
    return barrier_.at(static_cast<int>(k), layout_.block_at((block_ + block) % depth()));
  };
  auto sent = [&](size_t k) -> ByteRange {
    if (same) return {0, chunk_range(call, size(), rank()).bytes()};
    if (!irregular) return chunk_range(call, size(), static_cast<int>(k));
    size_t begin = call.send_offsets[k] * element;
    return {begin, begin + call.send_counts[k] * element};
  };
  auto received = [&](size_t k) -> ByteRange {
    if (!irregular) return chunk_range(call, size(), static_cast<int>(k));
    size_t begin = call.recv_offsets[k] * element;
    return {begin, begin + call.recv_counts[k] * element};
  };
  auto produce = [&](uint32_t block) {
    for (size_t k = 0; k < n; ++k) {
      if (k == me && !irregular) {
        ByteRange own = cut(sent(me), block * piece, piece), to = cut(received(me), block * piece, piece);
        if (in + own.begin != out + to.begin) move(out + to.begin, in + own.begin, own.bytes(), streams);
      }
      if (same ? k != 0 : k == me) continue;
      ByteRange span = cut(sent(k), block * piece, piece);
      move(slot(me, block) + (same ? 0 : k * piece), in + span.begin, span.bytes(), streams_copies_);
    }
  };
  auto middle = [&](uint32_t block) {
    for (size_t i = 1; i < n; ++i) {
      size_t k = (me + i) % n;
      ByteRange span = cut(received(k), block * piece, piece);
      move(out + span.begin, slot(k, block) + (same ? 0 : me * piece), span.bytes(), streams);
    }
  };
  pipeline({blocks, 1, -1}, tag, deadline, produce, middle, [](uint32_t) {});
}

}  // namespace esp::comm
