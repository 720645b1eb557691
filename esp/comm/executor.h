// Runs plans over one transport: issues what may start, moves what can move, reduces what arrived.
//
// One thread at a time, the one that drives the transport. Messages are done when the transport says so; local steps
// run between polls, so slices keep the wire busy while reducing. Nothing is allocated. On a transport whose issue
// order fixes the result (the virtual clock) steps are issued strictly in list order, each saying when its inputs were
// there.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "esp/base/clock.h"
#include "esp/comm/plan.h"
#include "esp/net/transport.h"

namespace esp::comm {

// A message that was not the one expected: one of two ranks called something else.
struct Mismatch {
  int peer = -1;  // rank in the group
  net::Tag expected, got;
  size_t expected_bytes = 0, got_bytes = 0;
};

class Executor {
 public:
  enum class Outcome { done, mismatched, expired };

  // `look` is called when nothing has moved for a quarter of a second, then at growing intervals, and may throw: the
  // ranks may be waiting for each other in different calls.
  explicit Executor(
      net::Transport& transport, std::function<void()> look = [] {})
      : transport_(transport), look_(std::move(look)) {}

  // Buffers as the call names them. CommError(lost) and aborts pass through.
  Outcome run(Plan& plan, const void* in, void* out, DType dtype, ReduceOp op, const net::Tag& tag, Deadline deadline);

  // A set of messages with no order among them but that of the list, per peer. The caller filled peer, data, bytes,
  // tag.
  struct Message {
    net::Transfer transfer;
    bool sends = false;
  };
  Outcome exchange(std::span<Message> messages, Deadline deadline);

  const Mismatch& mismatch() const { return mismatch_; }
  int waits_for() const { return waits_for_; }    // expired: a peer whose message had not come, or -1
  int64_t clock_ps() const { return clock_ps_; }  // virtual: when this rank's last call ended

 private:
  void bind(Plan& plan, const void* in, void* out, DType dtype, ReduceOp op, const net::Tag& tag);
  std::byte* address(const Spot& place) const;
  void issue_ready(Plan& plan, uint32_t lane);
  void finish(Plan& plan, uint32_t step);
  void run_local(Plan& plan, const Step& step);
  bool collect(Plan& plan);
  Outcome run_in_order(Plan& plan, Deadline deadline);
  Outcome wait_for(Plan& plan, uint32_t step, Deadline deadline);
  Outcome expire(const Plan& plan);
  void rest(Deadline deadline);
  Outcome mismatched(const net::Transfer& transfer);

  net::Transport& transport_;
  const std::function<void()> look_;
  bool resting_ = false;  // nothing has moved since look_at_ was set
  Duration patience_{};
  Clock::time_point look_at_;
  const std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
  std::byte* scratch_ = nullptr;
  DType dtype_ = DType::f32;
  ReduceOp op_ = ReduceOp::sum;
  uint32_t remaining_ = 0;
  const net::Transfer* wrong_ = nullptr;
  Mismatch mismatch_;
  int waits_for_ = -1;
  int64_t clock_ps_ = 0;
};

}  // namespace esp::comm
