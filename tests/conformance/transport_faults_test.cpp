// Behaviour of every transport when a peer sends the wrong message or no message.
#include <gtest/gtest.h>
#include <time.h>

#include <thread>

#include "esp/base/error.h"
#include "tests/conformance/suite.h"

namespace esp::net {
namespace {

class TransportFaults : public TransportSuite {
 protected:
  // Rank 0 sends message `sent`. Rank 1 expects another message and must report the one it received. Rank 0 keeps its
  // message posted until rank 1 has checked; rank 1 signals this on a second transport.
  void expect_mismatch(uint64_t sent, size_t sent_bytes, uint64_t expected, size_t expected_bytes) {
    run(2, [=, this](const World& world, const Group& group) {
      auto transport = open(world, group);
      auto second_transport = open(world, second_group(group, 7));
      TestTransfers transfers(*transport), second_transfers(*second_transport);
      if (group.rank == 0) {
        Transfer& message = transfers.send(1, sent, sent_bytes);
        Transfer& note = second_transfers.receive(1, 0, 1);
        Deadline deadline = Deadline::after_ms(30'000);
        while (note.state == Transfer::State::posted && !deadline.passed()) {
          transport->poll();
          if (!second_transport->poll()) second_transport->sleep(deadline.earlier(std::chrono::milliseconds(1)));
        }
        second_transfers.finish();
        EXPECT_NE(message.state, Transfer::State::mismatched) << "only the receiver reports a mismatch";
      } else {
        Transfer& wrong = transfers.receive(0, expected, expected_bytes);
        wait_for_transfer(*transport, wrong, Deadline::after_ms(30'000));
        EXPECT_EQ(wrong.state, Transfer::State::mismatched);
        EXPECT_EQ(wrong.got, tag_of_message(sent));
        EXPECT_EQ(wrong.got_bytes, sent_bytes);
        second_transfers.send(0, 0, 1);
        second_transfers.finish();
      }
    });
  }
};
ESP_INSTANTIATE_FOR_ALL_TRANSPORTS(TransportFaults);

TEST_P(TransportFaults, ReportsReceivedTagWhenTagDiffers) {
  expect_mismatch(5, 100, 6, 100);
}
TEST_P(TransportFaults, ReportsSizeWhenMessageIsShorter) {
  expect_mismatch(5, 1000, 5, 70'000);
}
TEST_P(TransportFaults, ReportsSizeWhenMessageIsLonger) {
  expect_mismatch(5, 3'000'000, 5, 10);
}
TEST_P(TransportFaults, ReportsEmptyMessageWhenDataIsExpected) {
  expect_mismatch(5, 0, 5, 10);
}

int64_t thread_cpu_ms() {
  timespec spent{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return spent.tv_sec * 1000 + spent.tv_nsec / 1'000'000;
}

TEST_P(TransportFaults, WaitEndsAtDeadlineWithoutBusyLoop) {
  run(2, [&](const World& world, const Group& group) {
    auto transport = open(world, group);
    if (group.rank == 0) {
      TestTransfers transfers(*transport);
      Transfer& never = transfers.receive(1, 1, 10);
      Deadline deadline = Deadline::after_ms(400);
      int64_t before = thread_cpu_ms();
      wait_for_transfer(*transport, never, deadline);
      EXPECT_LT(thread_cpu_ms() - before, 200);
      EXPECT_EQ(never.state, Transfer::State::posted);
      EXPECT_TRUE(deadline.passed());
      transport->abandon();
    }
    // Rank 1 stays until the wait of rank 0 has timed out, so that its exit cannot end the wait.
    auto second_transport = open(world, second_group(group, 7));
    TestTransfers second_transfers(*second_transport);
    if (group.rank == 0) second_transfers.send(1, 0, 1);
    if (group.rank == 1) second_transfers.receive(0, 0, 1);
    second_transfers.finish();
  });
}

// Rank 2 becomes silent. While the other ranks wait for it, each marks it as lost in its PeerStatus.
TEST_P(TransportFaults, PendingWaitsThrowWhenPeerIsLost) {
  run(4, [&](const World& world, const Group& group) {
    auto transport = open(world, group);
    if (group.rank == 2) {
      // Longer than the 30 ms below: the others must not detect the exit before they mark the rank as lost.
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return;
    }
    int victim = group.members[2];
    TestTransfers transfers(*transport);
    Transfer& incoming = transfers.receive(2, 1, 100'000);
    transfers.send(2, 1, 40'000'000);
    {
      std::jthread watch([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        world.peer_status->mark_lost(victim, "was lost for the test");
      });
      try {
        wait_for_transfer(*transport, incoming, Deadline::after_ms(30'000));
        ADD_FAILURE() << "the wait ended without an error";
      } catch (const CommError& error) {
        EXPECT_EQ(error.kind(), CommError::Kind::lost);
        EXPECT_EQ(error.peer(), victim);
      }
    }
    EXPECT_THROW(transport->poll(), CommError) << "later polls must throw too";
  });
}

TEST_P(TransportFaults, LossOfRankOutsideGroupDoesNotAffectGroup) {
  run(3, [&](const World& world, const Group& group) {
    if (group.rank == 2) return;
    Group pair = second_group(group, 3);
    pair.members.resize(2);
    auto transport = open(world, pair);
    for (uint64_t round = 0; round < 20; ++round) {
      TestTransfers transfers(*transport);
      transfers.send(1 - group.rank, round, 5000);
      if (round == 10) world.peer_status->mark_lost(group.members[2], "was lost for the test");
      transfers.receive(1 - group.rank, round, 5000);
      transfers.finish();
    }
  });
}

TEST_P(TransportFaults, PendingWaitsThrowCauseWhenGroupIsAborted) {
  run(2, [&](const World& world, const Group& group) {
    auto transport = open(world, group);
    TestTransfers transfers(*transport);
    Transfer& incoming = transfers.receive(1 - group.rank, 1, 100);
    std::jthread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      world.peer_status->abort(group.id, CommError(CommError::Kind::aborted, 0, "aborted by the test"));
    });
    try {
      wait_for_transfer(*transport, incoming, Deadline::after_ms(30'000));
      ADD_FAILURE() << "the wait ended without an error";
    } catch (const CommError& error) {
      EXPECT_EQ(error.kind(), CommError::Kind::aborted);
      EXPECT_STREQ(error.what(), "aborted by the test");
    }
  });
}

}  // namespace
}  // namespace esp::net
