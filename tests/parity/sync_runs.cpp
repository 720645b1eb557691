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

// A comparison gives all its runs the same settings. A run does not get those of these keys that it does not read.
RunConfig parse_shared(Overrides overrides) {
  constexpr std::string_view kShared[] = {
      "train.eps=", "sync.prefetch=", "sync.keep_gathered=", "data.mask_rate=", "sync.offload_tile="};
  for (;;) {
    try {
      return train::parse_run_config("", "run.toml", overrides);
    } catch (const UsageError& error) {
      const std::string_view problem = error.what();
      const auto unread = std::find_if(overrides.begin(), overrides.end(), [&](const std::string& one) {
        return problem.starts_with(fmt::format("--set {}: ", one)) && problem.find("read only with") != problem.npos &&
               std::any_of(std::begin(kShared), std::end(kShared), [&](auto key) { return one.starts_with(key); });
      });
      if (unread == overrides.end()) throw;
      overrides.erase(unread);
    }
  }
}

std::string words() {
  std::string text;
  for (uint64_t i = 0; text.size() < 30'000; ++i) {
    const uint64_t bits = random_bits(5, 1, i);
    for (uint64_t k = 0; k < 2 + bits % 7; ++k) text += static_cast<char>('a' + (bits >> (4 + 5 * k)) % 26);
    text += bits >> 60 ? ' ' : '\n';
  }
  return text;
}

const std::string& folder() {
  static const obs::TemporaryFolder made;
  static const bool written = [] {
    std::ofstream(made / "text.txt") << words();
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

struct Part {
  int64_t first = 0;  // elements over all units
  Image bytes;
};

// What one rank had after a step.
struct Shown {
  train::StepResult result;
  double scale = 1;
  std::vector<Part> held, updated;
  Image whole;  // empty where this rank has shards only
};

Part part_of(const nn::ParameterList& list, const optim::UnitRange& range, const tensor::Tensor& values,
             const tensor::ReadRun& read = {}) {
  Part part{list.units()[static_cast<size_t>(range.unit)].first + range.begin, Image(values.bytes())};
  if (read) {
    read(0, tensor::Tensor::borrow(part.bytes.data(), values.shape(), values.dtype()));
  } else if (!part.bytes.empty()) {
    std::memcpy(part.bytes.data(), values.data(), values.bytes());
  }
  return part;
}

Shown show(Engine& engine, const train::StepResult& result) {
  Shown shown;
  shown.result = result;
  shown.scale = engine.loss_scale().scale();
  const nn::ParameterList& list = engine.model().parameters();
  for (const optim::ValueShard& one : engine.strategy().held())
    shown.held.push_back(part_of(list, one.range, one.values, one.read));
  for (const optim::OptimizerShard& one : engine.strategy().owned())
    if (one.values.defined()) shown.updated.push_back(part_of(list, one.range, one.values));
  for (const auto& unit : list.units()) {
    if (!unit.values.defined()) continue;
    const auto* bytes = unit.values.as<std::byte>();
    shown.whole.insert(shown.whole.end(), bytes, bytes + unit.values.bytes());
  }
  return shown;
}

// The image out of what all ranks hold: each element once.
Image assemble(const std::vector<Shown>& ranks, int64_t count, size_t element) {
  Image image(static_cast<size_t>(count) * element);
  std::vector<int> covered(static_cast<size_t>(count));
  for (const Shown& rank : ranks)
    for (const Part& part : rank.held) {
      const size_t first = static_cast<size_t>(part.first);
      std::copy(part.bytes.begin(), part.bytes.end(), image.begin() + static_cast<std::ptrdiff_t>(first * element));
      for (size_t i = 0; i < part.bytes.size() / element; ++i) ++covered[first + i];
    }
  EXPECT_EQ(std::count(covered.begin(), covered.end(), 1), count) << "elements held other than once";
  return image;
}

void expect_agreement(const std::vector<Shown>& ranks, const Image& image, size_t element, int step) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    const Shown& rank = ranks[r];
    EXPECT_EQ(std::memcmp(&rank.result.loss, &ranks[0].result.loss, sizeof(double)), 0) << "rank " << r;
    EXPECT_EQ(std::memcmp(&rank.result.grad_norm, &ranks[0].result.grad_norm, sizeof(double)), 0) << "rank " << r;
    EXPECT_EQ(rank.scale, ranks[0].scale) << "rank " << r;
    EXPECT_EQ(rank.result.skipped, ranks[0].result.skipped) << "rank " << r;
    EXPECT_TRUE(rank.whole.empty() || rank.whole == image) << "rank " << r << "'s copy differs at step " << step;
    for (const Part& part : rank.updated)
      EXPECT_TRUE(std::equal(part.bytes.begin(), part.bytes.end(),
                             image.begin() + part.first * static_cast<std::ptrdiff_t>(element)))
          << "rank " << r << "'s shard differs at step " << step;
  }
}

}  // namespace

int64_t Seen::count() const {
  int64_t sum = 0;
  for (const int64_t unit : units) sum += unit;
  return sum;
}

