// Parameter and optimizer offload to host memory or files (ZeRO-Offload, ZeRO-Infinity). Training must be bit-identical
// to plain ZeRO 3, the traffic of host link and files must match the formulas, and a device budget of a quarter of the
// model states must suffice.
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

Overrides offload_overrides(const char* optimizer, const char* values) {
  return {"sync.method=zero3", fmt::format("sync.offload={}", optimizer),
          fmt::format("sync.offload_params={}", values)};
}

Overrides merge(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

RunResult run(int ranks, const Overrides& overrides) {
  RunSpec spec;
  spec.ranks = ranks;
  spec.steps = 3;
  spec.overrides = tiny_model(overrides);
  return train_ranks(spec);
}

class ParameterOffload : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Placements, ParameterOffload, testing::Values("host", "file"),
                         [](const auto& row) { return std::string(row.param); });

TEST_P(ParameterOffload, EqualsZero3BitForBit) {
  for (const int ranks : {1, 2, 3})
    for (const char* precision : {"fp32", "bf16"})
      for (const int prefetch : {0, 1, 3}) {
        const Overrides same = {fmt::format("train.precision={}", precision), fmt::format("sync.prefetch={}", prefetch),
                                "model.layers=4", "data.val_fraction=0.2", "run.deterministic=true"};
        const RunResult plain = run(ranks, merge({"sync.method=zero3"}, same));
        const RunResult tiered = run(ranks, merge(offload_overrides("host", GetParam()), same));
        const std::string what = fmt::format("{} ranks, {}, prefetch {}", ranks, precision, prefetch);
        expect_same_bits(tiered, plain, what);
        EXPECT_EQ(tiered.evaluated, plain.evaluated) << what;
      }
}

TEST_P(ParameterOffload, EqualsZero3WithMicroBatchesRecomputationAndStateInFile) {
  const Overrides same = {"train.precision=bf16", "train.micro_batch=4",        "train.recompute=full",
                          "model.layers=3",       "model.tie_embeddings=false", "sync.offload_tile=1024"};
  for (const int ranks : {1, 2}) {
    const RunResult plain = run(ranks, merge({"sync.method=zero3"}, same));
    expect_same_bits(run(ranks, merge(offload_overrides("file", GetParam()), same)), plain,
                     fmt::format("{} ranks", ranks));
  }
}

// Models: an encoder, and an encoder-decoder model in which both stacks use some units. With one rank, embedding
// lookups read the table in host memory directly.
TEST_P(ParameterOffload, EqualsZero3ForEncoderAndEncoderDecoderModels) {
  const Overrides models[] = {
      {"model.arch=bert", "model.vocab=1263", "model.post_norm=true", "data.mask_rate=0.4"},
      {"model.arch=t5", "data.objective=pairs", "data.train=" + pairs_file(), "model.vocab=1363"}};
  for (const Overrides& model : models)
    for (const int ranks : {1, 2}) {
      const Overrides same = merge(model, {"run.deterministic=true", "train.precision=bf16"});
      const RunResult plain = run(ranks, merge({"sync.method=zero3"}, same));
      const Overrides direct = {ranks == 1 ? "sync.direct_access=true" : "sync.prefetch=2"};
      expect_same_bits(run(ranks, merge(merge(offload_overrides("host", GetParam()), same), direct)), plain,
                       fmt::format("{}, {} ranks", model[0], ranks));
    }
}

TEST_P(ParameterOffload, EqualsOptimizerOffloadWithADelayedUpdate) {
  const Overrides same = {"train.precision=bf16", "sync.delay_update=1"};
  const RunResult plain = run(2, merge({"sync.method=zero3", "sync.offload=host"}, same));
  expect_same_bits(run(2, merge(offload_overrides("host", GetParam()), same)), plain, "delayed");
}

// Weights are updated during backward, with optimizer state in six placements. Weights and norms must equal those of an
// update after backward.
TEST(EarlyUpdateOffload, EqualsZero3BitForBit) {
  const Overrides placements[] = {{"sync.offload=host"},
                                  {"sync.offload=file"},
                                  {"sync.offload=file", "sync.offload_host_mb=0.03"},
                                  {"sync.offload=host", "sync.split_master=true"},
                                  {"sync.offload=host", "sync.offload_params=host"},
                                  {"sync.offload=file", "sync.offload_params=host", "sync.split_master=true"}};
  for (const int ranks : {1, 2, 3})
    for (const char* deterministic : {"true", "false"}) {
      const Overrides same = {"sync.method=zero3", "train.precision=bf16", "train.clip=0", "model.layers=4",
                              std::string("run.deterministic=") + deterministic};
      const RunResult plain = run(ranks, same);
      for (const Overrides& placement : placements)
        expect_same_bits(
            run(ranks, merge(merge(same, placement), {"sync.update_early=true", "sync.offload_tile=1024"})), plain,
            fmt::format("{} ranks, {}, {}", ranks, placement.back(), deterministic));
    }
}

