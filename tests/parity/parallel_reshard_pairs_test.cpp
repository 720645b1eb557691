// A checkpoint is saved in each of 20 layouts and loaded in the others. Every bit of the state must be preserved, and
// the next loss must equal that of one process. The short form loads each checkpoint in two layouts;
// ESPALIER_TEST_LONG=1 tests all 400 pairs.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "esp/ckpt/checkpoint.h"
#include "esp/net/inproc/threads.h"
#include "esp/obs/temporary_folder.h"
#include "esp/train/snapshot.h"
#include "tests/parity/parallel_runs.h"

namespace esp::parity {
namespace {

using namespace std::chrono_literals;

struct PairLayout {
  const char* name;
  int ranks;
  Overrides overrides;
};
const PairLayout kLayouts[] = {
    {"one", 1, {}},
    {"dp2", 2, {}},
    {"dp3_zero1", 3, {"sync.method=zero1"}},
    {"dp4_zero2", 4, {"sync.method=zero2", "train.micro_batch=1"}},
    {"dp4_zero3", 4, {"sync.method=zero3", "train.micro_batch=1"}},
    {"dp6", 6, {}},
    {"tp2", 2, {"parallel.tp=2"}},
    {"tp3", 3, {"parallel.tp=3"}},
    {"tp4", 4, {"parallel.tp=4"}},
    {"pp2", 2, {"parallel.pp=2"}},
    {"pp3_gpipe", 3, {"parallel.pp=3", "parallel.schedule=gpipe"}},
    {"pp4_zb", 4, {"parallel.pp=4", "parallel.schedule=zb-h1"}},
    {"pp2_interleaved", 2, {"parallel.pp=2", "parallel.schedule=interleaved", "parallel.interleave=2"}},
    {"cp2", 2, {"parallel.cp=2"}},
    {"cp3_ulysses", 3, {"parallel.cp=3", "parallel.context=ulysses"}},
    {"tp2_pp2", 4, {"parallel.tp=2", "parallel.pp=2"}},
    {"tp2_dp2_zero1", 4, {"parallel.tp=2", "sync.method=zero1"}},
    {"pp2_dp2_zero3", 4, {"parallel.pp=2", "sync.method=zero3"}},
    {"cp2_dp2_zero2", 4, {"parallel.cp=2", "sync.method=zero2"}},
    {"tp2_pp2_dp2_zero1", 8, {"parallel.tp=2", "parallel.pp=2", "sync.method=zero1"}},
};
constexpr int kSteps = 3;

Overrides overrides_for(const PairLayout& layout) {
  Overrides all = small_model("gpt", {"train.precision=fp64", "model.dropout=0.1"});
  all.insert(all.end(), layout.overrides.begin(), layout.overrides.end());
  return all;
}

// Returns how many state elements on this rank differ from the checkpoint. Adds the number of compared elements to
// `num_compared`.
int64_t num_different(const std::vector<ckpt::TensorSlice>& pieces, const ckpt::Checkpoint& checkpoint,
                      const tensor::Context& context, int64_t& num_compared) {
  int64_t different = 0;
  for (const ckpt::TensorSlice& piece : pieces) {
    ckpt::TensorSlice stored = piece;
    stored.values = tensor::empty(context, piece.values.shape(), piece.values.dtype(), device::MemoryCategory::other);
    checkpoint.read(stored);
    const size_t element = size_of(piece.values.dtype());
    for (int64_t i = 0; i < piece.values.count(); ++i) {
      const size_t at = static_cast<size_t>(i) * element;
      if (std::memcmp(piece.values.as<std::byte>() + at, stored.values.as<std::byte>() + at, element) != 0) ++different;
    }
    num_compared += piece.values.count();
  }
  return different;
}

struct LoadedState {
  std::atomic<int64_t> elements{0}, different{0};
  double next_loss = 0;
};

void load_checkpoint(const PairLayout& layout, const std::string& path, LoadedState& loaded) {
  net::run_threads(layout.ranks, [&](net::World& world) {
    comm::CommOptions options;
    options.transport = "inproc";
    options.timeout = 60s;
    const auto comm = comm::make_communicator(world, world.world_group(), options);
    train::RunConfig config = parse_config(overrides_for(layout));
    config.check();
    config.check_world(layout.ranks);
    train::Engine engine(config, Log(), {comm.get(), layout.ranks});
    const auto checkpoint = ckpt::open_checkpoint(path);
    train::restore(engine, config, *checkpoint);
    EXPECT_EQ(engine.num_steps(), kSteps);
    const ckpt::Snapshot snapshot = train::make_snapshot(engine, config);
    int64_t num_compared = 0;
    for (const auto* pieces : {&snapshot.model, &snapshot.optimizer})
      loaded.different += num_different(*pieces, *checkpoint, engine.host(), num_compared);
    loaded.elements += num_compared;
    const double loss = engine.step().loss;
    if (world.rank == 0) loaded.next_loss = loss;
  });
}

int64_t num_elements(const std::string& path) {
  const auto checkpoint = ckpt::open_checkpoint(path);
  int64_t count = 0;
  for (const std::string& name : checkpoint->names()) count += checkpoint->shape_of(name).count();
  return count;
}

class ReshardPairs : public testing::TestWithParam<int> {};

TEST_P(ReshardPairs, PreserveEveryBitAndTheNextLoss) {
  const auto from = static_cast<size_t>(GetParam());
  const obs::TemporaryFolder folder;
  train_layout({.ranks = kLayouts[from].ranks,
                .steps = kSteps,
                .overrides = overrides_for(kLayouts[from]),
                .save = folder.path()});
  const std::string path = folder / fmt::format("step-{}", kSteps);
  const int64_t count = num_elements(path);
  LoadedState single_rank;
  load_checkpoint(kLayouts[0], path, single_rank);
  int num_loads = 0;
  for (size_t to = 0; to < std::size(kLayouts); ++to) {
    const size_t ahead = (to + std::size(kLayouts) - from) % std::size(kLayouts);
    if (!std::getenv("ESPALIER_TEST_LONG") && ahead != 7) continue;
    LoadedState loaded;
    load_checkpoint(kLayouts[to], path, loaded);
    const std::string what = fmt::format("{} to {}", kLayouts[from].name, kLayouts[to].name);
    EXPECT_EQ(loaded.elements, count) << what;
    EXPECT_EQ(loaded.different, 0) << what;
    EXPECT_NEAR(loaded.next_loss, single_rank.next_loss, 1e-12) << what;
    ++num_loads;
  }
  fmt::print("{}: loaded in {} layouts, {} elements of state, all bits equal\n", kLayouts[from].name, num_loads, count);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ReshardPairs, testing::Range(0, static_cast<int>(std::size(kLayouts))),
                         [](const auto& row) { return std::string(kLayouts[row.param].name); });

}  // namespace
}  // namespace esp::parity
