// Posted: what the transports of one machine share. Posted transfers wait in one queue per peer and direction; poll
// walks the peers that have any, sleep spins a little and then waits at this rank's doorbell. A transport says how
// far a queue can be moved now; peers ring the doorbell when they have moved something.
#pragma once

#include <memory>
#include <vector>

#include "esp/net/doorbell.h"
#include "esp/net/transport.h"

namespace esp::net {

// Transfers in the order they were posted, linked through `next`.
struct TransferQueue {
  Transfer* first = nullptr;
  Transfer* last = nullptr;

  bool empty() const { return first == nullptr; }
  void push(Transfer& transfer);
  Transfer& pop();
};

// Hands `bytes` that arrived at `src` to the transfer, behind what it has already.
inline void deliver(Transfer& transfer, const std::byte* src, size_t bytes);

class Posted : public Transport {
 public:
  Posted(const World& world, const Group& group);

  void send(Transfer& transfer) final;
  void receive(Transfer& transfer) final;
  bool poll() final;
  void sleep(Deadline deadline) final;
  void abandon() noexcept final;

 protected:
  // Tells of every transfer as it is posted, in the order of the calls.
  virtual void posted(Transfer&, bool /*sends*/) {}
  // Moves what can be moved of out_[peer] or in_[peer], finishing transfers in order; true when anything moved.
  virtual bool push(int peer) = 0;
  virtual bool pull(int peer) = 0;
  // Whether push or pull would move anything.
  virtual bool can_push(int peer) const = 0;
  virtual bool can_pull(int peer) const = 0;
  // Makes peers stop touching the buffers of out_[peer].
  virtual void withdraw(int peer) noexcept = 0;

  // The bell peers ring, and faults. A transport hangs it at the end of its constructor and takes it down at the start
  // of its destructor, before the memory it lies in goes.
  void hang(Doorbell& mine);
  void unhang() { subscription_.reset(); }

  void finish_send(int peer);
  void finish_receive(int peer);
  // Ends the oldest receive from this peer as mismatched.
  void mismatch(int peer, const Tag& got, size_t got_bytes);

  std::vector<TransferQueue> out_, in_;  // by peer

 private:
  // Peers with something posted; the order within is of no meaning.
  struct Active {
    std::vector<int> peers;
    std::vector<char> listed;
    void add(int peer);
  };
  struct Subscription {
    Fate* fate = nullptr;
    int id = 0;
    ~Subscription();
  };

  void heed_fate();
  void check_left();
  bool ready() const;

  Active sending_, receiving_;
  Doorbell* bell_ = nullptr;
  Spin spin_;
  std::vector<char> left_;  // by peer: ended in order, as of epoch_; what it sent can still be read
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
