#include "esp/parallel/ep/expert_parallel.h"

#include <gtest/gtest.h>

#include <cstring>
#include <mutex>

#include "esp/autograd/testing.h"
#include "esp/comm/test_options.h"
#include "esp/net/inproc/threads.h"
#include "esp/nn/moe/moe.h"
#include "esp/nn/moe/routing_report.h"
#include "esp/nn/parallel_ops.h"

namespace esp::parallel {
namespace {

using autograd::TapeFixture;
using autograd::Variable;
using tensor::Tensor;

constexpr int64_t kDim = 6, kLength = 8;
constexpr Duration kTimeout = std::chrono::seconds(60);

nn::MoeOptions options_of(int64_t experts, int64_t chosen) {
  nn::MoeOptions o;
  o.num_experts = experts;
  o.num_chosen = chosen;
  o.aux_weight = 0.3;
  o.z_weight = 0.1;
  o.shared_ffn = 5;
  o.expert.dim = kDim;
  o.expert.ffn = 10;
  o.expert.init = o.expert.out_init = nn::Init::normal(0.7);
  return o;
}

class DispatcherOps final : public nn::ParallelOps {
 public:
  explicit DispatcherOps(const nn::TokenDispatcher& exchange) : exchange_(exchange) {}
  const nn::TokenDispatcher& experts() const override { return exchange_; }

 private:
  const nn::TokenDispatcher& exchange_;
};

// One rank: forward and backward of its part of the batch.
struct ModelRank {
  TapeFixture rig;
  nn::ParameterList list, experts;
  nn::Moe moe;
  nn::RoutingReport report;

