// Snapshots of shards: several ranks write their parts together, and ranks with other shards read them.
#include "esp/train/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <thread>

#include "esp/base/error.h"
#include "esp/kernel/elementwise.h"
#include "esp/obs/temporary_folder.h"
#include "esp/sync/tier/offloaded_optimizer.h"
#include "esp/train/checkpoint_saver.h"

namespace esp::train {
namespace {

using testing::HasSubstr;

// A strategy that holds all values, but updates and writes only the given ranges.
class Shards final : public sync::Strategy {
 public:
  Shards(nn::ParameterList& parameters, std::vector<optim::UnitRange> ranges)
      : parameters_(parameters), ranges_(std::move(ranges)) {}

  void fill(const std::function<void(nn::ParameterList::Unit&)>& f) override {
    for (auto& unit : parameters_.units()) f(unit);
  }
  std::vector<optim::OptimizerShard> optimizer_shards() override {
    std::vector<optim::OptimizerShard> all;
    for (const optim::UnitRange& range : ranges_) {
      const auto& unit = parameters_.units()[static_cast<size_t>(range.unit)];
      all.push_back({range, unit.values.slice(range.begin, range.end), unit.grads.slice(range.begin, range.end)});
    }
    return all;
  }
  std::vector<optim::ValueShard> checkpoint_shards() override {
    std::vector<optim::ValueShard> all;
    for (const optim::OptimizerShard& one : optimizer_shards()) all.push_back({one.range, one.values});
    return all;
  }
  void begin_step() override {}
  void begin_pass(const sync::PassOptions&) override {}
  void end_pass() override {}
  void finish() override {}
  const std::vector<double>& sums_of_squares() override { return none_; }
  void after_step() override {}
  sync::StepTimes times() const override { return {}; }

 private:
  nn::ParameterList& parameters_;
  std::vector<optim::UnitRange> ranges_;
  const std::vector<double> none_;
};

struct Rank {
  nn::ParameterList parameters;
  std::unique_ptr<Shards> strategy;
  std::unique_ptr<optim::Optimizer> optimizer;
};
using Ranks = std::vector<std::unique_ptr<Rank>>;

struct SnapshotTest : testing::Test {
  obs::TemporaryFolder folder;
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  tensor::Context context{{}, &pool};
  const std::string dir = folder / "checkpoints";
  optim::OptimizerOptions adam;

  // Ranks with shards of different sizes: of each unit, rank i of n has the elements from i²/n² to (i+1)²/n² of its
  // length.
  Ranks make_ranks(int64_t n, uint64_t seed) {
    Ranks ranks;
    for (int64_t i = 0; i < n; ++i) {
      auto rank = std::make_unique<Rank>();
      for (const char* unit : {"a", "b"}) {
        rank->parameters.begin_unit(unit);
        rank->parameters.add(std::string(unit) + ".weight", {13, 5}, nn::Init::normal(0.5), true);
        rank->parameters.add(std::string(unit) + ".bias", {7}, nn::Init::normal(0.5), false);
      }
      rank->parameters.materialize(context, DType::bf16, true);
      rank->parameters.initialise(seed, context.stream);
      std::vector<optim::UnitRange> ranges;
      for (const auto& unit : rank->parameters.units())
        if (const int64_t begin = unit.count * i * i / (n * n), end = unit.count * (i + 1) * (i + 1) / (n * n);
            begin < end)
          ranges.push_back({static_cast<int>(&unit - rank->parameters.units().data()), begin, end});
      rank->strategy = std::make_unique<Shards>(rank->parameters, ranges);
      rank->optimizer = optim::make_optimizer(adam, rank->parameters, context, rank->strategy->optimizer_shards());
      ranks.push_back(std::move(rank));
    }
    return ranks;
  }

  void step(Ranks& ranks, int64_t number) {
    for (auto& rank : ranks) {
      for (auto& unit : rank->parameters.units()) {
        std::vector<float> grads;
        for (int64_t i = 0; i < unit.count; ++i)
          grads.push_back(std::sin(static_cast<float>(unit.first + i + 31 * number)));
        kernel::cast(unit.grads.data(), unit.grads.dtype(), grads.data(), DType::f32, unit.count, context.stream);
      }
      rank->optimizer->step(0.01, 1);
    }
  }

