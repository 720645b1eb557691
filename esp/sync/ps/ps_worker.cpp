#include "esp/sync/ps/ps_worker.h"

#include <pthread.h>

#include <algorithm>
#include <exception>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"

namespace esp::sync {
namespace {

int64_t credit_bytes(const PsOptions& ps) {
  return static_cast<int64_t>(static_cast<double>(ps.credit) * ps.partition_mb * (1 << 20));
}

}  // namespace

PsWorker::PsWorker(const Setup& setup, std::unique_ptr<net::Transport> transport)
    : setup_(setup),
      is_worker_(setup.layout->works(setup.rank)),
      messages_(std::make_unique<MessageQueue>(
          std::move(transport),
          [this](int peer, const Message& message) -> std::byte* {
            if (message.kind == MessageKind::push && server_ && setup_.layout->works(peer))
              return server_->receive_buffer(peer, message);
            if (message.kind == MessageKind::push || !is_worker_ ||
                message.partition >= setup_.layout->partitions.size())
              throw CommError(CommError::Kind::corrupt, peer,
                              fmt::format("rank {} sent partition {}, which does not belong to this rank", peer,
                                          message.partition));
            const Partition& partition = setup_.layout->partitions[message.partition];
            const DType type = setup_.ps.update == "worker" ? setup_.wire : setup_.storage;
            const int index = static_cast<int>(message.partition);
            const bool code = setup_.compression && setup_.compression->compresses_sums();
            const uint64_t due =
                code ? setup_.compression->sum_bytes(index) : static_cast<uint64_t>(partition.count()) * size_of(type);
            if (message.bytes != due)
              throw CommError(CommError::Kind::corrupt, peer,
                              fmt::format("partition {} from rank {}: got {} bytes; expected {}", message.partition,
                                          peer, message.bytes, due));
            return code ? setup_.compression->sum_receive_buffer(index) : setup_.receive_buffer(index);
          },
          [this](int peer, const Message& message) { arrived(peer, message); })),
      queue_(setup.ps.push_order == "priority", credit_bytes(setup.ps)),
      versions_(setup.layout->partitions.size()) {
  if (const int server = setup.layout->server_at(setup.rank); server >= 0)
    server_ = std::make_unique<ShardServer>(
        *setup.layout, server, setup.context,
        ShardServer::Options{setup.ps, setup.storage, setup.wire, setup.compression},
        [this](int worker, const Message& message, const void* payload, int urgency) {
          messages_->send(worker, message, payload,
                          setup_.ps.push_order == "priority" ? urgency : std::min(urgency, 0));
        });
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "esp-ps");
}

PsWorker::~PsWorker() {
  {
    std::lock_guard lock(mutex_);
    Command command{Command::Kind::shutdown, 0, {}};
    // flag 1: an error is being thrown, so do not wait for the peers' done messages
    command.message.flags = std::uncaught_exceptions() > 0 ? 1 : 0;
    commands_.push_back(command);
    changed_.notify_all();
  }
  thread_.join();
}

void PsWorker::submit(const Command& command) {
  std::lock_guard lock(mutex_);
  if (failed_) std::rethrow_exception(failed_);
  commands_.push_back(command);
  changed_.notify_all();
}

void PsWorker::push(int partition) {
  push(std::span<const int>(&partition, 1));
}

void PsWorker::push(std::span<const int> partitions) {
  std::lock_guard lock(mutex_);
  if (failed_) std::rethrow_exception(failed_);
  for (const int partition : partitions) {
    Command& command = commands_.emplace_back(Command{Command::Kind::push, partition, {}});
    command.message.step = step_;
  }
  changed_.notify_all();
}

void PsWorker::begin_at(int64_t step) {
  step_ = step;
  Command command{Command::Kind::begin_at, 0, {}};
  command.message.step = step;
  submit(command);
  wait_executed();
}

void PsWorker::wait_executed() {
  wait(
      "commands", [&] { return commands_.empty() && executing_.empty(); },
      [] { return std::string("this rank's communication thread"); });
}

void PsWorker::pause(bool paused) {
  Command command{Command::Kind::pause, 0, {}};
  command.message.flags = paused ? 1 : 0;
  submit(command);
  if (paused) wait_executed();
}

void PsWorker::end_step(double lr, double factor, bool skip) {
  Command command{Command::Kind::end_step, 0, {MessageKind::apply}};
  command.message.step = step_;
  command.message.lr = lr;
  command.message.factor = factor;
  command.message.flags = skip ? Message::kSkip : 0;
  submit(command);
}

void PsWorker::pull(bool now, bool stop_requested) {
  Command command{Command::Kind::pull, 0, {MessageKind::pull}};
  command.message.step = step_;
  command.message.flags =
      static_cast<uint8_t>((now ? Message::kNow : 0) | (stop_requested ? Message::kStopRequested : 0));
  {
    std::lock_guard lock(mutex_);
    if (now) std::fill(versions_.begin(), versions_.end(), -1);
  }
  submit(command);
}

void PsWorker::publish() {
  submit({Command::Kind::publish, 0, {}});
}

template <typename F>
void PsWorker::wait(const char* what, F&& holds, const std::function<std::string()>& missing) {
  std::unique_lock lock(mutex_);
  if (failed_) std::rethrow_exception(failed_);
  if (holds()) return;
  obs::Span span(trace_, what, "communication");
  const int64_t begun = now_ns();
  const bool came = changed_.wait_for(lock, setup_.timeout, [&] { return failed_ || holds(); });
  exposed_ms_ += static_cast<double>(now_ns() - begun) * 1e-6;
  if (failed_) std::rethrow_exception(failed_);
  if (!came)
    throw CommError(
        CommError::Kind::timeout, -1,
        fmt::format("parameter server: timeout in step {}: waited {} s for {} from {}", step_,
                    std::chrono::duration_cast<std::chrono::seconds>(setup_.timeout).count(), what, missing()));
}

void PsWorker::wait_values(int unit) {
  const auto& partitions = setup_.layout->partitions;
  const auto late = [&](size_t i) { return (unit < 0 || partitions[i].unit == unit) && versions_[i] < step_; };
  const auto first_late = [&] {
    size_t i = 0;
    while (i < partitions.size() && !late(i)) ++i;
    return i;
  };
  wait(
      "values", [&] { return first_late() == partitions.size(); },
      [&] {
        const int server = partitions[first_late()].server;
        return fmt::format("server {} (rank {})", server, setup_.layout->rank_of(server));
      });
}

void PsWorker::wait_pushed() {
  wait(
      "pushes", [&] { return commands_.empty() && executing_.empty() && !pushing_; },
      [] { return std::string("servers"); });
}

void PsWorker::wait_gathered() {
  if (server_)
    wait(
        "gradients", [&] { return gathered_ > step_; }, [] { return std::string("all workers"); });
}

void PsWorker::wait_all_workers() {
  if (server_)
    wait(
        "steps", [&] { return slowest_ > step_; }, [] { return std::string("all workers"); });
}

int64_t PsWorker::stop() {
  std::lock_guard lock(mutex_);
  return stop_;
}

PsWorker::WorkerTraffic PsWorker::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace esp::sync
