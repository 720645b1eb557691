#include "esp/sync/ps/message_queue.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::sync {
namespace {

using State = net::Transfer::State;

constexpr uint64_t kWhat = 0x7073;  // distinct from the tags of communicators

net::Tag tag_of(size_t bytes, bool payload) {
  net::Tag tag;
  tag.what = kWhat;
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

// Receives are always posted, so this always withdraws something.
MessageQueue::~MessageQueue() {
  if (transport_) transport_->abandon();
}

void MessageQueue::listen(int peer) {
  PeerLink& line = *peers_[static_cast<size_t>(peer)];
  line.in_payload = false;
  prepare(line.in_head, peer, line.in_header.data(), kMessageBytes, false);
  transport_->receive(line.in_head);
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
  PeerLink& line = *peers_[static_cast<size_t>(peer)];
  bool moved = false;
  if (line.sending) {
    check(line.out_head);
    check(line.out_body);
    if (line.out_head.state != State::done || (line.out_body.bytes > 0 && line.out_body.state != State::done))
      return false;
    line.sending = false;
    moved = true;
  }
  if (line.waiting.empty()) return moved;
  const auto best =
      std::min_element(line.waiting.begin(), line.waiting.end(),
                       [](const QueuedMessage& a, const QueuedMessage& b) { return a.urgency < b.urgency; });
  const QueuedMessage letter = *best;
  line.waiting.erase(best);
  line.sending = true;
  line.out_header = encode(letter.message);
  prepare(line.out_head, peer, line.out_header.data(), kMessageBytes, false);
  transport_->send(line.out_head);
  line.out_body.bytes = 0;
  if (has_payload(letter.message)) {
    // The transport only reads the send buffer.
    auto* data = static_cast<std::byte*>(const_cast<void*>(letter.payload));
    prepare(line.out_body, peer, data, letter.message.bytes, true);
    transport_->send(line.out_body);
    Payloads& of = payloads_of(letter.message);
    of.bytes_sent += letter.message.bytes;
    ++of.messages;
  }
  ++counts_.messages_sent;
  return true;
}

bool MessageQueue::take_arrivals(int peer) {
  PeerLink& line = *peers_[static_cast<size_t>(peer)];
  bool moved = false;
  while (true) {
    net::Transfer& due = line.in_payload ? line.in_body : line.in_head;
    check(due);
    if (due.state != State::done) return moved;
    moved = true;
    if (!line.in_payload) {
      line.coming = decode_message(line.in_header);
      if (has_payload(line.coming)) {
        line.in_payload = true;
        prepare(line.in_body, peer, receive_buffer_(peer, line.coming), line.coming.bytes, true);
        transport_->receive(line.in_body);
        continue;
      }
    } else {
      payloads_of(line.coming).bytes_received += line.coming.bytes;
    }
    ++counts_.messages_received;
    const Message message = line.coming;
    listen(peer);
    arrived_(peer, message);
  }
}

bool MessageQueue::poll() {
  bool moved = transport_ && transport_->poll();
  while (!to_self_.empty()) {
    const QueuedMessage letter = to_self_.front();
    to_self_.pop_front();
    if (has_payload(letter.message))
      std::memcpy(receive_buffer_(rank_, letter.message), letter.payload, letter.message.bytes);
    arrived_(rank_, letter.message);
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
  return std::all_of(peers_.begin(), peers_.end(), [](const std::unique_ptr<PeerLink>& line) {
    return !line || (!line->sending && line->waiting.empty());
  });
}

}  // namespace esp::sync
