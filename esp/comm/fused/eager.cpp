// Eager protocol: a root sends a few bytes to all ranks or collects them from all. Only ranks that need data wait.
//
// A sender writes its data beside its tag, into the ring buffer of recent calls, and returns. It may be ahead of the
// others by at most kMaxLead calls. All tags are still compared, but later: when the lead is used up, or in the next
// call that waits for all ranks. Headers and data must stay valid until then. This determines the length of the ring:
// when a rank enters call k, its peers have entered call k-1-kMaxLead, and before that they compared all calls up to
// k-2-2·kMaxLead.
#include "esp/comm/fused/buffer_bytes.h"
#include "esp/comm/fused/fused_collectives.h"
#include "esp/kernel/copy.h"

namespace esp::comm {
namespace {

constexpr uint32_t kMaxLead = 15;
static_assert(2 * kMaxLead + 2 <= ShmControlPage::kCalls);

bool root_sends(Op op) {
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
  const bool is_root = rank() == call.root, sends = is_root == root_sends(call.op);
  if (sends || is_root)
    kernel::copy(barrier_.at(rank(), slot), call.in, buffer_bytes_of(call, rank(), size()).in_bytes);
  announce(tag);
  if (!sends) {
    if (is_root) {
      wait_for_all(deadline);
    } else {
      barrier_.wait_for(call.root, ShmBarrier::FlagKind::call, call_number_, deadline);
      compare_tags(call.root, call_number_);
    }
  }
  take_small(call, slot);
  wait_for_slowest(deadline);
}

// Waits until every peer is at most kMaxLead calls behind, and compares the tags of all calls that every rank has
// entered.
void FusedCollectives::wait_for_slowest(Deadline deadline) {
  if (call_number_ - last_checked_call_ < kMaxLead) return;
  uint32_t all_entered = call_number_;
  for (int i = 1; i < size(); ++i) {
    int peer = (rank() + i) % size();
    uint32_t entered = call_number_ - kMaxLead;
    wait_for_tags(peer, entered, deadline);
    while (entered != all_entered && barrier_.has_entered(peer, entered + 1)) compare_tags(peer, ++entered);
    all_entered = entered;
  }
  last_checked_call_ = all_entered;
}

// Waits for and compares one call after the other, because a peer that found a mismatch never enters the next call.
void FusedCollectives::wait_for_tags(int peer, uint32_t until, Deadline deadline) {
  for (uint32_t call = last_checked_call_; call != until;) {
    barrier_.wait_for(peer, ShmBarrier::FlagKind::call, ++call, deadline);
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
    for (uint32_t call = last_checked_call_; call != call_number_ && both_entered(call + 1);)
      compare_tags(peer, ++call);
  }
}

}  // namespace esp::comm
