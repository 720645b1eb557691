#include "esp/sync/gossip/move_log.h"

#include "esp/kernel/elementwise.h"
#include "esp/kernel/weighted_sum.h"

namespace esp::sync {

using device::MemoryCategory;
using tensor::Tensor;

void MoveLog::begin(const std::vector<Tensor>& x) {
  units_.clear();
  int64_t first = 0;
  for (const Tensor& of : x) {
    Unit unit;
    unit.encoder = compression_.one_directional({first, first + of.count(), units_.size(), of.dtype()}, context_);
    unit.estimate_sum = tensor::copy_of(context_, of, MemoryCategory::buffer);
    unit.code = tensor::empty(context_, {static_cast<int64_t>(unit.encoder->encoded_bytes())}, DType::u8,
                              MemoryCategory::buffer);
    kernel::cast(unit.encoder->memory().data(), of.dtype(), of.data(), of.dtype(), of.count(), context_.stream);
    first += of.count();
    units_.push_back(std::move(unit));
  }
}

void MoveLog::mix(const MixingMatrix& mixing, size_t index, const Tensor& x, int64_t event) {
  Unit& unit = units_[index];
  const int here = replicas_.rank();
  const auto when = static_cast<uint64_t>(event);
  unit.encoder->encode(unit.code.as<std::byte>(), x.data(), static_cast<uint32_t>(here), when);

  const size_t bytes = unit.encoder->encoded_bytes();
  std::vector<comm::Call> calls;
  comm::Call call;
  call.count = bytes;
  call.dtype = DType::u8;
  for (const int to : out_neighbours(mixing, here)) {
    call.op = comm::Op::send;
    call.in = unit.code.data();
    call.out = nullptr;
    call.root = to;
    calls.push_back(call);
  }
  const auto& row = mixing[static_cast<size_t>(here)];
  std::vector<Tensor> received;
  for (const NeighbourWeight& one : row) {
    if (one.from == here || one.weight == 0) {
      received.push_back(unit.code);
      continue;
    }
    received.push_back(tensor::empty(context_, unit.code.shape(), DType::u8, MemoryCategory::buffer));
    call.op = comm::Op::recv;
    call.in = nullptr;
    call.out = received.back().data();
    call.root = one.from;
    calls.push_back(call);
  }
  if (!calls.empty()) replicas_.wait(replicas_.start_group(calls), "neighbours");

  const Tensor move = tensor::empty(context_, x.shape(), x.dtype(), MemoryCategory::buffer);
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i].weight == 0) continue;
    unit.encoder->decode_code(move.data(), {received[i].as<std::byte>(), bytes}, static_cast<uint32_t>(row[i].from),
                              when);
    const kernel::WeightedTerm terms[] = {{unit.estimate_sum.data(), 1}, {move.data(), row[i].weight}};
    kernel::weighted_sum(unit.estimate_sum.data(), terms, x.count(), x.dtype(), context_.stream);
  }
  const kernel::WeightedTerm nearer[] = {
      {x.data(), 1}, {unit.estimate_sum.data(), step_}, {unit.encoder->memory().data(), -step_}};
  kernel::weighted_sum(x.data(), nearer, x.count(), x.dtype(), context_.stream);
}

std::vector<ExtraState> MoveLog::state() {
  std::vector<ExtraState> all;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    std::vector<ExtraState> of = units_[unit].encoder->state();
    // The names "told" (encoder state) and "heard" (sum of the estimates) are part of the checkpoint format.
    of.push_back({"heard", units_[unit].estimate_sum});
    add_numbered(all, "told", unit, std::move(of));
  }
  return all;
}

}  // namespace esp::sync
