#include "esp/comm/executor.h"

#include <algorithm>
#include <cstring>

#include "esp/base/check.h"
#include "esp/kernel/reduce.h"

namespace esp::comm {

using net::Transfer;

namespace {

constexpr auto kFirstIdleInterval = std::chrono::milliseconds(250);

void apply_reduce(const void* context, std::byte* dst, const std::byte* src, size_t bytes) {
  const auto& how = *static_cast<const ReduceContext*>(context);
  kernel::reduce(dst, dst + how.operand, src, bytes / size_of(how.dtype), how.dtype, how.op);
}

bool is_message(ActionType type) {
  return type == ActionType::send || type == ActionType::receive || type == ActionType::receive_reduce;
}

}  // namespace

std::byte* Executor::address(const BufferOffset& location) const {
  switch (location.buffer) {
    case Buffer::input:
      // no step writes through this pointer: plan.cpp checks that the input is only read
      return const_cast<std::byte*>(in_) + location.offset;
    case Buffer::output:
      return out_ + location.offset;
    case Buffer::scratch:
      return scratch_ + location.offset;
  }
  return nullptr;
}

void Executor::bind(Plan& plan, const void* in, void* out, DType dtype, ReduceOp op, const net::Tag& tag) {
  in_ = static_cast<const std::byte*>(in);
  out_ = static_cast<std::byte*>(out);
  if (plan.memory) {
    auto start = reinterpret_cast<uintptr_t>(plan.memory.get());
    scratch_ = plan.memory.get() + (64 - start % 64) % 64;
    if (plan.stash) {
      std::memcpy(scratch_ + plan.scratch_bytes, in_, plan.input_bytes);
      in_ = scratch_ + plan.scratch_bytes;
    }
  }
  dtype_ = dtype;
  op_ = op;
  for (uint32_t i = 0; i < plan.steps.size(); ++i) {
    const PlanStep& step = plan.steps[i];
    plan.waiting[i] = step.num_before;
    if (!is_message(step.type)) continue;
    Transfer& transfer = plan.transfers[i];
    transfer = Transfer{};
    transfer.peer = plan.lanes[static_cast<size_t>(step.lane)].peer;
    transfer.data = address(step.location);
    transfer.bytes = step.bytes;
    transfer.tag = tag;
    transfer.tag.step = step.message;
    if (step.type == ActionType::receive_reduce) {
      plan.contexts[i] = {dtype, op, step.from_operand ? address(plan.sources[step.first_source]) - transfer.data : 0};
      transfer.apply = apply_reduce;
      transfer.context = &plan.contexts[i];
    }
  }
  std::fill(plan.posted.begin(), plan.posted.end(), 0);
  std::fill(plan.finished.begin(), plan.finished.end(), 0);
  plan.ready.clear();
  remaining_ = static_cast<uint32_t>(plan.steps.size());
  mismatched_ = nullptr;
  missing_peer_ = -1;
  idle_ = false;
}

Executor::RunStatus Executor::run(Plan& plan, const void* in, void* out, DType dtype, ReduceOp op, const net::Tag& tag,
                                  Deadline deadline) {
  bind(plan, in, out, dtype, op, tag);
  if (transport_.ordered()) return run_ordered(plan, deadline);
  for (uint32_t lane = 0; lane < plan.lanes.size(); ++lane) issue_ready(plan, lane);
  for (uint32_t i = 0; i < plan.steps.size(); ++i)
    if (plan.steps[i].num_before == 0 && !is_message(plan.steps[i].type)) {
      run_local(plan, plan.steps[i]);
      finish(plan, i);
    }
  while (remaining_ > 0) {
    bool moved = transport_.poll();
    bool advanced = collect(plan);
    if (mismatched_) return mismatched(*mismatched_);
    if (moved || advanced) {
      idle_ = false;
      continue;
    }
    wait_idle(deadline);
    if (deadline.passed() && !transport_.poll()) {
      collect(plan);
      if (remaining_ > 0) return expire_plan(plan);
    }
  }
  return RunStatus::done;
}

// Posts the next messages of a lane, in order, as long as their memory is ready.
void Executor::issue_ready(Plan& plan, uint32_t lane_index) {
  const MessageLane& lane = plan.lanes[lane_index];
  uint32_t& posted = plan.posted[lane_index];
  while (posted < lane.count) {
    uint32_t step = plan.lane_steps[lane.first + posted];
    if (plan.waiting[step] != 0) return;
    posted++;
    Transfer& transfer = plan.transfers[step];
    lane.sends ? transport_.send(transfer) : transport_.receive(transfer);
  }
}

// Polls the oldest unfinished message of every lane; returns true if any completed.
bool Executor::collect(Plan& plan) {
  bool advanced = false;
  for (uint32_t i = 0; i < plan.lanes.size(); ++i) {
    const MessageLane& lane = plan.lanes[i];
    while (plan.finished[i] < plan.posted[i]) {
      uint32_t step = plan.lane_steps[lane.first + plan.finished[i]];
      const Transfer& transfer = plan.transfers[step];
      if (transfer.state == Transfer::State::mismatched) {
        mismatched_ = &transfer;
        return true;
      }
      if (transfer.state != Transfer::State::done) break;
      plan.finished[i]++;
      finish(plan, step);
      advanced = true;
    }
  }
  return advanced;
}

// Marks a step done and starts the steps that depended on it. Uses a loop instead of recursion, because chains of local
// steps may be long.
void Executor::finish(Plan& plan, uint32_t done) {
  size_t bottom = plan.ready.size();
  for (;;) {
    remaining_--;
    const PlanStep& step = plan.steps[done];
    for (uint32_t i = 0; i < step.num_after; ++i) {
      uint32_t later = plan.after[step.first_after + i];
      if (--plan.waiting[later] != 0) continue;
      if (plan.steps[later].lane >= 0)
        issue_ready(plan, static_cast<uint32_t>(plan.steps[later].lane));
      else
        plan.ready.push_back(later);
    }
    if (plan.ready.size() == bottom) return;
    done = plan.ready.back();
    plan.ready.pop_back();
    run_local(plan, plan.steps[done]);
  }
}

void Executor::run_local(Plan& plan, const PlanStep& step) {
  std::byte* dst = address(step.location);
  if (step.type == ActionType::copy) {
    const std::byte* src = address(plan.sources[step.first_source]);
    if (src != dst) std::memmove(dst, src, step.bytes);
    return;
  }
  for (uint32_t i = 0; i < step.num_sources; ++i) plan.operands[i] = address(plan.sources[step.first_source + i]);
  kernel::reduce_ordered(dst, plan.operands.data(), static_cast<int>(step.num_sources), step.bytes / size_of(dtype_),
                         dtype_, op_);
}

Executor::RunStatus Executor::run_ordered(Plan& plan, Deadline deadline) {
  int64_t call_end = clock_ps_;
  for (uint32_t i = 0; i < plan.steps.size(); ++i) {
    int64_t ready_ps = clock_ps_;
    for (uint32_t b = plan.first_before[i]; b < plan.first_before[i + 1]; ++b) {
      uint32_t earlier = plan.before[b];
      if (RunStatus outcome = wait_for(plan, earlier, deadline); outcome != RunStatus::done) return outcome;
      ready_ps = std::max(ready_ps, plan.end_ps[earlier]);
    }
    const PlanStep& step = plan.steps[i];
    if (!is_message(step.type)) {
      run_local(plan, step);
      plan.end_ps[i] = ready_ps;
      continue;
    }
    plan.transfers[i].ready_ps = ready_ps;
    step.type == ActionType::send ? transport_.send(plan.transfers[i]) : transport_.receive(plan.transfers[i]);
  }
  for (uint32_t i = 0; i < plan.steps.size(); ++i) {
    if (RunStatus outcome = wait_for(plan, i, deadline); outcome != RunStatus::done) return outcome;
    call_end = std::max(call_end, plan.end_ps[i]);
  }
  clock_ps_ = call_end;
  return RunStatus::done;
}

Executor::RunStatus Executor::wait_for(Plan& plan, uint32_t step, Deadline deadline) {
  if (!is_message(plan.steps[step].type)) return RunStatus::done;
  Transfer& transfer = plan.transfers[step];
  while (transfer.state == Transfer::State::posted) {
    if (transport_.poll()) {
      idle_ = false;
      continue;
    }
    wait_idle(deadline);
    if (deadline.passed() && !transport_.poll() && transfer.state == Transfer::State::posted) {
      missing_peer_ = transfer.peer;
      return RunStatus::expired;
    }
  }
  if (transfer.state == Transfer::State::mismatched) return mismatched(transfer);
  plan.end_ps[step] = transfer.end_ps;
  return RunStatus::done;
}

Executor::RunStatus Executor::exchange(std::span<PeerMessage> messages, Deadline deadline) {
  missing_peer_ = -1;
  idle_ = false;
  for (PeerMessage& message : messages) {
    message.transfer.ready_ps = clock_ps_;
    message.sends ? transport_.send(message.transfer) : transport_.receive(message.transfer);
  }
  size_t next = 0;
  int64_t end_ps = clock_ps_;
  while (next < messages.size()) {
    const Transfer& transfer = messages[next].transfer;
    if (transfer.state == Transfer::State::mismatched) return mismatched(transfer);
    if (transfer.state == Transfer::State::done) {
      end_ps = std::max(end_ps, transfer.end_ps);
      next++;
      continue;
    }
    if (transport_.poll()) {
      idle_ = false;
      continue;
    }
    // Reports a mismatch of any message at once, even if an earlier message of the list has not arrived.
    for (const PeerMessage& message : messages.subspan(next))
      if (message.transfer.state == Transfer::State::mismatched) return mismatched(message.transfer);
    wait_idle(deadline);
    if (deadline.passed() && !transport_.poll() && transfer.state == Transfer::State::posted) {
      missing_peer_ = transfer.peer;
      return RunStatus::expired;
    }
  }
  clock_ps_ = end_ps;
  return RunStatus::done;
}

// Sleeps in the transport until there is progress. If the wait takes long, checks the peers.
void Executor::wait_idle(Deadline deadline) {
  if (!idle_) {
    idle_ = true;
    idle_interval_ = kFirstIdleInterval;
    next_check_ = Clock::now() + idle_interval_;
  }
  transport_.sleep(Deadline::at(std::min(deadline.when(), next_check_)));
  if (Clock::now() < next_check_) return;
  check_peers_();
  idle_interval_ *= 2;
  next_check_ = Clock::now() + idle_interval_;
}

Executor::RunStatus Executor::expire_plan(const Plan& plan) {
  for (size_t i = 0; i < plan.lanes.size(); ++i)
    if (!plan.lanes[i].sends && plan.finished[i] < plan.posted[i]) missing_peer_ = plan.lanes[i].peer;
  for (size_t i = 0; i < plan.lanes.size() && missing_peer_ < 0; ++i)
    if (plan.finished[i] < plan.posted[i]) missing_peer_ = plan.lanes[i].peer;
  return RunStatus::expired;
}

Executor::RunStatus Executor::mismatched(const Transfer& transfer) {
  mismatch_ = {transfer.peer, transfer.tag, transfer.got, transfer.bytes, transfer.got_bytes};
  return RunStatus::mismatched;
}

}  // namespace esp::comm
