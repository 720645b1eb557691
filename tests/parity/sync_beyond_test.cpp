// Values that lie beyond the device, on the host or in a file: the bits of plain stage 3, the bytes that cross, and a
// device whose budget is a quarter of the model's states.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <numeric>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/comm/call.h"
#include "esp/sync/tier/value_tier.h"
#include "tests/parity/sync_runs.h"

namespace esp::parity {
namespace {

using device::MemoryTier;

Overrides beyond(const char* optimizer, const char* values) {
  return {"sync.method=zero3", fmt::format("sync.offload={}", optimizer),
          fmt::format("sync.offload_params={}", values)};
}

Overrides joined(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Seen run(int ranks, const Overrides& overrides) {
  Plan plan;
  plan.ranks = ranks;
  plan.steps = 3;
  plan.overrides = tiny(overrides);
  return train_ranks(plan);
}

class Beyond : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Values, Beyond, testing::Values("host", "file"),
                         [](const auto& row) { return std::string(row.param); });

TEST_P(Beyond, AreTheBitsOfStage3) {
  for (const int ranks : {1, 2, 3})
    for (const char* precision : {"fp32", "bf16"})
      for (const int prefetch : {0, 1, 3}) {
        const Overrides same = {fmt::format("train.precision={}", precision), fmt::format("sync.prefetch={}", prefetch),
                                "model.layers=4", "data.val_fraction=0.2", "run.deterministic=true"};
        const Seen plain = run(ranks, joined({"sync.method=zero3"}, same));
        const Seen tiered = run(ranks, joined(beyond("host", GetParam()), same));
        const std::string what = fmt::format("{} ranks, {}, prefetch {}", ranks, precision, prefetch);
        expect_same_bits(tiered, plain, what);
        EXPECT_EQ(tiered.evaluated, plain.evaluated) << what;
      }
}

TEST_P(Beyond, AreTheBitsOfStage3WithMicroBatchesRecomputationAndStateInAFile) {
  const Overrides same = {"train.precision=bf16", "train.micro_batch=4",        "train.recompute=full",
                          "model.layers=3",       "model.tie_embeddings=false", "sync.offload_tile=1024"};
  for (const int ranks : {1, 2}) {
    const Seen plain = run(ranks, joined({"sync.method=zero3"}, same));
    expect_same_bits(run(ranks, joined(beyond("file", GetParam()), same)), plain, fmt::format("{} ranks", ranks));
  }
}

// An encoder, and a model whose decoder has units that both halves use; look-ups in place where a rank is alone.
TEST_P(Beyond, AreTheBitsOfStage3ForOtherModels) {
  const Overrides models[] = {
      {"model.arch=bert", "model.vocab=1263", "model.post_norm=true", "data.mask_rate=0.4"},
      {"model.arch=t5", "data.objective=pairs", "data.train=" + pairs_file(), "model.vocab=1363"}};
  for (const Overrides& model : models)
    for (const int ranks : {1, 2}) {
      const Overrides same = joined(model, {"run.deterministic=true", "train.precision=bf16"});
      const Seen plain = run(ranks, joined({"sync.method=zero3"}, same));
      const Overrides direct = {ranks == 1 ? "sync.direct_access=true" : "sync.prefetch=2"};
      expect_same_bits(run(ranks, joined(joined(beyond("host", GetParam()), same), direct)), plain,
                       fmt::format("{}, {} ranks", model[0], ranks));
    }
}

TEST_P(Beyond, AreTheBitsOfTheDelayedUpdate) {
  const Overrides same = {"train.precision=bf16", "sync.delay_update=1"};
  const Seen plain = run(2, joined({"sync.method=zero3", "sync.offload=host"}, same));
  expect_same_bits(run(2, joined(beyond("host", GetParam()), same)), plain, "delayed");
}

// Updated while backward goes on, from states in three places: the bits and the norms of the update at the end.
TEST(UpdatedEarly, AreTheBitsOfStage3) {
  const Overrides places[] = {{"sync.offload=host"},
                              {"sync.offload=file"},
                              {"sync.offload=file", "sync.offload_host_mb=0.03"},
                              {"sync.offload=host", "sync.split_master=true"},
                              {"sync.offload=host", "sync.offload_params=host"},
                              {"sync.offload=file", "sync.offload_params=host", "sync.split_master=true"}};
  for (const int ranks : {1, 2, 3})
    for (const char* deterministic : {"true", "false"}) {
      const Overrides same = {"sync.method=zero3", "train.precision=bf16", "train.clip=0", "model.layers=4",
                              std::string("run.deterministic=") + deterministic};
      const Seen plain = run(ranks, same);
      for (const Overrides& place : places)
        expect_same_bits(run(ranks, joined(joined(same, place), {"sync.update_early=true", "sync.offload_tile=1024"})),
                         plain, fmt::format("{} ranks, {}, {}", ranks, place.back(), deterministic));
    }
}

TEST(UpdatedEarly, AreTheBitsOfStage3WithMicroBatchesAddedUpAndRecomputation) {
  const Overrides same = {"sync.method=zero3",   "train.precision=bf16",  "train.clip=0",
                          "train.micro_batch=4", "sync.accumulate=local", "train.recompute=full"};
  expect_same_bits(run(2, joined(same, {"sync.offload=host", "sync.update_early=true"})), run(2, same), "accumulated");
}

// Of a unit's size, not of the model's: beside the master copy and the moments the host has a few tiles.
TEST(UpdatedEarly, KeepsNoGradientsOnTheHost) {
  Plan plan;
  plan.steps = 3;
  plan.overrides = tiny({"sync.method=zero3", "train.precision=bf16", "train.clip=0", "sync.offload=host",
                         "sync.update_early=true", "sync.offload_tile=1024"});
  uint64_t gradients = 1, buffers = 0;
  plan.after = [&](int, int, train::Engine& engine) {
    gradients = engine.account().use(device::MemoryCategory::gradient, MemoryTier::host).peak;
    buffers = engine.account().use(device::MemoryCategory::buffer, MemoryTier::host).peak;
  };
  train_ranks(plan);
  EXPECT_EQ(gradients, 0u);
  EXPECT_EQ(buffers, 4u * 1024 * 2);
}

struct Crossed {
  uint64_t down = 0, up = 0;
  sync::FileTraffic file;
};

// Every unit goes up once for forward; the last prefetch + 1 stay at the turn, and backward has no use for the stem.
// Every gradient comes down once. The update writes values where they lie: nothing crosses for it.
TEST_P(Beyond, CrossTheLinkOnceForForwardAndOnceForBackward) {
  for (const int ranks : {1, 2})
    for (const int prefetch : {1, 2}) {
      std::vector<Crossed> before(2), after(2);
      Plan plan;
      plan.ranks = ranks;
      plan.steps = 4;
      plan.overrides =
          tiny(joined(beyond("host", GetParam()), {"train.precision=bf16", "model.tie_embeddings=false",
                                                   "model.layers=6", fmt::format("sync.prefetch={}", prefetch)}));
      plan.after = [&](int rank, int step, train::Engine& engine) {
        if (step < 2) return;
        Crossed& seen = (step == 2 ? before : after)[static_cast<size_t>(rank)];
        seen = {engine.offload()->link().bytes_down(), engine.offload()->link().bytes_up(),
                engine.offload()->values()->traffic()};
      };
      const Seen seen = train_ranks(plan);
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<uint64_t> bytes;
        for (const int64_t count : seen.units)
          bytes.push_back(2 * comm::chunk_of(static_cast<size_t>(count), ranks, rank).count);
        const uint64_t all = std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
        const uint64_t again = std::accumulate(bytes.begin() + 1, bytes.end() - prefetch - 1, uint64_t{0});
        const Crossed &x = before[static_cast<size_t>(rank)], &y = after[static_cast<size_t>(rank)];
        EXPECT_EQ(y.down - x.down, all) << ranks << " ranks, prefetch " << prefetch;
        EXPECT_EQ(y.up - x.up, all + again) << ranks << " ranks, prefetch " << prefetch;
        const bool file = std::string(GetParam()) == "file";
        // The harness looks at the values after every step, which reads each once more.
        EXPECT_EQ(y.file.read - x.file.read, file ? 2 * all + again : 0) << ranks << " ranks, prefetch " << prefetch;
        EXPECT_EQ(y.file.written - x.file.written, file ? all : 0);
      }
    }
}

const Overrides kLarge = {"train.precision=bf16", "model.layers=24",  "model.dim=64",
                          "model.heads=4",        "model.ffn=256",    "train.global_batch=4",
                          "train.micro_batch=1",  "model.seq_len=16", "model.tie_embeddings=false"};

TEST_P(Beyond, TrainAModelWhoseStatesAreFourTimesTheBudget) {
  for (const int ranks : {1, 2})
    for (const char* optimizer : {"host", "file"}) {
      const Seen free = run(ranks, joined({"sync.method=zero3"}, kLarge));
      const double states = 16.0 * static_cast<double>(free.count());
      const double budget = states / 4;
      Plan plan;
      plan.ranks = ranks;
      plan.steps = 3;
      plan.overrides = tiny(joined(joined(beyond(optimizer, GetParam()), kLarge),
                                   {fmt::format("run.device_memory_mb={:.9f}", budget / (1 << 20))}));
      plan.after = [&](int rank, int, train::Engine& engine) {
        const auto peak = static_cast<double>(engine.account().use(MemoryTier::device).peak);
        EXPECT_LE(peak, budget + 1);
        RecordProperty(fmt::format("peak_{}_{}_of_{}", optimizer, rank, ranks),
                       fmt::format("{:.3f} of {:.3f} MB", peak * 1e-6, budget * 1e-6));
      };
      expect_same_bits(train_ranks(plan), free, fmt::format("{} ranks, state on {}", ranks, optimizer));
    }
}

// Of the stem only the rows that the batch names cross, and those of the positions; its backward needs no values.
TEST_P(Beyond, ReadATableInPlaceRowByRow) {
  constexpr uint64_t kTokens = 24 * 9, kPlaces = 9, kRow = 21 * 2;
  const Overrides same = {"train.precision=bf16", "model.tie_embeddings=false", "model.vocab=4001", "model.layers=6",
                          "data.val_fraction=0.2"};
  std::vector<uint64_t> up;
  Plan plan;
  plan.steps = 4;
  plan.overrides = tiny(joined(joined(beyond("host", GetParam()), same), {"sync.direct_access=true"}));
  plan.after = [&](int, int, train::Engine& engine) { up.push_back(engine.offload()->link().bytes_up()); };
  const Seen seen = train_ranks(plan);
  uint64_t staged = 0;
  for (size_t unit = 1; unit < seen.units.size(); ++unit)  // forward's, and backward's but for the two that stay
    staged += static_cast<uint64_t>(seen.units[unit]) * 2 * (unit + 2 < seen.units.size() ? 2 : 1);
  EXPECT_EQ(up[3] - up[2], staged + (kTokens + kPlaces) * kRow);
  Plan fetched = plan;
  fetched.overrides = tiny(joined({"sync.method=zero3"}, same));
  fetched.after = nullptr;
  const Seen plain = train_ranks(fetched);
  expect_same_bits(seen, plain, "rows in place");
  EXPECT_EQ(seen.evaluated, plain.evaluated);
}

TEST_P(Beyond, FetchATiedTableForTheHeadOnly) {
  const Overrides same = {"train.precision=bf16", "model.vocab=4001"};
  const Seen direct = run(1, joined(joined(beyond("host", GetParam()), same), {"sync.direct_access=true"}));
  expect_same_bits(direct, run(1, joined({"sync.method=zero3"}, same)), "tied");
}

TEST_P(Beyond, ChooseTheWindowByWhatTheyMeasure) {
  for (const int ranks : {1, 2}) {
    std::vector<std::string> notes;
    Plan plan;
    plan.ranks = ranks;
    plan.steps = 4;
    const Overrides same = {"train.precision=bf16", "model.layers=6"};
    plan.overrides = tiny(joined(joined(beyond("host", GetParam()), same), {"sync.prefetch=-1"}));
    std::mutex mutex;
    plan.noted = [&](const std::string& line) {
      std::lock_guard lock(mutex);
      notes.push_back(line);
    };
    Plan plain = plan;
    plain.overrides = tiny(joined({"sync.method=zero3"}, same));
    expect_same_bits(train_ranks(plan), train_ranks(plain), "measured");
    ASSERT_EQ(notes.size(), static_cast<size_t>(ranks));
    for (const std::string& line : notes) {
      EXPECT_THAT(line, testing::HasSubstr("sync.prefetch = "));
      EXPECT_THAT(line, testing::HasSubstr("to fetch"));
    }
  }
}

// STRONGHOLD's bound: values and gradients of m + 1 layers, beside activations and the buffers of the model itself.
TEST_P(Beyond, TakeAWindowOfLayersOnTheDevice) {
  struct Most {
    uint64_t buffers = 0, states = 0, unit = 0;
  };
  const auto train = [](const Overrides& overrides) {
    Most most;
    Plan plan;
    plan.steps = 4;
    plan.overrides = tiny(joined(kLarge, overrides));
    plan.after = [&](int, int, train::Engine& engine) {
      const auto peak = [&](device::MemoryCategory category) {
        return engine.account().use(category, MemoryTier::device).peak;
      };
      most.buffers = peak(device::MemoryCategory::buffer);
      most.states = peak(device::MemoryCategory::parameter) + peak(device::MemoryCategory::gradient) +
                    peak(device::MemoryCategory::optimizer);
    };
    const Seen seen = train_ranks(plan);
    most.unit = 2 * static_cast<uint64_t>(*std::max_element(seen.units.begin(), seen.units.end()));
    return most;
  };
  const uint64_t model = train({}).buffers;  // whole copies: buckets are views, so these are the model's own
  for (const uint64_t m : {1, 2, 5}) {
    const Most seen = train(joined(beyond("host", GetParam()), {fmt::format("sync.prefetch={}", m)}));
    EXPECT_EQ(seen.states, 0u);
    EXPECT_LE(seen.buffers, model + (m + 1) * 2 * seen.unit) << "m = " << m;
    EXPECT_GT(seen.buffers, (m + 1) * seen.unit) << "m = " << m;
  }
}

std::string refusal(int ranks, const Overrides& overrides) {
  try {
    run(ranks, overrides);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "(trained)";
}

TEST(BeyondRefused, WhatDoesNotGoTogether) {
  using testing::HasSubstr;
  EXPECT_THAT(refusal(2, {"sync.offload_params=host"}), HasSubstr("zero3"));
  EXPECT_THAT(refusal(2, {"sync.method=zero3", "sync.offload_params=host"}), HasSubstr("sync.offload != none"));
  EXPECT_THAT(refusal(1, beyond("host", "tape")), HasSubstr("file"));
  EXPECT_THAT(refusal(2, joined(beyond("host", "host"), {"sync.direct_access=true"})), HasSubstr("one replica"));
  EXPECT_THAT(refusal(2, joined(beyond("host", "host"), {"sync.quantise=qwz"})), HasSubstr("sync.quantise"));
}

TEST(BeyondRefused, WhatAnEarlyUpdateCannotDo) {
  using testing::HasSubstr;
  const auto early = [](const Overrides& more) {
    return refusal(1,
                   joined({"sync.method=zero3", "sync.offload=host", "train.clip=0", "sync.update_early=true"}, more));
  };
  EXPECT_EQ(early({}), "(trained)");
  EXPECT_THAT(early({"train.clip=1"}),
              HasSubstr("must be 0 (gradients are applied before their norm is known) with sync.update_early"));
  EXPECT_THAT(early({"sync.method=zero2"}), HasSubstr("zero3"));
  EXPECT_THAT(early({"sync.offload=none"}), HasSubstr("zero3 and sync.offload"));
  EXPECT_THAT(early({"sync.offload_params=file"}), HasSubstr("none or host"));
  EXPECT_THAT(early({"train.precision=fp16"}), HasSubstr("bf16"));
  EXPECT_THAT(early({"sync.delay_update=1"}), HasSubstr("must be 0 with sync.update_early"));
  EXPECT_THAT(early({"train.micro_batch=4"}), HasSubstr("sync.accumulate"));
  EXPECT_THAT(early({"sync.split_master=true", "train.precision=fp32"}), HasSubstr("sync.split_master"));
  EXPECT_THAT(refusal(1, {"sync.method=zero2", "sync.offload=host", "sync.offload_host_mb=1"}), HasSubstr("file"));
}

// Not even one layer; one layer but not the batch's activations: the numbers, and one that does.
TEST(BeyondRefused, BudgetsThatAreTooSmall) {
  using testing::HasSubstr;
  for (const int ranks : {1, 2}) {
    const std::string layer =
        refusal(ranks, joined(joined(beyond("host", "host"), kLarge), {"run.device_memory_mb=0.1"}));
    EXPECT_THAT(layer, HasSubstr("run.device_memory_mb = 0.10"));
    EXPECT_THAT(layer, HasSubstr("blocks.0, has 0.10 MiB of values"));
    const std::string batch =
        refusal(ranks, joined(joined(beyond("host", "host"), kLarge), {"run.device_memory_mb=0.6"}));
    EXPECT_THAT(batch, HasSubstr("of activations"));
    EXPECT_THAT(batch, HasSubstr(ranks == 1 ? "set at least" : "set more"));
  }
  // What it says would do, does.
  const std::string said = refusal(1, joined(joined(beyond("host", "host"), kLarge), {"run.device_memory_mb=0.6"}));
  const std::string mark = "at least ";
  ASSERT_NE(said.find(mark), std::string::npos) << said;
  const double enough = std::stod(said.substr(said.rfind(mark) + mark.size()));
  EXPECT_GT(enough, 0.6);
  EXPECT_EQ(
      refusal(1, joined(joined(beyond("host", "host"), kLarge), {fmt::format("run.device_memory_mb={:.2f}", enough)})),
      "(trained)");
}

}  // namespace
}  // namespace esp::parity
