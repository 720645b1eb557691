// Parameter servers in real training: synchronous ones equal all-reduce to the bit however they are placed, divided and
// scheduled; asynchronous ones equal their replay.
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

Overrides ps(const Overrides& more = {}) {
  Overrides all = {"sync.method=ps", "sync.partition_mb=0.002"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Overrides with(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Seen trained(int ranks, const Overrides& overrides, const std::string& transport = "inproc") {
  Plan plan;
  plan.ranks = ranks;
  plan.transport = transport;
  plan.overrides = tiny(with({"run.deterministic=true"}, overrides));
  return train_ranks(plan);
}

Seen all_reduced(int ranks, const Overrides& overrides = {}) {
  return trained(ranks, overrides);
}

// What one rank of a run had at its end, where ranks need not agree after every step.
struct End {
  std::vector<double> losses;
  std::vector<std::string> notes;
};
struct Ends {
  std::vector<End> ranks;
  Image image;  // of what the ranks hold together
  double evaluated = 0;
};

// Ranks that step at their own pace; `before` each step.
Ends run_apart(int ranks, int steps, const Overrides& overrides,
               const std::function<void(int rank, int step)>& before = nullptr) {
  Ends ends;
  ends.ranks.resize(static_cast<size_t>(ranks));
  std::mutex mutex;
  net::run_threads(ranks, [&](net::World& world) {
    comm::CommOptions options;
    options.transport = "inproc";
    options.timeout = std::chrono::seconds(60);
    const auto comm = comm::make_communicator(world, world.everyone(), options);
    train::RunConfig config = config_of(tiny(with({"data.val_fraction=0.1"}, overrides)));
    config.check();
    config.check_world(ranks);
    train::Engine engine(config, Log(), {comm.get(), ranks});
    End& mine = ends.ranks[static_cast<size_t>(world.rank)];
    for (int step = 0; step < steps; ++step) {
      if (before) before(world.rank, step);
      const train::StepResult result = engine.step();
      mine.losses.push_back(result.loss);
    }
    const double evaluated = engine.evaluate(2);
    const std::vector<optim::ValueShard> held = engine.strategy().held();
    mine.notes = engine.strategy().take_notes();
    std::lock_guard lock(mutex);
    if (world.rank == 0) ends.evaluated = evaluated;
    const nn::ParameterList& list = engine.model().parameters();
    const size_t element = size_of(train::storage_type(config.train.precision));
    ends.image.resize(static_cast<size_t>(list.count()) * element);
    for (const optim::ValueShard& one : held) {
      const int64_t first = list.units()[static_cast<size_t>(one.range.unit)].first + one.range.begin;
      std::memcpy(ends.image.data() + static_cast<size_t>(first) * element, one.values.data(), one.values.bytes());
    }
  });
  return ends;
}

TEST(ParameterServer, SynchronousEqualsAllReduceToTheBit) {
  for (const int ranks : {1, 2, 3, 4}) {
    const Seen reduced = all_reduced(ranks);
    expect_same_bits(trained(ranks, ps()), reduced, fmt::format("{} ranks", ranks));
    expect_same_bits(trained(ranks, ps({"sync.servers=1"})), reduced, fmt::format("{} ranks, one server", ranks));
    expect_same_bits(trained(ranks, ps({"sync.update=worker"})), reduced, fmt::format("{} ranks step", ranks));
  }
}

TEST(ParameterServer, OfCollectivesReducesAndBroadcastsEachRangeOnce) {
  for (const int servers : {1, 3}) {
    Plan plan;
    plan.ranks = 3;
    plan.overrides = tiny(with({"run.deterministic=true"}, ps({"sync.exchange=collectives"})));
    plan.overrides.push_back(fmt::format("sync.servers={}", servers));
    const Seen seen = train_ranks(plan);
    expect_same_bits(seen, all_reduced(3), fmt::format("{} servers", servers));
    for (const RankSeen& rank : seen.ranks)
      for (const comm::Op op : {comm::Op::reduce, comm::Op::broadcast})
        EXPECT_EQ(rank.traffic.calls(op), static_cast<uint64_t>(plan.steps * servers));
  }
  expect_same_bits(trained(3, ps({"sync.exchange=collectives", "train.precision=bf16", "train.clip=0.1"})),
                   all_reduced(3, {"train.precision=bf16", "train.clip=0.1"}), "bf16");
}

TEST(ParameterServer, ClipsByTheNormOfAllServers) {
  const Overrides clip = {"train.clip=0.01"};
  expect_same_bits(trained(3, with(ps({"sync.servers=2"}), clip)), all_reduced(3, clip), "clipped");
}

TEST(ParameterServer, NeitherOrderNorCreditNorPartitionsShow) {
  const Seen reduced = all_reduced(3);
  for (const char* one : {"sync.push_order=fifo", "sync.credit=1", "sync.partition_mb=4", "sync.partition_mb=0.0001"})
    for (const char* update : {"sync.update=server", "sync.update=worker"})
      expect_same_bits(trained(3, ps({one, update})), reduced, fmt::format("{} {}", one, update));
}

TEST(ParameterServer, SixteenBitsOnTheWireAndInStore) {
  for (const Overrides& bits : {Overrides{"train.precision=bf16"}, Overrides{"sync.wire=bf16"}})
    for (const char* update : {"sync.update=server", "sync.update=worker"})
      expect_same_bits(trained(3, with(ps({update}), bits)), all_reduced(3, bits),
                       fmt::format("{} {}", bits[0], update));
}

TEST(ParameterServer, MicroBatchesAreAddedUpBeforeTheyArePushed) {
  const Overrides micro = {"train.micro_batch=4"};
  expect_same_bits(trained(2, with(ps(), micro)), all_reduced(2, micro), "micro-batches");
}

TEST(ParameterServer, StaleSynchronousWithBoundZeroIsSynchronous) {
  expect_same_bits(trained(3, ps({"sync.ps_mode=ssp", "sync.staleness=0"})), all_reduced(3), "ssp 0");
}

TEST(ParameterServer, ForwardThatBeginsEarlyComputesTheSame) {
  const Overrides early = ps({"sync.cross_barrier=true", "run.deterministic=true"});
  const Ends a = run_apart(3, 4, early), b = run_apart(3, 4, {"run.deterministic=true"});
  EXPECT_EQ(a.image, b.image);
  EXPECT_EQ(a.ranks[0].losses, b.ranks[0].losses);
  EXPECT_EQ(a.evaluated, b.evaluated);
}

// Two workers and K ranks that only serve are two ranks that reduce.
TEST(ParameterServer, DedicatedServersChangeNoBit) {
  const Ends reduced = run_apart(2, 4, {"run.deterministic=true", "train.clip=0.5"});
  for (const int servers : {1, 2, 3})
    for (const char* update : {"sync.update=server", "sync.update=worker"}) {
      const Ends served = run_apart(2 + servers, 4,
                                    ps({"run.deterministic=true", "train.clip=0.5", "sync.server_ranks=dedicated",
                                        fmt::format("sync.servers={}", servers), update}));
      EXPECT_EQ(served.image, reduced.image) << servers << update;
      EXPECT_EQ(served.ranks[0].losses, reduced.ranks[0].losses) << servers << update;
      EXPECT_EQ(served.evaluated, reduced.evaluated);
    }
}

TEST(ParameterServer, RobustAggregatesOfEqualPushesAreTheirSum) {
  // One worker: the median and the trimmed mean of one push are the push.
  expect_same_bits(trained(1, ps({"sync.aggregate=median"})), all_reduced(1), "median");
  expect_same_bits(trained(1, ps({"sync.aggregate=trimmed_mean", "sync.trim=0"})), all_reduced(1), "trimmed_mean");
}

TEST(ParameterServer, AsynchronousRunsAreReplayedToTheBit) {
  for (const Overrides& how : {Overrides{"sync.ps_mode=async"}, Overrides{"sync.ps_mode=ssp", "sync.staleness=1"},
                               Overrides{"sync.ps_mode=async", "sync.servers=2", "sync.server_ranks=dedicated"},
                               Overrides{"sync.ps_mode=async", "sync.cross_barrier=true", "train.precision=bf16"}}) {
    const obs::TemporaryFolder folder;
    const int steps = 6;
    // Sleeps differ between the two runs, so that the replay must hold pushes and pulls back.
    const auto dawdle = [](int salt) {
      return [salt](int rank, int step) {
        std::this_thread::sleep_for(std::chrono::milliseconds((rank * 7 + step * 5 + salt * (rank + 3 * step)) % 11));
      };
    };
    const Ends recorded = run_apart(4, steps, with(ps(how), {fmt::format("sync.record={}", folder.path())}), dawdle(1));
    const Ends replayed = run_apart(4, steps, with(ps(how), {fmt::format("sync.replay={}", folder.path())}), dawdle(4));
    EXPECT_EQ(recorded.image, replayed.image) << how[0];
    for (size_t r = 0; r < 4; ++r) EXPECT_EQ(recorded.ranks[r].losses, replayed.ranks[r].losses) << how[0] << r;
    EXPECT_EQ(recorded.evaluated, replayed.evaluated);
    ASSERT_FALSE(recorded.ranks[0].notes.empty());
    EXPECT_NE(recorded.ranks[0].notes[0].find("staleness"), std::string::npos);
  }
}

TEST(ParameterServer, AWorkerAloneIsNeverStale) {
  const Overrides once = {"train.clip=0.5"};
  const Ends alone = run_apart(1, 5, with(ps({"sync.ps_mode=async"}), once)), plain = run_apart(1, 5, once);
  EXPECT_EQ(alone.image, plain.image);
  EXPECT_EQ(alone.ranks[0].losses, plain.ranks[0].losses);
}

// Trained 3 steps with one set of servers, the rest with another: as if never stopped.
TEST(ParameterServer, AnyNumberOfServersGoesOnFromAnyOther) {
  const obs::TemporaryFolder folder;
  const auto go = [&](int ranks, const Overrides& overrides, const std::string& from, int until,
                      const std::string& to) {
    Image image;
    std::mutex mutex;
    net::run_threads(ranks, [&](net::World& world) {
      comm::CommOptions options;
      options.transport = "inproc";
      options.timeout = std::chrono::seconds(60);
      const auto comm = comm::make_communicator(world, world.everyone(), options);
      train::RunConfig config = config_of(tiny(with({"run.deterministic=true"}, overrides)));
      config.check_world(ranks);
      train::Engine engine(config, Log(), {comm.get(), ranks});
      if (!from.empty()) train::restore(engine, config, *ckpt::open_checkpoint(from));
      while (engine.num_steps() < until) engine.step();
      if (!to.empty()) {
        ckpt::SaveOptions saving;
        saving.rank = world.rank;
        saving.world = ranks;
        saving.token = "t" + std::to_string(until);
        ckpt::save(to, train::snapshot_of(engine, config), saving);
      }
      const std::vector<optim::ValueShard> held = engine.strategy().held();
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
  const Image straight = go(2, {}, "", 6, "");
  go(2, ps({"sync.servers=2"}), "", 3, folder / "two");
  const std::string from = (folder / "two") + "/step-3";
  EXPECT_EQ(go(2, ps({"sync.servers=1"}), from, 6, ""), straight);
  EXPECT_EQ(go(5, ps({"sync.servers=3", "sync.server_ranks=dedicated"}), from, 6, ""), straight);
  EXPECT_EQ(go(2, ps({"sync.update=worker"}), from, 6, ""), straight);
  EXPECT_EQ(go(2, {}, from, 6, ""), straight);
  go(4, ps({"sync.servers=2", "sync.server_ranks=dedicated"}), "", 3, folder / "dedicated");
  EXPECT_EQ(go(2, ps(), (folder / "dedicated") + "/step-3", 6, ""), straight);
}

}  // namespace
}  // namespace esp::parity
