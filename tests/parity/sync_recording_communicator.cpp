#include "tests/parity/sync_recording_communicator.h"

#include <algorithm>

#include "esp/base/clock.h"

namespace esp::parity {

using comm::Call;
using comm::Op;

namespace {

bool moves_data(Op op) {
  return op == Op::all_reduce || op == Op::reduce_scatter || op == Op::all_gather;
}

// Returns a fixed algorithm that is not a ring. Without it, the choice would depend on measured link speeds.
std::string_view scalar_algorithm(Op op) {
  return op == Op::all_gather ? "bruck" : "direct";
}

}  // namespace

uint64_t Traffic::bytes(Op op, const std::string& group) const {
  uint64_t sum = 0;
  for (const TrafficRow& one : all_)
    if (one.op == op && !one.scalar && (group.empty() || group == one.group)) sum += one.bytes;
  return sum;
}

uint64_t Traffic::calls(Op op, const std::string& group) const {
  uint64_t sum = 0;
  for (const TrafficRow& one : all_)
    if (one.op == op && !one.scalar && (group.empty() || group == one.group)) sum += one.calls;
  return sum;
}

uint64_t Traffic::data_bytes() const {
  uint64_t sum = 0;
  for (const TrafficRow& one : all_) sum += one.scalar ? 0 : one.bytes;
  return sum;
}

uint64_t Traffic::scalar_bytes() const {
  uint64_t sum = 0;
  for (const TrafficRow& one : all_) sum += one.scalar ? one.bytes : 0;
  return sum;
}

Traffic Traffic::since(const Traffic& before) const {
  Traffic rest;
  for (TrafficRow one : all_) {
    for (const TrafficRow& old : before.all_)
      if (old.group == one.group && old.op == one.op && old.scalar == one.scalar) {
        one.calls -= old.calls;
        one.bytes -= old.bytes;
      }
    rest.add(one);
  }
  return rest;
}

RecordingCommunicator::RecordingCommunicator(std::unique_ptr<comm::Communicator> inner, std::string name, CallLog& log,
                                             const RecordingOptions& options)
    : inner_(std::move(inner)), name_(std::move(name)), log_(log), options_(options) {}

RecordingCommunicator::~RecordingCommunicator() {
  if (parent_) std::erase(parent_->children_, this);
}

Call RecordingCommunicator::record_call(const Call& call) {
  const CallRecord record{name_, call.op, call.count, call.dtype, now_ns()};
  if (log_.on_start && moves_data(call.op)) log_.on_start(record, log_.works);
  log_.records.push_back(record);
  Call passed = call;
  if (options_.separate_scalars && moves_data(call.op))
    passed.algorithm = call.count > kScalars ? "ring" : scalar_algorithm(call.op);
  return passed;
}

void RecordingCommunicator::run(const Call& call) {
  inner_->run(record_call(call));
}

Work RecordingCommunicator::start(const Call& call) {
  Work work = inner_->start(record_call(call));
  if (log_.on_start) log_.works.push_back(work);
  return work;
}

std::unique_ptr<comm::Communicator> RecordingCommunicator::split(int colour, int key) {
  auto child = inner_->split(colour, key);
  const std::string name = name_ + "/" + std::to_string(num_splits_++);
  if (!child) return nullptr;
  auto child_recorder = std::make_unique<RecordingCommunicator>(std::move(child), name, log_, options_);
  child_recorder->parent_ = this;
  children_.push_back(child_recorder.get());
  return child_recorder;
}

Traffic RecordingCommunicator::traffic() const {
  Traffic all;
  std::vector<const RecordingCommunicator*> todo = {this};
  while (!todo.empty()) {
    const RecordingCommunicator* one = todo.back();
    todo.pop_back();
    todo.insert(todo.end(), one->children_.begin(), one->children_.end());
    Traffic mine;
    for (const comm::CallStats& stats : one->inner_->stats())
      all.add({one->name_, stats.op, moves_data(stats.op) && stats.algorithm != "ring", stats.calls, stats.bytes_sent});
  }
  return all;
}

}  // namespace esp::parity