TEST(EarlyUpdateOffload, EqualsZero3WithLocalAccumulationAndRecomputation) {
  const Overrides same = {"sync.method=zero3",   "train.precision=bf16",  "train.clip=0",
                          "train.micro_batch=4", "sync.accumulate=local", "train.recompute=full"};
  expect_same_bits(run(2, merge(same, {"sync.offload=host", "sync.update_early=true"})), run(2, same), "accumulated");
}

// Besides the master copy and the moments, the host stores only a few tiles. Their size does not depend on the model.
TEST(EarlyUpdateOffload, KeepsNoGradientsOnTheHost) {
  RunSpec spec;
  spec.steps = 3;
  spec.overrides = tiny_model({"sync.method=zero3", "train.precision=bf16", "train.clip=0", "sync.offload=host",
                               "sync.update_early=true", "sync.offload_tile=1024"});
  uint64_t gradients = 1, buffers = 0;
  spec.after_step = [&](int, int, train::Engine& engine) {
    gradients = engine.account().use(device::MemoryCategory::gradient, MemoryTier::host).peak;
    buffers = engine.account().use(device::MemoryCategory::buffer, MemoryTier::host).peak;
  };
  train_ranks(spec);
  EXPECT_EQ(gradients, 0u);
  EXPECT_EQ(buffers, 4u * 1024 * 2);
}

struct LinkTraffic {
  uint64_t down = 0, up = 0;
  sync::FileTraffic file;
};

// Each unit is uploaded once for forward. The last prefetch + 1 units stay on the device for backward; the others are
// uploaded again, except the stem, which backward does not read. Each gradient is downloaded once. The update writes
// the weights in host memory and transfers nothing.
TEST_P(ParameterOffload, TransfersEachUnitOnceForForwardAndOnceForBackward) {
  for (const int ranks : {1, 2})
    for (const int prefetch : {1, 2}) {
      std::vector<LinkTraffic> before(2), after(2);
      RunSpec spec;
      spec.ranks = ranks;
      spec.steps = 4;
      spec.overrides = tiny_model(
          merge(offload_overrides("host", GetParam()), {"train.precision=bf16", "model.tie_embeddings=false",
                                                        "model.layers=6", fmt::format("sync.prefetch={}", prefetch)}));
      spec.after_step = [&](int rank, int step, train::Engine& engine) {
        if (step < 2) return;
        LinkTraffic& seen = (step == 2 ? before : after)[static_cast<size_t>(rank)];
        seen = {engine.offload()->link().bytes_down(), engine.offload()->link().bytes_up(),
                engine.offload()->values()->traffic()};
      };
      const RunResult seen = train_ranks(spec);
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<uint64_t> bytes;
        for (const int64_t count : seen.units)
          bytes.push_back(2 * comm::chunk_of(static_cast<size_t>(count), ranks, rank).count);
        const uint64_t all = std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
        const uint64_t again = std::accumulate(bytes.begin() + 1, bytes.end() - prefetch - 1, uint64_t{0});
        const LinkTraffic &x = before[static_cast<size_t>(rank)], &y = after[static_cast<size_t>(rank)];
        EXPECT_EQ(y.down - x.down, all) << ranks << " ranks, prefetch " << prefetch;
        EXPECT_EQ(y.up - x.up, all + again) << ranks << " ranks, prefetch " << prefetch;
        const bool file = std::string(GetParam()) == "file";
        // This test reads all weights after every step, which adds one read of each weight.
        EXPECT_EQ(y.file.read - x.file.read, file ? 2 * all + again : 0) << ranks << " ranks, prefetch " << prefetch;
        EXPECT_EQ(y.file.written - x.file.written, file ? all : 0);
      }
    }
}

const Overrides kLarge = {"train.precision=bf16", "model.layers=24",  "model.dim=64",
                          "model.heads=4",        "model.ffn=256",    "train.global_batch=4",
                          "train.micro_batch=1",  "model.seq_len=16", "model.tie_embeddings=false"};

TEST_P(ParameterOffload, TrainsModelFourTimesLargerThanDeviceBudget) {
  for (const int ranks : {1, 2})
    for (const char* optimizer : {"host", "file"}) {
      const RunResult free = run(ranks, merge({"sync.method=zero3"}, kLarge));
      const double states = 16.0 * static_cast<double>(free.count());
      const double budget = states / 4;
      RunSpec spec;
      spec.ranks = ranks;
      spec.steps = 3;
      spec.overrides = tiny_model(merge(merge(offload_overrides(optimizer, GetParam()), kLarge),
                                        {fmt::format("run.device_memory_mb={:.9f}", budget / (1 << 20))}));
      spec.after_step = [&](int rank, int, train::Engine& engine) {
        const auto peak = static_cast<double>(engine.account().use(MemoryTier::device).peak);
        EXPECT_LE(peak, budget + 1);
        RecordProperty(fmt::format("peak_{}_{}_of_{}", optimizer, rank, ranks),
                       fmt::format("{:.3f} of {:.3f} MB", peak * 1e-6, budget * 1e-6));
      };
      expect_same_bits(train_ranks(spec), free, fmt::format("{} ranks, state on {}", ranks, optimizer));
    }
}

