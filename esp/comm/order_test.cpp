// Completion order: calls of one communicator end in order, calls of different communicators are independent, and no
// call ends before the last rank has entered it.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "esp/comm/communicator.h"
#include "esp/comm/test_options.h"
#include "esp/net/inproc/threads.h"

namespace esp::comm {
namespace {

using namespace std::chrono_literals;

Call sum_of(std::vector<int64_t>& buffer) {
  Call call;
  call.op = Op::all_reduce;
  call.in = call.out = buffer.data();
  call.count = buffer.size();
  call.dtype = DType::i64;
  return call;
}

void wait_for(const std::atomic<bool>& flag) {
  for (const auto deadline = Deadline::after(60s); !flag && !deadline.passed();) std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(flag);
}

TEST(CallOrder, NoCallEndsBeforeLastRankEnters) {
  for (const char* transport : {"inproc", "auto"}) {
    std::atomic<bool> looked = false;
    net::run_threads(3, [&](net::World& world) {
      auto comm = make_communicator(world, world.world_group(), test_options(transport));
      std::vector<int64_t> data(2000, world.rank);
      comm->barrier();
      if (world.rank == 2) wait_for(looked);
      const Work work = comm->start(sum_of(data));
      if (world.rank == 0) {
        std::this_thread::sleep_for(5ms);  // gives the other ranks time to enter the call
        EXPECT_FALSE(work.done());
        looked = true;
      }
      work.wait(Deadline::after(60s));
      EXPECT_TRUE(work.done());
      EXPECT_EQ(data, std::vector<int64_t>(2000, 3));
    });
  }
}

TEST(CallOrder, CommunicatorsEndTheirCallsInOrderAndIndependently) {
  for (const char* transport : {"inproc", "auto"}) {
    std::atomic<bool> second_done = false;
    net::run_threads(2, [&](net::World& world) {
      auto first = make_communicator(world, world.world_group(), test_options(transport));
      auto second = make_communicator(world, world.world_group(), test_options(transport));
      std::vector<int64_t> a(1000, world.rank), b(1000, 10 * world.rank), c(1000, 100 * world.rank);
      first->barrier();
      second->barrier();
      if (world.rank == 1) {  // rank 1 is late for the first call; its pending messages must not block the second call
        second->run(sum_of(c));
        second_done = true;
        first->run(sum_of(a));
        first->run(sum_of(b));
      } else {
        const Work one = first->start(sum_of(a)), two = first->start(sum_of(b)), other = second->start(sum_of(c));
        other.wait(Deadline::after(60s));
        wait_for(second_done);
        two.wait(Deadline::after(60s));
        EXPECT_TRUE(one.done());
        one.wait(Deadline::after(60s));
      }
      EXPECT_EQ(a, std::vector<int64_t>(1000, 1));
      EXPECT_EQ(b, std::vector<int64_t>(1000, 10));
      EXPECT_EQ(c, std::vector<int64_t>(1000, 100));
    });
  }
}

TEST(CallOrder, BarrierReturnsOnlyAfterAllRanksEnter) {
  for (const char* transport : {"inproc", "auto"}) {
    constexpr int kRanks = 4, kRounds = 50;
    std::vector<std::atomic<int>> marks(kRanks);
    std::atomic<int> wrong = 0;
    net::run_threads(kRanks, [&](net::World& world) {
      auto comm = make_communicator(world, world.world_group(), test_options(transport));
      for (int round = 1; round <= kRounds; ++round) {
        marks[static_cast<size_t>(world.rank)] = round;
        comm->barrier();
        for (const auto& mark : marks) wrong += mark < round;
      }
    });
    EXPECT_EQ(wrong, 0) << transport;
  }
}

}  // namespace
}  // namespace esp::comm
