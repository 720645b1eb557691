#include "tests/parity/sync_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>

#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/kernel/elements.h"
#include "esp/net/inproc/threads.h"
#include "esp/obs/temporary_folder.h"
#include "esp/train/collective_spans.h"

namespace esp::parity {
namespace {

using namespace std::chrono_literals;
using train::Engine;
using train::RunConfig;

// Parses the overrides. All runs of a comparison get the same overrides; a key of kShared that this run does not read
// is removed.
RunConfig parse_shared(Overrides overrides) {
  constexpr std::string_view kShared[] = {
      "train.eps=", "sync.prefetch=", "sync.keep_gathered=", "data.mask_rate=", "sync.offload_tile="};
  for (;;) {
    try {
      return train::parse_run_config("", "run.toml", overrides);
    } catch (const UsageError& error) {
      const std::string_view problem = error.what();
      const auto unread = std::find_if(overrides.begin(), overrides.end(), [&](const std::string& one) {
        return problem.starts_with(fmt::format("--set {}: ", one)) && problem.find("used only with") != problem.npos &&
               std::any_of(std::begin(kShared), std::end(kShared), [&](auto key) { return one.starts_with(key); });
      });
      if (unread == overrides.end()) throw;
      overrides.erase(unread);
    }
  }
}

std::string random_text() {
  std::string text;
  for (uint64_t i = 0; text.size() < 30'000; ++i) {
    const uint64_t bits = random_bits(5, 1, i);
    for (uint64_t k = 0; k < 2 + bits % 7; ++k) text += static_cast<char>('a' + (bits >> (4 + 5 * k)) % 26);
    text += bits >> 60 ? ' ' : '\n';
  }
  return text;
}

const std::string& data_folder() {
  static const obs::TemporaryFolder made;
  static const bool written = [] {
    std::ofstream(made / "text.txt") << random_text();
    std::ofstream pairs(made / "pairs.jsonl");
    for (uint64_t i = 0; i < 200; ++i) {
      const std::string text(1 + random_bits(5, 2, i) % 6, static_cast<char>('a' + i % 26));
      const std::string target(1 + random_bits(5, 3, i) % 7, static_cast<char>('n' + i % 13));
      pairs << R"({"source": ")" << text << R"(", "target": ")" << target << "\"}\n";
    }
    return true;
  }();
  (void)written;
  return made.path();
}

struct ElementBytes {
  int64_t first = 0;  // index of the first element, counted over all units
  ByteImage bytes;
};

// State of one rank after a step.
struct RankState {
  train::StepResult result;
  double scale = 1;
  std::vector<ElementBytes> held, updated;
  ByteImage all_units;  // all weights; empty if this rank stores only shards
};

ElementBytes read_range(const nn::ParameterList& list, const optim::UnitRange& range, const tensor::Tensor& values,
                        const tensor::OffloadReader& read = {}) {
  ElementBytes part{list.units()[static_cast<size_t>(range.unit)].first + range.begin, ByteImage(values.bytes())};
  if (read) {
    read(0, tensor::Tensor::borrow(part.bytes.data(), values.shape(), values.dtype()));
  } else if (!part.bytes.empty()) {
    std::memcpy(part.bytes.data(), values.data(), values.bytes());
  }
  return part;
}

RankState capture_state(Engine& engine, const train::StepResult& result) {
  RankState state;
  state.result = result;
  state.scale = engine.loss_scale().scale();
  const nn::ParameterList& list = engine.model().parameters();
  for (const optim::ValueShard& one : engine.strategy().checkpoint_shards())
    state.held.push_back(read_range(list, one.range, one.values, one.read));
  for (const optim::OptimizerShard& one : engine.strategy().optimizer_shards())
    if (one.values.defined()) state.updated.push_back(read_range(list, one.range, one.values));
  for (const auto& unit : list.units()) {
    if (!unit.values.defined()) continue;
    const auto* bytes = unit.values.as<std::byte>();
    state.all_units.insert(state.all_units.end(), bytes, bytes + unit.values.bytes());
  }
  return state;
}

// Assembles all weights from the ranges of the ranks. Each element must be in exactly one range.
ByteImage assemble(const std::vector<RankState>& ranks, int64_t count, size_t element_size) {
  ByteImage image(static_cast<size_t>(count) * element_size);
  std::vector<int> covered(static_cast<size_t>(count));
  for (const RankState& rank : ranks)
    for (const ElementBytes& part : rank.held) {
      const size_t first = static_cast<size_t>(part.first);
      std::copy(part.bytes.begin(), part.bytes.end(),
                image.begin() + static_cast<std::ptrdiff_t>(first * element_size));
      for (size_t i = 0; i < part.bytes.size() / element_size; ++i) ++covered[first + i];
    }
  EXPECT_EQ(std::count(covered.begin(), covered.end(), 1), count) << "elements that are not held exactly once";
  return image;
}

void expect_ranks_are_equal(const std::vector<RankState>& ranks, const ByteImage& image, size_t element_size,
                            int step) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankState& rank = ranks[r];
    EXPECT_EQ(std::memcmp(&rank.result.loss, &ranks[0].result.loss, sizeof(double)), 0) << "rank " << r;
    EXPECT_EQ(std::memcmp(&rank.result.grad_norm, &ranks[0].result.grad_norm, sizeof(double)), 0) << "rank " << r;
    EXPECT_EQ(rank.scale, ranks[0].scale) << "rank " << r;
    EXPECT_EQ(rank.result.skipped, ranks[0].result.skipped) << "rank " << r;
    EXPECT_TRUE(rank.all_units.empty() || rank.all_units == image)
        << "rank " << r << "'s weights differ at step " << step;
    for (const ElementBytes& part : rank.updated)
      EXPECT_TRUE(std::equal(part.bytes.begin(), part.bytes.end(),
                             image.begin() + part.first * static_cast<std::ptrdiff_t>(element_size)))
          << "rank " << r << "'s shard differs at step " << step;
  }
}

}  // namespace

