// Ranks killed and stopped in the middle of large collectives: every survivor is told which one, soon, and nothing is
// left behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <sstream>
#include <thread>

#include <fmt/format.h>

#include "esp/base/rng.h"
#include "tests/multiproc/job.h"

namespace esp::multiproc {
namespace {

using namespace std::chrono_literals;

// All-reduces without end, then says what ended it: "error <rank blamed> <when> <message>".
void reduce_until_told(Rank& self, size_t count = size_t{2} << 20, Duration timeout = Duration::zero()) {
  std::vector<float> data(count, 1.0f), sum(data.size());
  comm::Call call{.op = comm::Op::all_reduce, .in = data.data(), .out = sum.data(), .count = count};
  self.comm.barrier();
  self.comm.run(call);  // all connections are made
  call.timeout = timeout;
  self.parent.say("ready");
  try {
    for (;;) self.comm.run(call);
  } catch (const CommError& error) {
    self.parent.say(fmt::format("error {} {} {}", error.peer(), now_ns(), error.what()));
  }
}

struct Told {
  int blamed = -1;
  int64_t when_ns = 0;
  std::string message;
};

Told hear_error(net::Forked& rank) {
  std::istringstream line(rank.hear(Deadline::after(30s)));
  std::string word;
  Told told;
  line >> word >> told.blamed >> told.when_ns;
  std::getline(line, told.message);
  if (word != "error") told.message = line.str();
  return told;
}

std::vector<int> pids_of(Job& job) {
  std::vector<int> pids;
  for (int r = 0; r < job.size(); ++r) pids.push_back(job.rank(r).pid());
  return pids;
}

JobOptions over(const std::string& transport, int size, Duration timeout) {
  JobOptions options;
  options.size = size;
  options.comm.transport = transport;
  options.comm.timeout = timeout;
  return options;
}

double percentile(std::vector<double> values, double p) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(p * static_cast<double>(values.size())))];
}

class Killed : public testing::TestWithParam<const char*> {};

