// Posted: a few bytes that a root gives to all or gets from all, where only who needs another's data waits for it.
//
// A giver leaves its data beside its tag, in the ring of the last calls, and goes on; so it may be ahead of the others,
// by kAhead calls at most. Everybody still compares everybody's tags, only later: when the lead is used up, or in the
// next call that waits for all. Until then headers and data must stay, hence the length of the ring: whoever enters
// call k has seen its peers enter k-1-kAhead, who had by then compared all up to k-2-2·kAhead.
#include "esp/comm/fused/extent.h"
#include "esp/comm/fused/fused.h"
#include "esp/kernel/copy.h"

namespace esp::comm {
namespace {

constexpr uint32_t kAhead = 15;
static_assert(2 * kAhead + 2 <= BoardPage::kCalls);

bool root_gives(Op op) {
  return op == Op::broadcast || op == Op::scatter;
}

}  // namespace

bool Fused::is_posted(const Call& call) const {
  switch (call.op) {
    case Op::broadcast:
    case Op::scatter:
    case Op::reduce:
      return call.count * size_of(call.dtype) <= BoardLayout::kPostBytes;
    case Op::gather:
      return chunk_span(call, size(), 0).bytes() <= BoardLayout::kPostBytes;
    default:
      return false;
  }
}

void Fused::run_posted(const Call& call, const net::Tag& tag, Deadline deadline) {
  const size_t slot = BoardLayout::post_at(call_number_);
  const bool is_root = rank() == call.root, gives = is_root == root_gives(call.op);
  if (gives || is_root) kernel::copy(gate_.at(rank(), slot), call.in, extent_of(call, rank(), size()).in_bytes);
  announce(tag);
  if (!gives) {
    if (is_root) {
      meet(deadline);
    } else {
      gate_.await(call.root, Gate::Kind::call, call_number_, deadline);
      compare_tags(call.root, call_number_);
    }
  }
  take_small(call, slot);
  keep_up(deadline);
}

// Lets nobody fall back by more than kAhead, and compares the tags of all calls that everybody has entered by then.
void Fused::keep_up(Deadline deadline) {
  if (call_number_ - checked_ < kAhead) return;
  uint32_t all_entered = call_number_;
  for (int i = 1; i < size(); ++i) {
    int peer = (rank() + i) % size();
    uint32_t entered = call_number_ - kAhead;
    await_tags(peer, entered, deadline);
    while (entered != all_entered && gate_.has_entered(peer, entered + 1)) compare_tags(peer, ++entered);
    all_entered = entered;
  }
  checked_ = all_entered;
}

// One call after the other: a peer that found a difference does not enter the next.
void Fused::await_tags(int peer, uint32_t until, Deadline deadline) {
  for (uint32_t call = checked_; call != until;) {
    gate_.await(peer, Gate::Kind::call, ++call, deadline);
    compare_tags(peer, call);
  }
}

void Fused::compare_tags(int peer, uint32_t call_number) const {
  const net::Tag &mine = header_of(rank(), call_number).tag, &theirs = header_of(peer, call_number).tag;
  if (theirs != mine) [[unlikely]]
    check_tag(mine, gate_.world_rank(rank()), theirs, gate_.world_rank(peer));
}

void Fused::check_what_was_entered() const {
  for (int peer = 0; peer < size(); ++peer) {
    auto both_entered = [&](uint32_t call) { return gate_.has_entered(rank(), call) && gate_.has_entered(peer, call); };
    for (uint32_t call = checked_; call != call_number_ && both_entered(call + 1);) compare_tags(peer, ++call);
  }
}

}  // namespace esp::comm
