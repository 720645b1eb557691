// Mismatching calls, absent ranks and invalid arguments: every rank reports an error and no rank hangs.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "esp/comm/algo/table.h"
#include "esp/comm/communicator.h"
#include "esp/comm/diagnosis.h"
#include "esp/comm/schedule_file.h"
#include "esp/net/inproc/threads.h"

namespace esp::comm {
namespace {

using namespace std::chrono_literals;

// Error text thrown by `body` on each rank, indexed by rank; empty if `body` returned.
std::vector<std::string> errors_of(int size, const std::string& transport, Duration timeout,
                                   const std::function<void(Communicator&)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(size));
  net::run_threads(size, [&](net::World& world) {
    CommOptions options;
    options.transport = transport;
    options.timeout = timeout;
    auto comm = make_communicator(world, world.world_group(), options);
    auto& error = errors[static_cast<size_t>(world.rank)];
    try {
      comm->barrier();
      body(*comm);
      // On some ranks a call returns before the other ranks detect the mismatch. The next call of these ranks must
      // report it.
      for (int i = 0; i < 1000; ++i) {
        comm->barrier();
        std::this_thread::sleep_for(1ms);
      }
    } catch (const CommError& first) {
      error = first.what();
      // A failed communicator must throw the same error again.
      try {
        comm->barrier();
        error = "the failed communicator completed a barrier";
      } catch (const CommError& second) {
        if (error != second.what()) error = fmt::format("first \"{}\", then \"{}\"", error, second.what());
      }
    }
  });
  return errors;
}

int ranks_named(const std::string& text) {
  int named = 0;
  for (int r = 0; r < 8; ++r) named += text.find(fmt::format("rank {}", r)) != std::string::npos;
  return named;
}

struct Difference {
  const char* name;
  std::function<void(Communicator&, Call&)> change;  // change applied to the call of rank 1
  std::vector<std::string> words;                    // words that must appear in the error of every rank
};

class Mismatch : public testing::TestWithParam<const char*> {};

TEST_P(Mismatch, ReportsBothRanksAndDifferenceToEveryRank) {
  const Difference differences[] = {
      {"count", [](Communicator&, Call& call) { call.count = 1001; }, {"1000", "1001"}},
      {"element type", [](Communicator&, Call& call) { call.dtype = DType::i32; }, {"f32", "i32"}},
      {"reduction", [](Communicator&, Call& call) { call.reduce = ReduceOp::max; }, {"sum", "max"}},
      {"operation", [](Communicator&, Call& call) { call.op = Op::broadcast; }, {"all_reduce", "broadcast"}},
      {"order", [](Communicator& comm, Call&) { comm.barrier(); }, {"all_reduce", "barrier"}},
  };
  for (const Difference& difference : differences) {
    auto errors = errors_of(4, GetParam(), 30s, [&](Communicator& comm) {
      std::vector<float> data(2000, 1.0f);
      Call call;
      call.op = Op::all_reduce;
      call.in = call.out = data.data();
      call.count = 1000;
      if (comm.rank() == 1) difference.change(comm, call);
      comm.run(call);
    });
    for (size_t r = 0; r < errors.size(); ++r) {
      EXPECT_GE(ranks_named(errors[r]), 2) << difference.name << " on rank " << r << ": " << errors[r];
      EXPECT_NE(errors[r].find("rank 1"), std::string::npos)
          << difference.name << " on rank " << r << ": " << errors[r];
      for (const std::string& word : difference.words)
        EXPECT_NE(errors[r].find(word), std::string::npos) << difference.name << " on rank " << r << ": " << errors[r];
    }
  }
}

TEST_P(Mismatch, ReportsDifferentAlgorithms) {
  // The ranks may wait for each other without messages; their call positions show the mismatch.
  auto errors = errors_of(4, GetParam(), 60s, [&](Communicator& comm) {
    std::vector<float> data(1000, 1.0f);
    Call call;
    call.op = Op::all_reduce;
    call.in = call.out = data.data();
    call.count = data.size();
    call.algorithm = comm.rank() == 2 ? "tree" : "ring";
    comm.run(call);
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("rank 2"), std::string::npos) << error;
    EXPECT_NE(error.find("tree"), std::string::npos) << error;
    EXPECT_EQ(error.find("timed out after"), std::string::npos)
        << "the mismatch was reported only at the deadline: " << error;
  }
}

TEST_P(Mismatch, DetectsDifferentCallsThatExchangeNoMessage) {
  // Rank 3 calls gather, rank 2 reduce, ranks 0 and 1 broadcast; the roots differ.
  auto errors = errors_of(4, GetParam(), 60s, [&](Communicator& comm) {
    std::vector<float> data(1000, 1.0f), sum(1000);
    Call call;
    call.op = comm.rank() == 3 ? Op::gather : Op::broadcast;
    call.root = comm.rank() == 3 ? 3 : 2;
    call.in = call.out = data.data();
    if (call.op == Op::gather) call.in = data.data() + 750;
    call.count = data.size();
    call.algorithm = "tree";
    if (comm.rank() == 2) call.op = Op::reduce;
    comm.run(call);
  });
  for (const std::string& error : errors) {
    EXPECT_GE(ranks_named(error), 2) << error;
    EXPECT_EQ(error.find("timed out after"), std::string::npos)
        << "the mismatch was reported only at the deadline: " << error;
  }
}

TEST(Faults, DetectsReceiveWithoutMatchingSend) {
  std::vector<std::string> errors(3);
  net::run_threads(3, [&](net::World& world) {
    CommOptions options;
    options.transport = "inproc";
    options.timeout = 60s;
    auto comm = make_communicator(world, world.world_group(), options);
    // Rank 0 sends nothing to rank 1, but rank 1 expects five elements from rank 0.
    std::vector<float> in(30, 1.0f), out(30);
    std::vector<size_t> send(3, 5), recv(3, 5), at = {0, 10, 20};
    if (world.rank == 0) send[1] = 0;
    Call call;
    call.op = Op::all_to_all_v;
    call.in = in.data();
    call.out = out.data();
    call.send_counts = send;
    call.recv_counts = recv;
    call.send_offsets = call.recv_offsets = at;
    try {
      comm->run(call);
      // This rank's own call succeeded. It waits until another rank reports the error, which its next call must throw.
      for (int i = 0; i < 30'000 && !world.peer_status->epoch(); ++i) std::this_thread::sleep_for(1ms);
      comm->barrier();
    } catch (const CommError& error) {
      EXPECT_EQ(error.kind(), CommError::Kind::mismatch);
      errors[static_cast<size_t>(world.rank)] = error.what();
    }
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("rank 1 expects data from rank 0, which sends none"), std::string::npos) << error;
}

TEST(Faults, DetectsDifferentSchedulesOfSameName) {
  std::vector<std::string> errors(2);
  net::run_threads(2, [&](net::World& world) {
    CollectiveSpec spec;
    spec.size = 2;
    // Each schedule is correct by itself, but ranks that run different ones would deadlock or add unrelated elements.
    auto file = export_schedule(find_algorithm(Op::all_reduce, world.rank == 0 ? "ring" : "ring_shift0"), spec);
    file.name = "mine";
    CommOptions options;
    options.transport = "inproc";
    options.timeout = 60s;
    options.schedules = {std::make_shared<ScheduleFile>(file)};
    auto comm = make_communicator(world, world.world_group(), options);
    std::vector<float> data(100);
    Call call{.op = Op::all_reduce, .in = data.data(), .out = data.data(), .count = 100, .algorithm = "mine"};
    try {
      comm->run(call);
    } catch (const CommError& error) {
      EXPECT_EQ(error.kind(), CommError::Kind::mismatch);
      errors[static_cast<size_t>(world.rank)] = error.what();
    }
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(ranks_named(error), 2) << error;
    EXPECT_NE(error.find("from a schedule file"), std::string::npos) << error;
  }
}

TEST(Faults, SecondWorldCommunicatorWorksAfterFirstFailed) {
  for (const char* transport : {"inproc", "auto"})
    net::run_threads(3, [&](net::World& world) {
      CommOptions options;
      options.transport = transport;
      options.timeout = 30s;
      auto first = make_communicator(world, world.world_group(), options);
      float one = 1;
      std::vector<float> more(10);
      try {
        first->all_reduce(more.data(), more.data(), world.rank == 1 ? 2 : 1, DType::f32, ReduceOp::sum);
        for (;;) first->barrier();
      } catch (const CommError& error) {
        EXPECT_EQ(error.kind(), CommError::Kind::mismatch) << error.what();
      }
      auto second = make_communicator(world, world.world_group(), options);
      second->all_reduce(&one, &one, 1, DType::f32, ReduceOp::sum);
      EXPECT_EQ(one, 3.0f);
      EXPECT_THROW(first->barrier(), CommError);
    });
}

INSTANTIATE_TEST_SUITE_P(Transports, Mismatch, testing::Values("inproc", "auto"),
                         [](const auto& row) { return row.param; });

TEST(Faults, SizeMismatchNamesBothRanks) {
  auto errors = errors_of(3, "inproc", 30s, [](Communicator& comm) {
    std::vector<float> data(100);
    if (comm.rank() == 0) comm.send(data.data(), 10, DType::f32, 2);
    if (comm.rank() == 2) comm.recv(data.data(), 12, DType::f32, 0);
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("rank 0"), std::string::npos) << error;
    EXPECT_NE(error.find("rank 2"), std::string::npos) << error;
    EXPECT_NE(error.find("recv of 12 f32 from 0"), std::string::npos) << error;
    EXPECT_NE(error.find("send of 10 f32 to 2"), std::string::npos) << error;
  }
}

class LateRank : public testing::TestWithParam<const char*> {};

TEST_P(LateRank, TimeoutErrorNamesLateRankOnAllRanks) {
  std::atomic<int> num_reported = 0;
  auto errors = errors_of(4, GetParam(), 60s, [&](Communicator& comm) {
    float one = 1;
    Call call{.op = Op::all_reduce, .in = &one, .out = &one, .count = 1};
    if (comm.rank() == 2) {
      while (num_reported < 3) std::this_thread::sleep_for(1ms);
    } else {
      call.timeout = 2s;
    }
    try {
      comm.run(call);
    } catch (const CommError&) {
      ++num_reported;
      throw;
    }
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("rank 2 is behind"), std::string::npos) << error;
    EXPECT_NE(error.find("all_reduce of 1 f32"), std::string::npos) << error;
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, LateRank, testing::Values("inproc", "auto"),
                         [](const auto& row) { return row.param; });

TEST(Faults, NamesRankThatExits) {
  for (const char* transport : {"inproc", "auto"}) {
    std::vector<std::string> errors(3);
    auto job = [&] {
      net::run_threads(3, [&](net::World& world) {
        CommOptions options;
        options.transport = transport;
        options.timeout = 30s;
        auto comm = make_communicator(world, world.world_group(), options);
        if (world.rank == 1) throw std::runtime_error("test failure of rank 1");
        try {
          std::vector<float> data(100'000);
          for (;;) comm->all_reduce(data.data(), data.data(), data.size(), DType::f32, ReduceOp::sum);
        } catch (const CommError& error) {
          EXPECT_EQ(error.kind(), CommError::Kind::lost);
          EXPECT_EQ(error.peer(), 1);
          errors[static_cast<size_t>(world.rank)] = error.what();
        }
      });
    };
    EXPECT_THROW(job(), std::runtime_error);
    EXPECT_NE(errors[0].find("rank 1"), std::string::npos) << errors[0];
    EXPECT_NE(errors[2].find("rank 1"), std::string::npos) << errors[2];
  }
}

TEST(Faults, AbortEndsPendingCalls) {
  net::run_threads(2, [](net::World& world) {
    CommOptions options;
    options.timeout = 30s;
    auto comm = make_communicator(world, world.world_group(), options);
    if (world.rank == 0) {
      std::this_thread::sleep_for(50ms);
      comm->abort("enough");
      return;
    }
    try {
      comm->barrier();
      ADD_FAILURE() << "the barrier returned without an error";
    } catch (const CommError& error) {
      EXPECT_STREQ(error.what(), "rank 0 aborted: enough");
    }
  });
}

TEST(Faults, RejectsInvalidArgumentsBeforeSending) {
  net::run_threads(2, [](net::World& world) {
    for (const char* transport : {"inproc", "auto"}) {
      CommOptions options;
      options.transport = transport;
      auto comm = make_communicator(world, world.world_group(), options);
      std::vector<float> data(64);
      auto refused = [&](const Call& call, const std::string& words) {
        for (bool started : {false, true}) {
          try {
            started ? (void)comm->start(call) : comm->run(call);
            ADD_FAILURE() << words;
          } catch (const UsageError& error) {
            EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
          }
        }
      };
      float* a = data.data();
      refused({.op = Op::all_reduce, .out = a, .count = 4}, "input: got a null pointer; expected a buffer of 4");
      refused({.op = Op::all_reduce, .in = a, .count = 4}, "output: got a null pointer; expected a buffer of 4");
      refused({.op = Op::all_reduce, .in = a, .out = a + 1, .count = 4}, "overlap partially");
      refused({.op = Op::broadcast, .in = a, .out = a, .count = 4, .root = 2},
              "root: got 2; expected a rank from 0 to 1");
      refused({.op = Op::all_to_all, .in = a, .out = a + 32, .count = 5}, "expected a multiple of the 2 ranks");
      refused({.op = Op::send, .in = a, .count = 4, .root = world.rank}, "this rank itself");
      refused({.op = Op::all_reduce, .in = a, .out = a, .count = 4, .algorithm = "rign"}, "did you mean \"ring\"");
      refused({.op = Op::all_to_all_v, .in = a, .out = a + 32}, "expected 2 each, one per rank");
      refused({.op = Op::all_reduce, .in = reinterpret_cast<char*>(a) + 1, .out = a + 32, .count = 4}, "not aligned");
      // The communicator must still work, and the rejected calls must not have used call numbers.
      comm->barrier();
    }
  });
}

TEST(Faults, RejectsInvalidOptions) {
  net::run_threads(2, [](net::World& world) {
    CommOptions options;
    options.algorithms = "all_reduce=rng";
    EXPECT_THROW(make_communicator(world, world.world_group(), options), UsageError);
    options.algorithms = "";
    options.shape = {3, 2};
    EXPECT_THROW(make_communicator(world, world.world_group(), options), UsageError);
  });
}

TEST(Diagnosis, RankWithoutChosenAlgorithmIsNotReportedAsMismatch) {
  net::Group group{7, {0, 1, 2}, 0};
  net::Tag mine = tag_of({.op = Op::all_reduce, .count = 3}, 9, 5);
  std::vector<net::CallPosition> positions(3, {true, mine, true});
  positions[1].entered = tag_of({.op = Op::all_reduce, .count = 3}, 9, -1);
  positions[2].entered.sequence = 8;
  EXPECT_EQ(deadline_error(mine, 2s, group, positions, 1, false).peer(), 2);
  positions[1].entered = tag_of({.op = Op::all_reduce, .count = 3}, 9, 6);
  EXPECT_EQ(deadline_error(mine, 2s, group, positions, 1, false).peer(), 1);
}

TEST(Diagnosis, NamesUnresponsiveRankInsteadOfRankAtEarlierCall) {
  net::Group group{7, {10, 11, 12, 13}, 0};
  net::Tag mine = tag_of({.op = Op::barrier}, 9, -1);
  std::vector<net::CallPosition> positions(4, {true, mine, true});
  positions[2].answered = false;
  positions[3].entered.sequence = 8;
  CommError error = deadline_error(mine, 2s, group, positions, 1, false);
  EXPECT_EQ(error.peer(), 12);
  EXPECT_NE(std::string(error.what()).find("rank 12 does not answer"), std::string::npos) << error.what();
  positions[2].answered = true;
  error = deadline_error(mine, 2s, group, positions, 1, false);
  EXPECT_EQ(error.peer(), 13);
  positions[1].entered = tag_of({.op = Op::all_reduce, .count = 3}, 9, -1);
  error = deadline_error(mine, 2s, group, positions, 1, false);
  EXPECT_EQ(error.kind(), CommError::Kind::mismatch);
  EXPECT_EQ(error.peer(), 11);
}

}  // namespace
}  // namespace esp::comm