// From the stem only the embedding rows in use (tokens of the batch, and positions) are transferred. The backward of
// the stem needs no weights.
TEST_P(ParameterOffload, DirectAccessReadsOnlyEmbeddingRowsInUse) {
  constexpr uint64_t kTokens = 24 * 9, kPositions = 9, kRow = 21 * 2;
  const Overrides same = {"train.precision=bf16", "model.tie_embeddings=false", "model.vocab=4001", "model.layers=6",
                          "data.val_fraction=0.2"};
  std::vector<uint64_t> up;
  RunSpec spec;
  spec.steps = 4;
  spec.overrides = tiny_model(merge(merge(offload_overrides("host", GetParam()), same), {"sync.direct_access=true"}));
  spec.after_step = [&](int, int, train::Engine& engine) { up.push_back(engine.offload()->link().bytes_up()); };
  const RunResult seen = train_ranks(spec);
  uint64_t staged = 0;
  // each unit is uploaded for forward; all but the last two are uploaded again for backward
  for (size_t unit = 1; unit < seen.units.size(); ++unit)
    staged += static_cast<uint64_t>(seen.units[unit]) * 2 * (unit + 2 < seen.units.size() ? 2 : 1);
  EXPECT_EQ(up[3] - up[2], staged + (kTokens + kPositions) * kRow);
  RunSpec fetched = spec;
  fetched.overrides = tiny_model(merge({"sync.method=zero3"}, same));
  fetched.after_step = nullptr;
  const RunResult plain = train_ranks(fetched);
  expect_same_bits(seen, plain, "direct access");
  EXPECT_EQ(seen.evaluated, plain.evaluated);
}

TEST_P(ParameterOffload, DirectAccessFetchesTiedTableForHeadOnly) {
  const Overrides same = {"train.precision=bf16", "model.vocab=4001"};
  const RunResult direct =
      run(1, merge(merge(offload_overrides("host", GetParam()), same), {"sync.direct_access=true"}));
  expect_same_bits(direct, run(1, merge({"sync.method=zero3"}, same)), "tied");
}

TEST_P(ParameterOffload, ChoosesThePrefetchWindowFromMeasuredTimes) {
  for (const int ranks : {1, 2}) {
    std::vector<std::string> notes;
    RunSpec spec;
    spec.ranks = ranks;
    spec.steps = 4;
    const Overrides same = {"train.precision=bf16", "model.layers=6"};
    spec.overrides = tiny_model(merge(merge(offload_overrides("host", GetParam()), same), {"sync.prefetch=-1"}));
    std::mutex mutex;
    spec.on_note = [&](const std::string& line) {
      std::lock_guard lock(mutex);
      notes.push_back(line);
    };
    RunSpec plain = spec;
    plain.overrides = tiny_model(merge({"sync.method=zero3"}, same));
    expect_same_bits(train_ranks(spec), train_ranks(plain), "measured");
    ASSERT_EQ(notes.size(), static_cast<size_t>(ranks));
    for (const std::string& line : notes) {
      EXPECT_THAT(line, testing::HasSubstr("sync.prefetch = "));
      EXPECT_THAT(line, testing::HasSubstr("to fetch"));
    }
  }
}

// Bound of the STRONGHOLD paper for a window of m layers (m = sync.prefetch): the device holds weights and gradients of
// m + 1 layers, besides activations and the model's own buffers.
TEST_P(ParameterOffload, KeepsOnlyWindowOfLayersOnDevice) {
  struct PeakBytes {
    uint64_t buffers = 0, states = 0, unit = 0;
  };
  const auto train = [](const Overrides& overrides) {
    PeakBytes peaks;
    RunSpec spec;
    spec.steps = 4;
    spec.overrides = tiny_model(merge(kLarge, overrides));
    spec.after_step = [&](int, int, train::Engine& engine) {
      const auto peak = [&](device::MemoryCategory category) {
        return engine.account().use(category, MemoryTier::device).peak;
      };
      peaks.buffers = peak(device::MemoryCategory::buffer);
      peaks.states = peak(device::MemoryCategory::parameter) + peak(device::MemoryCategory::gradient) +
                     peak(device::MemoryCategory::optimizer);
    };
    const RunResult seen = train_ranks(spec);
    peaks.unit = 2 * static_cast<uint64_t>(*std::max_element(seen.units.begin(), seen.units.end()));
    return peaks;
  };
  // with plain all-reduce, buckets are views of the gradients, so all buffers are the model's own
  const uint64_t model = train({}).buffers;
  for (const uint64_t m : {1, 2, 5}) {
    const PeakBytes seen = train(merge(offload_overrides("host", GetParam()), {fmt::format("sync.prefetch={}", m)}));
    EXPECT_EQ(seen.states, 0u);
    EXPECT_LE(seen.buffers, model + (m + 1) * 2 * seen.unit) << "m = " << m;
    EXPECT_GT(seen.buffers, (m + 1) * seen.unit) << "m = " << m;
  }
}