int64_t RunResult::count() const {
  int64_t sum = 0;
  for (const int64_t unit : units) sum += unit;
  return sum;
}

bool long_tests() {
  return std::getenv("ESPALIER_TEST_LONG") != nullptr;
}

Overrides tiny_model(const Overrides& more) {
  Overrides all = {"model.arch=gpt",
                   "model.layers=2",
                   "model.dim=21",
                   "model.heads=3",
                   "model.ffn=37",
                   "model.vocab=251",
                   "model.seq_len=9",
                   "model.init_std=0.1",
                   "train.global_batch=24",
                   "train.steps=10",
                   "train.lr=0.01",
                   "train.eps=1e-6",
                   "train.schedule=constant",
                   "sync.first_bucket_mb=0.004",
                   "sync.bucket_mb=0.012",
                   "run.threads=1",
                   "comm.timeout_s=30",
                   "run.dir=" + data_folder() + "/run"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::string pairs_file() {
  return data_folder() + "/pairs.jsonl";
}

RunConfig parse_config(const Overrides& overrides) {
  RunConfig config = parse_shared(overrides);
  if (config.data.train.empty()) config.data.train = {data_folder() + "/text.txt"};
  return config;
}

RunResult train_ranks(const RunSpec& spec) {
  RunResult seen;
  seen.ranks.resize(static_cast<size_t>(spec.ranks));
  std::vector<std::vector<RankState>> states(static_cast<size_t>(spec.steps),
                                             std::vector<RankState>(static_cast<size_t>(spec.ranks)));
  size_t element_size = 0;
  std::mutex mutex;
  net::run_threads(spec.ranks, [&](net::World& world) {
    comm::CommOptions options;
    options.transport = spec.transport;
    options.timeout = 60s;
    options.flight = std::make_shared<obs::FlightRecorder>();
    const auto r = static_cast<size_t>(world.rank);
    RankResult& mine = seen.ranks[r];
    if (spec.prepare_log) spec.prepare_log(world.rank, mine.calls);
    RecordingCommunicator comm(comm::make_communicator(world, world.world_group(), options), "world", mine.calls,
                               {spec.separate_scalars});
    RunConfig config = parse_config(spec.overrides);
    config.check();
    config.check_world(spec.ranks);
    obs::Tracer tracer(world.rank);
    obs::TraceRow* row = tracer.add_row("compute");
    Engine engine(config, Log(), {&comm, spec.ranks}, row);
    if (spec.prepare) spec.prepare(world.rank, engine);
    const Traffic before = comm.traffic();
    for (int step = 0; step < spec.steps; ++step) {
      if (step == std::min(2, spec.steps - 1)) engine.account().reset_peaks();
      const train::StepResult result = engine.step();
      states[static_cast<size_t>(step)][r] = capture_state(engine, result);
      if (spec.after_step) spec.after_step(world.rank, step, engine);
      if (spec.on_note)
        for (const std::string& line : result.notes) spec.on_note(line);
    }
    mine.traffic = comm.traffic().since(before);
    for (const auto category : device::kAllCategories)
      mine.uses[static_cast<size_t>(category)] = engine.account().use(category);
    const double evaluated = engine.evaluate(2);
    mine.spans.assign(row->records().begin(), row->records().end());
    train::add_collective_spans(*options.flight, tracer);
    mine.trace = tracer.trace();
    std::lock_guard lock(mutex);
    if (world.rank != 0) return;
    seen.evaluated = evaluated;
    element_size = size_of(train::storage_type(config.train.precision));
    for (const auto& unit : engine.model().parameters().units()) seen.units.push_back(unit.count);
  });
  for (int step = 0; step < spec.steps; ++step) {
    const auto& ranks = states[static_cast<size_t>(step)];
    ByteImage image = assemble(ranks, seen.count(), element_size);
    expect_ranks_are_equal(ranks, image, element_size, step);
    const train::StepResult& result = ranks[0].result;
    seen.steps.push_back({result.loss, result.grad_norm, ranks[0].scale, result.skipped, std::move(image)});
  }
  return seen;
}

void expect_same_bits(const RunResult& a, const RunResult& b, const std::string& what) {
  ASSERT_EQ(a.steps.size(), b.steps.size()) << what;
  for (size_t i = 0; i < a.steps.size(); ++i) {
    const StepRecord &x = a.steps[i], &y = b.steps[i];
    EXPECT_EQ(std::memcmp(&x.loss, &y.loss, sizeof(double)), 0)
        << what << ", step " << i << ": " << x.loss << " and " << y.loss;
    EXPECT_EQ(std::memcmp(&x.grad_norm, &y.grad_norm, sizeof(double)), 0)
        << what << ", step " << i << ": norms " << x.grad_norm << " and " << y.grad_norm;
    ASSERT_EQ(x.values.size(), y.values.size()) << what;
    ASSERT_TRUE(x.values == y.values) << what << ": values differ after step " << i;
  }
}

double relative_distance(const ByteImage& a, const ByteImage& b, DType dtype) {
  EXPECT_EQ(a.size(), b.size());
  double squared_error = 0, squared_norm = 0;
  kernel::with_element(dtype, [&]<typename T>(std::type_identity<T>) {
    for (size_t i = 0; i < std::min(a.size(), b.size()) / sizeof(T); ++i) {
      T x, y;
      std::memcpy(&x, a.data() + i * sizeof(T), sizeof(T));
      std::memcpy(&y, b.data() + i * sizeof(T), sizeof(T));
      const auto u = static_cast<double>(static_cast<kernel::Accumulator<T>>(x));
      const auto v = static_cast<double>(static_cast<kernel::Accumulator<T>>(y));
      squared_error += (u - v) * (u - v);
      squared_norm += v * v;
    }
  });
  return std::sqrt(squared_error / squared_norm);
}

}  // namespace esp::parity
