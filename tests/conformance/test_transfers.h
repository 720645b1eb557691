// Sends and receives for tests: buffers with contents derived from sender, receiver and message number, and waits with
// a deadline.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "esp/net/transport.h"

namespace esp::net {

// Returns the contents of message `number` from rank `from` to rank `to`.
std::vector<std::byte> message(int from, int to, uint64_t number, size_t bytes);
Tag tag_of_message(uint64_t number);

// Posts messages and keeps them and their buffers until `finish` has completed all of them and checked the received
// data. Message n of a pair of ranks is the n-th message posted for that pair.
class TestTransfers {
 public:
  explicit TestTransfers(Transport& transport) : transport_(transport) {}
  // Abandons the transport if transfers are unfinished, because the buffers are about to be freed.
  ~TestTransfers();
  TestTransfers(const TestTransfers&) = delete;
  TestTransfers& operator=(const TestTransfers&) = delete;

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
  std::deque<Item> items_;  // a deque, so that items keep their addresses
  bool finished_ = true;
};

// Polls and sleeps until the transfer is no longer posted or the deadline has passed.
void wait_for_transfer(Transport& transport, const Transfer& transfer, Deadline deadline);

}  // namespace esp::net
