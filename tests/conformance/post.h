// Sending and receiving in tests: buffers whose contents follow from who sent what, and waits with a deadline.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "esp/net/transport.h"

namespace esp::net {

// The contents of message `number` from `from` to `to`.
std::vector<std::byte> message(int from, int to, uint64_t number, size_t bytes);
Tag tag_of_message(uint64_t number);

// Posts messages and keeps them, with their buffers, until `finish` has driven them all to their end and checked what
// arrived. Message n of a pair is the n-th posted for it.
class Post {
 public:
  explicit Post(Transport& transport) : transport_(transport) {}
  // Buffers still posted when a test gives up must not be touched after.
  ~Post();
  Post(const Post&) = delete;
  Post& operator=(const Post&) = delete;

  Transfer& send(int peer, uint64_t number, size_t bytes);
  Transfer& receive(int peer, uint64_t number, size_t bytes, Apply apply = nullptr, const void* context = nullptr);
  void finish(Deadline deadline = Deadline::after_ms(60'000));

 private:
  struct Item {
    Transfer transfer;
    std::vector<std::byte> buffer;
    uint64_t number;
    bool sending;
  };
  Transport& transport_;
  std::deque<Item> items_;  // stay put
  bool finished_ = true;
};

// Polls and sleeps until the transfer is no longer posted or the deadline has passed.
void drive(Transport& transport, const Transfer& transfer, Deadline deadline);

}  // namespace esp::net
