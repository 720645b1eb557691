// The station's own thread: obeys, sends, receives, and runs the server that stands here.
#include <algorithm>
#include <exception>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/sync/ps/station.h"

namespace esp::sync {
namespace {

// How long an order may lie before it is seen while nothing comes from peers. One order is mostly followed by others: a
// backward's pushes, the end of a step, its pull.
constexpr Duration kShortNap = std::chrono::microseconds(50), kLongNap = std::chrono::microseconds(500);
constexpr Duration kMoreToCome = std::chrono::milliseconds(2);
constexpr Duration kLongestGoodbye = std::chrono::seconds(30);
constexpr int kUrgent = -1;

}  // namespace

void Station::run() {
  try {
    work_until_left();
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

void Station::work_until_left() {
  while (true) {
    bool moved = obey();
    push_ready();
    moved = post_->poll() || moved;
    push_ready();
    tell();
    if (leaving_ && !said_goodbye_ && post_->idle() && queue_.empty()) {
      said_goodbye_ = true;
      for (int peer = 0; peer < post_->size(); ++peer)
        if (peer != setup_.rank) post_->send(peer, {MessageKind::done}, nullptr, kUrgent);
    }
    if (leaving_ && ((said_goodbye_ && num_goodbyes_ == post_->size() - 1 && post_->idle()) || Clock::now() > give_up_))
      return;
    if (moved) continue;
    if (post_->size() > 1) {
      post_->sleep(Clock::now() - last_order_ < kMoreToCome ? kShortNap : kLongNap);
    } else {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::milliseconds(100), [&] { return !orders_.empty(); });
    }
  }
}

bool Station::obey() {
  {
    std::lock_guard lock(mutex_);
    taken_.swap(orders_);
  }
  const bool any = !taken_.empty();
  for (const Order& order : taken_) obey(order);
  if (any) {
    last_order_ = Clock::now();
    std::lock_guard lock(mutex_);  // whoever waits for this looks at it
    taken_.clear();
    pushing_ = !queue_.empty() || queue_.under_way() > 0;
    changed_.notify_all();
  }
  return any;
}

void Station::obey(const Order& order) {
  const auto to_all_servers = [&] {
    Message message = order.message;
    {
      std::lock_guard lock(mutex_);
      message.stop = stop_;
    }
    for (int server = 0; server < setup_.layout->num_servers; ++server)
      post_->send(setup_.layout->rank_of(server), message, nullptr, kUrgent);
  };
  switch (order.kind) {
    case Order::Kind::push: {
      const Partition& partition = setup_.layout->partitions[static_cast<size_t>(order.partition)];
      if (pushing_step_ != order.message.step) {
        pushing_step_ = order.message.step;  // nothing of the step before is left
        std::lock_guard lock(mutex_);
        counts_.pushed.clear();
        counts_.landed.clear();
      }
      queue_.add({order.partition, partition.unit, push_bytes(order.partition)});
      break;
    }
    case Order::Kind::end_step:
    case Order::Kind::pull:
      to_all_servers();
      break;
    case Order::Kind::publish:
      if (server_) server_->publish();
      break;
    case Order::Kind::hold:
      if (server_) server_->hold(order.message.flags != 0);
      break;
    case Order::Kind::begin_at: {
      if (server_) server_->begin_at(order.message.step);
      std::lock_guard lock(mutex_);
      std::fill(versions_.begin(), versions_.end(), order.message.step);
      gathered_ = slowest_ = order.message.step;
      break;
    }
    case Order::Kind::leave:
      leaving_ = true;
      give_up_ = Clock::now() + (order.message.flags ? Duration::zero() : std::min(setup_.timeout, kLongestGoodbye));
      break;
  }
}

int64_t Station::push_bytes(int partition) const {
  if (setup_.codes) return static_cast<int64_t>(setup_.codes->push_bytes(partition));
  return setup_.layout->partitions[static_cast<size_t>(partition)].count() * static_cast<int64_t>(size_of(setup_.wire));
}

void Station::push_ready() {
  while (const auto push = queue_.next()) {
    const Partition& partition = setup_.layout->partitions[static_cast<size_t>(push->partition)];
    Message message{MessageKind::push};
    message.partition = static_cast<uint32_t>(push->partition);
    message.step = pushing_step_;
    message.bytes = static_cast<uint64_t>(push->bytes);
    post_->send(setup_.layout->rank_of(partition.server), message, setup_.gradients(push->partition), push->priority);
    std::lock_guard lock(mutex_);
    counts_.pushed_bytes += message.bytes;
    counts_.pushed.push_back(push->partition);
  }
}

void Station::arrived(int peer, const Message& message) {
  const auto& partitions = setup_.layout->partitions;
  switch (message.kind) {
    case MessageKind::done:
      ++num_goodbyes_;
      return;
    case MessageKind::pushed:
      if (message.partition >= partitions.size())
        throw CommError(CommError::Kind::corrupt, peer, fmt::format("rank {} acknowledged no partition of ours", peer));
      return queue_.acknowledged(push_bytes(static_cast<int>(message.partition)));
    case MessageKind::values: {
      if (setup_.codes && setup_.codes->of_sums())
        setup_.codes->decode_sum(setup_.landing(static_cast<int>(message.partition)),
                                 static_cast<int>(message.partition), message.step - 1);
      setup_.landed(static_cast<int>(message.partition));
      std::lock_guard lock(mutex_);
      versions_[message.partition] = message.step;
      if (message.stop > 0) stop_ = message.stop;
      counts_.pulled_bytes += message.bytes;
      counts_.post = post_->counts();  // whoever waits for these values may ask next
      counts_.traffic = post_->traffic();
      counts_.landed.push_back(static_cast<int>(message.partition));
      changed_.notify_all();
      return;
    }
    default:
      if (!server_ || !setup_.layout->works(peer))
        throw CommError(CommError::Kind::corrupt, peer, fmt::format("rank {} took this rank for a server", peer));
      server_->arrived(peer, message);
  }
}

void Station::tell() {
  std::lock_guard lock(mutex_);
  counts_.post = post_->counts();
  counts_.traffic = post_->traffic();
  if (const bool pushing = !queue_.empty() || queue_.under_way() > 0; pushing != pushing_) {
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
