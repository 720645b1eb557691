// Runs plans on one transport: issues steps whose inputs are ready, polls messages, reduces received data.
//
// Used by one thread at a time, the thread that drives the transport. Local steps run between polls, so slices keep the
// network busy during reductions. The executor allocates no memory. On a transport whose issue order determines the
// result (the virtual clock), steps are issued strictly in list order, each with the time when its inputs were ready.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "esp/base/clock.h"
#include "esp/comm/plan.h"
#include "esp/net/transport.h"

namespace esp::comm {

// A received message that differs from the expected one, which means that the two ranks made different calls.
struct Mismatch {
  int peer = -1;  // rank in the group
  net::Tag expected, got;
  size_t expected_bytes = 0, got_bytes = 0;
};

class Executor {
 public:
  enum class RunStatus { done, mismatched, expired };

  // `check_peers` is called when no message has progressed for 250 ms, then at growing intervals. It may throw: ranks
  // in different calls may wait for each other without any message, so only this check can end the wait.
  explicit Executor(
      net::Transport& transport, std::function<void()> check_peers = [] {})
      : transport_(transport), check_peers_(std::move(check_peers)) {}

  // Runs a plan. A mismatch or an expired deadline is returned as the status. A CommError (lost peer or abort) is
  // passed on to the caller.
  RunStatus run(Plan& plan, const void* in, void* out, DType dtype, ReduceOp op, const net::Tag& tag,
                Deadline deadline);

  // One message of a set of independent messages. Messages with different peers are unordered; messages with one peer
  // run in list order. The caller fills peer, data, bytes and tag.
  struct PeerMessage {
    net::Transfer transfer;
    bool sends = false;
  };
  RunStatus exchange(std::span<PeerMessage> messages, Deadline deadline);

  const Mismatch& mismatch() const { return mismatch_; }
  // after status `expired`: a peer whose message has not arrived, or -1
  int missing_peer() const { return missing_peer_; }
  int64_t clock_ps() const { return clock_ps_; }  // virtual clock: end time of this rank's last call, in picoseconds

 private:
  void bind(Plan& plan, const void* in, void* out, DType dtype, ReduceOp op, const net::Tag& tag);
  std::byte* address(const BufferOffset& location) const;
  void issue_ready(Plan& plan, uint32_t lane);
  void finish(Plan& plan, uint32_t step);
  void run_local(Plan& plan, const PlanStep& step);
  bool collect(Plan& plan);
  RunStatus run_ordered(Plan& plan, Deadline deadline);
  RunStatus wait_for(Plan& plan, uint32_t step, Deadline deadline);
  RunStatus expire_plan(const Plan& plan);
  void wait_idle(Deadline deadline);
  RunStatus mismatched(const net::Transfer& transfer);

  net::Transport& transport_;
  const std::function<void()> check_peers_;
  bool idle_ = false;  // true if no message has progressed since next_check_ was set
  Duration idle_interval_{};
  Clock::time_point next_check_;
  const std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
  std::byte* scratch_ = nullptr;
  DType dtype_ = DType::f32;
  ReduceOp op_ = ReduceOp::sum;
  uint32_t remaining_ = 0;
  const net::Transfer* mismatched_ = nullptr;
  Mismatch mismatch_;
  int missing_peer_ = -1;
  int64_t clock_ps_ = 0;
};

}  // namespace esp::comm
