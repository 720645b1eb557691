// Tests the data-parallel example with its ranks as threads: two ranks train the same model as one rank.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "esp/base/error.h"
#include "esp/net/inproc/threads.h"
#include "examples/bert_ddp/replica.h"

namespace bert_ddp {
namespace {

using namespace esp;

struct Trained {
  std::vector<double> begin, end;  // all parameters before the first step and after the last
  double loss = 0;
  uint64_t ring_calls = 0;  // number of all-reduces that used the ring algorithm
};

std::vector<double> values_of(const nn::ParameterList& parameters) {
  std::vector<double> all;
  for (const auto& unit : parameters.units())
    for (int64_t i = 0; i < unit.count; ++i)
      all.push_back(unit.values.dtype() == DType::f64 ? static_cast<const double*>(unit.values.data())[i]
                                                      : static_cast<const float*>(unit.values.data())[i]);
  return all;
}

// Trains one epoch of ten steps; the batch of the last step is half full.
Trained train(int num_ranks, uint64_t global_batch, DType dtype) {
  ReplicaOptions options;
  options.num_items = 10 * global_batch - global_batch / 2;
  options.batch = global_batch / static_cast<uint64_t>(num_ranks);
  options.seed = 7;
  options.dropout = 0;
  options.eps = 1e-6;  // large enough that m/√v does not amplify rounding errors where v is close to zero
  options.dtype = dtype;
  options.check_copies = true;
  Trained trained;
  net::run_threads(num_ranks, [&](net::World& world) {
    const auto comm = comm::make_communicator(world, world.world_group(), {});
    Replica replica(*comm, options);
    EXPECT_EQ(replica.steps_per_epoch(), 10u);
    if (comm->rank() == 0) trained.begin = values_of(replica.parameters());
    const double loss = replica.train_epoch(0);
    if (comm->rank() != 0) return;
    trained.end = values_of(replica.parameters());
    trained.loss = loss;
    for (const comm::CallStats& row : comm->stats())
      if (row.op == comm::Op::all_reduce && row.algorithm == "ring") trained.ring_calls += row.calls;
  });
  return trained;
}

double relative_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(difference / size);
}

void expect_same_training(DType dtype, uint64_t global_batch, double parameters, double loss) {
  const Trained one = train(1, global_batch, dtype);
  const Trained two = train(2, global_batch, dtype);
  ASSERT_EQ(one.end.size(), 10'477'058u);
  EXPECT_EQ(one.begin, two.begin);
  EXPECT_GT(relative_distance(one.end, one.begin), 1e-3);  // training has changed the parameters
  EXPECT_LE(relative_distance(two.end, one.end), parameters);
  EXPECT_NEAR(two.loss, one.loss, loss);
  EXPECT_EQ(two.ring_calls, 10u * 4u);  // four calls per step: one each for the stem, two blocks and the head
}

uint64_t global_batch() {
  return std::getenv("ESPALIER_TEST_LONG") ? 64 : 4;
}

TEST(BertDdp, TwoRanksEqualOneRankInDoublePrecision) {
  expect_same_training(DType::f64, global_batch(), 1e-11, 1e-11);
}

TEST(BertDdp, TwoRanksEqualOneRank) {
  expect_same_training(DType::f32, global_batch(), 1e-3, 1e-5);
}

TEST(BertDdp, DetectsReplicasThatDifferInOneBit) {
  net::run_threads(3, [](net::World& world) {
    const auto comm = comm::make_communicator(world, world.world_group(), {});
    ReplicaOptions options;
    Replica replica(*comm, options);
    EXPECT_NO_THROW(replica.check_copies());
    auto& last = replica.parameters().units().back();
    auto* bytes = static_cast<char*>(last.values.data());
    if (comm->rank() == 2) bytes[size_of(last.values.dtype()) * static_cast<size_t>(last.count) - 1] ^= 1;
    EXPECT_THROW(replica.check_copies(), InternalError);
  });
}

}  // namespace
}  // namespace bert_ddp
