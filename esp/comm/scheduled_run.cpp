// Execution of each kind of call. For the threads involved, see scheduled_communicator.h.
#include <algorithm>
#include <cstring>
#include <iterator>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/comm/algo/table.h"
#include "esp/comm/arguments.h"
#include "esp/comm/diagnosis.h"
#include "esp/comm/scheduled_communicator.h"

namespace esp::comm {
namespace {

bool reduces(Op op) {
  return op == Op::all_reduce || op == Op::reduce || op == Op::reduce_scatter;
}
bool rooted(Op op) {
  return op == Op::broadcast || op == Op::reduce || op == Op::gather || op == Op::scatter;
}
// Indexed by Op.
constexpr obs::FlightText kFlightNames[] = {
    "broadcast", "reduce",  "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "all_to_all_v",
    "gather",    "scatter", "send",       "recv",           "barrier",    "signal",     "wait"};
static_assert(std::size(kFlightNames) == kNumOps);

bool point_to_point(Op op) {
  return op == Op::send || op == Op::recv;
}

// A copy of the call with only those fields set that must be equal on all ranks and that this op uses.
Call compared_fields(const Call& call) {
  Call compared;
  compared.op = call.op;
  if (call.op == Op::barrier) return compared;
  compared.count = call.op == Op::all_to_all_v ? 0 : call.count;
  compared.dtype = call.dtype;
  if (reduces(call.op)) compared.reduce = call.reduce;
  if (rooted(call.op)) compared.root = call.root;
  return compared;
}

}  // namespace

void ScheduledCommunicator::begin_collective(const Call& call, int algorithm) {
  ++sequence_;
  update_tag(call, algorithm);
}

void ScheduledCommunicator::update_tag(const Call& call, int algorithm) {
  tag_ = tag_of(compared_fields(call), sequence_, std::min(algorithm, kFileAlgorithm));
  if (algorithm >= kFileAlgorithm) tag_.schedule = schedule_ids_[static_cast<size_t>(algorithm - kFileAlgorithm)];
  net::Tag position = tag_;
  if (call.op == Op::all_to_all_v) position.count = receivers_of(call.send_counts);
  positions_.mine().enter(position);
  record_begin(call, sequence_, algorithm);
}

void ScheduledCommunicator::publish_position(const Call& call, uint64_t number) {
  positions_.mine().enter(tag_of(call, sequence_, kAutoAlgorithm));
  record_begin(call, number, kAutoAlgorithm);
}

void ScheduledCommunicator::record_begin(const Call& call, uint64_t number, int algorithm) {
  event_.kind = call.op == Op::send   ? obs::FlightKind::send
                : call.op == Op::recv ? obs::FlightKind::recv
                                      : obs::FlightKind::collective;
  event_.state = obs::FlightState::begun;
  event_.text = kFlightNames[static_cast<size_t>(call.op)];
  event_.group = group_.id;
  event_.sequence = number;
  event_.bytes = call.count * size_of(call.dtype);
  event_.peer = point_to_point(call.op) || rooted(call.op) ? call.root : -1;
  event_.detail = static_cast<uint16_t>(algorithm);
  flight_->record(event_);
}

ScheduledCommunicator::CallCounter& ScheduledCommunicator::counter(Op op, int algorithm) {
  for (CallCounter& c : counters_)
    if (c.op == op && c.algorithm == algorithm) return c;
  return counters_.emplace_back(CallCounter{op, algorithm});
}

void ScheduledCommunicator::count_traffic(CallCounter& c, const net::Traffic& before) const {
  net::Traffic after = transport_->total();
  c.calls++;
  c.bytes_sent += after.bytes_sent - before.bytes_sent;
  c.bytes_received += after.bytes_received - before.bytes_received;
  c.messages += after.messages_sent - before.messages_sent;
}

void ScheduledCommunicator::check_new_shape(const Call& call) {
  cached_call_.repeatable = false;
  check_call(call);
  cached_call_.call = call;
  cached_call_.algorithm = algorithm_for(call);
  bool collective = !point_to_point(call.op) && call.op != Op::signal && call.op != Op::wait;
  cached_call_.fused = size() > 1 && collective && uses_fused(call, cached_call_.algorithm);
  if (cached_call_.fused) cached_call_.tag = tag_of(compared_fields(call), 0, kFusedAlgorithm);
  // Not repeatable: a call that names an algorithm (the name is borrowed memory that the caller may overwrite), and
  // all_to_all_v (its per-peer counts are not compared).
  cached_call_.repeatable = call.algorithm == "auto" && call.op != Op::all_to_all_v;
}

void ScheduledCommunicator::execute(const Call& call) {
  if (dead_) throw *dead_;
  if (!cached_call_.matches(call)) check_new_shape(call);
  run_guarded(call, [&] {
    if (cached_call_.fused) return run_fused(call);
    if (size() == 1 && call.op != Op::signal && call.op != Op::wait) return run_single_rank(call);
    switch (call.op) {
      case Op::send:
      case Op::recv:
        return run_point_to_point({&call, 1});
      case Op::signal:
        return run_signal(call);
      case Op::wait:
        return run_wait(call);
      case Op::all_to_all_v:
        return run_all_to_all_v(call);
      default:
        return run_plan(call, cached_call_.algorithm);
    }
  });
}

// Runs the signals first, then all sends and receives together, then the collectives in list order, then the waits. The
// order is the same on every rank, so a group cannot deadlock, even if the ranks list its calls in different orders.
void ScheduledCommunicator::execute_group(std::span<const Call> calls) {
  std::vector<Call> points;
  for (const Call& call : calls) {
    if (point_to_point(call.op)) points.push_back(call);
    if (call.op == Op::signal) execute(call);
  }
  if (!points.empty()) {
    run_guarded(points.front(), [&] { run_point_to_point(points); });
  }
  for (const Call& call : calls)
    if (!point_to_point(call.op) && call.op != Op::signal && call.op != Op::wait) execute(call);
  for (const Call& call : calls)
    if (call.op == Op::wait) execute(call);
}

void ScheduledCommunicator::run_single_rank(const Call& call) {
  size_t unit = size_of(call.dtype);
  const auto* in = static_cast<const std::byte*>(call.in);
  auto* out = static_cast<std::byte*>(call.out);
  size_t bytes = call.count * unit;
  if (call.op == Op::all_to_all_v) {
    bytes = call.send_counts[0] * unit;
    in += call.send_offsets[0] * unit;
    out += call.recv_offsets[0] * unit;
  }
  begin_collective(call, kAutoAlgorithm);
  if (bytes > 0 && in != out) std::memcpy(out, in, bytes);
  counter(call.op, kAutoAlgorithm).calls++;
}

void ScheduledCommunicator::run_fused(const Call& call) {
  tag_ = cached_call_.tag;
  tag_.sequence = ++sequence_;
  positions_.mine().enter(tag_);
  record_begin(call, sequence_, kFusedAlgorithm);
  try {
    fused_->run(call, tag_, *deadline_);
  } catch (const CommError& error) {
    // The fused path reports only that the call timed out; throw_timeout finds the cause.
    if (error.kind() == CommError::Kind::timeout) throw_timeout(call, -1);
    throw;
  }
  int& index = fused_counter_[static_cast<size_t>(call.op)];
  if (index < 0) index = static_cast<int>(&counter(call.op, kFusedAlgorithm) - counters_.data());
  CallCounter& c = counters_[static_cast<size_t>(index)];
  c.calls++;
  const PeerTraffic crossing = peer_traffic_of(call, rank(), size());
  c.bytes_sent += crossing.sent;
  c.bytes_received += crossing.received;
  c.ns += ns_since_begin();
}

PlanEntry& ScheduledCommunicator::entry_for(const Call& call, int algorithm) {
  BufferCounts extents = buffer_counts_of(call, rank(), size());
  size_t unit = size_of(call.dtype);
  PlanKey key{call.op, algorithm, call.root, static_cast<uint32_t>(unit), call.count, 0, false};
  if (extents.in > 0 && extents.out > 0) {
    auto in = reinterpret_cast<uintptr_t>(call.in), out = reinterpret_cast<uintptr_t>(call.out);
    key.aliased = in < out + extents.out * unit && out < in + extents.in * unit;
    if (key.aliased) key.alias = static_cast<ptrdiff_t>(in - out) / static_cast<ptrdiff_t>(unit);
  }
  if (PlanEntry* found = plans_.find(key)) {
    begin_collective(call, found->algorithm);
    return *found;
  }
  check_applies(call);
  CollectiveSpec spec = spec_of(call);
  int chosen = algorithm;
  bool first = false;
  if (algorithm == kAutoAlgorithm) {
    // The links are measured before the algorithm is chosen, so the measurement uses the tag of the call without an
    // algorithm.
    if ((first = !tiers_.measured && algorithms_for(call.op).size() > 1)) {
      begin_collective(call, kAutoAlgorithm);
      measure_link_tiers(call);
    }
    chosen = algorithm_id(choose(spec, unit, group_links(world_, group_, tiers_)));
  }
  first ? update_tag(call, chosen) : begin_collective(call, chosen);
  Schedule schedule = schedule_for(chosen, spec);
  if (options_.slice_bytes > 0) schedule = slice(schedule, std::max<size_t>(options_.slice_bytes / unit, 1));
  std::optional<ptrdiff_t> alias;
  if (key.aliased) alias = key.alias;
  return plans_.insert(key, chosen, make_plan(schedule, unit, alias, extents.in));
}

void ScheduledCommunicator::measure_link_tiers(const Call& call) {
  check_run_status(measure_tiers(world_, group_, *executor_, *transport_, tag_, *deadline_, tiers_), call);
}

void ScheduledCommunicator::run_plan(const Call& call, int algorithm) {
  PlanEntry& entry = entry_for(call, algorithm);
  net::Traffic before = transport_->total();
  check_run_status(executor_->run(*entry.plan, call.in, call.out, call.dtype, call.reduce, tag_, *deadline_), call);
  if (call.reduce == ReduceOp::avg && reduces(call.op)) {
    size_t count = buffer_counts_of(call, rank(), size()).out;
    if (count > 0) kernel::divide(call.out, count, call.dtype, size());
  }
  CallCounter& c = counter(call.op, entry.algorithm);
  count_traffic(c, before);
  c.rounds += static_cast<uint64_t>(entry.plan->num_rounds);
  c.ns += ns_since_begin();
}

// Pairwise exchange with a count per peer: round k sends to r + k and receives from r - k. Empty messages are not sent.
void ScheduledCommunicator::run_all_to_all_v(const Call& call) {
  const int algorithm = algorithm_id_of(Op::all_to_all_v, "pairwise");
  begin_collective(call, algorithm);
  size_t unit = size_of(call.dtype);
  const auto* in = static_cast<const std::byte*>(call.in);
  auto* out = static_cast<std::byte*>(call.out);
  messages_.clear();
  auto add = [&](int peer, bool sends, const std::byte* data, size_t count) {
    if (count == 0) return;
    Executor::PeerMessage& message = messages_.emplace_back();
    message.sends = sends;
    message.transfer.peer = peer;
    message.transfer.data = const_cast<std::byte*>(data);  // the cast is safe, because a send only reads the data
    message.transfer.bytes = count * unit;
    message.transfer.tag = tag_;
  };
  for (int k = 1; k < size(); ++k) {
    auto to = static_cast<size_t>((rank() + k) % size()), from = static_cast<size_t>((rank() - k + size()) % size());
    add(static_cast<int>(to), true, in + call.send_offsets[to] * unit, call.send_counts[to]);
    add(static_cast<int>(from), false, out + call.recv_offsets[from] * unit, call.recv_counts[from]);
  }
  auto me = static_cast<size_t>(rank());
  if (call.send_counts[me] > 0)
    std::memcpy(out + call.recv_offsets[me] * unit, in + call.send_offsets[me] * unit, call.send_counts[me] * unit);
  net::Traffic before = transport_->total();
  check_run_status(executor_->exchange(messages_, *deadline_), call);
  CallCounter& c = counter(call.op, algorithm);
  count_traffic(c, before);
  c.rounds += static_cast<uint64_t>(size() - 1);
  c.ns += ns_since_begin();
}

}  // namespace esp::comm