std::string error_of(int ranks, const Overrides& overrides) {
  try {
    run(ranks, overrides);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "(trained)";
}

TEST(OffloadConfigErrors, RejectsIncompatibleOptions) {
  using testing::HasSubstr;
  EXPECT_THAT(error_of(2, {"sync.offload_params=host"}), HasSubstr("zero3"));
  EXPECT_THAT(error_of(2, {"sync.method=zero3", "sync.offload_params=host"}), HasSubstr("sync.offload != none"));
  EXPECT_THAT(error_of(1, offload_overrides("host", "tape")), HasSubstr("file"));
  EXPECT_THAT(error_of(2, merge(offload_overrides("host", "host"), {"sync.direct_access=true"})),
              HasSubstr("one replica"));
  EXPECT_THAT(error_of(2, merge(offload_overrides("host", "host"), {"sync.quantise=qwz"})), HasSubstr("sync.quantise"));
}

TEST(OffloadConfigErrors, RejectsIncompatibleOptionsOfEarlyUpdate) {
  using testing::HasSubstr;
  const auto early_update_error = [](const Overrides& more) {
    return error_of(1,
                    merge({"sync.method=zero3", "sync.offload=host", "train.clip=0", "sync.update_early=true"}, more));
  };
  EXPECT_EQ(early_update_error({}), "(trained)");
  EXPECT_THAT(early_update_error({"train.clip=1"}),
              HasSubstr("must be 0 (gradients are applied before their norm is known) with sync.update_early"));
  EXPECT_THAT(early_update_error({"sync.method=zero2"}), HasSubstr("zero3"));
  EXPECT_THAT(early_update_error({"sync.offload=none"}), HasSubstr("zero3 and sync.offload"));
  EXPECT_THAT(early_update_error({"sync.offload_params=file"}), HasSubstr("none or host"));
  EXPECT_THAT(early_update_error({"train.precision=fp16"}), HasSubstr("bf16"));
  EXPECT_THAT(early_update_error({"sync.delay_update=1"}), HasSubstr("must be 0 with sync.update_early"));
  EXPECT_THAT(early_update_error({"train.micro_batch=4"}), HasSubstr("sync.accumulate"));
  EXPECT_THAT(early_update_error({"sync.split_master=true", "train.precision=fp32"}), HasSubstr("sync.split_master"));
  EXPECT_THAT(error_of(1, {"sync.method=zero2", "sync.offload=host", "sync.offload_host_mb=1"}), HasSubstr("file"));
}

// Two budgets: one is too small for a single layer, the other for a layer with its activations. The errors must contain
// the sizes and a sufficient budget.
TEST(OffloadConfigErrors, TooSmallBudgetSuggestsSufficientBudget) {
  using testing::HasSubstr;
  for (const int ranks : {1, 2}) {
    const std::string layer =
        error_of(ranks, merge(merge(offload_overrides("host", "host"), kLarge), {"run.device_memory_mb=0.1"}));
    EXPECT_THAT(layer, HasSubstr("run.device_memory_mb = 0.10"));
    EXPECT_THAT(layer, HasSubstr("blocks.0, has 0.10 MiB of parameters"));
    const std::string batch =
        error_of(ranks, merge(merge(offload_overrides("host", "host"), kLarge), {"run.device_memory_mb=0.6"}));
    EXPECT_THAT(batch, HasSubstr("of activations"));
    EXPECT_THAT(batch, HasSubstr(ranks == 1 ? "set at least" : "set more"));
  }
  // The budget that the error suggests must suffice.
  const std::string message =
      error_of(1, merge(merge(offload_overrides("host", "host"), kLarge), {"run.device_memory_mb=0.6"}));
  const std::string prefix = "at least ";
  ASSERT_NE(message.find(prefix), std::string::npos) << message;
  const double enough = std::stod(message.substr(message.rfind(prefix) + prefix.size()));
  EXPECT_GT(enough, 0.6);
  EXPECT_EQ(error_of(1, merge(merge(offload_overrides("host", "host"), kLarge),
                              {fmt::format("run.device_memory_mb={:.2f}", enough)})),
            "(trained)");
}

}  // namespace
}  // namespace esp::parity
