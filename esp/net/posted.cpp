#include "esp/net/posted.h"

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"

namespace esp::net {

void TransferQueue::push(Transfer& transfer) {
  transfer.next = nullptr;
  (last ? last->next : first) = &transfer;
  last = &transfer;
}

Transfer& TransferQueue::pop() {
  Transfer& transfer = *first;
  first = transfer.next;
  if (!first) last = nullptr;
  transfer.next = nullptr;
  return transfer;
}

void Posted::Active::add(int peer) {
  char& flag = listed[static_cast<size_t>(peer)];
  if (flag) return;
  flag = 1;
  peers.push_back(peer);
}

namespace {

int ranks_here(const World& world) {
  int count = 0;
  for (int rank = 0; rank < world.size; ++rank)
    count += world.same_host(world.rank, rank) || world.same_process(world.rank, rank);
  return count;
}

}  // namespace

Posted::Subscription::~Subscription() {
  fate->unsubscribe(id);
}

Posted::Posted(const World& world, const Group& group)
    : Transport(world, group),
      out_(group.members.size()),
      in_(group.members.size()),
      spin_(ranks_here(world)),
      left_(group.members.size()) {
  sending_.listed.resize(group.members.size());
  receiving_.listed.resize(group.members.size());
}

void Posted::hang(Doorbell& mine) {
  bell_ = &mine;
  subscription_ = std::make_unique<Subscription>();
  subscription_->fate = world_.fate.get();
  subscription_->id = world_.fate->subscribe([bell = bell_] { bell->wake(); });
}

void Posted::send(Transfer& transfer) {
  int peer = transfer.peer;
  ESP_CHECK(peer >= 0 && peer < size() && peer != rank(), "peer {} of {}", peer, size());
  ESP_CHECK(!abandoned_, "send on an abandoned transport");
  transfer.state = Transfer::State::posted;
  transfer.moved = 0;
  out_[static_cast<size_t>(peer)].push(transfer);
  sending_.add(peer);
  posted(transfer, true);
  push(peer);
}

void Posted::receive(Transfer& transfer) {
  int peer = transfer.peer;
  ESP_CHECK(peer >= 0 && peer < size() && peer != rank(), "peer {} of {}", peer, size());
  ESP_CHECK(!abandoned_, "receive on an abandoned transport");
  transfer.state = Transfer::State::posted;
  transfer.moved = 0;
  in_[static_cast<size_t>(peer)].push(transfer);
  receiving_.add(peer);
  posted(transfer, false);
}

bool Posted::poll() {
  heed_fate();
  bool moved = false;
  auto walk = [&](Active& active, std::vector<TransferQueue>& queues, auto&& move) {
    for (size_t i = 0; i < active.peers.size();) {
      int peer = active.peers[i];
      TransferQueue& queue = queues[static_cast<size_t>(peer)];
      if (!queue.empty()) moved |= move(peer);
      if (queue.empty()) {
        active.listed[static_cast<size_t>(peer)] = 0;
        active.peers[i] = active.peers.back();
        active.peers.pop_back();
      } else {
        ++i;
      }
    }
  };
  walk(receiving_, in_, [&](int peer) { return pull(peer); });
  walk(sending_, out_, [&](int peer) { return push(peer); });
  if (moved) spin_.reset();
  if (any_left_) check_left();
  return moved;
}

bool Posted::ready() const {
  for (int peer : receiving_.peers)
    if (!in_[static_cast<size_t>(peer)].empty() && can_pull(peer)) return true;
  for (int peer : sending_.peers)
    if (!out_[static_cast<size_t>(peer)].empty() && can_push(peer)) return true;
  return false;
}

void Posted::sleep(Deadline deadline) {
  for (; spin_.again();) {
    if (ready()) return;
    if (world_.fate->epoch() != epoch_) return heed_fate();
  }
  // Blocking ends the spin for good until something moves, so a long wait costs no core.
  uint32_t ticket = bell_->arm();
  if (!ready() && world_.fate->epoch() == epoch_) bell_->wait(ticket, deadline);
  bell_->disarm();
  heed_fate();
}

void Posted::heed_fate() {
  if (!check_fate()) return;
  for (size_t peer = 0; peer < left_.size(); ++peer) {
    left_[peer] = world_.fate->left(group_.members[peer]);
    any_left_ |= left_[peer] != 0;
  }
}

// A peer that ended in order had put everything it sent where it can be read; past that there is nothing to wait for.
void Posted::check_left() {
  int waits_for = -1;
  for (int peer : receiving_.peers)
    if (left_[static_cast<size_t>(peer)] && !can_pull(peer)) waits_for = peer;
  for (int peer : sending_.peers)
    if (left_[static_cast<size_t>(peer)] && !can_push(peer)) waits_for = peer;
  if (waits_for < 0) return;
  abandon();
  throw world_.fate->gone(group_.members[static_cast<size_t>(waits_for)]);
}

void Posted::abandon() noexcept {
  if (abandoned_) return;
  abandoned_ = true;
  for (int peer : sending_.peers) {
    withdraw(peer);
    out_[static_cast<size_t>(peer)] = {};
  }
  for (int peer : receiving_.peers) in_[static_cast<size_t>(peer)] = {};
}

void Posted::finish_send(int peer) {
  Transfer& transfer = out_[static_cast<size_t>(peer)].pop();
  transfer.moved = transfer.bytes;
  transfer.state = Transfer::State::done;
  Traffic& traffic = traffic_[static_cast<size_t>(peer)];
  traffic.bytes_sent += transfer.bytes;
  ++traffic.messages_sent;
}

void Posted::finish_receive(int peer) {
  Transfer& transfer = in_[static_cast<size_t>(peer)].pop();
  transfer.state = Transfer::State::done;
  Traffic& traffic = traffic_[static_cast<size_t>(peer)];
  traffic.bytes_received += transfer.bytes;
  ++traffic.messages_received;
}

void Posted::mismatch(int peer, const Tag& got, size_t got_bytes) {
  Transfer& transfer = in_[static_cast<size_t>(peer)].pop();
  transfer.got = got;
  transfer.got_bytes = got_bytes;
  transfer.state = Transfer::State::mismatched;
}

}  // namespace esp::net
