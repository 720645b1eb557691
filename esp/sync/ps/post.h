// Messages between the ranks of a job, over a transport of their own: headers that say what follows, payloads straight
// between the memory of both sides. To oneself too, without the transport.
//
// One message to each peer is under way at a time; of those that wait the most urgent goes next, so that one large
// payload delays an urgent one by one message at most. Payloads are lent until their receiver has acted on them. One
// thread drives everything; callbacks come from `poll`. What a peer sends that makes no sense raises CommError.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "esp/net/transport.h"
#include "esp/sync/ps/message.h"

namespace esp::sync {

class Post {
 public:
  // Where the payload of a message from `peer` goes: exactly message.bytes of it.
  using Landing = std::function<std::byte*(int peer, const Message& message)>;
  using Arrived = std::function<void(int peer, const Message& message)>;
  // `transport` may be null: this rank is alone.
  Post(std::unique_ptr<net::Transport> transport, Landing landing, Arrived arrived);
  ~Post();

  // Less urgent messages have larger numbers; among equals the first goes first.
  void send(int peer, const Message& message, const void* payload, int urgency);
  bool poll();               // true: something moved
  void sleep(Duration nap);  // until something may move, or so long
  bool idle() const;         // nothing waits to be sent
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  // Since the beginning, over the transport only; payloads apart from headers.
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
  struct Letter {
    Message message;
    const void* payload = nullptr;
    int urgency = 0;
  };
  // Connected to one peer, both ways.
  struct Line {
    MessageBytes in_header, out_header;
    net::Transfer in_head, in_body, out_head, out_body;
    Message coming;
    bool in_payload = false, sending = false;
    std::vector<Letter> waiting;  // as they came
  };
  void listen(int peer);
  bool take_arrivals(int peer);
  bool send_next(int peer);

  std::unique_ptr<net::Transport> transport_;
  const int rank_;
  Landing landing_;
  Arrived arrived_;
  std::vector<std::unique_ptr<Line>> peers_;  // stay put; none for oneself
  std::deque<Letter> to_self_;
  Payloads& payloads_of(const Message& message) {
    return message.kind == MessageKind::push ? counts_.pushes : counts_.values;
  }
  Counts counts_;
};

}  // namespace esp::sync
