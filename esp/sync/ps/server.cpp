#include "esp/sync/ps/server.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/kernel/elementwise.h"

namespace esp::sync {
namespace {

using device::MemoryCategory;
using tensor::Tensor;

constexpr int kUrgent = -1;  // urgency of control messages, which are sent before payloads

[[noreturn]] void refuse(int worker, const std::string& what) {
  throw CommError(CommError::Kind::corrupt, worker, fmt::format("parameter server: worker {} {}", worker, what));
}

}  // namespace

ShardServer::ShardServer(const ServerLayout& layout, int index, const tensor::Context& context, const Options& options,
                         Send send)
    : layout_(layout),
      index_(index),
      context_(context),
      options_(options),
      aggregate_(parse_aggregate(options.ps.aggregate)),
      send_(std::move(send)),
      partitions_(layout.partitions_of(index)),
      first_(static_cast<int64_t>(layout.shard(index).offset)),
      num_pushes_(partitions_.size()) {
  const auto count = static_cast<int64_t>(layout.shard(index).count);
  const bool steps = options.ps.update == "server";
  if (steps) {
    values_ = tensor::zeros(context, {count}, options.storage, MemoryCategory::parameter);
    grads_ = tensor::zeros(context, {count}, options.storage, MemoryCategory::gradient);
  }
  if (!steps || options.wire != options.storage)
    sums_ = tensor::zeros(context, {count}, options.wire, MemoryCategory::buffer);
  const DType widest = size_of(options.wire) > size_of(options.storage) ? options.wire : options.storage;
  for (int w = 0; w < layout.num_workers; ++w) {
    WorkerState& worker = workers_.emplace_back();
    worker.range = tensor::zeros(context, {count}, widest, MemoryCategory::buffer);
    worker.pushed.resize(partitions_.size());
    worker.send_buffer = worker.range;
  }
  if (options.compression) {
    size_t bytes = 0;
    for (const int partition : partitions_) {
      code_at_.push_back(bytes);
      bytes += options.compression->push_bytes(partition);
    }
    for (WorkerState& worker : workers_) {
      worker.encoded_pushes = tensor::empty(context, {static_cast<int64_t>(bytes)}, DType::u8, MemoryCategory::buffer);
      if (asynchronous()) worker.send_buffer = tensor::zeros(context, {count}, options.storage, MemoryCategory::buffer);
    }
  }
  if (!options.ps.replay.empty()) replay_ = load_order(options.ps.replay, index);
}

void ShardServer::begin_at(int64_t step) {
  step_ = step;
  for (WorkerState& worker : workers_) worker.clock = worker.granted = step;
}

int64_t ShardServer::slowest() const {
  int64_t least = workers_.front().clock;
  for (const WorkerState& worker : workers_) least = std::min(least, worker.clock);
  return least;
}

size_t ShardServer::place_of(const Message& message) const {
  const auto found = std::lower_bound(partitions_.begin(), partitions_.end(), static_cast<int>(message.partition));
  if (found == partitions_.end() || *found != static_cast<int>(message.partition)) return partitions_.size();
  return static_cast<size_t>(found - partitions_.begin());
}

std::byte* ShardServer::at(const Tensor& range, size_t place, DType type) const {
  const Partition& partition = layout_.partitions[static_cast<size_t>(partitions_[place])];
  return range.as<std::byte>() + static_cast<size_t>(partition.begin - first_) * size_of(type);
}

std::byte* ShardServer::receive_buffer(int worker, const Message& message) {
  const size_t place = place_of(message);
  if (place == partitions_.size())
    refuse(worker, fmt::format("pushed partition {}, which does not belong to this server", message.partition));
  const Partition& partition = layout_.partitions[message.partition];
  const uint64_t due_bytes = options_.compression
                                 ? options_.compression->push_bytes(static_cast<int>(message.partition))
                                 : static_cast<uint64_t>(partition.count()) * size_of(options_.wire);
  if (message.bytes != due_bytes)
    refuse(worker,
           fmt::format("pushed {} bytes for partition {}; expected {}", message.bytes, message.partition, due_bytes));
  WorkerState& state = workers_[static_cast<size_t>(worker)];
  const int64_t due = asynchronous() ? state.clock : step_;
  if (message.step != due || state.pushed[place])
    refuse(worker, fmt::format("pushed partition {} of step {}; expected it once, for step {}", message.partition,
                               message.step, due));
  return options_.compression ? code_at(state, place) : at(state.range, place, options_.wire);
}

void ShardServer::arrived(int worker, const Message& message) {
  WorkerState& state = workers_[static_cast<size_t>(worker)];
  if (message.stop > 0) stop_ = message.stop;
  switch (message.kind) {
    case MessageKind::push: {
      const size_t place = place_of(message);
      if (options_.compression)
        options_.compression->decode_push(at(state.range, place, options_.wire), partitions_[place], worker,
                                          code_at(state, place), message.step);
      state.pushed[place] = true;
      ++state.num_pushed;
      Message reply{MessageKind::pushed};
      reply.partition = message.partition;
      reply.step = message.step;
      send_(worker, reply, nullptr, kUrgent);
      if (!asynchronous() && ++num_pushes_[place] == layout_.num_workers) combine_partition(place);
      break;
    }
    case MessageKind::apply:
      if (state.apply || message.step != state.clock || !asynchronous())
        refuse(worker, fmt::format("ended step {}; expected step {}, once, in an asynchronous mode", message.step,
                                   state.clock));
      state.apply = message;
      break;
    case MessageKind::pull:
      if (state.pull || !asynchronous())
        refuse(worker,
               "sent a pull; expected none in synchronous mode, and none before the previous pull was answered");
      state.pull = message;
      break;
    default:
      refuse(worker, "sent a message that only servers may send");
  }
  if (asynchronous()) settle();
}

void ShardServer::combine_partition(size_t place) {
  const Partition& partition = layout_.partitions[static_cast<size_t>(partitions_[place])];
  sources_.clear();
  for (const WorkerState& worker : workers_) sources_.push_back(at(worker.range, place, options_.wire));
  std::byte* out = at(sums_.defined() ? sums_ : grads_, place, options_.wire);
  combine(out, sources_, partition.count(), options_.wire, aggregate_, static_cast<int>(options_.ps.trim));
  num_pushes_[place] = 0;
  for (WorkerState& worker : workers_) worker.pushed[place] = false;
  ++num_combined_;
  if (options_.ps.update == "worker") {
    Message reply{MessageKind::values};
    reply.partition = static_cast<uint32_t>(partitions_[place]);
    reply.step = step_ + 1;
    reply.bytes = static_cast<uint64_t>(partition.count()) * size_of(options_.wire);
    const std::byte* send_buffer = out;
    if (options_.compression && options_.compression->compresses_sums()) {
      reply.bytes = options_.compression->sum_bytes(partitions_[place]);
      send_buffer = options_.compression->encode_sum(partitions_[place], out, step_);
    }
    for (int w = 0; w < layout_.num_workers; ++w) send_(w, reply, send_buffer, partition.unit);
    if (aggregated()) {
      num_combined_ = 0;
      ++step_;
    }
  } else if (sums_.defined()) {
    kernel::cast(at(grads_, place, options_.storage), options_.storage, out, options_.wire, partition.count(),
                 context_.stream);
  }
}

void ShardServer::pause(bool paused) {
  paused_ = paused;
  if (asynchronous()) settle();
}

void ShardServer::publish() {
  ESP_CHECK(aggregated(), "publish: got {} combined partitions; expected all {}", num_combined_, partitions_.size());
  num_combined_ = 0;
  ++step_;
  for (int w = 0; w < layout_.num_workers; ++w) send_values(w, values_.data(), options_.storage, step_);
}

void ShardServer::send_values(int worker, const void* from, DType type, int64_t version) {
  for (size_t place = 0; place < partitions_.size(); ++place) {
    const Partition& partition = layout_.partitions[static_cast<size_t>(partitions_[place])];
    Message reply{MessageKind::values};
    reply.partition = static_cast<uint32_t>(partitions_[place]);
    reply.step = version;
    reply.stop = stop_;
    reply.bytes = static_cast<uint64_t>(partition.count()) * size_of(type);
    const auto skip = static_cast<size_t>(partition.begin - first_) * size_of(type);
    send_(worker, reply, static_cast<const std::byte*>(from) + skip, partition.unit);
  }
}

bool ShardServer::can_answer(int worker) const {
  const WorkerState& state = workers_[static_cast<size_t>(worker)];
  // The pull waits until the server has applied this worker's own push.
  if (!state.pull || state.apply || state.clock < state.pull->step) return false;
  if (options_.ps.mode != "ssp" || (state.pull->flags & Message::kNow)) return true;
  return state.pull->step - slowest() <= options_.ps.staleness;
}

// Applies complete pushes and answers pulls until neither is possible.
void ShardServer::settle() {
  const auto complete = [&](int w) {
    const WorkerState& state = workers_[static_cast<size_t>(w)];
    return !paused_ && state.apply && state.num_pushed == static_cast<int>(partitions_.size());
  };
  for (bool again = true; again;) {
    again = false;
    if (replayed_ < replay_.size()) {
      const OrderEvent& next = replay_[replayed_];
      if (next.worker >= layout_.num_workers)
        throw UsageError(fmt::format("sync.replay: event {}: got worker {}; expected 0 to {}, the workers of this run",
                                     replayed_ + 1, next.worker, layout_.num_workers - 1));
      const WorkerState& state = workers_[static_cast<size_t>(next.worker)];
      if (next.kind == OrderEvent::Kind::push && complete(next.worker) && state.clock == next.step) {
        apply_push(next.worker);
        again = true;
      } else if (next.kind == OrderEvent::Kind::pull && state.pull && state.pull->step == next.step) {
        answer_pull(next.worker);
        again = true;
      }
      replayed_ += again;
      continue;
    }
    for (int w = 0; w < layout_.num_workers; ++w) {
      if (complete(w)) {
        apply_push(w);
        again = true;
      }
      if (can_answer(w)) {
        answer_pull(w);
        again = true;
      }
    }
  }
}

void ShardServer::apply_push(int worker) {
  WorkerState& state = workers_[static_cast<size_t>(worker)];
  if (!(state.apply->flags & Message::kSkip)) {
    ESP_CHECK(optimizer_, "parameter server {}: has no optimizer. Call set_optimizer first", index_);
    kernel::cast(grads_.data(), options_.storage, state.range.data(), options_.wire, grads_.count(), context_.stream);
    optimizer_->step(state.apply->lr / layout_.num_workers, state.apply->factor);
    ++staleness_[version_ - state.read_version];
    ++version_;
  }
  order_.push_back({OrderEvent::Kind::push, worker, state.apply->step});
  state.apply.reset();
  ++state.clock;
  state.num_pushed = 0;
  state.pushed.assign(state.pushed.size(), false);
}

void ShardServer::answer_pull(int worker) {
  WorkerState& state = workers_[static_cast<size_t>(worker)];
  const Message pull = *state.pull;
  state.pull.reset();
  // Sets the stop to two steps after the latest step granted to any worker. So even the most advanced worker receives
  // the stop in time, with its next pull.
  state.granted = std::max(state.granted, pull.step);
  if ((pull.flags & Message::kStopRequested) && stop_ == 0 && index_ == 0)
    for (const WorkerState& other : workers_) stop_ = std::max(stop_, other.granted + 2);
  largest_gap_ = std::max(largest_gap_, pull.step - slowest());
  order_.push_back({OrderEvent::Kind::pull, worker, pull.step});
  state.read_version = version_;
  std::memcpy(state.send_buffer.data(), values_.data(), values_.bytes());
  send_values(worker, state.send_buffer.data(), options_.storage, pull.step);
}

}  // namespace esp::sync