bool long_tests() {
  return std::getenv("ESPALIER_TEST_LONG") != nullptr;
}

Overrides tiny(const Overrides& more) {
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
                   "run.dir=" + folder() + "/run"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::string pairs_file() {
  return folder() + "/pairs.jsonl";
}

RunConfig config_of(const Overrides& overrides) {
  RunConfig config = parse_shared(overrides);
  if (config.data.train.empty()) config.data.train = {folder() + "/text.txt"};
  return config;
}

Seen train_ranks(const Plan& plan) {
  Seen seen;
  seen.ranks.resize(static_cast<size_t>(plan.ranks));
  std::vector<std::vector<Shown>> shown(static_cast<size_t>(plan.steps),
                                        std::vector<Shown>(static_cast<size_t>(plan.ranks)));
  size_t element = 0;
  std::mutex mutex;
  net::run_threads(plan.ranks, [&](net::World& world) {
    comm::CommOptions options;
    options.transport = plan.transport;
    options.timeout = 60s;
    options.flight = std::make_shared<obs::FlightRecorder>();
    const auto r = static_cast<size_t>(world.rank);
    RankSeen& mine = seen.ranks[r];
    if (plan.listen) plan.listen(world.rank, mine.calls);
    Listener comm(comm::make_communicator(world, world.everyone(), options), "world", mine.calls, {plan.apart});
    RunConfig config = config_of(plan.overrides);
    config.check();
    config.check_world(plan.ranks);
    obs::Tracer tracer(world.rank);
    obs::TraceRow* row = tracer.add_row("compute");
    Engine engine(config, Log(), {&comm, plan.ranks}, row);
    if (plan.prepare) plan.prepare(world.rank, engine);
    const Traffic before = comm.traffic();
    for (int step = 0; step < plan.steps; ++step) {
      if (step == std::min(2, plan.steps - 1)) engine.account().reset_peaks();
      const train::StepResult result = engine.step();
      shown[static_cast<size_t>(step)][r] = show(engine, result);
      if (plan.after) plan.after(world.rank, step, engine);
      if (plan.noted)
        for (const std::string& line : result.notes) plan.noted(line);
    }
    mine.traffic = comm.traffic().since(before);
    for (const auto category : device::kAllCategories)
      mine.uses[static_cast<size_t>(category)] = engine.account().use(category);
    const double evaluated = engine.evaluate(2);
    mine.spans.assign(row->records().begin(), row->records().end());
    train::draw_collectives(*options.flight, tracer);
    mine.trace = tracer.trace();
    std::lock_guard lock(mutex);
    if (world.rank != 0) return;
    seen.evaluated = evaluated;
    element = size_of(train::storage_type(config.train.precision));
    for (const auto& unit : engine.model().parameters().units()) seen.units.push_back(unit.count);
  });
  for (int step = 0; step < plan.steps; ++step) {
    const auto& ranks = shown[static_cast<size_t>(step)];
    Image image = assemble(ranks, seen.count(), element);
    expect_agreement(ranks, image, element, step);
    const train::StepResult& result = ranks[0].result;
    seen.steps.push_back({result.loss, result.grad_norm, ranks[0].scale, result.skipped, std::move(image)});
  }
  return seen;
}

void expect_same_bits(const Seen& a, const Seen& b, const std::string& what) {
  ASSERT_EQ(a.steps.size(), b.steps.size()) << what;
  for (size_t i = 0; i < a.steps.size(); ++i) {
    const Step &x = a.steps[i], &y = b.steps[i];
    EXPECT_EQ(std::memcmp(&x.loss, &y.loss, sizeof(double)), 0)
        << what << ", step " << i << ": " << x.loss << " and " << y.loss;
    EXPECT_EQ(std::memcmp(&x.grad_norm, &y.grad_norm, sizeof(double)), 0)
        << what << ", step " << i << ": norms " << x.grad_norm << " and " << y.grad_norm;
    ASSERT_EQ(x.values.size(), y.values.size()) << what;
    ASSERT_TRUE(x.values == y.values) << what << ": values differ after step " << i;
  }
}

double distance(const Image& a, const Image& b, DType dtype) {
  EXPECT_EQ(a.size(), b.size());
  double apart = 0, whole = 0;
  kernel::with_element(dtype, [&]<typename T>(std::type_identity<T>) {
    for (size_t i = 0; i < std::min(a.size(), b.size()) / sizeof(T); ++i) {
      T x, y;
      std::memcpy(&x, a.data() + i * sizeof(T), sizeof(T));
      std::memcpy(&y, b.data() + i * sizeof(T), sizeof(T));
      const auto u = static_cast<double>(static_cast<kernel::Accumulator<T>>(x));
      const auto v = static_cast<double>(static_cast<kernel::Accumulator<T>>(y));
      apart += (u - v) * (u - v);
      whole += v * v;
    }
  });
  return std::sqrt(apart / whole);
}

}  // namespace esp::parity
