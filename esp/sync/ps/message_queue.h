// A queue of messages between the ranks of a job, over a separate transport. A message is a header and, for some kinds,
// a payload. The payload is copied directly from the sender's memory to the receiver's. Messages from a rank to itself
// bypass the transport.
//
// To each peer one message is in flight at a time. The most urgent queued message is sent next, so an urgent message
// waits for at most one large payload. A payload must stay unchanged until its receiver has processed it. One thread
// drives the queue; callbacks run inside `poll`. An invalid message causes a CommError.
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
  // `transport` is null for a single rank.
  MessageQueue(std::unique_ptr<net::Transport> transport, ReceiveBuffer receive_buffer, Arrived arrived);
  ~MessageQueue();

  // Queues a message. A smaller `urgency` is sent earlier; messages of equal urgency are sent in order.
  void send(int peer, const Message& message, const void* payload, int urgency);
  bool poll();               // sends and receives what is possible without waiting; returns whether there was progress
  void sleep(Duration nap);  // sleeps until `poll` can make progress, at most `nap`
  bool idle() const;         // true if no message is queued or being sent
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  // Totals of what the transport sent and received; bytes of headers and of payloads are counted separately.
  struct PayloadTotals {
    uint64_t bytes_sent = 0, bytes_received = 0, messages = 0;
  };
  struct QueueTraffic {
    PayloadTotals pushes, values;
    uint64_t messages_sent = 0, messages_received = 0;  // number of headers
    uint64_t payload_sent() const { return pushes.bytes_sent + values.bytes_sent; }
    uint64_t payload_received() const { return pushes.bytes_received + values.bytes_received; }
  };
  const QueueTraffic& counts() const { return counts_; }
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
    std::vector<QueuedMessage> waiting;  // queued messages, in the order in which they were queued
  };
  void listen(int peer);
  bool take_arrivals(int peer);
  bool send_next(int peer);

  std::unique_ptr<net::Transport> transport_;
  const int rank_;
  ReceiveBuffer receive_buffer_;
  Arrived arrived_;
  std::vector<std::unique_ptr<PeerLink>> peers_;  // [rank]; null for this rank. PeerLink objects must not move
  std::deque<QueuedMessage> to_self_;
  PayloadTotals& totals_of(const Message& message) {
    return message.kind == MessageKind::push ? counts_.pushes : counts_.values;
  }
  QueueTraffic counts_;
};

}  // namespace esp::sync
