#include "tests/parity/parallel_runs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <mutex>

#include "esp/ckpt/checkpoint.h"
#include "esp/kernel/elements.h"
#include "esp/net/inproc/threads.h"
#include "esp/train/sections.h"
#include "esp/train/snapshot.h"

namespace esp::parity {
namespace {

using namespace std::chrono_literals;

// Puts pieces of global tensors in their places and counts how often each element came.
class Assembly {
 public:
  explicit Assembly(std::map<std::string, Gathered>& into) : into_(into) {}

  void add(const ckpt::Piece& piece) {
    Gathered& whole = into_[piece.name];
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
      const size_t at = place(piece, piece.first + i);
      std::memcpy(whole.bytes.data() + at * element, piece.values.as<std::byte>() + static_cast<size_t>(i) * element,
                  element);
      ++covered[at];
    }
  }
  // A copy of what another holds: equal to the bit, now that all are here.
  void expect_copy(const ckpt::Piece& piece, const Image& bytes, int rank) const {
    const Gathered& whole = into_.at(piece.name);
    const size_t element = size_of(whole.dtype);
    bool same = true;
    for (size_t i = 0; i < bytes.size() / element && same; ++i)
      same =
          std::memcmp(bytes.data() + i * element,
                      whole.bytes.data() + place(piece, piece.first + static_cast<int64_t>(i)) * element, element) == 0;
    EXPECT_TRUE(same) << "rank " << rank << "'s copy of " << piece.name << " differs";
  }
  void expect_each_once() const {
    for (const auto& [name, covered] : covered_)
      for (size_t i = 0; i < covered.size(); ++i)
        ASSERT_EQ(covered[i], 1) << "element " << i << " of " << name << " is held other than once";
  }

 private:
  static size_t place(const ckpt::Piece& piece, int64_t i) {
    if (piece.begin.empty()) return static_cast<size_t>(i);
    int64_t at = 0, stride = 1;
    for (size_t d = piece.begin.size(); d-- > 0;) {
      at += (piece.begin[d] + i % piece.extent[d]) * stride;
      i /= piece.extent[d];
      stride *= piece.global_shape.dim(static_cast<int>(d));
    }
    return static_cast<size_t>(at);
  }

  std::map<std::string, Gathered>& into_;
  std::map<std::string, std::vector<int>> covered_;
};

bool same_bits(double a, double b) {
  return std::memcmp(&a, &b, sizeof(double)) == 0;
}

void save(train::Engine& engine, const train::RunConfig& config, const std::string& folder) {
  ckpt::SaveOptions options;
  options.rank = engine.standing().rank();
  options.world = engine.standing().size();
  options.token = "parity";
  ckpt::save(folder, train::snapshot_of(engine, config), options);
}

// What one rank updates, copies of others' included.
struct Copy {
  int rank;
  ckpt::Piece place;  // without values
  Image bytes;
};
std::vector<Copy> copies_of(train::Engine& engine) {
  std::vector<Copy> copies;
  for (train::Holding& holding : engine.holdings())
    for (const optim::OptimizerShard& one : holding.strategy->owned())
      for (const nn::Parameter* p : holding.parameters->units()[static_cast<size_t>(one.range.unit)].parameters) {
        const int64_t begin = std::max(one.range.begin, p->offset),
                      end = std::min(one.range.end, p->offset + p->count());
        if (begin >= end) continue;
        const tensor::Tensor values = one.values.slice(begin - one.range.begin, end - one.range.begin);
        for (ckpt::Piece& piece :
             train::pieces_of(*p, p->name, begin - p->offset, end - p->offset, values, engine.host())) {
          const auto* bytes = piece.values.as<std::byte>();
          Image image(bytes, bytes + piece.values.bytes());
          piece.values = {};
          copies.push_back({engine.standing().rank(), std::move(piece), std::move(image)});
        }
      }
  return copies;
}

}  // namespace

