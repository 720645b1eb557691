// Tests the detectors of silent errors, without processes: the majority vote, a flipped bit in every kind of state (one
// engine per thread), and fault injection.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/net/inproc/threads.h"
#include "esp/obs/temporary_folder.h"
#include "esp/train/injected_fault.h"
#include "esp/train/replica_check.h"

namespace esp::train {
namespace {

std::vector<uint64_t> rows_of(std::initializer_list<std::pair<uint64_t, std::vector<uint64_t>>> replicas) {
  std::vector<uint64_t> rows;
  for (const auto& [rank, numbers] : replicas) {
    rows.push_back(rank);
    rows.insert(rows.end(), numbers.begin(), numbers.end());
  }
  return rows;
}

TEST(ReplicaMismatch, NamesRankThatDeviatesFromMajority) {
  EXPECT_FALSE(find_mismatch(rows_of({{0, {5, 6}}, {2, {5, 6}}}), 2));
  const auto one = find_mismatch(rows_of({{0, {5, 6}}, {2, {5, 6}}, {4, {5, 7}}}), 2);
  ASSERT_TRUE(one);
  EXPECT_EQ(one->ranks, std::vector<int>{4});
  EXPECT_TRUE(one->majority);
  EXPECT_EQ(one->entry, 1u);
}

TEST(ReplicaMismatch, NamesAllRanksWithoutMajority) {
  const auto two = find_mismatch(rows_of({{1, {5}}, {3, {6}}}), 1);
  ASSERT_TRUE(two);
  EXPECT_EQ(two->ranks, (std::vector<int>{1, 3}));
  EXPECT_FALSE(two->majority);
  EXPECT_EQ(find_mismatch(rows_of({{0, {5}}, {1, {5}}, {2, {6}}, {3, {6}}}), 1)->ranks.size(), 4u);
}

TEST(ReplicaMismatch, NamesTwoRanksWithDifferentDeviations) {
  const auto two = find_mismatch(rows_of({{0, {5, 6}}, {1, {9, 6}}, {2, {5, 6}}, {3, {5, 8}}, {4, {5, 6}}}), 2);
  ASSERT_TRUE(two);
  EXPECT_EQ(two->ranks, (std::vector<int>{1, 3}));
}

// Calls f(check, engine, rank) on three engines that train together, with one thread each.
template <typename F>
void with_replicas(std::vector<std::string> overrides, F&& f) {
  const obs::TemporaryFolder folder;
  std::ofstream(folder / "text.txt") << std::string(4000, 'a') << std::string(4000, 'b');
  overrides.insert(overrides.end(), {"train.global_batch=6", "model.dim=16", "model.seq_len=16", "model.vocab=256",
                                     "run.threads=1", "run.dir=" + (folder / "run")});
  net::run_threads(3, [&](net::World& world) {
    comm::CommOptions options;
    options.transport = "inproc";
    options.timeout = std::chrono::seconds(60);
    const auto ranks = comm::make_communicator(world, world.world_group(), options);
    RunConfig config = parse_run_config("", "run.toml", overrides);
    config.data.train = {folder / "text.txt"};
    config.check_world(3);
    Engine engine(config, Log(), JobContext{ranks.get(), 3});
    ReplicaCheck check(engine, config);
    engine.step();
    f(check, engine, world.rank);
  });
}

TEST(ReplicaCheck, FindsEveryFlippedBitAndItsRank) {
  const int flips = std::getenv("ESPALIER_TEST_LONG") ? 10'000 : 300;
  with_replicas({}, [&](ReplicaCheck& check, Engine&, int rank) {
    ASSERT_TRUE(check.applies());
    check.compare(1);
    for (int i = 0; i < flips; ++i) {
      const uint64_t bit = random_bits(7, 0, static_cast<uint64_t>(i));
      const int bad = i % 3;
      if (rank == bad) check.flip_bit(bit);
      try {
        check.compare(1);
        ADD_FAILURE() << "bit " << bit << " of rank " << bad << " was not found";
      } catch (const CommError& error) {
        ASSERT_EQ(error.peer(), bad) << error.what();
        ASSERT_EQ(error.kind(), CommError::Kind::corrupt);
      }
      if (rank == bad) check.flip_bit(bit);
    }
    check.compare(1);
  });
}

TEST(ReplicaCheck, ComparesOnlyReplicatedState) {
  uint64_t whole = 0;
  with_replicas({}, [&](ReplicaCheck& check, Engine& engine, int rank) {
    if (rank != 0) return;
    whole = check.bytes();
    // values, m and v, with 4 bytes per element
    EXPECT_EQ(whole, static_cast<uint64_t>(engine.num_parameters()) * 4 * 3);
  });
  for (const char* method : {"zero1", "zero2"})
    with_replicas({std::string("sync.method=") + method}, [&](ReplicaCheck& check, Engine&, int rank) {
      check.compare(1);
      EXPECT_TRUE(rank != 0 || check.bytes() == whole / 3) << method;
    });
  for (const char* method : {"zero3", "gossip", "local"})
    with_replicas({std::string("sync.method=") + method},
                  [&](ReplicaCheck& check, Engine&, int) { EXPECT_FALSE(check.applies()) << method; });
}

TEST(InjectedFault, ParsesValidFaultsAndRejectsOthers) {
  EXPECT_EQ(parse_fault("").kind, InjectedFault::Kind::none);
  const InjectedFault flip = parse_fault("flip:2:17:99");
  EXPECT_TRUE(flip.is(InjectedFault::Kind::flip, 2, 17));
  EXPECT_FALSE(flip.is(InjectedFault::Kind::flip, 2, 18));
  EXPECT_EQ(flip.what, 99u);
  for (const char* wrong : {"loop", "loop:1", "lop:1:2", "loop:x:2", "loop:1:2:3:4", "loop::2", ":::"})
    EXPECT_THROW(parse_fault(wrong), UsageError) << wrong;
}

}  // namespace
}  // namespace esp::train
