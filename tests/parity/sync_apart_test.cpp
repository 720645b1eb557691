// Copies that go their own ways, trained by real engines: stopping and resuming changes no bit, what is evaluated and
// saved is their mean, and where theory says so they are parallel SGD.
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

Image image_of(Engine& engine) {
  Image image;
  for (const auto& unit : engine.model().parameters().units()) {
    const auto* bytes = unit.values.as<std::byte>();
    image.insert(image.end(), bytes, bytes + unit.values.bytes());
  }
  return image;
}

struct OfRank {
  std::vector<Image> values;  // after each step
  std::vector<double> losses, norms;
  double evaluated = 0;
  std::vector<std::string> notes;
};
using Ranks = std::vector<OfRank>;

struct Course {
  int ranks = 4, steps = 10;
  Overrides overrides;
  int stop_at = -1;    // a checkpoint is written after so many steps, the engine goes and another resumes
  std::string folder;  // of that checkpoint
};

void save(Engine& engine, RunConfig& config, const Course& course, int rank) {
  ckpt::SaveOptions options;
  options.rank = rank;
  options.world = course.ranks;
  options.token = "test";
  ckpt::save(course.folder, train::snapshot_of(engine, config), options);
}

Ranks run(const Course& course) {
  Ranks all(static_cast<size_t>(course.ranks));
  net::run_threads(course.ranks, [&](net::World& world) {
    comm::CommOptions options;
    options.transport = "inproc";
    options.timeout = std::chrono::seconds(60);
    auto comm = comm::make_communicator(world, world.everyone(), options);
    OfRank& mine = all[static_cast<size_t>(world.rank)];
    RunConfig config = config_of(tiny(course.overrides));
    config.check();
    config.check_world(course.ranks);
    auto engine = std::make_unique<Engine>(config, Log(), train::Standing{comm.get(), course.ranks});
    for (int step = 0; step < course.steps; ++step) {
      const train::StepResult result = engine->step();
      mine.values.push_back(image_of(*engine));
      mine.losses.push_back(result.loss);
      mine.norms.push_back(result.grad_norm);
      mine.notes.insert(mine.notes.end(), result.notes.begin(), result.notes.end());
      if (step + 1 != course.stop_at) continue;
      save(*engine, config, course, world.rank);
      engine.reset();
      engine = std::make_unique<Engine>(config, Log(), train::Standing{comm.get(), course.ranks});
      const auto checkpoint = ckpt::open_checkpoint(course.folder + "/step-" + std::to_string(course.stop_at));
      train::restore(*engine, config, *checkpoint);
      EXPECT_EQ(image_of(*engine), mine.values.back()) << "rank " << world.rank << " as restored";
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

class CopiesApart : public testing::TestWithParam<Case> {
 protected:
  Course course() const {
    Course c;
    c.overrides = GetParam().overrides;
    c.overrides.insert(c.overrides.end(), {"data.val_fraction=0.1", "run.deterministic=true"});
    return c;
  }
};
INSTANTIATE_TEST_SUITE_P(Methods, CopiesApart, testing::ValuesIn(kCases),
                         [](const auto& row) { return std::string(row.param.name); });

TEST_P(CopiesApart, GoOnAsIfTheyHadNeverStopped) {
  const obs::TemporaryFolder folder;
  Course course = this->course();
  const Ranks wanted = run(course);
  course.stop_at = 6;
  course.folder = folder.path();
  const Ranks seen = run(course);
  for (size_t r = 0; r < wanted.size(); ++r) {
    for (size_t k = 0; k < wanted[r].values.size(); ++k)
      ASSERT_TRUE(seen[r].values[k] == wanted[r].values[k]) << "rank " << r << ", step " << k;
    EXPECT_EQ(seen[r].losses, wanted[r].losses);
    EXPECT_EQ(seen[r].norms, wanted[r].norms);
    EXPECT_EQ(seen[r].losses, seen[0].losses) << "ranks tell the same";
    EXPECT_EQ(seen[r].evaluated, wanted[r].evaluated);
  }
}

// The checkpoint's model is the mean: one rank that takes it up has the loss that the copies evaluated.
TEST_P(CopiesApart, EvaluateAndSaveTheirMean) {
  const obs::TemporaryFolder folder;
  Course course = this->course();
  course.steps = course.stop_at = 6;
  course.folder = folder.path();
  const Ranks seen = run(course);
  RunConfig config = config_of(tiny(this->course().overrides));
  config.sync = {};
  config.parallel = {};
  config.comm.nodes = 0;
  Engine alone(config, Log());
  train::restore(alone, config, *ckpt::open_checkpoint(course.folder + "/step-6"));
  EXPECT_EQ(alone.num_steps(), 6);
  const bool coarse = config.train.precision == "bf16";
  EXPECT_NEAR(alone.evaluate(2), seen[0].evaluated, coarse ? 1e-2 : 1e-5);
  // Its own loss is another one: the copies had not met, unless the checkpoint fell on an average.
  EXPECT_EQ(alone.optimizer().num_steps(), 6);
  alone.step();
}

// fp64 tells a bug from rounding.
TEST(CopiesApartAreParallelSgd, WhereTheyAverageEverythingInEveryStep) {
  Course course;
  course.overrides = {"train.precision=fp64", "train.optimizer=sgd", "train.momentum=0",
                      "train.clip=0",         "train.lr=0.1",        "train.weight_decay=0"};
  const auto with = [&](const Overrides& more) {
    Course one = course;
    one.overrides.insert(one.overrides.end(), more.begin(), more.end());
    return run(one);
  };
  const Ranks wanted = with({"sync.method=allreduce"});
  const Overrides ways[] = {{"sync.method=local", "sync.tau=1"},
                            {"sync.method=gossip", "sync.topology=full"},
                            {"sync.method=gossip", "sync.period=1"},
                            {"sync.method=local", "sync.tau=1", "sync.client_weights=tokens"},
                            {"sync.method=diloco", "sync.period=1", "sync.outer_lr=1", "sync.outer_momentum=0"}};
  for (const Overrides& way : ways) {
    const Ranks seen = with(way);
    for (size_t r = 0; r < seen.size(); ++r)
      EXPECT_LE(distance(seen[r].values.back(), wanted[r].values.back(), DType::f64), 1e-11) << way[0] << way[1];
    for (size_t k = 0; k < seen[0].losses.size(); ++k)
      EXPECT_NEAR(seen[0].losses[k], wanted[0].losses[k], 1e-11) << way[0] << way[1];
  }
}

TEST(CopiesApartTogether, AreEqualRightAfterAnAverageAndOnlyThen) {
  Course course;
  course.overrides = {"sync.method=local", "sync.tau=4"};
  const Ranks local = run(course);
  course.overrides = {"sync.method=diloco", "sync.period=4"};
  const Ranks diloco = run(course);
  for (const Ranks* all : {&local, &diloco})
    for (size_t k = 0; k < 10; ++k)
      for (size_t r = 1; r < 4; ++r)
        EXPECT_EQ((*all)[r].values[k] == (*all)[0].values[k], (k + 1) % 4 == 0) << "rank " << r << ", step " << k;
}

TEST(CopiesApartTogether, TellTheirGraphOnce) {
  Course course;
  course.steps = 3;
  course.overrides = {"sync.method=gossip"};
  const Ranks seen = run(course);
  ASSERT_EQ(seen[0].notes.size(), 1u);
  EXPECT_EQ(seen[0].notes[0], "gossip: ring of 4 replicas, at most 2 listeners each; spectral gap 0.666667");
}

TEST(CopiesApartRefuse, WhatTheyCannotBeTogetherWith) {
  const auto refused = [](const Overrides& more) -> std::string {
    try {
      config_of(tiny(more)).check_world(4);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "nothing was refused";
  };
  EXPECT_NE(refused({"sync.method=local", "parallel.cp=2"}).find("parallel.cp = 1"), std::string::npos);
  EXPECT_NE(refused({"sync.method=gossip", "sync.offload=host"}).find("must be none"), std::string::npos);
  EXPECT_NE(refused({"sync.hierarchical=true"}).find("gossip, local, diloco"), std::string::npos);
  EXPECT_NE(refused({"sync.method=local", "sync.tracking=true"}).find("sync.method = gossip"), std::string::npos);
}

}  // namespace
}  // namespace esp::parity
