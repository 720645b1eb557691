// QueuedTransport: common base of the transports within one machine. Posted transfers wait in one queue per peer and
// direction. poll() walks the peers with posted transfers; sleep() spins briefly and then waits on this rank's
// FutexEvent. A derived transport moves the front of a queue; peers notify the event after they have moved data.
#pragma once

#include <memory>
#include <vector>

#include "esp/net/futex_event.h"
#include "esp/net/transport.h"

namespace esp::net {

// FIFO queue of transfers in the order in which they were posted, linked through `next`.
struct TransferQueue {
  Transfer* first = nullptr;
  Transfer* last = nullptr;

  bool empty() const { return first == nullptr; }
  void push(Transfer& transfer);
  Transfer& pop();
};

// Delivers the next `bytes` received bytes at `src` to the transfer.
inline void deliver(Transfer& transfer, const std::byte* src, size_t bytes);

class QueuedTransport : public Transport {
 public:
  QueuedTransport(const World& world, const Group& group);

  void send(Transfer& transfer) final;
  void receive(Transfer& transfer) final;
  bool poll() final;
  void sleep(Deadline deadline) final;
  void abandon() noexcept final;

 protected:
  // Called for every transfer when it is posted, in the order of the calls.
  virtual void on_post(Transfer&, bool /*sends*/) {}
  // Moves the transfers of out_[peer] or in_[peer] as far as possible, finishing them in order. True if anything moved.
  virtual bool push(int peer) = 0;
  virtual bool pull(int peer) = 0;
  // Whether push (can_push) or pull (can_pull) would move anything.
  virtual bool can_push(int peer) const = 0;
  virtual bool can_pull(int peer) const = 0;
  // Returns once no peer uses the buffers of out_[peer] any more.
  virtual void cancel_sends(int peer) noexcept = 0;

  // The event that peers notify; recorded failures notify it too. A transport sets it at the end of its constructor. It
  // clears it at the start of its destructor, before the event's memory is released.
  void set_wakeup(FutexEvent& mine);
  void clear_wakeup() { subscription_.reset(); }

  void finish_send(int peer);
  void finish_receive(int peer);
  // Ends the oldest receive from this peer as mismatched: the received message has tag `got` and `got_bytes` bytes.
  void mismatch(int peer, const Tag& got, size_t got_bytes);

  std::vector<TransferQueue> out_, in_;  // index: peer

 private:
  // Set of the peers with posted transfers, unordered.
  struct ActivePeers {
    std::vector<int> peers;
    std::vector<char> listed;
    void add(int peer);
  };
  struct Subscription {
    PeerStatus* peer_status = nullptr;
    int id = 0;
    ~Subscription();
  };

  void handle_faults();
  void check_left();
  bool ready() const;

  ActivePeers sending_, receiving_;
  FutexEvent* wakeup_ = nullptr;
  SpinWait spin_;
  // index: peer; true if the peer had left in order at epoch_ (its messages can still be read)
  std::vector<char> left_;
  bool any_left_ = false;
  bool abandoned_ = false;
  std::unique_ptr<Subscription> subscription_;
};

inline void deliver(Transfer& transfer, const std::byte* src, size_t bytes) {
  std::byte* dst = transfer.data + transfer.moved;
  if (transfer.apply)
    transfer.apply(transfer.context, dst, src, bytes);
  else if (bytes > 0)
    __builtin_memcpy(dst, src, bytes);
  transfer.moved += bytes;
}

}  // namespace esp::net
