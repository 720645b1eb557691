// Communicator features beyond schedules: calls in flight, group calls, splits, signals, counters, algorithm choice.
#include "esp/comm/communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "esp/comm/algo/table.h"
#include "esp/comm/group_calls.h"
#include "esp/comm/schedule_file.h"
#include "esp/comm/test_options.h"
#include "esp/net/inproc/threads.h"

namespace esp::comm {
namespace {

using namespace std::chrono_literals;

TEST(Communicator, KeepsSeveralCallsInFlight) {
  net::run_threads(4, [](net::World& world) {
    for (const char* transport : {"inproc", "auto"}) {
      auto comm = make_communicator(world, world.world_group(), test_options(transport));
      constexpr size_t kCount = 5000;
      std::vector<std::vector<int64_t>> data;
      for (int k = 0; k < 8; ++k) data.emplace_back(kCount, world.rank + k);
      std::vector<Work> works;
      for (auto& buffer : data) {
        Call call;
        call.op = Op::all_reduce;
        call.in = call.out = buffer.data();
        call.count = kCount;
        call.dtype = DType::i64;
        works.push_back(comm->start(call));
      }
      // A blocking call queues behind the started calls.
      int64_t last = world.rank;
      comm->all_reduce(&last, &last, 1, DType::i64, ReduceOp::max);
      EXPECT_EQ(last, 3);
      for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait(Deadline::after(60s));
      for (int k = 0; k < 8; ++k) EXPECT_EQ(data[static_cast<size_t>(k)], std::vector<int64_t>(kCount, 6 + 4 * k));
    }
  });
}

TEST(Communicator, GroupedSendsAndReceivesDoNotDeadlock) {
  net::run_threads(4, [](net::World& world) {
    auto comm = make_communicator(world, world.world_group(), test_options("inproc"));
    constexpr size_t kCount = 100'000;
    std::vector<int32_t> mine(kCount, world.rank);
    std::vector<std::vector<int32_t>> theirs(4, std::vector<int32_t>(kCount));
    std::vector<Call> calls;
    for (int peer = 0; peer < 4; ++peer) {
      if (peer == world.rank) continue;
      Call send, recv;
      send.op = Op::send;
      send.in = mine.data();
      recv.op = Op::recv;
      recv.out = theirs[static_cast<size_t>(peer)].data();
      send.count = recv.count = kCount;
      send.dtype = recv.dtype = DType::i32;
      send.root = recv.root = peer;
      calls.push_back(send);
      calls.push_back(recv);
    }
    // The ranks list their calls in different orders.
    std::rotate(calls.begin(), calls.begin() + world.rank, calls.end());
    comm->start_group(calls).wait(Deadline::after(60s));
    for (int peer = 0; peer < 4; ++peer)
      if (peer != world.rank) {
        EXPECT_EQ(theirs[static_cast<size_t>(peer)], std::vector<int32_t>(kCount, peer));
      }
  });
}

TEST(GroupScope, DrivesSeveralRanksFromOneThread) {
  constexpr int kRanks = 4;
  auto worlds = net::thread_worlds(kRanks);
  std::vector<std::unique_ptr<Communicator>> comms(kRanks);
  {
    std::vector<std::jthread> threads;  // opening is collective, so each rank needs a thread
    for (int r = 0; r < kRanks; ++r)
      threads.emplace_back([&, r] {
        net::World& world = worlds[static_cast<size_t>(r)];
        comms[static_cast<size_t>(r)] = make_communicator(world, world.world_group(), test_options("auto"));
      });
  }
  std::vector<std::vector<float>> data;
  for (int r = 0; r < kRanks; ++r) data.emplace_back(1000, static_cast<float>(r));
  for (int round = 0; round < 3; ++round) {
    GroupScope scope;
    for (int r = 0; r < kRanks; ++r) {
      Call call;
      call.op = Op::all_reduce;
      call.in = call.out = data[static_cast<size_t>(r)].data();
      call.count = 1000;
      call.reduce = ReduceOp::avg;
      scope.add(*comms[static_cast<size_t>(r)], call);
    }
    scope.end(Deadline::after(60s));
  }
  for (const auto& buffer : data) EXPECT_EQ(buffer, std::vector<float>(1000, 1.5f));
}

TEST(Communicator, SplitGroupsRanksByColourAndOrdersThemByKey) {
  for (const char* transport : {"inproc", "auto"})
    net::run_threads(7, [&](net::World& world) {
      auto comm = make_communicator(world, world.world_group(), test_options(transport));
      // Even ranks form a group in reverse rank order, odd ranks a group in rank order; rank 6 joins no group.
      int colour = world.rank == 6 ? -1 : world.rank % 2;
      auto half = comm->split(colour, colour == 0 ? -world.rank : 0);
      if (world.rank == 6) {
        EXPECT_EQ(half, nullptr);
        comm->barrier();
        return;
      }
      ASSERT_EQ(half->size(), 3);
      EXPECT_EQ(half->rank(), colour == 0 ? 2 - world.rank / 2 : world.rank / 2);
      int32_t sum = world.rank;
      half->all_reduce(&sum, &sum, 1, DType::i32, ReduceOp::sum);
      EXPECT_EQ(sum, colour == 0 ? 0 + 2 + 4 : 1 + 3 + 5);
      auto pair = half->split(half->rank() < 2 ? 0 : 1, 0);
      ASSERT_EQ(pair->size(), half->rank() < 2 ? 2 : 1);
      int32_t least = world.rank;
      pair->all_reduce(&least, &least, 1, DType::i32, ReduceOp::min);
      EXPECT_EQ(least, half->rank() == 2 ? world.rank : colour == 0 ? 2 : 1);
      // A second split with the same colours must create a separate group.
      auto again = half->split(0, 0);
      again->barrier();
      half->barrier();
      comm->barrier();
    });
}

TEST(Communicator, SignalsAccumulateAndBypassQueue) {
  net::run_threads(3, [](net::World& world) {
    auto comm = make_communicator(world, world.world_group(), test_options("auto"));
    int next = (world.rank + 1) % 3, before = (world.rank + 2) % 3;
    comm->signal(next);
    comm->signal(next);
    comm->barrier();
    comm->wait(before);
    comm->signal(next);
    comm->wait(before);
    comm->wait(before);
  });
}

TEST(Communicator, AllToAllVDeliversIrregularCounts) {
  for (const char* transport : {"inproc", "auto"})
    net::run_threads(5, [&](net::World& world) {
      auto comm = make_communicator(world, world.world_group(), test_options(transport));
      // Rank r sends r * p elements to p, so some pairs exchange nothing.
      std::vector<size_t> counts(5), send_offsets(5), recv_counts(5), recv_offsets(5);
      size_t sent = 0, received = 0;
      for (size_t p = 0; p < 5; ++p) {
        counts[p] = recv_counts[p] = static_cast<size_t>(world.rank) * p;
        send_offsets[p] = sent;
        recv_offsets[p] = received;
        sent += counts[p];
        received += recv_counts[p];
      }
      std::vector<int16_t> in(sent), out(received, -1);
      for (size_t p = 0; p < 5; ++p)
        for (size_t i = 0; i < counts[p]; ++i)
          in[send_offsets[p] + i] = static_cast<int16_t>(100 * world.rank + static_cast<int>(p));
      Call call;
      call.op = Op::all_to_all_v;
      call.in = in.data();
      call.out = out.data();
      call.dtype = DType::i16;
      call.send_counts = counts;
      call.send_offsets = send_offsets;
      call.recv_counts = recv_counts;
      call.recv_offsets = recv_offsets;
      comm->run(call);
      for (size_t p = 0; p < 5; ++p)
        for (size_t i = 0; i < recv_counts[p]; ++i)
          EXPECT_EQ(out[recv_offsets[p] + i], static_cast<int16_t>(100 * static_cast<int>(p) + world.rank));
    });
}

TEST(Communicator, RunsUserSchedule) {
  CollectiveSpec spec;
  spec.op = Op::all_reduce;
  spec.size = 3;
  spec.count = 3;
  auto file = std::make_shared<ScheduleFile>(export_schedule(find_algorithm(Op::all_reduce, "ring"), spec));
  file->name = "mine";
  net::run_threads(3, [&](net::World& world) {
    CommOptions options = test_options("inproc");
    options.schedules = {file};
    auto comm = make_communicator(world, world.world_group(), options);
    std::vector<int32_t> data(1000, world.rank + 1);
    Call call;
    call.op = Op::all_reduce;
    call.in = call.out = data.data();
    call.count = data.size();
    call.dtype = DType::i32;
    call.algorithm = "mine";
    comm->run(call);
    EXPECT_EQ(data, std::vector<int32_t>(1000, 6));
    EXPECT_EQ(comm->stats().at(0).algorithm, "mine");
    auto alone = comm->split(world.rank == 2 ? 1 : 0, 0);
    if (world.rank != 2) {
      EXPECT_THROW(alone->run(call), UsageError);  // the schedule is for three ranks; this group has one
    }
  });
}

TEST(Communicator, CountsTrafficOfRing) {
  net::run_threads(4, [](net::World& world) {
    auto comm = make_communicator(world, world.world_group(), test_options("inproc", 0));
    std::vector<float> data(1000, 1.0f);
    Call call;
    call.op = Op::all_reduce;
    call.in = call.out = data.data();
    call.count = data.size();
    call.algorithm = "ring";
    for (int i = 0; i < 3; ++i) comm->run(call);
    auto stats = comm->stats();
    ASSERT_EQ(stats.size(), 1u);
    EXPECT_EQ(stats[0].algorithm, "ring");
    EXPECT_EQ(stats[0].calls, 3u);
    EXPECT_EQ(stats[0].bytes_sent, 3u * 2 * 3 * 1000);  // bytes per rank: 2(N-1)/N·S
    EXPECT_EQ(stats[0].messages, 3u * 6);
    EXPECT_EQ(stats[0].rounds, 3u * 6);
    EXPECT_EQ(stats[0].transport, "inproc");
    // With shared memory the fused path is used.
    auto fused = make_communicator(world, world.world_group(), test_options("auto"));
    fused->barrier();
    EXPECT_EQ(fused->stats().at(0).transport, "shm");
  });
}

TEST(Communicator, AutoChoosesSameAlgorithmOnAllRanksAndExplainsIt) {
  net::run_threads(4, [](net::World& world) {
    auto comm = make_communicator(world, world.world_group(), test_options("inproc"));
    std::vector<float> data(100'000, 1.0f);
    comm->all_reduce(data.data(), data.data(), data.size(), DType::f32, ReduceOp::sum);
    EXPECT_EQ(data, std::vector<float>(100'000, 4.0f));
    Call call;
    call.op = Op::all_reduce;
    call.in = call.out = data.data();
    call.count = data.size();
    std::string why = comm->explain(call);
    EXPECT_NE(why.find("as measured"), std::string::npos) << why;
    EXPECT_NE(why.find("* "), std::string::npos) << why;
    // All ranks must choose the same algorithm, even if their measurements differ.
    uint64_t hash = std::hash<std::string>{}(why), other = 0;
    comm->run(
        {.op = Op::broadcast, .in = &hash, .out = world.rank == 0 ? &hash : &other, .count = 1, .dtype = DType::i64});
    EXPECT_EQ(world.rank == 0 ? hash : other, hash);
  });
}

}  // namespace
}  // namespace esp::comm