  ModelRank(const nn::MoeOptions& options, nn::Shard share, DType dtype)
      : experts(nn::ModelShards{{}, share}), moe(list, experts, "mlp", options) {
    for (nn::ParameterList* l : {&list, &experts}) {
      l->materialize(rig.context, dtype, true);
      l->initialise(3, rig.context.stream);
    }
  }
  ~ModelRank() { rig.tape.clear(); }  // the tape references members that are destroyed before it
  struct Result {
    Tensor y, dx;
  };
  Result run(const Tensor& x, const Tensor& dy, nn::ForwardContext pass = {}) {
    pass.tape = &rig.tape;
    pass.training = true;
    pass.router_scale = 0.05;
    pass.routing = &report;
    const Variable in = rig.tape.leaf(x);
    const Variable y = moe(pass, in);
    rig.tape.seed(y, dy);
    rig.tape.backward();
    Result result{y.value(), rig.tape.take_gradient(in)};
    rig.tape.clear();
    return result;
  }
};

template <typename T>
void expect_same_bits(const Tensor& got, const Tensor& want, const std::string& what) {
  ASSERT_EQ(got.count(), want.count()) << what;
  for (int64_t i = 0; i < got.count(); ++i) ASSERT_EQ(got.as<T>()[i], want.as<T>()[i]) << what << ", element " << i;
}

void expect_near(const std::vector<double>& sum, const Tensor& want, const std::string& what) {
  EXPECT_LT(autograd::distance(sum, want.span<double>()), 1e-12) << what;
}

// Compares p ranks that have two sequences each with one process that has all sequences.
template <typename T>
void expect_like_one_process(int p, const nn::MoeOptions& options, DType dtype) {
  ModelRank one(options, {}, dtype);
  const Tensor x = one.rig.random({2 * p, kLength, kDim}, 5, 1, dtype), dy = one.rig.random(x.shape(), 6, 1, dtype);
  const ModelRank::Result want = one.run(x, dy);
  std::mutex mutex;
  std::vector<double> router(static_cast<size_t>(one.list.count()));
  net::run_threads(p, [&](net::World& world) {
    auto comm = comm::make_communicator(world, world.world_group(), comm::test_options("inproc"));
    const auto exchange = make_token_dispatcher({comm.get(), nullptr, nullptr}, kTimeout);
    const DispatcherOps ops(*exchange);
    ModelRank holder(options, {comm->rank(), p}, dtype);
    nn::ForwardContext pass;
    pass.ops = &ops;
    const int64_t first = 2 * comm->rank();
    const ModelRank::Result got = holder.run(x.slice(first, first + 2), dy.slice(first, first + 2), pass);
    const std::lock_guard lock(mutex);
    expect_same_bits<T>(got.y, want.y.slice(first, first + 2), "output");
    expect_same_bits<T>(got.dx, want.dx.slice(first, first + 2), "gradient of the input");
    // Rows arrive in the order of a single process, so even sums over rows are bit-identical.
    for (const nn::Parameter& q : holder.experts.all())
      expect_same_bits<T>(q.weight.grad, one.experts.find(q.name).weight.grad, q.name);
    for (size_t i = 0, u = 0; u < holder.list.units().size(); ++u)
      for (int64_t j = 0; j < holder.list.units()[u].count; ++j, ++i)
        router[i] += tensor::item(holder.list.units()[u].grads, j);
  });
  if (dtype == DType::f64) expect_near(router, one.list.units().front().grads, "router and shared expert");
}

TEST(ExpertParallel, MatchesOneProcessBitForBit) {
  for (int p : {1, 2, 3, 4})
    for (int64_t chosen : {1, 2}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} chosen", p, chosen));
      expect_like_one_process<double>(p, options_of(p == 3 ? 5 : 8, chosen), DType::f64);
    }
  expect_like_one_process<float>(4, options_of(8, 2), DType::f32);
}

TEST(ExpertParallel, DropsSameTokensAsOneProcess) {
  nn::MoeOptions options = options_of(4, 2);
  options.capacity = 0.7;
  expect_like_one_process<double>(2, options, DType::f64);
}

TEST(ExpertParallel, CompletesWhenOneRankReceivesNoRows) {
  nn::MoeOptions options = options_of(4, 1);
  // This also initialises the router to zero: all tokens choose the first expert, and rank 1 receives no rows.
  options.expert.init = nn::Init::zeros();
  expect_like_one_process<double>(2, options, DType::f64);
}

// Each rank has two contiguous token ranges per sequence, as in the zig-zag layout of context parallelism.
TEST(ExpertParallel, MatchesOneProcessWithContextParallel) {
  nn::MoeOptions options = options_of(4, 2);
  options.capacity = 0.8;
  constexpr int kRanks = 2;
  ModelRank one(options, {}, DType::f64);
  const Tensor x = one.rig.random({3, kLength, kDim}, 5), dy = one.rig.random(x.shape(), 6);
  const ModelRank::Result want = one.run(x, dy);
  ASSERT_GT(one.report.layers[0].dropped, 0);
  std::mutex mutex;
  std::vector<double> router(static_cast<size_t>(one.list.count()));
  std::vector<double> experts(static_cast<size_t>(one.experts.count()));
  double aux = 0, z = 0;
  int64_t dropped = 0;
  net::run_threads(kRanks, [&](net::World& world) {
    auto comm = comm::make_communicator(world, world.world_group(), comm::test_options("inproc"));
    const auto exchange = make_token_dispatcher({nullptr, comm.get(), nullptr}, kTimeout);
    const DispatcherOps ops(*exchange);
    ModelRank holder(options, {}, DType::f64);
    const int64_t piece = kLength / (2 * kRanks);
    const nn::TokenMap tokens{{{comm->rank() * piece, piece}, {(2 * kRanks - 1 - comm->rank()) * piece, piece}},
                              kLength};
    const auto held = [&](const Tensor& all) {
      Tensor part = tensor::empty(holder.rig.context, {3, 2 * piece, kDim}, DType::f64, device::MemoryCategory::other);
      double* to = part.as<double>();
      for (int64_t s = 0; s < 3; ++s)
        for (const nn::TokenRun& run : tokens.runs)
          to = std::copy_n(all.as<double>() + (s * kLength + run.first) * kDim, run.count * kDim, to);
      return part;
    };
    nn::ForwardContext pass;
    pass.ops = &ops;
    pass.tokens = &tokens;
    pass.num_sequences = 3;
    const ModelRank::Result got = holder.run(held(x), held(dy), pass);
    const std::lock_guard lock(mutex);
    expect_same_bits<double>(got.y, held(want.y), "output");
    expect_same_bits<double>(got.dx, held(want.dx), "gradient of the input");
    for (int64_t i = 0; i < holder.list.count(); ++i)
      router[static_cast<size_t>(i)] += tensor::item(holder.list.units().front().grads, i);
    for (int64_t i = 0; i < holder.experts.count(); ++i)
      experts[static_cast<size_t>(i)] += tensor::item(holder.experts.units().front().grads, i);
    aux += holder.report.layers[0].aux;
    z += holder.report.layers[0].z;
    dropped += holder.report.layers[0].dropped;
  });
  expect_near(router, one.list.units().front().grads, "router");
  expect_near(experts, one.experts.units().front().grads, "experts");
  EXPECT_NEAR(aux, one.report.layers[0].aux, 1e-12);
  EXPECT_NEAR(z, one.report.layers[0].z, 1e-12);
  EXPECT_EQ(dropped, one.report.layers[0].dropped);
}

TEST(ExpertParallel, FailingRankReleasesOtherRanks) {
  const nn::MoeOptions options = options_of(4, 2);
  const auto half_way = [&](net::World& world) {
    auto comm = comm::make_communicator(world, world.world_group(), comm::test_options("inproc"));
    ModelRank holder(options, {comm->rank(), 2}, DType::f64);
    const auto exchange = make_token_dispatcher({comm.get(), nullptr, nullptr}, kTimeout);
    const DispatcherOps ops(*exchange);
    nn::ForwardContext pass;
    pass.ops = &ops;
    if (comm->rank() == 1)  // fails while its rows are in flight
      holder.list.find("mlp.shared.up.weight").weight.on_use = [] { throw std::runtime_error("out of here"); };
    const Tensor x = holder.rig.random({2, kLength, kDim}, 5);
    holder.run(x, x, pass);
  };
  try {
    net::run_threads(2, half_way);
    FAIL() << "the failure was not reported";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "out of here");
  }
}

