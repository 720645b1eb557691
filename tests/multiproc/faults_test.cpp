// Rank failures during large collectives: ranks are killed or stopped. Every surviving rank must soon report which rank
// failed, and no resources may be left.
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

// Repeats all-reduces until one fails, then writes the line "error <failed rank> <time in ns> <message>".
void all_reduce_until_error(RankContext& self, size_t count = size_t{2} << 20, Duration timeout = Duration::zero()) {
  std::vector<float> data(count, 1.0f), sum(data.size());
  comm::Call call{.op = comm::Op::all_reduce, .in = data.data(), .out = sum.data(), .count = count};
  self.comm.barrier();
  self.comm.run(call);  // the first call opens all connections
  call.timeout = timeout;
  self.parent.write_line("ready");
  try {
    for (;;) self.comm.run(call);
  } catch (const CommError& error) {
    self.parent.write_line(fmt::format("error {} {} {}", error.peer(), now_ns(), error.what()));
  }
}

struct ReportedError {
  int failed_rank = -1;
  int64_t when_ns = 0;
  std::string message;
};

ReportedError read_error(net::ChildProcess& rank) {
  std::istringstream line(rank.read_line(Deadline::after(30s)));
  std::string word;
  ReportedError reported;
  line >> word >> reported.failed_rank >> reported.when_ns;
  std::getline(line, reported.message);
  if (word != "error") reported.message = line.str();
  return reported;
}

std::vector<int> pids_of(Job& job) {
  std::vector<int> pids;
  for (int r = 0; r < job.size(); ++r) pids.push_back(job.rank(r).pid());
  return pids;
}

