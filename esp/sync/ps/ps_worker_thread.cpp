// The communication thread of PsWorker: executes commands, sends, receives, and runs the server of this rank.
#include <algorithm>
#include <exception>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/sync/ps/ps_worker.h"

namespace esp::sync {
namespace {

// The communication thread notices a command after at most this delay if no message arrives. The short delay applies
// shortly after a command, because commands come in series: the pushes of backward, the end of a step, its pull.
constexpr Duration kShortNap = std::chrono::microseconds(50), kLongNap = std::chrono::microseconds(500);
constexpr Duration kMoreToCome = std::chrono::milliseconds(2);
constexpr Duration kMaxShutdownWait = std::chrono::seconds(30);
constexpr int kUrgent = -1;

}  // namespace

void PsWorker::run() {
  try {
    run_until_shutdown();
    return;
  } catch (const CommError& error) {
    const int server = error.peer() >= 0 ? setup_.layout->server_at(error.peer()) : -1;
    std::lock_guard lock(mutex_);
    failed_ = server < 0 ? std::current_exception()
                         : std::make_exception_ptr(CommError(
                               error.kind(), error.peer(),
                               fmt::format("parameter server {} (rank {}): {}", server, error.peer(), error.what())));
  } catch (...) {
    std::lock_guard lock(mutex_);
    failed_ = std::current_exception();
  }
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void PsWorker::run_until_shutdown() {
  while (true) {
    bool moved = execute();
    push_ready();
    moved = messages_->poll() || moved;
    push_ready();
    notify();
    if (shutdown_requested_ && !shutdown_sent_ && messages_->idle() && queue_.empty()) {
      shutdown_sent_ = true;
      for (int peer = 0; peer < messages_->size(); ++peer)
        if (peer != setup_.rank) messages_->send(peer, {MessageKind::done}, nullptr, kUrgent);
    }
    if (shutdown_requested_ && ((shutdown_sent_ && num_done_ == messages_->size() - 1 && messages_->idle()) ||
                                Clock::now() > shutdown_deadline_))
      return;
    if (moved) continue;
    if (messages_->size() > 1) {
      messages_->sleep(Clock::now() - last_command_ < kMoreToCome ? kShortNap : kLongNap);
    } else {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::milliseconds(100), [&] { return !commands_.empty(); });
    }
  }
}

bool PsWorker::execute() {
  {
    std::lock_guard lock(mutex_);
    executing_.swap(commands_);
  }
  const bool any = !executing_.empty();
  for (const Command& command : executing_) execute(command);
  if (any) {
    last_command_ = Clock::now();
    std::lock_guard lock(mutex_);  // waiting threads read the following under the lock
    executing_.clear();
    pushing_ = !queue_.empty() || queue_.in_flight() > 0;
    changed_.notify_all();
  }
  return any;
}

void PsWorker::execute(const Command& command) {
  const auto to_all_servers = [&] {
    Message message = command.message;
    {
      std::lock_guard lock(mutex_);
      message.stop = stop_;
    }
    for (int server = 0; server < setup_.layout->num_servers; ++server)
      messages_->send(setup_.layout->rank_of(server), message, nullptr, kUrgent);
  };
  switch (command.kind) {
    case Command::Kind::push: {
      const Partition& partition = setup_.layout->partitions[static_cast<size_t>(command.partition)];
      if (pushing_step_ != command.message.step) {
        pushing_step_ = command.message.step;  // the first push of a new step: the previous step is complete
        std::lock_guard lock(mutex_);
        counts_.pushed.clear();
        counts_.received.clear();
      }
      queue_.add({command.partition, partition.unit, push_bytes(command.partition)});
      break;
    }
    case Command::Kind::end_step:
    case Command::Kind::pull:
      to_all_servers();
      break;
    case Command::Kind::publish:
      if (server_) server_->publish();
      break;
    case Command::Kind::pause:
      if (server_) server_->pause(command.message.flags != 0);
      break;
    case Command::Kind::begin_at: {
      if (server_) server_->begin_at(command.message.step);
      std::lock_guard lock(mutex_);
      std::fill(versions_.begin(), versions_.end(), command.message.step);
      gathered_ = slowest_ = command.message.step;
      break;
    }
    case Command::Kind::shutdown:
      shutdown_requested_ = true;
      shutdown_deadline_ =
          Clock::now() + (command.message.flags ? Duration::zero() : std::min(setup_.timeout, kMaxShutdownWait));
      break;
  }
}

int64_t PsWorker::push_bytes(int partition) const {
  if (setup_.compression) return static_cast<int64_t>(setup_.compression->push_bytes(partition));
  return setup_.layout->partitions[static_cast<size_t>(partition)].count() * static_cast<int64_t>(size_of(setup_.wire));
}

void PsWorker::push_ready() {
  while (const auto push = queue_.next()) {
    const Partition& partition = setup_.layout->partitions[static_cast<size_t>(push->partition)];
    Message message{MessageKind::push};
    message.partition = static_cast<uint32_t>(push->partition);
    message.step = pushing_step_;
    message.bytes = static_cast<uint64_t>(push->bytes);
    messages_->send(setup_.layout->rank_of(partition.server), message, setup_.gradients(push->partition),
                    push->priority);
    std::lock_guard lock(mutex_);
    counts_.pushed_bytes += message.bytes;
    counts_.pushed.push_back(push->partition);
  }
}

void PsWorker::arrived(int peer, const Message& message) {
  const auto& partitions = setup_.layout->partitions;
  switch (message.kind) {
    case MessageKind::done:
      ++num_done_;
      return;
    case MessageKind::pushed:
      if (message.partition >= partitions.size())
        throw CommError(CommError::Kind::corrupt, peer,
                        fmt::format("acknowledgement from rank {}: got partition {}; expected one of {} partitions",
                                    peer, message.partition, partitions.size()));
      return queue_.acknowledged(push_bytes(static_cast<int>(message.partition)));
    case MessageKind::values: {
      if (setup_.compression && setup_.compression->compresses_sums())
        setup_.compression->decode_sum(setup_.receive_buffer(static_cast<int>(message.partition)),
                                       static_cast<int>(message.partition), message.step - 1);
      setup_.received(static_cast<int>(message.partition));
      std::lock_guard lock(mutex_);
      versions_[message.partition] = message.step;
      if (message.stop > 0) stop_ = message.stop;
      counts_.pulled_bytes += message.bytes;
      // updated before the waiting thread wakes, because it may read the counters next
      counts_.queue = messages_->counts();
      counts_.traffic = messages_->traffic();
      counts_.received.push_back(static_cast<int>(message.partition));
      changed_.notify_all();
      return;
    }
    default:
      if (!server_ || !setup_.layout->works(peer))
        throw CommError(CommError::Kind::corrupt, peer,
                        fmt::format("rank {} sent a server message to this rank, which is not a server", peer));
      server_->arrived(peer, message);
  }
}

void PsWorker::notify() {
  std::lock_guard lock(mutex_);
  counts_.queue = messages_->counts();
  counts_.traffic = messages_->traffic();
  if (const bool pushing = !queue_.empty() || queue_.in_flight() > 0; pushing != pushing_) {
    pushing_ = pushing;
    changed_.notify_all();
  }
  if (!server_) return;
  const int64_t gathered = server_->step() + (server_->aggregated() ? 1 : 0), slowest = server_->slowest();
  if (gathered == gathered_ && slowest == slowest_ && (server_->stop() == 0 || stop_ > 0)) return;
  gathered_ = gathered;
  slowest_ = slowest;
  if (server_->stop() > 0) stop_ = server_->stop();
  changed_.notify_all();
}

}  // namespace esp::sync
