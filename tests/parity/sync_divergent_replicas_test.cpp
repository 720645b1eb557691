// Training with divergent replicas (gossip, local SGD, DiLoCo) through the real engine. Resuming must be bit-identical.
// Evaluation and checkpoints must use the mean of all replicas. Methods that average in every step must equal parallel
// SGD.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <mutex>

#include "esp/base/error.h"
#include "esp/net/inproc/threads.h"
#include "esp/obs/temporary_folder.h"
#include "esp/train/snapshot.h"
#include "tests/parity/sync_runs.h"

namespace esp::parity {
namespace {

using train::Engine;
using train::RunConfig;

ByteImage weights_of(Engine& engine) {
  ByteImage image;
  for (const auto& unit : engine.model().parameters().units()) {
    const auto* bytes = unit.values.as<std::byte>();
    image.insert(image.end(), bytes, bytes + unit.values.bytes());
  }
  return image;
}

struct RankTrajectory {
  std::vector<ByteImage> values;  // weights after each step, as bytes
  std::vector<double> losses, norms;
  double evaluated = 0;
  std::vector<std::string> notes;
};
using Trajectories = std::vector<RankTrajectory>;

struct ReplicaRun {
  int ranks = 4, steps = 10;
  Overrides overrides;
  int stop_at = -1;    // step after which a checkpoint is written and a new engine resumes from it; -1: never
  std::string folder;  // folder of that checkpoint
};

void save(Engine& engine, RunConfig& config, const ReplicaRun& replica_run, int rank) {
  ckpt::SaveOptions options;
  options.rank = rank;
  options.world = replica_run.ranks;
  options.token = "test";
  ckpt::save(replica_run.folder, train::make_snapshot(engine, config), options);
}

Trajectories run(const ReplicaRun& replica_run) {
  Trajectories all(static_cast<size_t>(replica_run.ranks));
  net::run_threads(replica_run.ranks, [&](net::World& world) {
    comm::CommOptions options;
    options.transport = "inproc";
    options.timeout = std::chrono::seconds(60);
    auto comm = comm::make_communicator(world, world.world_group(), options);
    RankTrajectory& mine = all[static_cast<size_t>(world.rank)];
    RunConfig config = parse_config(tiny_model(replica_run.overrides));
    config.check();
    config.check_world(replica_run.ranks);
    auto engine = std::make_unique<Engine>(config, Log(), train::JobContext{comm.get(), replica_run.ranks});
    for (int step = 0; step < replica_run.steps; ++step) {
      const train::StepResult result = engine->step();
      mine.values.push_back(weights_of(*engine));
      mine.losses.push_back(result.loss);
      mine.norms.push_back(result.grad_norm);
      mine.notes.insert(mine.notes.end(), result.notes.begin(), result.notes.end());
      if (step + 1 != replica_run.stop_at) continue;
      save(*engine, config, replica_run, world.rank);
      engine.reset();
      engine = std::make_unique<Engine>(config, Log(), train::JobContext{comm.get(), replica_run.ranks});
      const auto checkpoint =
          ckpt::open_checkpoint(replica_run.folder + "/step-" + std::to_string(replica_run.stop_at));
      train::restore(*engine, config, *checkpoint);
      EXPECT_EQ(weights_of(*engine), mine.values.back()) << "rank " << world.rank << " after the restore";
    }
    mine.evaluated = engine->evaluate(2);
  });
  return all;
}

struct Case {
  const char* name;
  Overrides overrides;
};
const Case kCases[] = {
    {"gossip_ring", {"sync.method=gossip"}},
    {"gossip_with", {"sync.method=gossip", "sync.topology=one_peer", "sync.gossip_mode=adapt_with_combine"}},
    {"gossip_before", {"sync.method=gossip", "sync.topology=star", "sync.gossip_mode=combine_then_adapt"}},
    {"gossip_pga", {"sync.method=gossip", "sync.topology=one_peer", "sync.period=5"}},
    {"gossip_tracking", {"sync.method=gossip", "sync.tracking=true", "train.optimizer=sgd", "train.lr=0.1"}},
    {"gossip_nodes", {"sync.method=gossip", "sync.hierarchical=true", "comm.nodes=2"}},
    {"gossip_bf16", {"sync.method=gossip", "train.precision=bf16"}},
    {"local", {"sync.method=local", "sync.tau=4"}},
    {"local_at_an_average", {"sync.method=local", "sync.tau=3"}},
    {"local_bf16", {"sync.method=local", "sync.tau=4", "train.precision=bf16"}},
    {"local_sgd", {"sync.method=local", "sync.tau=4", "train.optimizer=sgd", "sync.average_state=true"}},
    {"local_fedavg", {"sync.method=local", "sync.tau=4", "sync.sample=2", "sync.client_weights=tokens"}},
    {"local_post", {"sync.method=local", "sync.tau=4", "sync.local_after=3"}},
    {"local_nodes", {"sync.method=local", "sync.tau=4", "sync.hierarchical=true", "comm.nodes=2"}},
    {"local_pipeline", {"sync.method=local", "sync.tau=4", "parallel.pp=2", "train.micro_batch=3"}},
    {"local_tensor",
     {"sync.method=local", "sync.tau=4", "parallel.tp=2", "model.heads=2", "model.dim=20", "model.ffn=36",
      "model.vocab=252"}},
    {"diloco", {"sync.method=diloco", "sync.period=4"}},
    {"diloco_bf16", {"sync.method=diloco", "sync.period=4", "train.precision=bf16"}},
    {"diloco_post", {"sync.method=diloco", "sync.period=3", "sync.local_after=4"}},
};

class DivergentTraining : public testing::TestWithParam<Case> {
 protected:
  ReplicaRun base_run() const {
    ReplicaRun c;
    c.overrides = GetParam().overrides;
    c.overrides.insert(c.overrides.end(), {"data.val_fraction=0.1", "run.deterministic=true"});
    return c;
  }
};
INSTANTIATE_TEST_SUITE_P(Methods, DivergentTraining, testing::ValuesIn(kCases),
                         [](const auto& row) { return std::string(row.param.name); });

TEST_P(DivergentTraining, ResumesBitForBit) {
  const obs::TemporaryFolder folder;
  ReplicaRun replica_run = base_run();
  const Trajectories expected = run(replica_run);
  replica_run.stop_at = 6;
  replica_run.folder = folder.path();
  const Trajectories seen = run(replica_run);
  for (size_t r = 0; r < expected.size(); ++r) {
    for (size_t k = 0; k < expected[r].values.size(); ++k)
      ASSERT_TRUE(seen[r].values[k] == expected[r].values[k]) << "rank " << r << ", step " << k;
    EXPECT_EQ(seen[r].losses, expected[r].losses);
    EXPECT_EQ(seen[r].norms, expected[r].norms);
    EXPECT_EQ(seen[r].losses, seen[0].losses) << "all ranks must report the same losses";
    EXPECT_EQ(seen[r].evaluated, expected[r].evaluated);
  }
}

// A checkpoint contains the mean of all replicas. If a single rank loads it, its loss must equal the loss that the
// replicas evaluated.
TEST_P(DivergentTraining, EvaluatesAndSavesTheMeanOfAllReplicas) {
  const obs::TemporaryFolder folder;
  ReplicaRun replica_run = base_run();
  replica_run.steps = replica_run.stop_at = 6;
  replica_run.folder = folder.path();
  const Trajectories seen = run(replica_run);
  RunConfig config = parse_config(tiny_model(base_run().overrides));
  config.sync = {};
  config.parallel = {};
  config.comm.nodes = 0;
  Engine single_rank(config, Log());
  train::restore(single_rank, config, *ckpt::open_checkpoint(replica_run.folder + "/step-6"));
  EXPECT_EQ(single_rank.num_steps(), 6);
  const bool is_bf16 = config.train.precision == "bf16";
  EXPECT_NEAR(single_rank.evaluate(2), seen[0].evaluated, is_bf16 ? 1e-2 : 1e-5);
  // The optimizer continues at the saved step number.
  EXPECT_EQ(single_rank.optimizer().num_steps(), 6);
  single_rank.step();
}

// Uses fp64, so that a real error is much larger than rounding.
TEST(DivergentMethods, EqualParallelSgdWhenTheyAverageEveryStep) {
  ReplicaRun replica_run;
  replica_run.overrides = {"train.precision=fp64", "train.optimizer=sgd", "train.momentum=0",
                           "train.clip=0",         "train.lr=0.1",        "train.weight_decay=0"};
  const auto run_with = [&](const Overrides& more) {
    ReplicaRun one = replica_run;
    one.overrides.insert(one.overrides.end(), more.begin(), more.end());
    return run(one);
  };
  const Trajectories expected = run_with({"sync.method=allreduce"});
  const Overrides equivalents[] = {{"sync.method=local", "sync.tau=1"},
                                   {"sync.method=gossip", "sync.topology=full"},
                                   {"sync.method=gossip", "sync.period=1"},
                                   {"sync.method=local", "sync.tau=1", "sync.client_weights=tokens"},
                                   {"sync.method=diloco", "sync.period=1", "sync.outer_lr=1", "sync.outer_momentum=0"}};
  for (const Overrides& overrides : equivalents) {
    const Trajectories seen = run_with(overrides);
    for (size_t r = 0; r < seen.size(); ++r)
      EXPECT_LE(relative_distance(seen[r].values.back(), expected[r].values.back(), DType::f64), 1e-11)
          << overrides[0] << overrides[1];
    for (size_t k = 0; k < seen[0].losses.size(); ++k)
      EXPECT_NEAR(seen[0].losses[k], expected[0].losses[k], 1e-11) << overrides[0] << overrides[1];
  }
}

TEST(DivergentMethods, ReplicasAreEqualOnlyDirectlyAfterAnAverage) {
  ReplicaRun replica_run;
  replica_run.overrides = {"sync.method=local", "sync.tau=4"};
  const Trajectories local = run(replica_run);
  replica_run.overrides = {"sync.method=diloco", "sync.period=4"};
  const Trajectories diloco = run(replica_run);
  for (const Trajectories* all : {&local, &diloco})
    for (size_t k = 0; k < 10; ++k)
      for (size_t r = 1; r < 4; ++r)
        EXPECT_EQ((*all)[r].values[k] == (*all)[0].values[k], (k + 1) % 4 == 0) << "rank " << r << ", step " << k;
}

TEST(DivergentMethods, ReportTheTopologyOnce) {
  ReplicaRun replica_run;
  replica_run.steps = 3;
  replica_run.overrides = {"sync.method=gossip"};
  const Trajectories seen = run(replica_run);
  ASSERT_EQ(seen[0].notes.size(), 1u);
  EXPECT_EQ(seen[0].notes[0], "gossip: ring of 4 replicas, at most 2 out-neighbours each; spectral gap 0.666667");
}

TEST(DivergentMethods, RejectIncompatibleOptions) {
  const auto error_of = [](const Overrides& more) -> std::string {
    try {
      parse_config(tiny_model(more)).check_world(4);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(error_of({"sync.method=local", "parallel.cp=2"}).find("parallel.cp = 1"), std::string::npos);
  EXPECT_NE(error_of({"sync.method=gossip", "sync.offload=host"}).find("must be none"), std::string::npos);
  EXPECT_NE(error_of({"sync.hierarchical=true"}).find("gossip, local, diloco"), std::string::npos);
  EXPECT_NE(error_of({"sync.method=local", "sync.tracking=true"}).find("sync.method = gossip"), std::string::npos);
}

}  // namespace
}  // namespace esp::parity
