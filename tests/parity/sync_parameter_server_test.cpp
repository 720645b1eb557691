// Parameter servers in real training. Synchronous mode must equal all-reduce bit for bit, for any placement,
// partitioning and push order. In asynchronous modes the replay of a recorded run must reproduce it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <mutex>

#include <fmt/format.h>

#include "esp/ckpt/checkpoint.h"
#include "esp/net/inproc/threads.h"
#include "esp/obs/temporary_folder.h"
#include "esp/train/snapshot.h"
#include "tests/parity/sync_runs.h"

namespace esp::parity {
namespace {

Overrides ps_overrides(const Overrides& more = {}) {
  Overrides all = {"sync.method=ps", "sync.partition_mb=0.002"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Overrides merge(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

RunResult run_deterministic(int ranks, const Overrides& overrides, const std::string& transport = "inproc") {
  RunSpec spec;
  spec.ranks = ranks;
  spec.transport = transport;
  spec.overrides = tiny_model(merge({"run.deterministic=true"}, overrides));
  return train_ranks(spec);
}

RunResult run_all_reduce(int ranks, const Overrides& overrides = {}) {
  return run_deterministic(ranks, overrides);
}

// Result of one rank. After a step the ranks may have different weights.
struct AsyncRankResult {
  std::vector<double> losses;
  std::vector<std::string> notes;
};
struct AsyncRunResult {
  std::vector<AsyncRankResult> ranks;
  ByteImage image;  // all weights, assembled from all ranks
  double evaluated = 0;
};

// Runs the ranks without comparing them after each step. Calls `before_step` before each step.
AsyncRunResult run_async(int ranks, int steps, const Overrides& overrides,
                         const std::function<void(int rank, int step)>& before_step = nullptr) {
  AsyncRunResult run;
  run.ranks.resize(static_cast<size_t>(ranks));
  std::mutex mutex;
  net::run_threads(ranks, [&](net::World& world) {
    comm::CommOptions options;
    options.transport = "inproc";
    options.timeout = std::chrono::seconds(60);
    const auto comm = comm::make_communicator(world, world.world_group(), options);
    train::RunConfig config = parse_config(tiny_model(merge({"data.val_fraction=0.1"}, overrides)));
    config.check();
    config.check_world(ranks);
    train::Engine engine(config, Log(), {comm.get(), ranks});
    AsyncRankResult& mine = run.ranks[static_cast<size_t>(world.rank)];
    for (int step = 0; step < steps; ++step) {
      if (before_step) before_step(world.rank, step);
      const train::StepResult result = engine.step();
      mine.losses.push_back(result.loss);
    }
    const double evaluated = engine.evaluate(2);
    const std::vector<optim::ValueShard> held = engine.strategy().checkpoint_shards();
    mine.notes = engine.strategy().take_notes();
    std::lock_guard lock(mutex);
    if (world.rank == 0) run.evaluated = evaluated;
    const nn::ParameterList& list = engine.model().parameters();
    const size_t element = size_of(train::storage_type(config.train.precision));
    run.image.resize(static_cast<size_t>(list.count()) * element);
    for (const optim::ValueShard& one : held) {
      const int64_t first = list.units()[static_cast<size_t>(one.range.unit)].first + one.range.begin;
      std::memcpy(run.image.data() + static_cast<size_t>(first) * element, one.values.data(), one.values.bytes());
    }
  });
  return run;
}

TEST(ParameterServer, SynchronousModeEqualsAllReduceBitForBit) {
  for (const int ranks : {1, 2, 3, 4}) {
    const RunResult reduced = run_all_reduce(ranks);
    expect_same_bits(run_deterministic(ranks, ps_overrides()), reduced, fmt::format("{} ranks", ranks));
    expect_same_bits(run_deterministic(ranks, ps_overrides({"sync.servers=1"})), reduced,
                     fmt::format("{} ranks, one server", ranks));
    expect_same_bits(run_deterministic(ranks, ps_overrides({"sync.update=worker"})), reduced,
                     fmt::format("{} ranks step", ranks));
  }
}

TEST(ParameterServer, CollectiveExchangeReducesAndBroadcastsEachRangeOnce) {
  for (const int servers : {1, 3}) {
    RunSpec spec;
    spec.ranks = 3;
    spec.overrides = tiny_model(merge({"run.deterministic=true"}, ps_overrides({"sync.exchange=collectives"})));
    spec.overrides.push_back(fmt::format("sync.servers={}", servers));
    const RunResult seen = train_ranks(spec);
    expect_same_bits(seen, run_all_reduce(3), fmt::format("{} servers", servers));
    for (const RankResult& rank : seen.ranks)
      for (const comm::Op op : {comm::Op::reduce, comm::Op::broadcast})
        EXPECT_EQ(rank.traffic.calls(op), static_cast<uint64_t>(spec.steps * servers));
  }
  expect_same_bits(
      run_deterministic(3, ps_overrides({"sync.exchange=collectives", "train.precision=bf16", "train.clip=0.1"})),
      run_all_reduce(3, {"train.precision=bf16", "train.clip=0.1"}), "bf16");
}

TEST(ParameterServer, ClipsByTheNormOfAllServers) {
  const Overrides clip = {"train.clip=0.01"};
  expect_same_bits(run_deterministic(3, merge(ps_overrides({"sync.servers=2"}), clip)), run_all_reduce(3, clip),
                   "clipped");
}

TEST(ParameterServer, ResultIsIndependentOfPushOrderCreditAndPartitions) {
  const RunResult reduced = run_all_reduce(3);
  for (const char* one : {"sync.push_order=fifo", "sync.credit=1", "sync.partition_mb=4", "sync.partition_mb=0.0001"})
    for (const char* update : {"sync.update=server", "sync.update=worker"})
      expect_same_bits(run_deterministic(3, ps_overrides({one, update})), reduced, fmt::format("{} {}", one, update));
}

TEST(ParameterServer, SupportsBf16StorageAndBf16Wire) {
  for (const Overrides& bits : {Overrides{"train.precision=bf16"}, Overrides{"sync.wire=bf16"}})
    for (const char* update : {"sync.update=server", "sync.update=worker"})
      expect_same_bits(run_deterministic(3, merge(ps_overrides({update}), bits)), run_all_reduce(3, bits),
                       fmt::format("{} {}", bits[0], update));
}

TEST(ParameterServer, SumsMicroBatchesBeforeThePush) {
  const Overrides micro = {"train.micro_batch=4"};
  expect_same_bits(run_deterministic(2, merge(ps_overrides(), micro)), run_all_reduce(2, micro), "micro-batches");
}

TEST(ParameterServer, StaleSynchronousWithBoundZeroEqualsSynchronous) {
  expect_same_bits(run_deterministic(3, ps_overrides({"sync.ps_mode=ssp", "sync.staleness=0"})), run_all_reduce(3),
                   "ssp 0");
}

TEST(ParameterServer, CrossBarrierForwardChangesNoResult) {
  const Overrides early = ps_overrides({"sync.cross_barrier=true", "run.deterministic=true"});
  const AsyncRunResult a = run_async(3, 4, early), b = run_async(3, 4, {"run.deterministic=true"});
  EXPECT_EQ(a.image, b.image);
  EXPECT_EQ(a.ranks[0].losses, b.ranks[0].losses);
  EXPECT_EQ(a.evaluated, b.evaluated);
}

// Two workers with K dedicated servers must equal two ranks with all-reduce.
TEST(ParameterServer, DedicatedServersEqualAllReduceBitForBit) {
  const AsyncRunResult reduced = run_async(2, 4, {"run.deterministic=true", "train.clip=0.5"});
  for (const int servers : {1, 2, 3})
    for (const char* update : {"sync.update=server", "sync.update=worker"}) {
      const AsyncRunResult served =
          run_async(2 + servers, 4,
                    ps_overrides({"run.deterministic=true", "train.clip=0.5", "sync.server_ranks=dedicated",
                                  fmt::format("sync.servers={}", servers), update}));
      EXPECT_EQ(served.image, reduced.image) << servers << update;
      EXPECT_EQ(served.ranks[0].losses, reduced.ranks[0].losses) << servers << update;
      EXPECT_EQ(served.evaluated, reduced.evaluated);
    }
}

TEST(ParameterServer, RobustAggregatesWithOneWorkerEqualTheSum) {
  // There is only one push per step: its median and its trimmed mean are the push itself.
  expect_same_bits(run_deterministic(1, ps_overrides({"sync.aggregate=median"})), run_all_reduce(1), "median");
  expect_same_bits(run_deterministic(1, ps_overrides({"sync.aggregate=trimmed_mean", "sync.trim=0"})),
                   run_all_reduce(1), "trimmed_mean");
}

TEST(ParameterServer, ReplaysAsynchronousRunsBitForBit) {
  for (const Overrides& mode : {Overrides{"sync.ps_mode=async"}, Overrides{"sync.ps_mode=ssp", "sync.staleness=1"},
                                Overrides{"sync.ps_mode=async", "sync.servers=2", "sync.server_ranks=dedicated"},
                                Overrides{"sync.ps_mode=async", "sync.cross_barrier=true", "train.precision=bf16"}}) {
    const obs::TemporaryFolder folder;
    const int steps = 6;
    // Workers sleep for different times in the second run, so the replay must delay pushes and pulls to repeat the
    // recorded order.
    const auto random_sleep = [](int salt) {
      return [salt](int rank, int step) {
        std::this_thread::sleep_for(std::chrono::milliseconds((rank * 7 + step * 5 + salt * (rank + 3 * step)) % 11));
      };
    };
    const AsyncRunResult recorded =
        run_async(4, steps, merge(ps_overrides(mode), {fmt::format("sync.record={}", folder.path())}), random_sleep(1));
    const AsyncRunResult replayed =
        run_async(4, steps, merge(ps_overrides(mode), {fmt::format("sync.replay={}", folder.path())}), random_sleep(4));
    EXPECT_EQ(recorded.image, replayed.image) << mode[0];
    for (size_t r = 0; r < 4; ++r) EXPECT_EQ(recorded.ranks[r].losses, replayed.ranks[r].losses) << mode[0] << r;
    EXPECT_EQ(recorded.evaluated, replayed.evaluated);
    ASSERT_FALSE(recorded.ranks[0].notes.empty());
    EXPECT_NE(recorded.ranks[0].notes[0].find("staleness"), std::string::npos);
  }
}

TEST(ParameterServer, AsynchronousModeWithOneWorkerEqualsPlainTraining) {
  const Overrides once = {"train.clip=0.5"};
  const AsyncRunResult alone = run_async(1, 5, merge(ps_overrides({"sync.ps_mode=async"}), once)),
                       plain = run_async(1, 5, once);
  EXPECT_EQ(alone.image, plain.image);
  EXPECT_EQ(alone.ranks[0].losses, plain.ranks[0].losses);
}

// 3 steps with one number of servers and 3 with another must equal 6 uninterrupted steps.
TEST(ParameterServer, ResumesWithAnotherNumberOfServers) {
  const obs::TemporaryFolder folder;
  const auto train_until = [&](int ranks, const Overrides& overrides, const std::string& from, int until,
                               const std::string& to) {
    ByteImage image;
    std::mutex mutex;
    net::run_threads(ranks, [&](net::World& world) {
      comm::CommOptions options;
      options.transport = "inproc";
      options.timeout = std::chrono::seconds(60);
      const auto comm = comm::make_communicator(world, world.world_group(), options);
      train::RunConfig config = parse_config(tiny_model(merge({"run.deterministic=true"}, overrides)));
      config.check_world(ranks);
      train::Engine engine(config, Log(), {comm.get(), ranks});
      if (!from.empty()) train::restore(engine, config, *ckpt::open_checkpoint(from));
      while (engine.num_steps() < until) engine.step();
      if (!to.empty()) {
        ckpt::SaveOptions saving;
        saving.rank = world.rank;
        saving.world = ranks;
        saving.token = "t" + std::to_string(until);
        ckpt::save(to, train::make_snapshot(engine, config), saving);
      }
      const std::vector<optim::ValueShard> held = engine.strategy().checkpoint_shards();
      std::lock_guard lock(mutex);
      const nn::ParameterList& list = engine.model().parameters();
      image.resize(static_cast<size_t>(list.count()) * 4);
      for (const optim::ValueShard& one : held) {
        const int64_t first = list.units()[static_cast<size_t>(one.range.unit)].first + one.range.begin;
        std::memcpy(image.data() + static_cast<size_t>(first) * 4, one.values.data(), one.values.bytes());
      }
    });
    return image;
  };
  const ByteImage straight = train_until(2, {}, "", 6, "");
  train_until(2, ps_overrides({"sync.servers=2"}), "", 3, folder / "two");
  const std::string from = (folder / "two") + "/step-3";
  EXPECT_EQ(train_until(2, ps_overrides({"sync.servers=1"}), from, 6, ""), straight);
  EXPECT_EQ(train_until(5, ps_overrides({"sync.servers=3", "sync.server_ranks=dedicated"}), from, 6, ""), straight);
  EXPECT_EQ(train_until(2, ps_overrides({"sync.update=worker"}), from, 6, ""), straight);
  EXPECT_EQ(train_until(2, {}, from, 6, ""), straight);
  train_until(4, ps_overrides({"sync.servers=2", "sync.server_ranks=dedicated"}), "", 3, folder / "dedicated");
  EXPECT_EQ(train_until(2, ps_overrides(), (folder / "dedicated") + "/step-3", 6, ""), straight);
}

}  // namespace
}  // namespace esp::parity