TEST(ExpertParallel, BalancedTrafficMatchesFormula) {
  for (int p : {2, 4}) {
    nn::MoeOptions options = options_of(4, 1);
    net::run_threads(p, [&](net::World& world) {
      auto comm = comm::make_communicator(world, world.world_group(), comm::test_options("inproc"));
      const auto exchange = make_token_dispatcher({comm.get(), nullptr, nullptr}, kTimeout);
      const DispatcherOps ops(*exchange);
      ModelRank holder(options, {comm->rank(), p}, DType::f32);
      // Token t chooses expert t mod 4.
      Tensor& w = holder.list.find("mlp.router.weight").weight.value;
      std::fill_n(w.as<float>(), w.count(), 0.0f);
      for (int64_t e = 0; e < 4; ++e) w.as<float>()[e * 4 + e] = 1;
      const Tensor x = tensor::zeros(holder.rig.context, {2, kLength, kDim}, DType::f32, device::MemoryCategory::other);
      for (int64_t t = 0; t < 2 * kLength; ++t) x.as<float>()[t * kDim + t % 4] = 1;
      nn::ForwardContext pass;
      pass.ops = &ops;
      holder.run(x, x, pass);
      const uint64_t rows = 1 * 2 * kLength;  // k·T rows with k = 1
      uint64_t bytes = 0, calls = 0, trades = 0;
      for (const comm::CallStats& s : comm->stats()) {
        if (s.op == comm::Op::all_to_all_v) bytes += s.bytes_sent, calls += s.calls;
        if (s.op == comm::Op::all_to_all) trades += s.calls;
      }
      EXPECT_EQ(calls, 4u);  // dispatch and combine, each forward and backward
      EXPECT_EQ(bytes, 4 * rows * kDim * sizeof(float) * static_cast<uint64_t>(p - 1) / static_cast<uint64_t>(p));
      EXPECT_EQ(trades, 1u);  // the all-to-all of the counts
    });
  }
}

}  // namespace
}  // namespace esp::parallel