  static ckpt::Snapshot snapshot(Rank& rank, int64_t step) {
    const auto held = rank.strategy->checkpoint_shards();
    ckpt::Snapshot made;
    made.step = step;
    made.model = model_slices(rank.parameters, held);
    made.optimizer = optimizer_slices(*rank.optimizer, rank.parameters, held);
    made.state = {{"optimizer_steps", rank.optimizer->num_steps()}};
    return made;
  }
  ckpt::SaveOptions options_of(size_t rank, size_t world) {
    ckpt::SaveOptions options;
    options.rank = static_cast<int>(rank);
    options.world = static_cast<int>(world);
    options.token = "run";
    options.timeout = std::chrono::seconds(60);
    return options;
  }
  std::string save(Ranks& ranks, int64_t step) {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < ranks.size(); ++i)
      threads.emplace_back([this, i, world = ranks.size(), made = snapshot(*ranks[i], step)] {
        EXPECT_NO_THROW(ckpt::save(dir, made, options_of(i, world)));
      });
    threads.clear();
    return fmt::format("{}/step-{}", dir, step);
  }
  Ranks loaded(int64_t n, const std::string& path) {
    Ranks ranks = make_ranks(n, 99);
    const auto checkpoint = ckpt::open_checkpoint(path);
    for (auto& rank : ranks) {
      load_parameters(*rank->strategy, *checkpoint);
      load_optimizer_states(*rank->optimizer, rank->parameters, *checkpoint);
      rank->optimizer->set_num_steps(checkpoint->state().at("optimizer_steps").get<int64_t>());
    }
    return ranks;
  }
};

std::string bytes_of(const tensor::Tensor& x) {
  return {x.as<char>(), x.bytes()};
}

// With split master weights, the optimizer keeps only their low half. The checkpoint contains the whole values.
TEST_F(SnapshotTest, ReshardsSplitMasterWeights) {
  adam.split_master = true;
  Ranks alone = make_ranks(1, 1), four = make_ranks(4, 1);
  for (int64_t i = 0; i < 40; ++i) step(alone, i);
  for (int64_t i = 0; i < 20; ++i) step(four, i);
  const std::string path = save(four, 20);
  Ranks three = loaded(3, path);
  for (int64_t i = 20; i < 30; ++i) step(three, i);
  Ranks one = loaded(1, save(three, 30));
  for (int64_t i = 30; i < 40; ++i) step(one, i);
  for (size_t u = 0; u < 2; ++u)
    EXPECT_EQ(bytes_of(one[0]->parameters.units()[u].values), bytes_of(alone[0]->parameters.units()[u].values)) << u;
  const auto states = one[0]->optimizer->states(), expected = alone[0]->optimizer->states();
  ASSERT_EQ(states.size(), expected.size());
  for (size_t i = 0; i < states.size(); ++i)
    EXPECT_EQ(bytes_of(states[i].memory()), bytes_of(expected[i].memory())) << i;
  // A run that does not split the master weights reads the whole values from the checkpoint.
  adam.split_master = false;
  Ranks whole = loaded(1, path);
  for (size_t i = 0; i < 20; ++i) EXPECT_NE(whole[0]->optimizer->states()[0].values.as<float>()[i], 0);
  tensor::Tensor copy = tensor::empty(context, {72}, DType::f32, device::MemoryCategory::other);
  adam.split_master = true;
  Ranks again = loaded(1, path);
  again[0]->optimizer->states()[0].read(0, copy);
  EXPECT_EQ(bytes_of(copy), bytes_of(whole[0]->optimizer->states()[0].values));
}

TEST_F(SnapshotTest, ReshardingFromFourToThreeToOneRankKeepsEveryBit) {
  Ranks alone = make_ranks(1, 1), four = make_ranks(4, 1);
  for (int64_t i = 0; i < 4; ++i) step(alone, i);
  for (int64_t i : {0, 1}) step(four, i);
  Ranks three = loaded(3, save(four, 2));
  step(three, 2);
  Ranks one = loaded(1, save(three, 3));
  step(one, 3);
  for (size_t u = 0; u < 2; ++u)
    EXPECT_EQ(bytes_of(one[0]->parameters.units()[u].values), bytes_of(alone[0]->parameters.units()[u].values)) << u;
  const auto states = one[0]->optimizer->states(), expected = alone[0]->optimizer->states();
  ASSERT_EQ(states.size(), expected.size());
  ASSERT_EQ(states.size(), 6u);  // master, m and v, each of two units
  for (size_t i = 0; i < states.size(); ++i) EXPECT_EQ(bytes_of(states[i].values), bytes_of(expected[i].values)) << i;
}

TEST_F(SnapshotTest, WritesWholeParametersOrOnlyRangesStoredOnRank) {
  Ranks alone = make_ranks(1, 1);
  const auto whole = model_slices(alone[0]->parameters, alone[0]->strategy->checkpoint_shards());
  ASSERT_EQ(whole.size(), 4u);
  for (const ckpt::TensorSlice& slice : whole) {
    EXPECT_EQ(slice.first, 0);
    EXPECT_EQ(slice.values.count(), slice.global_shape.count());
  }
  auto& unit = alone[0]->parameters.units()[1];
  const std::vector<optim::ValueShard> held = {{{1, 60, 70}, unit.values.slice(60, 70)}};
  const auto slices = model_slices(alone[0]->parameters, held);
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[0].name, "b.weight");
  EXPECT_EQ(slices[0].first, 60);
  EXPECT_EQ(slices[0].values.count(), 5);
  EXPECT_EQ(slices[1].name, "b.bias");
  EXPECT_EQ(slices[1].first, 0);
  EXPECT_EQ(slices[1].values.data(), unit.values.slice(65, 70).data());
}

