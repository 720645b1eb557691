#include "tests/parity/parallel_runs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <mutex>

#include "esp/ckpt/checkpoint.h"
#include "esp/kernel/elements.h"
#include "esp/net/inproc/threads.h"
#include "esp/train/shard_sections.h"
#include "esp/train/snapshot.h"

namespace esp::parity {
namespace {

using namespace std::chrono_literals;

// Assembles global tensors from the slices of all ranks and counts how often each element was written.
class ParameterAssembler {
 public:
  explicit ParameterAssembler(std::map<std::string, GatheredParameter>& into) : into_(into) {}

  void add(const ckpt::TensorSlice& piece) {
    GatheredParameter& whole = into_[piece.name];
    auto& covered = covered_[piece.name];
    const size_t element = size_of(piece.values.dtype());
    if (whole.bytes.empty()) {
      whole.shape = piece.global_shape;
      whole.dtype = piece.values.dtype();
      whole.bytes.resize(static_cast<size_t>(whole.shape.count()) * element);
      covered.resize(static_cast<size_t>(whole.shape.count()));
    }
    EXPECT_EQ(whole.shape, piece.global_shape) << piece.name;
    for (int64_t i = 0; i < piece.values.count(); ++i) {
      const size_t at = global_index(piece, piece.first + i);
      std::memcpy(whole.bytes.data() + at * element, piece.values.as<std::byte>() + static_cast<size_t>(i) * element,
                  element);
      ++covered[at];
    }
  }
  // Compares one rank's replica of a range with the assembled tensor. All slices must have been added before.
  void expect_equal_bits(const ckpt::TensorSlice& piece, const ByteImage& bytes, int rank) const {
    const GatheredParameter& whole = into_.at(piece.name);
    const size_t element = size_of(whole.dtype);
    bool same = true;
    for (size_t i = 0; i < bytes.size() / element && same; ++i)
      same = std::memcmp(bytes.data() + i * element,
                         whole.bytes.data() + global_index(piece, piece.first + static_cast<int64_t>(i)) * element,
                         element) == 0;
    EXPECT_TRUE(same) << "rank " << rank << "'s replica of " << piece.name << " differs";
  }
  void expect_each_once() const {
    for (const auto& [name, covered] : covered_)
      for (size_t i = 0; i < covered.size(); ++i)
        ASSERT_EQ(covered[i], 1) << "element " << i << " of " << name << " is not held exactly once";
  }

 private:
  static size_t global_index(const ckpt::TensorSlice& piece, int64_t i) {
    if (piece.begin.empty()) return static_cast<size_t>(i);
    int64_t at = 0, stride = 1;
    for (size_t d = piece.begin.size(); d-- > 0;) {
      at += (piece.begin[d] + i % piece.extent[d]) * stride;
      i /= piece.extent[d];
      stride *= piece.global_shape.dim(static_cast<int>(d));
    }
    return static_cast<size_t>(at);
  }

