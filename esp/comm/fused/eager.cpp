// Eager protocol: a few bytes that a root sends to all or collects from all. Only ranks that need data wait.
//
// A sender writes its data beside its tag, in the ring of recent calls, and returns; it may lead by kAhead calls at
// most. All tags are still compared, but later: when the lead is used up, or in the next call that waits for all ranks.
// Headers and data must stay valid until then, which determines the length of the ring: a rank that enters call k has
// seen its peers enter k-1-kAhead, and they had by then compared all calls up to k-2-2·kAhead.
#include "esp/comm/fused/buffer_bytes.h"
#include "esp/comm/fused/fused_collectives.h"
#include "esp/kernel/copy.h"

namespace esp::comm {
namespace {

constexpr uint32_t kAhead = 15;
static_assert(2 * kAhead + 2 <= ShmControlPage::kCalls);

bool root_gives(Op op) {
  return op == Op::broadcast || op == Op::scatter;
}

}  // namespace

bool FusedCollectives::is_eager(const Call& call) const {
  switch (call.op) {
    case Op::broadcast:
    case Op::scatter:
    case Op::reduce:
      return call.count * size_of(call.dtype) <= ShmLayout::kEagerBytes;
    case Op::gather:
      return chunk_range(call, size(), 0).bytes() <= ShmLayout::kEagerBytes;
    default:
      return false;
  }
}

void FusedCollectives::run_eager(const Call& call, const net::Tag& tag, Deadline deadline) {
  const size_t slot = ShmLayout::eager_at(call_number_);
  const bool is_root = rank() == call.root, gives = is_root == root_gives(call.op);
  if (gives || is_root)
    kernel::copy(barrier_.at(rank(), slot), call.in, buffer_bytes_of(call, rank(), size()).in_bytes);
  announce(tag);
  if (!gives) {
    if (is_root) {
      wait_for_all(deadline);
    } else {
      barrier_.await(call.root, ShmBarrier::FlagKind::call, call_number_, deadline);
      compare_tags(call.root, call_number_);
    }
  }
  take_small(call, slot);
  wait_for_slowest(deadline);
}

// Waits for ranks that are more than kAhead calls behind, and compares the tags of all calls that every rank has
// entered.
void FusedCollectives::wait_for_slowest(Deadline deadline) {
  if (call_number_ - checked_ < kAhead) return;
  uint32_t all_entered = call_number_;
  for (int i = 1; i < size(); ++i) {
    int peer = (rank() + i) % size();
    uint32_t entered = call_number_ - kAhead;
    await_tags(peer, entered, deadline);
    while (entered != all_entered && barrier_.has_entered(peer, entered + 1)) compare_tags(peer, ++entered);
    all_entered = entered;
  }
  checked_ = all_entered;
}

// In order: a peer that found a mismatch does not enter the next call.
void FusedCollectives::await_tags(int peer, uint32_t until, Deadline deadline) {
  for (uint32_t call = checked_; call != until;) {
    barrier_.await(peer, ShmBarrier::FlagKind::call, ++call, deadline);
    compare_tags(peer, call);
  }
}

void FusedCollectives::compare_tags(int peer, uint32_t call_number) const {
  const net::Tag &mine = header_of(rank(), call_number).tag, &theirs = header_of(peer, call_number).tag;
  if (theirs != mine) [[unlikely]]
    check_tag(mine, barrier_.world_rank(rank()), theirs, barrier_.world_rank(peer));
}

void FusedCollectives::check_entered_calls() const {
  for (int peer = 0; peer < size(); ++peer) {
    auto both_entered = [&](uint32_t call) {
      return barrier_.has_entered(rank(), call) && barrier_.has_entered(peer, call);
    };
    for (uint32_t call = checked_; call != call_number_ && both_entered(call + 1);) compare_tags(peer, ++call);
  }
}

}  // namespace esp::comm
