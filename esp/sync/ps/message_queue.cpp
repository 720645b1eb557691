#include "esp/sync/ps/message_queue.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::sync {
namespace {

using State = net::Transfer::State;

constexpr uint64_t kTagKind = 0x7073;  // distinguishes these transfers from those of communicators

net::Tag tag_of(size_t bytes, bool payload) {
  net::Tag tag;
  tag.what = kTagKind;
  tag.count = bytes;
  tag.step = payload ? 1 : 0;
  return tag;
}

bool has_payload(const Message& message) {
  return message.kind == MessageKind::push || message.kind == MessageKind::values;
}

void prepare(net::Transfer& transfer, int peer, std::byte* data, size_t bytes, bool payload) {
  transfer = net::Transfer();
  transfer.peer = peer;
  transfer.data = data;
  transfer.bytes = bytes;
  transfer.tag = tag_of(bytes, payload);
}

void check(const net::Transfer& transfer) {
  if (transfer.state == State::mismatched)
    throw CommError(CommError::Kind::corrupt, transfer.peer,
                    fmt::format("parameter server message from rank {}: got {} bytes; expected {}", transfer.peer,
                                transfer.got_bytes, transfer.bytes));
}

}  // namespace

MessageQueue::MessageQueue(std::unique_ptr<net::Transport> transport, ReceiveBuffer receive_buffer, Arrived arrived)
    : transport_(std::move(transport)),
      rank_(transport_ ? transport_->rank() : 0),
      receive_buffer_(std::move(receive_buffer)),
      arrived_(std::move(arrived)) {
  peers_.resize(transport_ ? static_cast<size_t>(transport_->size()) : 1);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    peers_[static_cast<size_t>(peer)] = std::make_unique<PeerLink>();
    listen(peer);
  }
}

// Receives are always posted, one per peer, so the destructor has to cancel them.
MessageQueue::~MessageQueue() {
  if (transport_) transport_->abandon();
}

void MessageQueue::listen(int peer) {
  PeerLink& link = *peers_[static_cast<size_t>(peer)];
  link.in_payload = false;
  prepare(link.in_head, peer, link.in_header.data(), kMessageBytes, false);
  transport_->receive(link.in_head);
}

void MessageQueue::send(int peer, const Message& message, const void* payload, int urgency) {
  if (peer == rank_) {
    to_self_.push_back({message, payload, urgency});
    return;
  }
  peers_[static_cast<size_t>(peer)]->waiting.push_back({message, payload, urgency});
  send_next(peer);
}

bool MessageQueue::send_next(int peer) {
  PeerLink& link = *peers_[static_cast<size_t>(peer)];
  bool moved = false;
  if (link.sending) {
    check(link.out_head);
    check(link.out_body);
    if (link.out_head.state != State::done || (link.out_body.bytes > 0 && link.out_body.state != State::done))
      return false;
    link.sending = false;
    moved = true;
  }
  if (link.waiting.empty()) return moved;
  const auto best =
      std::min_element(link.waiting.begin(), link.waiting.end(),
                       [](const QueuedMessage& a, const QueuedMessage& b) { return a.urgency < b.urgency; });
  const QueuedMessage queued = *best;
  link.waiting.erase(best);
  link.sending = true;
  link.out_header = encode(queued.message);
  prepare(link.out_head, peer, link.out_header.data(), kMessageBytes, false);
  transport_->send(link.out_head);
  link.out_body.bytes = 0;
  if (has_payload(queued.message)) {
    // The transport takes a mutable pointer but only reads from a send buffer.
    auto* data = static_cast<std::byte*>(const_cast<void*>(queued.payload));
    prepare(link.out_body, peer, data, queued.message.bytes, true);
    transport_->send(link.out_body);
    PayloadTotals& of = totals_of(queued.message);
    of.bytes_sent += queued.message.bytes;
    ++of.messages;
  }
  ++counts_.messages_sent;
  return true;
}

bool MessageQueue::take_arrivals(int peer) {
  PeerLink& link = *peers_[static_cast<size_t>(peer)];
  bool moved = false;
  while (true) {
    net::Transfer& due = link.in_payload ? link.in_body : link.in_head;
    check(due);
    if (due.state != State::done) return moved;
    moved = true;
    if (!link.in_payload) {
      link.coming = decode_message(link.in_header);
      if (has_payload(link.coming)) {
        link.in_payload = true;
        prepare(link.in_body, peer, receive_buffer_(peer, link.coming), link.coming.bytes, true);
        transport_->receive(link.in_body);
        continue;
      }
    } else {
      totals_of(link.coming).bytes_received += link.coming.bytes;
    }
    ++counts_.messages_received;
    const Message message = link.coming;
    listen(peer);
    arrived_(peer, message);
  }
}

bool MessageQueue::poll() {
  bool moved = transport_ && transport_->poll();
  while (!to_self_.empty()) {
    const QueuedMessage queued = to_self_.front();
    to_self_.pop_front();
    if (has_payload(queued.message))
      std::memcpy(receive_buffer_(rank_, queued.message), queued.payload, queued.message.bytes);
    arrived_(rank_, queued.message);
    moved = true;
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    moved = take_arrivals(peer) || moved;
    moved = send_next(peer) || moved;
  }
  return moved;
}

void MessageQueue::sleep(Duration nap) {
  transport_->sleep(Deadline::after(nap));
}

bool MessageQueue::idle() const {
  if (!to_self_.empty()) return false;
  return std::all_of(peers_.begin(), peers_.end(), [](const std::unique_ptr<PeerLink>& link) {
    return !link || (!link->sending && link->waiting.empty());
  });
}

}  // namespace esp::sync