std::vector<double> Gathered::values() const {
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

Trained train_layout(const LayoutRun& run) {
  Trained trained;
  Assembly assembly(trained.parameters);
  std::mutex mutex;
  std::vector<Copy> copies;
  std::vector<std::vector<train::StepResult>> said(static_cast<size_t>(run.ranks));
  net::run_threads(run.ranks, [&](net::World& world) {
    comm::CommOptions options;
    options.transport = "inproc";
    options.timeout = 60s;
    const auto comm = comm::make_communicator(world, world.everyone(), options);
    train::RunConfig config = config_of(run.overrides);
    config.check();
    config.check_world(run.ranks);
    train::Engine engine(config, Log(), {comm.get(), run.ranks});
    if (run.prepare) run.prepare(world.rank, engine);
    if (!run.init.empty()) train::begin_with(engine, config, run.init);
    if (!run.resume.empty()) train::restore(engine, config, *ckpt::open_checkpoint(run.resume));
    while (engine.num_steps() < run.steps) said[static_cast<size_t>(world.rank)].push_back(engine.step());
    if (run.finish) run.finish(world.rank, engine);
    const double evaluated = engine.evaluate(2);
    if (!run.save.empty()) save(engine, config, run.save);
    const ckpt::Snapshot snapshot = train::snapshot_of(engine, config);
    const std::vector<Copy> updated = copies_of(engine);
    std::lock_guard lock(mutex);
    copies.insert(copies.end(), updated.begin(), updated.end());
    if (world.rank == 0) trained.evaluated = evaluated;
    for (const ckpt::Piece& piece : snapshot.model) assembly.add(piece);
  });
  assembly.expect_each_once();
  for (const Copy& copy : copies) assembly.expect_copy(copy.place, copy.bytes, copy.rank);
  for (size_t step = 0; step < said[0].size(); ++step) {
    for (size_t r = 0; r < said.size(); ++r) {
      EXPECT_TRUE(same_bits(said[r][step].loss, said[0][step].loss)) << "rank " << r << ", step " << step;
      EXPECT_TRUE(same_bits(said[r][step].grad_norm, said[0][step].grad_norm)) << "rank " << r << ", step " << step;
      EXPECT_EQ(said[r][step].skipped, said[0][step].skipped) << "rank " << r << ", step " << step;
    }
    trained.losses.push_back(said[0][step].loss);
    trained.norms.push_back(said[0][step].grad_norm);
    trained.notes.insert(trained.notes.end(), said[0][step].notes.begin(), said[0][step].notes.end());
  }
  return trained;
}

double loss_error(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.losses.size(), b.losses.size());
  double most = std::isnan(b.evaluated) ? 0 : std::abs(a.evaluated - b.evaluated);
  for (size_t i = 0; i < std::min(a.losses.size(), b.losses.size()); ++i)
    most = std::max(most, std::abs(a.losses[i] - b.losses[i]));
  return most;
}

double parameter_error(const Trained& a, const Trained& b, std::string* worst) {
  EXPECT_EQ(a.parameters.size(), b.parameters.size());
  double most = 0;
  for (const auto& [name, whole] : b.parameters) {
    const auto found = a.parameters.find(name);
    EXPECT_NE(found, a.parameters.end()) << name;
    if (found == a.parameters.end()) continue;
    EXPECT_EQ(found->second.shape, whole.shape) << name;
    const std::vector<double> x = found->second.values(), y = whole.values();
    double apart = 0, norm = 0;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      apart += (x[i] - y[i]) * (x[i] - y[i]);
      norm += y[i] * y[i];
    }
    const double error = norm > 0 ? std::sqrt(apart / norm) : std::sqrt(apart);
    if (worst && error > most) *worst = name;
    most = std::max(most, error);
  }
  return most;
}

void expect_same_bits(const Trained& a, const Trained& b, const std::string& what) {
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
  return tiny(all);
}

}  // namespace esp::parity
