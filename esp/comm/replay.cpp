#include "esp/comm/replay.h"

#include <cstring>
#include <limits>

#include "esp/base/check.h"
#include "esp/comm/schedule_interpreter.h"
#include "esp/comm/validate.h"

namespace esp::comm {
namespace {

class Replay {
 public:
  Replay(std::span<const CollectiveSpec> specs, std::span<const Schedule> schedules, std::span<const Bytes> inputs,
         DType dtype, ReduceOp op)
      : schedules_(schedules), dtype_(dtype), op_(op), unit_(size_of(dtype)), memory_(specs.size()) {
    ESP_CHECK(specs.size() == schedules.size() && specs.size() == inputs.size());
    for (size_t r = 0; r < specs.size(); ++r) {
      BufferSizes sizes = sizes_of(specs[r]);
      ESP_CHECK(inputs[r].size() >= sizes.input * unit_, "input of rank {}: got {} bytes; expected {}", r,
                inputs[r].size(), sizes.input * unit_);
      memory_[r].buffers[0] = inputs[r];
      memory_[r].buffers[1].resize(sizes.output * unit_);
      memory_[r].buffers[2].resize(schedules[r].scratch_count * unit_);
    }
  }

  void run() {
    ScheduleInterpreter<Bytes> order(schedules_);
    order.run(
        std::numeric_limits<int>::max(),
        [&](int rank, size_t i) {
          const BufferRegion& region = action(rank, i).region;
          return Bytes(at(rank, region), at(rank, region) + region.count * unit_);
        },
        [&](int rank, size_t i, Bytes& message) { receive(rank, action(rank, i), message); },
        [&](int rank, size_t i) { local(rank, action(rank, i)); });
    for (int r = 0; r < static_cast<int>(memory_.size()); ++r)
      ESP_CHECK(order.finished(r), "the schedules deadlock: rank {} waits forever at action {}", r, order.next(r));
  }

  Bytes take_output(size_t rank, int divisor) {
    Bytes& output = memory_[rank].buffers[1];
    if (op_ == ReduceOp::avg && divisor > 0) kernel::ref::divide(output.data(), output.size() / unit_, dtype_, divisor);
    return std::move(output);
  }

 private:
  const Action& action(int rank, size_t i) const { return schedules_[static_cast<size_t>(rank)].actions[i]; }
  std::byte* at(int rank, const BufferRegion& region) {
    return memory_[static_cast<size_t>(rank)].buffers[static_cast<size_t>(region.buffer)].data() +
           region.offset * unit_;
  }

  void receive(int rank, const Action& step, const Bytes& message) {
    size_t bytes = step.region.count * unit_;
    ESP_CHECK(message.size() == bytes, "replay: got a message of {} bytes; expected {}", message.size(), bytes);
    if (bytes == 0) return;
    std::byte* into = at(rank, step.region);
    if (step.type == ActionType::receive_reduce)
      kernel::ref::reduce(into, into, message.data(), step.region.count, dtype_, op_);
    else
      std::memcpy(into, message.data(), bytes);
  }

  void local(int rank, const Action& step) {
    std::vector<const void*> sources;
    for (const BufferRegion& source : step.sources) sources.push_back(at(rank, source));
    if (step.type == ActionType::copy)
      std::memmove(at(rank, step.region), sources[0], step.region.count * unit_);
    else
      kernel::ref::reduce_ordered(at(rank, step.region), sources.data(), static_cast<int>(sources.size()),
                                  step.region.count, dtype_, op_);
  }

  struct Memory {
    Bytes buffers[3];
  };
  std::span<const Schedule> schedules_;
  const DType dtype_;
  const ReduceOp op_;
  const size_t unit_;
  std::vector<Memory> memory_;
};

bool reduces(Op op) {
  return op == Op::reduce || op == Op::all_reduce || op == Op::reduce_scatter;
}

}  // namespace

std::vector<Bytes> replay(std::span<const CollectiveSpec> specs, std::span<const Schedule> schedules,
                          std::span<const Bytes> inputs, DType dtype, ReduceOp op) {
  Replay run(specs, schedules, inputs, dtype, op);
  run.run();
  std::vector<Bytes> outputs;
  for (size_t r = 0; r < specs.size(); ++r)
    outputs.push_back(run.take_output(r, reduces(specs[r].op) ? specs[r].size : 0));
  return outputs;
}

}  // namespace esp::comm