TEST_P(Killed, RankIsNamedToEverySurvivor) {
  constexpr int kRounds = 8, kSize = 4;
  std::vector<double> latencies_ms;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<int> pids;
    {
      // Whoever is told within half a minute was not told by the deadline.
      Job job(over(GetParam(), kSize, 120s), [](Rank& self) { reduce_until_told(self); });
      pids = pids_of(job);
      job.expect_all("ready");
      auto lot = [&](uint64_t purpose, uint64_t below) {
        return random_bits(42, purpose, static_cast<uint64_t>(round)) % below;
      };
      int victim = static_cast<int>(lot(1, kSize));
      std::this_thread::sleep_for(std::chrono::microseconds(lot(2, 40'000)));
      int64_t killed_ns = now_ns();
      job.rank(victim).kill(SIGKILL);
      for (int r = 0; r < kSize; ++r) {
        if (r == victim) continue;
        Told told = hear_error(job.rank(r));
        EXPECT_EQ(told.blamed, victim) << "rank " << r << ": " << told.message;
        EXPECT_NE(told.message.find(fmt::format("rank {}", victim)), std::string::npos) << told.message;
        double ms = static_cast<double>(told.when_ns - killed_ns) * 1e-6;
        latencies_ms.push_back(ms);
        EXPECT_EQ(job.rank(r).hear(Deadline::after(30s)), "bye");
      }
    }
    EXPECT_EQ(segments_of(pids), std::vector<std::string>{});
  }
  fmt::print("{}: error after kill -9 on {} survivors: p50 {:.1f} ms, p99 {:.1f} ms\n", GetParam(), latencies_ms.size(),
             percentile(latencies_ms, 0.5), percentile(latencies_ms, 0.99));
}

TEST_P(Killed, HubOwnerIsNamedToo) {
  JobOptions options = over(GetParam(), 3, 120s);
  options.hub_in_rank_0 = true;
  Job job(options, [](Rank& self) { reduce_until_told(self); });
  job.expect_all("ready");
  job.rank(0).kill(SIGKILL);
  for (int r : {1, 2}) {
    Told told = hear_error(job.rank(r));
    EXPECT_EQ(told.blamed, 0) << "rank " << r << ": " << told.message;
  }
}

INSTANTIATE_TEST_SUITE_P(Over, Killed, testing::Values("auto", "shm", "tcp"),
                         [](const auto& row) { return row.param; });

class Stopped : public testing::TestWithParam<const char*> {};

TEST_P(Stopped, RankIsNamedToAllAtTheDeadline) {
  constexpr int kSize = 4, kVictim = 2;
  // The deadline is that of the calls; how long it takes the ranks to meet and to connect is not the question.
  Job job(over(GetParam(), kSize, 60s), [](Rank& self) { reduce_until_told(self, 10'000, 4s); });
  job.expect_all("ready");
  job.rank(kVictim).kill(SIGSTOP);
  for (int r = 0; r < kSize; ++r) {
    if (r == kVictim) continue;
    Told told = hear_error(job.rank(r));
    EXPECT_EQ(told.blamed, kVictim) << "rank " << r << ": " << told.message;
    EXPECT_NE(told.message.find("rank 2 does not answer"), std::string::npos) << told.message;
  }
  // Woken up, it finds out what it missed.
  job.rank(kVictim).kill(SIGCONT);
  Told told = hear_error(job.rank(kVictim));
  EXPECT_NE(told.message.find("rank 2"), std::string::npos) << told.message;
}

INSTANTIATE_TEST_SUITE_P(Over, Stopped, testing::Values("auto", "shm", "tcp"),
                         [](const auto& row) { return row.param; });

class Differing : public testing::TestWithParam<const char*> {};

TEST_P(Differing, CallsAreToldToEveryProcess) {
  Job job(over(GetParam(), 4, 20s), [](Rank& self) {
    self.comm.barrier();
    std::vector<float> data(1001);
    try {
      self.comm.all_reduce(data.data(), data.data(), self.comm.rank() == 3 ? 1001 : 1000, DType::f32,
                           comm::ReduceOp::sum);
      for (;;) {
        self.comm.barrier();
        std::this_thread::sleep_for(1ms);
      }
    } catch (const CommError& error) {
      self.parent.say(fmt::format("error {} {} {}", error.peer(), now_ns(), error.what()));
    }
  });
  for (int r = 0; r < 4; ++r) {
    Told told = hear_error(job.rank(r));
    EXPECT_NE(told.message.find("rank 3"), std::string::npos) << told.message;
    EXPECT_NE(told.message.find("1000"), std::string::npos) << told.message;
    EXPECT_NE(told.message.find("1001"), std::string::npos) << told.message;
  }
}

TEST_P(Differing, AlgorithmsAreToldLongBeforeTheDeadline) {
  Job job(over(GetParam(), 4, 100s), [](Rank& self) {
    self.comm.barrier();
    std::vector<float> data(1000);
    comm::Call call{.op = comm::Op::all_reduce, .in = data.data(), .out = data.data(), .count = data.size()};
    call.algorithm = self.comm.rank() == 2 ? "tree" : "ring";
    try {
      self.comm.run(call);
      for (;;) self.comm.barrier();
    } catch (const CommError& error) {
      self.parent.say(fmt::format("error {} {} {}", error.peer(), now_ns(), error.what()));
    }
    // The same processes go on in a new one.
    auto next = comm::make_communicator(self.world, self.world.everyone(), {});
    float one = 1;
    next->all_reduce(&one, &one, 1, DType::f32, comm::ReduceOp::sum);
    self.parent.say(fmt::format("then {}", one));
  });
  for (int r = 0; r < 4; ++r) {
    Told told = hear_error(job.rank(r));
    for (const char* word : {"rank 2", "tree", "ring"})
      EXPECT_NE(told.message.find(word), std::string::npos) << told.message;
    EXPECT_EQ(job.rank(r).hear(Deadline::after(30s)), "then 4");
  }
}

INSTANTIATE_TEST_SUITE_P(Over, Differing, testing::Values("auto", "shm", "tcp"),
                         [](const auto& row) { return row.param; });

}  // namespace
}  // namespace esp::multiproc