JobOptions job_options(const std::string& transport, int size, Duration timeout) {
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

class KilledRank : public testing::TestWithParam<const char*> {};

TEST_P(KilledRank, EverySurvivorNamesKilledRank) {
  constexpr int kRounds = 8, kSize = 4;
  std::vector<double> latencies_ms;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<int> pids;
    {
      // The timeout is 120 s, so an error within 30 s cannot be a timeout.
      Job job(job_options(GetParam(), kSize, 120s), [](RankContext& self) { all_reduce_until_error(self); });
      pids = pids_of(job);
      job.expect_all("ready");
      auto draw = [&](uint64_t purpose, uint64_t below) {
        return random_bits(42, purpose, static_cast<uint64_t>(round)) % below;
      };
      int victim = static_cast<int>(draw(1, kSize));
      std::this_thread::sleep_for(std::chrono::microseconds(draw(2, 40'000)));
      int64_t killed_ns = now_ns();
      job.rank(victim).kill(SIGKILL);
      for (int r = 0; r < kSize; ++r) {
        if (r == victim) continue;
        ReportedError reported = read_error(job.rank(r));
        EXPECT_EQ(reported.failed_rank, victim) << "rank " << r << ": " << reported.message;
        EXPECT_NE(reported.message.find(fmt::format("rank {}", victim)), std::string::npos) << reported.message;
        double ms = static_cast<double>(reported.when_ns - killed_ns) * 1e-6;
        latencies_ms.push_back(ms);
        EXPECT_EQ(job.rank(r).read_line(Deadline::after(30s)), "bye");
      }
    }
    EXPECT_EQ(segments_of(pids), std::vector<std::string>{});
  }
  fmt::print("{}: error after kill -9 on {} survivors: p50 {:.1f} ms, p99 {:.1f} ms\n", GetParam(), latencies_ms.size(),
             percentile(latencies_ms, 0.5), percentile(latencies_ms, 0.99));
}

TEST_P(KilledRank, SurvivorsNameKilledRankThatHostsHub) {
  JobOptions options = job_options(GetParam(), 3, 120s);
  options.hub_in_rank_0 = true;
  Job job(options, [](RankContext& self) { all_reduce_until_error(self); });
  job.expect_all("ready");
  job.rank(0).kill(SIGKILL);
  for (int r : {1, 2}) {
    ReportedError reported = read_error(job.rank(r));
    EXPECT_EQ(reported.failed_rank, 0) << "rank " << r << ": " << reported.message;
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, KilledRank, testing::Values("auto", "shm", "tcp"),
                         [](const auto& row) { return row.param; });

class StoppedRank : public testing::TestWithParam<const char*> {};

TEST_P(StoppedRank, AllRanksNameStoppedRankAtDeadline) {
  constexpr int kSize = 4, kVictim = 2;
  // The short timeout applies only to the calls, not to the time in which the ranks start and connect.
  Job job(job_options(GetParam(), kSize, 60s), [](RankContext& self) { all_reduce_until_error(self, 10'000, 4s); });
  job.expect_all("ready");
  job.rank(kVictim).kill(SIGSTOP);
  for (int r = 0; r < kSize; ++r) {
    if (r == kVictim) continue;
    ReportedError reported = read_error(job.rank(r));
    EXPECT_EQ(reported.failed_rank, kVictim) << "rank " << r << ": " << reported.message;
    EXPECT_NE(reported.message.find("rank 2 does not answer"), std::string::npos) << reported.message;
  }
  // After SIGCONT the rank that was stopped reports the failure too.
  job.rank(kVictim).kill(SIGCONT);
  ReportedError reported = read_error(job.rank(kVictim));
  EXPECT_NE(reported.message.find("rank 2"), std::string::npos) << reported.message;
}

INSTANTIATE_TEST_SUITE_P(Transports, StoppedRank, testing::Values("auto", "shm", "tcp"),
                         [](const auto& row) { return row.param; });

class MismatchedCalls : public testing::TestWithParam<const char*> {};

TEST_P(MismatchedCalls, EveryProcessReportsMismatch) {
  Job job(job_options(GetParam(), 4, 20s), [](RankContext& self) {
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
      self.parent.write_line(fmt::format("error {} {} {}", error.peer(), now_ns(), error.what()));
    }
  });
  for (int r = 0; r < 4; ++r) {
    ReportedError reported = read_error(job.rank(r));
    EXPECT_NE(reported.message.find("rank 3"), std::string::npos) << reported.message;
    EXPECT_NE(reported.message.find("1000"), std::string::npos) << reported.message;
    EXPECT_NE(reported.message.find("1001"), std::string::npos) << reported.message;
  }
}

TEST_P(MismatchedCalls, MismatchedAlgorithmsAreReportedBeforeDeadline) {
  Job job(job_options(GetParam(), 4, 100s), [](RankContext& self) {
    self.comm.barrier();
    std::vector<float> data(1000);
    comm::Call call{.op = comm::Op::all_reduce, .in = data.data(), .out = data.data(), .count = data.size()};
    call.algorithm = self.comm.rank() == 2 ? "tree" : "ring";
    try {
      self.comm.run(call);
      for (;;) self.comm.barrier();
    } catch (const CommError& error) {
      self.parent.write_line(fmt::format("error {} {} {}", error.peer(), now_ns(), error.what()));
    }
    // The same processes can create a new communicator after the failure.
    auto next = comm::make_communicator(self.world, self.world.world_group(), {});
    float one = 1;
    next->all_reduce(&one, &one, 1, DType::f32, comm::ReduceOp::sum);
    self.parent.write_line(fmt::format("then {}", one));
  });
  for (int r = 0; r < 4; ++r) {
    ReportedError reported = read_error(job.rank(r));
    for (const char* word : {"rank 2", "tree", "ring"})
      EXPECT_NE(reported.message.find(word), std::string::npos) << reported.message;
    EXPECT_EQ(job.rank(r).read_line(Deadline::after(30s)), "then 4");
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, MismatchedCalls, testing::Values("auto", "shm", "tcp"),
                         [](const auto& row) { return row.param; });

}  // namespace
}  // namespace esp::multiproc
