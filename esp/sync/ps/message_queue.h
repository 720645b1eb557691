// A queue of messages between the ranks of a job over its own transport: a header, then a payload that is copied
// directly between the memory of sender and receiver. Messages to the own rank bypass the transport.
//
// One message to each peer is in flight at a time; the most urgent queued message is sent next, so a large payload
// delays an urgent message by at most one message. A payload stays borrowed until its receiver has processed it. One
// thread drives the queue; callbacks run inside `poll`. An invalid message raises CommError.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "esp/net/transport.h"
#include "esp/sync/ps/message.h"

namespace esp::sync {

class MessageQueue {
 public:
  // Returns the receive buffer (message.bytes) for the payload of a message from `peer`.
  using ReceiveBuffer = std::function<std::byte*(int peer, const Message& message)>;
  using Arrived = std::function<void(int peer, const Message& message)>;
  // `transport` is null with one rank.
  MessageQueue(std::unique_ptr<net::Transport> transport, ReceiveBuffer receive_buffer, Arrived arrived);
  ~MessageQueue();

  // A smaller number is more urgent; equal urgency is first in, first out.
  void send(int peer, const Message& message, const void* payload, int urgency);
  bool poll();               // true: made progress
  void sleep(Duration nap);  // until progress is possible, at most `nap`
  bool idle() const;         // no message is queued
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  // Totals over the transport; payloads and headers are counted separately.
  struct Payloads {
    uint64_t bytes_sent = 0, bytes_received = 0, messages = 0;
  };
  struct Counts {
    Payloads pushes, values;
    uint64_t messages_sent = 0, messages_received = 0;  // headers
    uint64_t payload_sent() const { return pushes.bytes_sent + values.bytes_sent; }
    uint64_t payload_received() const { return pushes.bytes_received + values.bytes_received; }
  };
  const Counts& counts() const { return counts_; }
  std::string_view transport() const { return transport_ ? transport_->name() : "none"; }
  net::Traffic traffic() const { return transport_ ? transport_->total() : net::Traffic(); }

 private:
  struct QueuedMessage {
    Message message;
    const void* payload = nullptr;
    int urgency = 0;
  };
  // State of the link to one peer, both directions.
  struct PeerLink {
    MessageBytes in_header, out_header;
    net::Transfer in_head, in_body, out_head, out_body;
    Message coming;
    bool in_payload = false, sending = false;
    std::vector<QueuedMessage> waiting;  // in order of arrival
  };
  void listen(int peer);
  bool take_arrivals(int peer);
  bool send_next(int peer);

  std::unique_ptr<net::Transport> transport_;
  const int rank_;
  ReceiveBuffer receive_buffer_;
  Arrived arrived_;
  std::vector<std::unique_ptr<PeerLink>> peers_;  // stable addresses; null for the own rank
  std::deque<QueuedMessage> to_self_;
  Payloads& payloads_of(const Message& message) {
    return message.kind == MessageKind::push ? counts_.pushes : counts_.values;
  }
  Counts counts_;
};

}  // namespace esp::sync
