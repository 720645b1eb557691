#include "esp/sync/tier/offloaded_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <tuple>
#include <utility>

#include "esp/base/error.h"
#include "esp/kernel/elementwise.h"
#include "esp/obs/temporary_folder.h"
#include "esp/sync/tier/testing.h"

namespace esp::sync {
namespace {

using device::MemoryCategory;
using device::MemoryTier;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kCount = 2 * (37 * 19 + 19 + 5);  // number of elements in the list that build() creates

struct OffloadedOptimizerTest : testing::Test {
  explicit OffloadedOptimizerTest(int num_threads = 2) : threads(num_threads) {}

  device::MemoryAccount account;
  device::MemoryPool device_pool{account}, host{account, MemoryTier::host};
  device::ThreadPool threads;
  tensor::Context context{{.device = {}, .pool = &threads, .queue = nullptr}, &device_pool};
  device::HostLink link;
  obs::TemporaryFolder folder;

  // Parameters with odd sizes, with and without weight decay.
  void build(nn::ParameterList& list, DType type) {
    for (const char* unit : {"a", "b"}) {
      list.begin_unit(unit);
      list.add(std::string(unit) + ".weight", {37, 19}, nn::Init::normal(0.5), true);
      list.add(std::string(unit) + ".bias", {19}, nn::Init::normal(0.5), false);
      list.add(std::string(unit) + ".more", {5}, nn::Init::normal(0.5), true);
    }
    list.materialize(context, type, true);
    list.initialise(1, context.stream);
  }
  void set_gradients(nn::ParameterList& list, int64_t step) {
    for (auto& unit : list.units())
      kernel::fill_normal(unit.grads.data(), 0, 0.1, 7, static_cast<uint64_t>(step), unit.first, unit.count,
                          unit.grads.dtype(), context.stream);
  }
  TierOptions tier(const std::string& placement, int64_t tile = 100) {
    TierOptions options;
    options.placement = placement;
    options.tile = tile;
    options.file.folder = folder.path();
    return options;
  }
  std::unique_ptr<OffloadedOptimizer> offloaded(const nn::ParameterList& list, const TierOptions& options,
                                                const std::string& name = "adamw") {
    return make_offloaded_optimizer(rule(name), list, context.stream, host, link, optim::all_units(list), options);
  }
  static optim::OptimizerOptions rule(const std::string& name) {
    optim::OptimizerOptions options;
    options.name = name;
    options.weight_decay = 0.1;
    return options;
  }
};
// For tests that fork: one thread only, because in the child of a multi-threaded process locks may stay held.
struct ForkedOffloadedOptimizerTest : OffloadedOptimizerTest {
  ForkedOffloadedOptimizerTest() : OffloadedOptimizerTest(1) {}
};

std::vector<std::vector<char>> values_of(const nn::ParameterList& list) {
  std::vector<std::vector<char>> all;
  for (const auto& unit : list.units()) all.push_back(bytes_of(unit.values));
  return all;
}
// State bytes by slot and unit, so that optimizers with different orders and ranges are comparable. The owned ranges of
// a unit are joined.
using States = std::map<std::pair<std::string, int>, std::vector<char>>;
States states_of(optim::Optimizer& optimizer) {
  States all;
  std::map<std::pair<std::string, int>, int64_t> ends;
  for (const optim::OptimizerState& state : optimizer.states()) {
    const std::pair key{std::string(state.slot), state.range.unit};
    const auto [end, first] = ends.try_emplace(key, state.range.begin);
    EXPECT_EQ(end->second, state.range.begin) << state.slot;
    end->second = state.range.end;
    for (const char byte : bytes_of(state)) all[key].push_back(byte);
  }
  return all;
}
void copy_states(optim::Optimizer& from, optim::Optimizer& to) {
  const States source = states_of(from);
  std::map<std::pair<std::string, int>, size_t> at;
  for (const optim::OptimizerState& state : to.states()) {
    const std::pair key{std::string(state.slot), state.range.unit};
    ASSERT_LE(at[key] + state.values.bytes(), source.at(key).size());
    set_bytes(state, source.at(key).data() + at[key]);
    at[key] += state.values.bytes();
  }
  to.set_num_steps(from.num_steps());
  to.states_restored();
}

struct OffloadedOptimizerPlacement : OffloadedOptimizerTest, testing::WithParamInterface<const char*> {};

TEST_P(OffloadedOptimizerPlacement, EqualsTheDeviceOptimizerBitForBit) {
  for (const char* name : {"adamw", "adam", "sgd"})
    for (const DType type : {DType::bf16, DType::f16, DType::f32, DType::f64})
      for (const int64_t tile : {64, 731, 1 << 20}) {
        nn::ParameterList here, there;
        build(here, type);
        build(there, type);
        auto flat = optim::make_optimizer(rule(name), here, context);
        auto far = offloaded(there, tier(GetParam(), tile), name);
        for (int64_t step = 1; step <= 4; ++step) {
          set_gradients(here, step);
          set_gradients(there, step);
          flat->step(1e-2, 0.5);
          far->step(1e-2, 0.5);
          ASSERT_EQ(values_of(here), values_of(there)) << name << name_of(type) << tile;
        }
        EXPECT_EQ(states_of(*flat), states_of(*far)) << name << name_of(type) << tile;
        EXPECT_EQ(far->num_steps(), 4);
      }
}

TEST_P(OffloadedOptimizerPlacement, AcceptsGradientPiecesInAnyOrder) {
  nn::ParameterList here, there;
  build(here, DType::bf16);
  build(there, DType::bf16);
  auto flat = optim::make_optimizer(rule("adamw"), here, context);
  // The rank owns the end of one unit and the beginning of the next. The gradients of its shard have no memory on the
  // device.
  const auto& units = there.units();
  const int64_t n = units[0].count;
  std::vector<optim::OptimizerShard> owned{{{0, 300, n}, units[0].values.slice(300, n), {}},
                                           {{1, 0, 201}, units[1].values.slice(0, 201), {}}};
  auto far = make_offloaded_optimizer(rule("adamw"), there, context.stream, host, link, owned, tier(GetParam()));
  for (int64_t step = 1; step <= 3; ++step) {
    set_gradients(there, step + 10);  // gradients of a skipped step
    far->take_gradient(1, 0, units[1].grads.slice(0, 201));
    if (step == 2) far->drop_gradients();
    set_gradients(here, step);
    set_gradients(there, step);
    flat->step(1e-2, 1);
    far->take_gradient(1, 100, units[1].grads.slice(100, 201));
    far->take_gradient(0, 200, units[0].grads.slice(500, n));
    far->take_gradient(1, 0, units[1].grads.slice(0, 150));
    far->take_gradient(0, 0, units[0].grads.slice(300, 500));
    EXPECT_EQ(bytes_of(far->gradient(1)), bytes_of(units[1].grads.slice(0, 201)));
    far->step(1e-2, 1);
  }
  const auto& whole = here.units();
  EXPECT_EQ(bytes_of(units[0].values.slice(300, n)), bytes_of(whole[0].values.slice(300, n)));
  EXPECT_EQ(bytes_of(units[1].values.slice(0, 201)), bytes_of(whole[1].values.slice(0, 201)));
  nn::ParameterList untouched;
  build(untouched, DType::bf16);
  EXPECT_EQ(bytes_of(units[0].values.slice(0, 300)), bytes_of(untouched.units()[0].values.slice(0, 300)));
  far->take_gradient(0, 0, units[0].grads.slice(300, 500));
  EXPECT_THROW(far->step(1e-2, 1), InternalError);  // throws, because the gradient of one range is missing
}

TEST_P(OffloadedOptimizerPlacement, CountsEveryByteSentOverLinkAndFile) {
  for (const auto& [type, name, slots] :
       {std::tuple{DType::bf16, "adamw", 3}, {DType::f32, "adamw", 3}, {DType::f16, "sgd", 2}}) {
    nn::ParameterList list;
    build(list, type);
    auto optimizer = offloaded(list, tier(GetParam(), 500), name);
    const uint64_t down = link.bytes_down(), up = link.bytes_up();
    const FileTraffic before = optimizer->file_traffic();
    for (int64_t step = 1; step <= 3; ++step) {
      set_gradients(list, step);
      optimizer->step(1e-2, 1);
    }
    EXPECT_EQ(link.bytes_down() - down, 3u * kCount * size_of(type));
    EXPECT_EQ(link.bytes_up() - up, 3u * kCount * size_of(type));
    const FileTraffic after = optimizer->file_traffic();
    const uint64_t file = GetParam() == std::string("file") ? 3u * kCount * 4 * static_cast<uint64_t>(slots) : 0;
    EXPECT_EQ(after.read - before.read, file);
    EXPECT_EQ(after.written - before.written, file);
    EXPECT_EQ(after.padding_read - before.padding_read, after.padding_written - before.padding_written);
  }
}

TEST_P(OffloadedOptimizerPlacement, CountsStateBytesInTheirMemoryTier) {
  nn::ParameterList list;
  build(list, DType::bf16);
  const uint64_t on_device = account.use(MemoryTier::device).current;
  // sets the budget to the bytes in use, so that any further allocation on the device would fail
  account.set_budget(MemoryTier::device, on_device);
  auto optimizer = offloaded(list, tier(GetParam(), 500));
  for (int64_t step = 1; step <= 2; ++step) {
    set_gradients(list, step);
    optimizer->step(1e-2, 1);
  }
  EXPECT_EQ(account.use(MemoryTier::device).peak, on_device);
  EXPECT_EQ(account.use(MemoryCategory::gradient, MemoryTier::host).current, 2u * kCount);
  const bool in_file = GetParam() == std::string("file");
  EXPECT_EQ(account.use(MemoryCategory::optimizer, MemoryTier::host).current, in_file ? 0u : 12u * kCount);
  const uint64_t file = account.use(MemoryCategory::optimizer, MemoryTier::file).current;
  if (in_file) {
    EXPECT_GE(file, 12u * kCount);
    // at most the state plus rounding: three tiles, each rounded up to a block
    EXPECT_LT(file, 12u * kCount + 4 * 4096);
  } else {
    EXPECT_EQ(file, 0u);
  }
  // Exposing the states must hold at most one tile in memory.
  const uint64_t before = account.use(MemoryTier::host).current;
  account.reset_peaks();
  size_t shown = 0;
  for (const optim::OptimizerState& state : optimizer->states()) shown += bytes_of(state).size();
  EXPECT_EQ(shown, 12u * kCount);
  EXPECT_LE(account.use(MemoryTier::host).peak, before + (in_file ? 12u * 500 + 3 * 64 : 0u));
  set_gradients(list, 3);
  optimizer->step(1e-2, 1);
  EXPECT_EQ(account.use(MemoryCategory::optimizer, MemoryTier::host).current, in_file ? 0u : 12u * kCount);
  optimizer.reset();
  EXPECT_EQ(account.use(MemoryTier::host).current, 0u);
  EXPECT_EQ(account.use(MemoryTier::file).current, 0u);
}

TEST_P(OffloadedOptimizerPlacement, TransfersStatesBetweenPlacementsAndTheDevice) {
  for (const DType type : {DType::bf16, DType::f32}) {
    nn::ParameterList here, there, back;
    build(here, type);
    build(there, type);
    build(back, type);
    auto flat = optim::make_optimizer(rule("adamw"), here, context);
    auto far = offloaded(there, tier(GetParam()));
    auto again = optim::make_optimizer(rule("adamw"), back, context);
    const auto run = [&](nn::ParameterList& list, optim::Optimizer& optimizer, int64_t first, int64_t last) {
      for (int64_t step = first; step <= last; ++step) {
        set_gradients(list, step);
        optimizer.step(1e-2, 1);
      }
    };
    const auto move = [](const nn::ParameterList& from, nn::ParameterList& to) {
      for (size_t u = 0; u < from.units().size(); ++u)
        std::memcpy(to.units()[u].values.data(), from.units()[u].values.data(), from.units()[u].values.bytes());
    };
    run(here, *flat, 1, 3);
    move(here, there);
    copy_states(*flat, *far);
    EXPECT_EQ(states_of(*flat), states_of(*far));
    run(there, *far, 4, 5);
    move(there, back);
    copy_states(*far, *again);
    run(back, *again, 6, 7);
    run(here, *flat, 4, 7);
    EXPECT_EQ(values_of(here), values_of(back)) << name_of(type);
  }
}

TEST_P(OffloadedOptimizerPlacement, RefreshingTheMasterWeightsKeepsTheMoments) {
  nn::ParameterList here, there;
  build(here, DType::bf16);
  build(there, DType::bf16);
  auto flat = optim::make_optimizer(rule("adamw"), here, context);
  auto far = offloaded(there, tier(GetParam()));
  for (int64_t step = 1; step <= 4; ++step) {
    for (auto [list, optimizer] :
         {std::pair<nn::ParameterList*, optim::Optimizer*>{&here, flat.get()}, {&there, far.get()}}) {
      if (step == 3) {
        list->initialise(2, context.stream);
        optimizer->refresh_master();
      }
      set_gradients(*list, step);
      optimizer->step(1e-2, 1);
    }
  }
  EXPECT_EQ(values_of(here), values_of(there));
  EXPECT_EQ(states_of(*flat), states_of(*far));
}

TEST_P(OffloadedOptimizerPlacement, LeavesElementsOutsideParametersUnchanged) {
  nn::ParameterList list;
  build(list, DType::bf16);
  const int64_t count = list.units()[0].count, padded = count + 37;
  const auto shard = [&] {
    optim::OptimizerShard one{
        {0, 0, padded}, tensor::empty(context, {padded}, DType::bf16, MemoryCategory::parameter), {}};
    kernel::fill(one.values.data(), 0.3, padded, DType::bf16, context.stream);
    one.grads = tensor::empty(context, {padded}, DType::bf16, MemoryCategory::gradient);
    kernel::fill(one.grads.data(), 0.7, padded, DType::bf16, context.stream);
    return one;
  };
  const optim::OptimizerShard here = shard(), there = shard();
  auto flat = optim::make_optimizer(rule("adamw"), list, context, {here});
  auto far = make_offloaded_optimizer(rule("adamw"), list, context.stream, host, link, {there}, tier(GetParam()));
  for (int64_t step = 0; step < 3; ++step) {
    flat->step(1e-2, 1);
    far->step(1e-2, 1);
  }
  EXPECT_EQ(bytes_of(here.values), bytes_of(there.values));
  EXPECT_EQ(bytes_of(there.values.slice(count, padded)), bytes_of(shard().values.slice(count, padded)));
}

TEST_P(OffloadedOptimizerPlacement, StepsOnARankThatOwnsNothing) {
  nn::ParameterList list;
  build(list, DType::bf16);
  auto optimizer = make_offloaded_optimizer(rule("adamw"), list, context.stream, host, link, {}, tier(GetParam()));
  optimizer->step(1e-2, 1);
  EXPECT_TRUE(optimizer->states().empty());
  EXPECT_EQ(optimizer->num_steps(), 1);
}

INSTANTIATE_TEST_SUITE_P(Placement, OffloadedOptimizerPlacement, testing::Values("host", "file"),
                         [](const auto& row) { return std::string(row.param); });

TEST_F(OffloadedOptimizerTest, ReportsTheDamagedFile) {
  nn::ParameterList list;
  build(list, DType::bf16);
  TierOptions options = tier("file");
  options.file.keep = true;
  auto optimizer = offloaded(list, options);
  set_gradients(list, 1);
  optimizer->step(1e-2, 1);
  const std::string path = std::filesystem::directory_iterator(folder.path())->path();
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(3 * 4096 + 5);
    const int was = file.get();
    file.seekp(3 * 4096 + 5);
    file.put(static_cast<char>(was ^ 1));
  }
  EXPECT_THAT(outcome_of([&] {
                optimizer->step(1e-2, 1);
                return std::string("stepped");
              }),
              AllOf(StartsWith("4 "), HasSubstr(path), HasSubstr("block 3 ")));
}

TEST_F(ForkedOffloadedOptimizerTest, KeepsWeightsWhenAWriteFails) {
  nn::ParameterList list;
  build(list, DType::bf16);
  set_gradients(list, 1);
  const std::string result = in_child([&]() -> std::string {
    auto optimizer = offloaded(list, tier("file"));
    optimizer->step(1e-2, 1);
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{8192, 8192};
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::string error = outcome_of([&]() -> std::string {
      optimizer->step(1e-2, 1);
      return "stepped";
    });
    optimizer.reset();
    return fmt::format("{}|{}", error,
                       kernel::all_finite(list.units()[0].values.data(), list.units()[0].count, DType::bf16, {}));
  });
  EXPECT_THAT(result, AllOf(StartsWith("4 "), HasSubstr("needs "), HasSubstr("free in"), HasSubstr("|true")));
}

TEST_F(ForkedOffloadedOptimizerTest, ReportsAStateThatDoesNotFitOnTheDisk) {
  nn::ParameterList list;
  build(list, DType::bf16);
  const std::string result = in_child([&]() -> std::string {
    if (!mount_privately("tmpfs", folder.path(), "size=8k")) return "skip";
    offloaded(list, tier("file"));
    return "made";
  });
  if (result == "skip") GTEST_SKIP() << "mounting is not permitted";
  EXPECT_THAT(result, AllOf(StartsWith("4 "), HasSubstr("bytes; 8192 are free"),
                            HasSubstr(fmt::format("{} elements, 12 bytes each", kCount))));
}

// Half of the tiles (rounded) are resident in host memory, spread among the tiles in the file.
TEST_F(OffloadedOptimizerTest, KeepsAPartOfAFileStateInHostMemory) {
  nn::ParameterList here, there;
  build(here, DType::bf16);
  build(there, DType::bf16);
  auto flat = optim::make_optimizer(rule("adamw"), here, context);
  TierOptions options = tier("file", 1024);  // two tiles of whole blocks; host_bytes is enough for one of them
  options.host_bytes = 12 * 1024 + 100;
  auto far = offloaded(there, options);
  EXPECT_EQ(account.use(MemoryCategory::optimizer, MemoryTier::host).current,
            12u * (kCount - 1024) / 4096 * 4096 + 4096);
  const FileTraffic before = far->file_traffic();
  for (int64_t step = 1; step <= 4; ++step) {
    set_gradients(here, step);
    set_gradients(there, step);
    flat->step(1e-2, 0.5);
    far->step(1e-2, 0.5);
    ASSERT_EQ(values_of(here), values_of(there));
  }
  EXPECT_EQ(far->file_traffic().read - before.read, 4u * 12 * 1024);
  EXPECT_EQ(far->file_traffic().written - before.written, 4u * 12 * 1024);
  EXPECT_EQ(states_of(*flat), states_of(*far));
  // With host memory for the whole state, nothing is streamed through the file.
  options.host_bytes = 1 << 20;
  auto all = offloaded(there, options);
  const uint64_t written = all->file_traffic().written;
  set_gradients(there, 5);
  all->step(1e-2, 1);
  EXPECT_EQ(all->file_traffic().written, written);
  EXPECT_EQ(written, 0u);
}

struct EarlyUpdate : OffloadedOptimizerTest, testing::WithParamInterface<const char*> {
  TierOptions early(int64_t tile) {
    const std::string name = GetParam();
    TierOptions options = tier(name == "mixed" ? "file" : name, tile);
    if (name == "mixed") options.host_bytes = 10 * 1024;
    options.early = true;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Tiers, EarlyUpdate, testing::Values("host", "file", "mixed"),
                         [](const auto& row) { return std::string(row.param); });

TEST_P(EarlyUpdate, EqualsTheDeviceOptimizerBitForBitForAnyGradientOrder) {
  for (const char* name : {"adamw", "sgd"})
    for (const DType type : {DType::bf16, DType::f32})
      for (const int64_t tile : {64, 300, 1 << 20}) {
        nn::ParameterList here, there;
        build(here, type);
        build(there, type);
        auto flat = optim::make_optimizer(rule(name), here, context);
        const auto& units = there.units();
        const int64_t n = units[0].count;
        std::vector<optim::OptimizerShard> owned{{{0, 0, 300}, units[0].values.slice(0, 300), {}},
                                                 {{0, 300, n}, units[0].values.slice(300, n), {}},
                                                 {{1, 0, n}, units[1].values, {}}};
        auto far = make_offloaded_optimizer(rule(name), there, context.stream, host, link, owned, early(tile));
        const std::vector<std::vector<size_t>> orders{{2, 1, 0}, {2, 0, 1}, {2, 0, 1}, {0, 1, 2}, {1, 2, 0}};
        int64_t step = 0;
        for (const std::vector<size_t>& order : orders) {
          set_gradients(here, ++step);
          set_gradients(there, step);
          flat->step(1e-2 / static_cast<double>(step), 0.5);
          far->open_step(1e-2 / static_cast<double>(step), 0.5);
          for (const size_t range : order) {
            const optim::UnitRange& of = owned[range].range;
            // A temporary copy, which is freed before the next one is created.
            tensor::Tensor piece = tensor::empty(context, {of.end - of.begin}, type, MemoryCategory::buffer);
            const tensor::Tensor from = units[static_cast<size_t>(of.unit)].grads.slice(of.begin, of.end);
            std::memcpy(piece.data(), from.data(), piece.bytes());
            far->take_gradient(range, 0, piece);
          }
          far->step(1e-2 / static_cast<double>(step), 0.5);
          ASSERT_EQ(values_of(here), values_of(there)) << name << name_of(type) << tile << " step " << step;
        }
        EXPECT_EQ(far->num_steps(), step);
      }
}

// 10 bytes per element instead of 12. No value in this test is halfway between two bf16 numbers, where rounding would
// be ambiguous.
TEST_P(EarlyUpdate, StoresOnlyTheLowerHalfOfASplitMasterCopy) {
  nn::ParameterList here, there;
  build(here, DType::bf16);
  build(there, DType::bf16);
  auto flat = optim::make_optimizer(rule("adamw"), here, context);
  TierOptions options = early(256);
  options.split_master = true;
  auto far = offloaded(there, options);
  if (GetParam() == std::string("host")) {
    EXPECT_EQ(account.use(MemoryCategory::optimizer, MemoryTier::host).current, 10u * kCount);
  }
  const auto step = [&](OffloadedOptimizer& optimizer, int64_t number) {
    set_gradients(here, number);
    set_gradients(there, number);
    flat->step(1e-2, 0.5);
    optimizer.open_step(1e-2, 0.5);
    for (const size_t range : {1, 0}) optimizer.take_gradient(range, 0, there.units()[range].grads);
    optimizer.step(1e-2, 0.5);
    ASSERT_EQ(values_of(here), values_of(there)) << "step " << number;
  };
  for (int64_t number = 1; number <= 4; ++number) step(*far, number);
  const auto states = states_of(*far);
  EXPECT_EQ(states, states_of(*flat));
  EXPECT_EQ(states.begin()->first, (std::pair<std::string, int>{"m", 0}));
  // A second optimizer restores the states, which must overwrite the weights that the model has now (all 3).
  auto next = offloaded(there, options);
  for (auto& unit : there.units()) kernel::fill(unit.values.data(), 3, unit.count, DType::bf16, context.stream);
  copy_states(*flat, *next);
  EXPECT_EQ(values_of(here), values_of(there));
  for (int64_t number = 5; number <= 7; ++number) step(*next, number);
  EXPECT_EQ(states_of(*next), states_of(*flat));
  options.early = false;
  EXPECT_THROW(offloaded(there, options), UsageError);
  nn::ParameterList exact;
  build(exact, DType::f32);
  options.early = true;
  EXPECT_THROW(offloaded(exact, options), UsageError);
}

TEST_P(EarlyUpdate, StoresNoGradients) {
  nn::ParameterList list;
  build(list, DType::bf16);
  const uint64_t down = link.bytes_down(), up = link.bytes_up();
  auto optimizer = offloaded(list, early(100));
  EXPECT_EQ(account.use(MemoryCategory::gradient, MemoryTier::host).current, 0u);
  EXPECT_EQ(link.bytes_down() - down, 2u * kCount);  // creating the master copy transfers the weights once
  for (int64_t step = 1; step <= 2; ++step) {
    set_gradients(list, step);
    optimizer->open_step(1e-2, 1);
    for (const size_t range : {1, 0}) optimizer->take_gradient(range, 0, list.units()[range].grads);
    optimizer->step(1e-2, 1);
  }
  EXPECT_EQ(account.use(MemoryCategory::gradient, MemoryTier::host).peak, 0u);
  EXPECT_EQ(link.bytes_down() - down, 3u * 2 * kCount);
  EXPECT_EQ(link.bytes_up() - up, 2u * 2 * kCount);
}

TEST_P(EarlyUpdate, RejectsMissingOrDuplicateGradient) {
  nn::ParameterList list;
  build(list, DType::bf16);
  set_gradients(list, 1);
  const auto take = [&](OffloadedOptimizer& optimizer, size_t range) {
    optimizer.take_gradient(range, 0, list.units()[range].grads);
  };
  auto unopened = offloaded(list, early(100));
  EXPECT_THROW(take(*unopened, 0), InternalError);
  auto partial = offloaded(list, early(100));
  partial->open_step(1e-2, 1);
  EXPECT_THROW(partial->take_gradient(0, 0, list.units()[0].grads.slice(0, 10)), InternalError);
  take(*partial, 0);
  EXPECT_THROW(partial->step(1e-2, 1), InternalError);
  auto twice = offloaded(list, early(100));
  twice->open_step(1e-2, 1);
  take(*twice, 0);
  take(*twice, 0);
  EXPECT_THROW(twice->step(1e-2, 1), InternalError);
  TierOptions late = early(100);
  late.delay_after = 2;
  EXPECT_THROW(offloaded(list, late), UsageError);
}

TEST_F(ForkedOffloadedOptimizerTest, FailsAnEarlyStepWhenTheDiskFillsUp) {
  nn::ParameterList list;
  build(list, DType::bf16);
  set_gradients(list, 1);
  const std::string result = in_child([&]() -> std::string {
    TierOptions options = tier("file");
    options.early = true;
    auto optimizer = offloaded(list, options);
    const auto step = [&] {
      optimizer->open_step(1e-2, 1);
      for (const size_t range : {1, 0}) optimizer->take_gradient(range, 0, list.units()[range].grads);
      optimizer->step(1e-2, 1);
    };
    step();
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{8192, 8192};
    setrlimit(RLIMIT_FSIZE, &limit);
    return outcome_of([&]() -> std::string {
      step();
      return "stepped";
    });
  });
  EXPECT_THAT(result, AllOf(StartsWith("4 "), HasSubstr("needs "), HasSubstr("free in")));
}

TEST_F(OffloadedOptimizerTest, RejectsInvalidOptions) {
  nn::ParameterList list;
  build(list, DType::bf16);
  EXPECT_THAT(outcome_of([&] {
                offloaded(list, tier("disk"));
                return std::string("made");
              }),
              AllOf(StartsWith("2 "), HasSubstr("host, file")));
  EXPECT_THROW(offloaded(list, tier("host", 0)), UsageError);
}

}  // namespace
}  // namespace esp::sync