  std::map<std::string, GatheredParameter>& into_;
  std::map<std::string, std::vector<int>> covered_;
};

bool same_bits(double a, double b) {
  return std::memcmp(&a, &b, sizeof(double)) == 0;
}

void save(train::Engine& engine, const train::RunConfig& config, const std::string& folder) {
  ckpt::SaveOptions options;
  options.rank = engine.job().rank();
  options.world = engine.job().size();
  options.token = "parity";
  ckpt::save(folder, train::make_snapshot(engine, config), options);
}

// A range of a parameter that one rank's optimizer updates. Other ranks may update the same range too.
struct UpdatedRange {
  int rank;
  ckpt::TensorSlice piece;  // describes where the range is; its values are empty
  ByteImage bytes;
};
std::vector<UpdatedRange> updated_ranges(train::Engine& engine) {
  std::vector<UpdatedRange> ranges;
  for (train::ParameterGroup& group : engine.parameter_groups())
    for (const optim::OptimizerShard& one : group.strategy->optimizer_shards())
      for (const nn::Parameter* p : group.parameters->units()[static_cast<size_t>(one.range.unit)].parameters) {
        const int64_t begin = std::max(one.range.begin, p->offset),
                      end = std::min(one.range.end, p->offset + p->count());
        if (begin >= end) continue;
        const tensor::Tensor values = one.values.slice(begin - one.range.begin, end - one.range.begin);
        for (ckpt::TensorSlice& piece :
             train::parameter_slices(*p, p->name, begin - p->offset, end - p->offset, values, engine.host())) {
          const auto* bytes = piece.values.as<std::byte>();
          ByteImage image(bytes, bytes + piece.values.bytes());
          piece.values = {};
          ranges.push_back({engine.job().rank(), std::move(piece), std::move(image)});
        }
      }
  return ranges;
}

}  // namespace

std::vector<double> GatheredParameter::values() const {
  std::vector<double> all;
  kernel::with_element(dtype, [&]<typename T>(std::type_identity<T>) {
    for (size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
      T x;
      std::memcpy(&x, bytes.data() + i * sizeof(T), sizeof(T));
      all.push_back(static_cast<double>(static_cast<kernel::Accumulator<T>>(x)));
    }
  });
  return all;
}

LayoutResult train_layout(const LayoutRun& run) {
  LayoutResult trained;
  ParameterAssembler assembler(trained.parameters);
  std::mutex mutex;
  std::vector<UpdatedRange> ranges;
  std::vector<std::vector<train::StepResult>> results(static_cast<size_t>(run.ranks));
  net::run_threads(run.ranks, [&](net::World& world) {
    comm::CommOptions options;
    options.transport = "inproc";
    options.timeout = 60s;
    const auto comm = comm::make_communicator(world, world.world_group(), options);
    train::RunConfig config = parse_config(run.overrides);
    config.check();
    config.check_world(run.ranks);
    train::Engine engine(config, Log(), {comm.get(), run.ranks});
    if (run.prepare) run.prepare(world.rank, engine);
    if (!run.init.empty()) train::init_from_pretrained(engine, config, run.init);
    if (!run.resume.empty()) train::restore(engine, config, *ckpt::open_checkpoint(run.resume));
    while (engine.num_steps() < run.steps) results[static_cast<size_t>(world.rank)].push_back(engine.step());
    if (run.finish) run.finish(world.rank, engine);
    const double evaluated = engine.evaluate(2);
    if (!run.save.empty()) save(engine, config, run.save);
    const ckpt::Snapshot snapshot = train::make_snapshot(engine, config);
    const std::vector<UpdatedRange> updated = updated_ranges(engine);
    std::lock_guard lock(mutex);
    ranges.insert(ranges.end(), updated.begin(), updated.end());
    if (world.rank == 0) trained.evaluated = evaluated;
    for (const ckpt::TensorSlice& piece : snapshot.model) assembler.add(piece);
  });
  assembler.expect_each_once();
  for (const UpdatedRange& updated : ranges) assembler.expect_equal_bits(updated.piece, updated.bytes, updated.rank);
  for (size_t step = 0; step < results[0].size(); ++step) {
    for (size_t r = 0; r < results.size(); ++r) {
      EXPECT_TRUE(same_bits(results[r][step].loss, results[0][step].loss)) << "rank " << r << ", step " << step;
      EXPECT_TRUE(same_bits(results[r][step].grad_norm, results[0][step].grad_norm))
          << "rank " << r << ", step " << step;
      EXPECT_EQ(results[r][step].skipped, results[0][step].skipped) << "rank " << r << ", step " << step;
    }
    trained.losses.push_back(results[0][step].loss);
    trained.norms.push_back(results[0][step].grad_norm);
    trained.notes.insert(trained.notes.end(), results[0][step].notes.begin(), results[0][step].notes.end());
  }
  return trained;
}

double loss_error(const LayoutResult& a, const LayoutResult& b) {
  EXPECT_EQ(a.losses.size(), b.losses.size());
  double most = std::isnan(b.evaluated) ? 0 : std::abs(a.evaluated - b.evaluated);
  for (size_t i = 0; i < std::min(a.losses.size(), b.losses.size()); ++i)
    most = std::max(most, std::abs(a.losses[i] - b.losses[i]));
  return most;
}

double parameter_error(const LayoutResult& a, const LayoutResult& b, std::string* worst) {
  EXPECT_EQ(a.parameters.size(), b.parameters.size());
  double most = 0;
  for (const auto& [name, whole] : b.parameters) {
    const auto found = a.parameters.find(name);
    EXPECT_NE(found, a.parameters.end()) << name;
    if (found == a.parameters.end()) continue;
    EXPECT_EQ(found->second.shape, whole.shape) << name;
    const std::vector<double> x = found->second.values(), y = whole.values();
    double sum = 0, norm = 0;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      sum += (x[i] - y[i]) * (x[i] - y[i]);
      norm += y[i] * y[i];
    }
    const double error = norm > 0 ? std::sqrt(sum / norm) : std::sqrt(sum);
    if (worst && error > most) *worst = name;
    most = std::max(most, error);
  }
  return most;
}

void expect_same_bits(const LayoutResult& a, const LayoutResult& b, const std::string& what) {
  ASSERT_EQ(a.losses.size(), b.losses.size()) << what;
  for (size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_TRUE(same_bits(a.losses[i], b.losses[i]))
        << what << ", step " << i << ": " << a.losses[i] << " " << b.losses[i];
    EXPECT_TRUE(same_bits(a.norms[i], b.norms[i]))
        << what << ", step " << i << ": norms " << a.norms[i] << " " << b.norms[i];
  }
  ASSERT_EQ(a.parameters.size(), b.parameters.size()) << what;
  for (const auto& [name, whole] : b.parameters)
    EXPECT_TRUE(a.parameters.at(name).bytes == whole.bytes) << what << ": " << name << " differs";
}

Overrides small_model(const std::string& arch, const Overrides& more) {
  Overrides all = {"model.arch=" + arch,
                   "model.layers=5",
                   "model.heads=12",
                   "model.dim=24",
                   "model.ffn=37",
                   "model.vocab=251",
                   "model.seq_len=13",
                   "train.global_batch=12",
                   "train.micro_batch=2",
                   "data.val_fraction=0.1",
                   "sync.bucket_mb=0.02",
                   "train.clip=0.5",
                   "sync.first_bucket_mb=0.01"};
  if (arch == "llama")
    for (const char* one : {"model.norm=rms", "model.positions=rotary", "model.gated=true", "model.bias=false",
                            "model.tie_embeddings=false", "model.kv_heads=6"})
      all.emplace_back(one);
  if (arch == "bert")
    for (const char* one : {"model.vocab=263", "model.post_norm=true", "data.mask_rate=0.4"}) all.emplace_back(one);
  all.insert(all.end(), more.begin(), more.end());
  return tiny_model(all);
}

}  // namespace esp::parity
