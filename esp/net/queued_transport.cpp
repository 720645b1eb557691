#include "esp/net/queued_transport.h"

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

void QueuedTransport::ActivePeers::add(int peer) {
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

QueuedTransport::Subscription::~Subscription() {
  peer_status->unsubscribe(id);
}

QueuedTransport::QueuedTransport(const World& world, const Group& group)
    : Transport(world, group),
      out_(group.members.size()),
      in_(group.members.size()),
      spin_(ranks_here(world)),
      left_(group.members.size()) {
  sending_.listed.resize(group.members.size());
  receiving_.listed.resize(group.members.size());
}

void QueuedTransport::set_wakeup(FutexEvent& mine) {
  wakeup_ = &mine;
  subscription_ = std::make_unique<Subscription>();
  subscription_->peer_status = world_.peer_status.get();
  subscription_->id = world_.peer_status->subscribe([event = wakeup_] { event->wake(); });
}

void QueuedTransport::send(Transfer& transfer) {
  int peer = transfer.peer;
  ESP_CHECK(peer >= 0 && peer < size() && peer != rank(), "peer: got {}; expected another rank of the {} ranks", peer,
            size());
  ESP_CHECK(!abandoned_, "send on an abandoned transport");
  transfer.state = Transfer::State::posted;
  transfer.moved = 0;
  out_[static_cast<size_t>(peer)].push(transfer);
  sending_.add(peer);
  on_post(transfer, true);
  push(peer);
}

void QueuedTransport::receive(Transfer& transfer) {
  int peer = transfer.peer;
  ESP_CHECK(peer >= 0 && peer < size() && peer != rank(), "peer: got {}; expected another rank of the {} ranks", peer,
            size());
  ESP_CHECK(!abandoned_, "receive on an abandoned transport");
  transfer.state = Transfer::State::posted;
  transfer.moved = 0;
  in_[static_cast<size_t>(peer)].push(transfer);
  receiving_.add(peer);
  on_post(transfer, false);
}

bool QueuedTransport::poll() {
  handle_faults();
  bool moved = false;
  auto walk = [&](ActivePeers& active, std::vector<TransferQueue>& queues, auto&& move) {
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

bool QueuedTransport::ready() const {
  for (int peer : receiving_.peers)
    if (!in_[static_cast<size_t>(peer)].empty() && can_pull(peer)) return true;
  for (int peer : sending_.peers)
    if (!out_[static_cast<size_t>(peer)].empty() && can_push(peer)) return true;
  return false;
}

void QueuedTransport::sleep(Deadline deadline) {
  for (; spin_.spin_once();) {
    if (ready()) return;
    if (world_.peer_status->epoch() != epoch_) return handle_faults();
  }
  // After a wait has blocked, it does not spin again until a transfer moves. A long wait therefore uses no core.
  uint32_t ticket = wakeup_->arm();
  if (!ready() && world_.peer_status->epoch() == epoch_) wakeup_->wait(ticket, deadline);
  wakeup_->disarm();
  handle_faults();
}

void QueuedTransport::handle_faults() {
  if (!check_peer_status()) return;
  for (size_t peer = 0; peer < left_.size(); ++peer) {
    left_[peer] = world_.peer_status->has_left(group_.members[peer]);
    any_left_ |= left_[peer] != 0;
  }
}

// Fails the transfers with a peer that left in order, once its messages are consumed: all its messages can be read
// already, and no more will come.
void QueuedTransport::check_left() {
  int waits_for = -1;
  for (int peer : receiving_.peers)
    if (left_[static_cast<size_t>(peer)] && !can_pull(peer)) waits_for = peer;
  for (int peer : sending_.peers)
    if (left_[static_cast<size_t>(peer)] && !can_push(peer)) waits_for = peer;
  if (waits_for < 0) return;
  abandon();
  throw world_.peer_status->peer_left_error(group_.members[static_cast<size_t>(waits_for)]);
}

void QueuedTransport::abandon() noexcept {
  if (abandoned_) return;
  abandoned_ = true;
  for (int peer : sending_.peers) {
    cancel_sends(peer);
    out_[static_cast<size_t>(peer)] = {};
  }
  for (int peer : receiving_.peers) in_[static_cast<size_t>(peer)] = {};
}

void QueuedTransport::finish_send(int peer) {
  Transfer& transfer = out_[static_cast<size_t>(peer)].pop();
  transfer.moved = transfer.bytes;
  transfer.state = Transfer::State::done;
  Traffic& traffic = traffic_[static_cast<size_t>(peer)];
  traffic.bytes_sent += transfer.bytes;
  ++traffic.messages_sent;
}

void QueuedTransport::finish_receive(int peer) {
  Transfer& transfer = in_[static_cast<size_t>(peer)].pop();
  transfer.state = Transfer::State::done;
  Traffic& traffic = traffic_[static_cast<size_t>(peer)];
  traffic.bytes_received += transfer.bytes;
  ++traffic.messages_received;
}

void QueuedTransport::mismatch(int peer, const Tag& got, size_t got_bytes) {
  Transfer& transfer = in_[static_cast<size_t>(peer)].pop();
  transfer.got = got;
  transfer.got_bytes = got_bytes;
  transfer.state = Transfer::State::mismatched;
}

}  // namespace esp::net
