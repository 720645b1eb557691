#include "tests/conformance/test_transfers.h"

#include <gtest/gtest.h>

#include "esp/base/rng.h"

namespace esp::net {

std::vector<std::byte> message(int from, int to, uint64_t number, size_t bytes) {
  std::vector<std::byte> buffer(bytes);
  uint64_t purpose = static_cast<uint64_t>(from) * 1000 + static_cast<uint64_t>(to);
  // Fills a message with one random value per 4 KiB block and a counter inside the block. This detects misplaced data
  // and is fast for large messages.
  for (size_t i = 0; i < bytes;) {
    uint64_t draw = random_bits(number, purpose, i / 4096);
    for (size_t end = std::min(bytes, (i / 4096 + 1) * 4096); i < end; ++i)
      buffer[i] = static_cast<std::byte>(draw + i * 131 + (i >> 8));
  }
  return buffer;
}

Tag tag_of_message(uint64_t number) {
  return {.sequence = number, .what = 77, .count = number * 3, .step = 1};
}

TestTransfers::~TestTransfers() {
  if (!finished_) transport_.abandon();
}

Transfer& TestTransfers::send(int peer, uint64_t number, size_t bytes) {
  Item& item = items_.emplace_back(Item{{}, message(transport_.rank(), peer, number, bytes), number, true});
  item.transfer = {.peer = peer, .data = item.buffer.data(), .bytes = bytes, .tag = tag_of_message(number)};
  finished_ = false;
  transport_.send(item.transfer);
  return item.transfer;
}

Transfer& TestTransfers::receive(int peer, uint64_t number, size_t bytes, Apply apply, const void* context) {
  Item& item = items_.emplace_back(Item{{}, std::vector<std::byte>(bytes), number, false});
  item.transfer = {.peer = peer,
                   .data = item.buffer.data(),
                   .bytes = bytes,
                   .tag = tag_of_message(number),
                   .apply = apply,
                   .context = context};
  finished_ = false;
  transport_.receive(item.transfer);
  return item.transfer;
}

void TestTransfers::finish(Deadline deadline) {
  for (Item& item : items_) {
    wait_for_transfer(transport_, item.transfer, deadline);
    ASSERT_EQ(item.transfer.state, Transfer::State::done)
        << (item.sending ? "send to " : "receive from ") << item.transfer.peer << ", number " << item.number;
    if (item.sending) continue;
    bool same = item.buffer == message(item.transfer.peer, transport_.rank(), item.number, item.transfer.bytes);
    ASSERT_TRUE(same) << item.transfer.bytes << " bytes from " << item.transfer.peer << ", number " << item.number;
  }
  items_.clear();
  finished_ = true;
}

void wait_for_transfer(Transport& transport, const Transfer& transfer, Deadline deadline) {
  while (transfer.state == Transfer::State::posted && !deadline.passed())
    if (!transport.poll()) transport.sleep(deadline);
}

}  // namespace esp::net
