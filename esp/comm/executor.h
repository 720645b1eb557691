// Runs plans on one transport: issues steps whose inputs are ready, polls messages, reduces received data.
//
// Used by one thread at a time, the one that drives the transport. Local steps run between polls, so slices keep the
// network busy during reductions. Allocates nothing. On a transport whose issue order determines the result (the
// virtual clock), steps are issued strictly in list order, each with the time its inputs were ready.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "esp/base/clock.h"
#include "esp/comm/plan.h"
#include "esp/net/transport.h"

namespace esp::comm {

// A received message differs from the expected one: the two ranks made different calls.
struct Mismatch {
  int peer = -1;  // rank in the group
  net::Tag expected, got;
  size_t expected_bytes = 0, got_bytes = 0;
};

class Executor {
 public:
  enum class RunStatus { done, mismatched, expired };

  // `check_peers` is called when no message has progressed for a quarter of a second, then at growing intervals. It may
  // throw: ranks in different calls may be waiting for each other.
  explicit Executor(
      net::Transport& transport, std::function<void()> check_peers = [] {})
      : transport_(transport), check_peers_(std::move(check_peers)) {}

  // CommError(lost) and aborts propagate.
  RunStatus run(Plan& plan, const void* in, void* out, DType dtype, ReduceOp op, const net::Tag& tag,
                Deadline deadline);

  // Messages without order among peers; per peer in list order. The caller fills peer, data, bytes and tag.
  struct PeerMessage {
    net::Transfer transfer;
    bool sends = false;
  };
  RunStatus exchange(std::span<PeerMessage> messages, Deadline deadline);

  const Mismatch& mismatch() const { return mismatch_; }
  int waits_for() const { return waits_for_; }    // expired: a peer whose message had not arrived, or -1
  int64_t clock_ps() const { return clock_ps_; }  // virtual clock: end of this rank's last call

 private:
  void bind(Plan& plan, const void* in, void* out, DType dtype, ReduceOp op, const net::Tag& tag);
  std::byte* address(const BufferOffset& place) const;
  void issue_ready(Plan& plan, uint32_t lane);
  void finish(Plan& plan, uint32_t step);
  void run_local(Plan& plan, const PlanStep& step);
  bool collect(Plan& plan);
  RunStatus run_in_order(Plan& plan, Deadline deadline);
  RunStatus wait_for(Plan& plan, uint32_t step, Deadline deadline);
  RunStatus expire(const Plan& plan);
  void rest(Deadline deadline);
  RunStatus mismatched(const net::Transfer& transfer);

  net::Transport& transport_;
  const std::function<void()> check_peers_;
  bool resting_ = false;  // nothing has moved since look_at_ was set
  Duration idle_interval_{};
  Clock::time_point next_check_;
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