TEST_F(SnapshotTest, WritesOptimizerStateOnlyOfValuesStoredOnRank) {
  Ranks alone = make_ranks(1, 1), two = make_ranks(2, 1);
  // A rank that writes no values writes no state either.
  EXPECT_TRUE(optimizer_slices(*alone[0]->optimizer, alone[0]->parameters, {}).empty());
  int64_t count = 0;
  const std::vector<optim::ValueShard> some = {{{0, 60, 70}, alone[0]->parameters.units()[0].values.slice(60, 70)}};
  for (const auto& slice : optimizer_slices(*alone[0]->optimizer, alone[0]->parameters, some))
    count += slice.values.count();
  EXPECT_EQ(count, 3 * 10);
  // Another rank has the optimizer state of these values, so the checkpoint would lack it.
  EXPECT_THROW(optimizer_slices(*two[0]->optimizer, two[0]->parameters, alone[0]->strategy->checkpoint_shards()),
               InternalError);
}

// Optimizer state in a file is saved and restored exactly like state in memory. At most one tile of it is in memory at
// a time, also with background checkpoints.
TEST_F(SnapshotTest, WritesAndRestoresOffloadedStateTileByTile) {
  device::MemoryPool host(account, device::MemoryTier::host);
  device::HostLink link;
  const auto offloaded = [&](Rank& rank) {
    sync::TierOptions tier;
    tier.placement = "file";
    tier.tile = 16;
    tier.file.folder = folder.path();
    rank.optimizer = sync::make_offloaded_optimizer({}, rank.parameters, context.stream, host, link,
                                                    rank.strategy->optimizer_shards(), tier);
  };
  Ranks alone = make_ranks(1, 1), far = make_ranks(1, 1);
  offloaded(*far[0]);
  for (int64_t i : {0, 1}) {
    step(alone, i);
    step(far, i);
  }
  for (const bool in_background : {false, true}) {
    const uint64_t before = account.use(device::MemoryTier::host).current;
    account.reset_peaks();
    const std::string at = folder / (in_background ? "behind" : "at-once");
    CheckpointSaver saver(at, options_of(0, 1), in_background, account);
    saver.save(snapshot(*far[0], 2));
    const std::string path = saver.finish();
    EXPECT_LE(account.use(device::MemoryTier::host).peak, before + 3 * 64 + 3 * 64) << in_background;
    // Restores once into memory and once into a file.
    for (const bool to_file : {false, true}) {
      Ranks again = make_ranks(1, 99);
      if (to_file) offloaded(*again[0]);
      const auto checkpoint = ckpt::open_checkpoint(path);
      load_parameters(*again[0]->strategy, *checkpoint);
      load_optimizer_states(*again[0]->optimizer, again[0]->parameters, *checkpoint);
      again[0]->optimizer->set_num_steps(2);
      again[0]->optimizer->states_restored();
      Ranks expected = loaded(1, save(alone, 2));
      for (int64_t i : {2, 3}) {
        step(again, i);
        step(expected, i);
      }
      for (size_t u = 0; u < 2; ++u)
        EXPECT_EQ(bytes_of(again[0]->parameters.units()[u].values), bytes_of(expected[0]->parameters.units()[u].values))
            << in_background << to_file << u;
    }
  }
}

TEST_F(SnapshotTest, ThrowsOnAllRanksWhenOneSaveFails) {
  Ranks ranks = make_ranks(2, 1);
  CheckpointSaver first(dir, options_of(0, 2), true, account), second(dir, options_of(1, 2), true, account);
  const auto both = [&](int64_t step, bool damaged) {
    ckpt::Snapshot half = snapshot(*ranks[1], step);
    if (damaged) half.model.erase(half.model.begin());  // removes the rank's shard of a.weight
    first.save(snapshot(*ranks[0], step));
    second.save(std::move(half));
  };
  both(1, false);
  both(2, false);  // each saver waits for its first write, because it has one write at a time
  EXPECT_EQ(first.finish(), dir + "/step-2");
  EXPECT_EQ(second.finish(), dir + "/step-2");
  both(3, true);
  std::string messages[2];
  for (int i : {0, 1}) try {
      (i == 0 ? first : second).finish();
      ADD_FAILURE() << i;
    } catch (const IoError& error) {
      messages[i] = error.what();
    }
  EXPECT_THAT(messages[0], HasSubstr("every element of tensor a.weight"));
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_EQ(ckpt::newest_complete(dir), dir + "/step-2");
  both(3, false);
  EXPECT_EQ(first.finish(), dir + "/step-3");
  EXPECT_EQ(second.finish(), dir + "/step-3");
  EXPECT_FALSE(std::filesystem::exists(dir + "/.failed-step-3.run-3"));
}

}  // namespace
}  // namespace esp::train
