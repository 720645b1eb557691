// What every transport does when peers do the wrong thing, or nothing.
#include <gtest/gtest.h>
#include <time.h>

#include <thread>

#include "esp/base/error.h"
#include "tests/conformance/suite.h"

namespace esp::net {
namespace {

class TransportFaults : public TransportSuite {
 protected:
  // Rank 0 sends `sent` of `sent_bytes`; rank 1 expects something else and must be told what came. Rank 0 keeps its
  // message posted until rank 1 has looked, which it says on a second transport.
  void expect_mismatch(uint64_t sent, size_t sent_bytes, uint64_t expected, size_t expected_bytes) {
    run(2, [=, this](const World& world, const Group& group) {
      auto transport = open(world, group);
      auto aside = open(world, again(group, 7));
      Post post(*transport), notes(*aside);
      if (group.rank == 0) {
        Transfer& message = post.send(1, sent, sent_bytes);
        Transfer& note = notes.receive(1, 0, 1);
        Deadline deadline = Deadline::after_ms(30'000);
        while (note.state == Transfer::State::posted && !deadline.passed()) {
          transport->poll();
          if (!aside->poll()) aside->sleep(deadline.earlier(std::chrono::milliseconds(1)));
        }
        notes.finish();
        EXPECT_NE(message.state, Transfer::State::mismatched) << "the receiver is told, not the sender";
      } else {
        Transfer& wrong = post.receive(0, expected, expected_bytes);
        drive(*transport, wrong, Deadline::after_ms(30'000));
        EXPECT_EQ(wrong.state, Transfer::State::mismatched);
        EXPECT_EQ(wrong.got, tag_of_message(sent));
        EXPECT_EQ(wrong.got_bytes, sent_bytes);
        notes.send(0, 0, 1);
        notes.finish();
      }
    });
  }
};
ESP_OVER_EVERY_TRANSPORT(TransportFaults);

TEST_P(TransportFaults, AnotherTagIsReportedWithWhatCame) {
  expect_mismatch(5, 100, 6, 100);
}
TEST_P(TransportFaults, AShorterMessageIsReportedWithItsSize) {
  expect_mismatch(5, 1000, 5, 70'000);
}
TEST_P(TransportFaults, ALongerMessageIsReportedWithItsSize) {
  expect_mismatch(5, 3'000'000, 5, 10);
}
TEST_P(TransportFaults, AnEmptyMessageInsteadOfAFullOneIsReported) {
  expect_mismatch(5, 0, 5, 10);
}

int64_t thread_cpu_ms() {
  timespec spent{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return spent.tv_sec * 1000 + spent.tv_nsec / 1'000'000;
}

TEST_P(TransportFaults, AWaitForNothingEndsAtItsDeadlineAndBurnsNoCore) {
  run(2, [&](const World& world, const Group& group) {
    auto transport = open(world, group);
    if (group.rank == 0) {
      Post post(*transport);
      Transfer& never = post.receive(1, 1, 10);
      Deadline deadline = Deadline::after_ms(400);
      int64_t before = thread_cpu_ms();
      drive(*transport, never, deadline);
      EXPECT_LT(thread_cpu_ms() - before, 200);
      EXPECT_EQ(never.state, Transfer::State::posted);
      EXPECT_TRUE(deadline.passed());
      transport->abandon();
    }
    // Rank 1 stays until rank 0 has given up, so that its leaving cannot end the wait.
    auto aside = open(world, again(group, 7));
    Post notes(*aside);
    if (group.rank == 0) notes.send(1, 0, 1);
    if (group.rank == 1) notes.receive(0, 0, 1);
    notes.finish();
  });
}

// Rank 2 falls silent; everybody's Fate is told while the others wait for it.
TEST_P(TransportFaults, ALostPeerEndsEveryWaitWithItsName) {
  run(4, [&](const World& world, const Group& group) {
    auto transport = open(world, group);
    if (group.rank == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // or the others may notice it leave before that
      return;
    }
    int victim = group.members[2];
    Post post(*transport);
    Transfer& incoming = post.receive(2, 1, 100'000);
    post.send(2, 1, 40'000'000);
    {
      std::jthread watch([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        world.fate->lose(victim, "was lost for the test");
      });
      try {
        drive(*transport, incoming, Deadline::after_ms(30'000));
        ADD_FAILURE() << "the wait ended without an error";
      } catch (const CommError& error) {
        EXPECT_EQ(error.kind(), CommError::Kind::lost);
        EXPECT_EQ(error.peer(), victim);
      }
    }
    EXPECT_THROW(transport->poll(), CommError) << "and it stays so";
  });
}

TEST_P(TransportFaults, ALossElsewhereDoesNotDisturbAGroupWithoutIt) {
  run(3, [&](const World& world, const Group& group) {
    if (group.rank == 2) return;
    Group pair = again(group, 3);
    pair.members.resize(2);
    auto transport = open(world, pair);
    for (uint64_t round = 0; round < 20; ++round) {
      Post post(*transport);
      post.send(1 - group.rank, round, 5000);
      if (round == 10) world.fate->lose(group.members[2], "was lost for the test");
      post.receive(1 - group.rank, round, 5000);
      post.finish();
    }
  });
}

TEST_P(TransportFaults, AnAbortedGroupEndsItsWaitsWithTheCause) {
  run(2, [&](const World& world, const Group& group) {
    auto transport = open(world, group);
    Post post(*transport);
    Transfer& incoming = post.receive(1 - group.rank, 1, 100);
    std::jthread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      world.fate->abort(group.id, CommError(CommError::Kind::aborted, 0, "enough of this"));
    });
    try {
      drive(*transport, incoming, Deadline::after_ms(30'000));
      ADD_FAILURE() << "the wait ended without an error";
    } catch (const CommError& error) {
      EXPECT_EQ(error.kind(), CommError::Kind::aborted);
      EXPECT_STREQ(error.what(), "enough of this");
    }
  });
}

}  // namespace
}  // namespace esp::net
