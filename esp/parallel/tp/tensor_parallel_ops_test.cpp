// Compares every tensor-parallel layer operation, forward and backward, with a single device in fp64.
#include <gtest/gtest.h>

#include <cstring>

#include "esp/autograd/testing.h"
#include "esp/parallel/testing.h"

namespace esp::parallel {
namespace {

using autograd::Variable;
using nn::ForwardContext;
using nn::Init;
using nn::ShardSpec;
using tensor::Shape;
using tensor::Tensor;

constexpr double kTolerance = 1e-12;
constexpr int64_t B = 3, T = 8, kDim = 6, kInner = 11, kVocab = 13;

// How the input or output of an operation is sharded.
enum class TensorForm { stream, columns, whole };

struct OpCase {
  Shape in, out;  // shapes of the whole tensors; `in` has rank 0 if there is no input
  TensorForm in_lies, out_lies;
  std::function<void(nn::ParameterList&)> build;
  std::function<Variable(ForwardContext&, nn::ParameterList&, const Variable&)> run;
};

struct TpResult {
  std::vector<double> y, dx;
  std::vector<std::vector<double>> gradients;
};

Tensor random(ModelRank& holder, const Shape& shape, uint64_t seed) {
  Tensor x = tensor::empty(holder.context, shape, DType::f64, device::MemoryCategory::other);
  kernel::fill_normal(x.data(), 0, 1, seed, 0, 0, x.count(), DType::f64, holder.context.stream);
  return x;
}

// This rank's part of a whole tensor.
Tensor part_of(ModelRank& holder, const Tensor& whole, TensorForm lies, bool sequence) {
  const nn::Shard share = holder.shares().tensor;
  if (lies == TensorForm::columns) {
    const nn::IndexRange held = share.of(whole.dim(-1));
    Tensor part =
        tensor::empty(holder.context, whole.shape().with_last(held.count()), DType::f64, device::MemoryCategory::other);
    for (int64_t r = 0; r < whole.rows(); ++r)
      std::memcpy(part.as<double>() + r * held.count(), whole.as<double>() + r * whole.dim(-1) + held.begin,
                  static_cast<size_t>(held.count()) * sizeof(double));
    return part;
  }
  if (lies == TensorForm::whole || !sequence) return whole;
  const int64_t rows = whole.rows() / share.count;
  return whole.reshape({whole.rows(), whole.dim(-1)})
      .slice(share.index * rows, (share.index + 1) * rows)
      .reshape({1, rows, whole.dim(-1)});
}

std::vector<double> values(const Tensor& x) {
  return {x.span<double>().begin(), x.span<double>().end()};
}

TpResult run(ModelRank& holder, const OpCase& verb, bool sequence) {
  nn::ParameterList list(holder.shares());
  verb.build(list);
  list.materialize(holder.context, DType::f64, true);
  list.initialise(9, holder.context.stream);
  const auto parts =
      sequence ? make_partial_gradients(holder.mesh, list, holder.context, std::chrono::seconds(60)) : nullptr;
  if (parts) parts->begin_pass(true);
  ForwardContext pass = holder.pass(B);
  pass.training = true;
  Variable x;
  if (verb.in.rank() > 0) x = holder.tape.leaf(part_of(holder, random(holder, verb.in, 1), verb.in_lies, sequence));
  const Variable y = verb.run(pass, list, x);
  TpResult outcome;
  outcome.y = values(y.value());
  if (y.dtype() == DType::f64 && y.shape().count() == 1) {  // the output is a loss
    Tensor one = tensor::empty(holder.context, {1}, DType::f64, device::MemoryCategory::other);
    *one.as<double>() = 1;
    holder.tape.seed(y, one);
  } else {
    // Seeds with a copy, because the tape may sum gradients in place.
    const Tensor probe = part_of(holder, random(holder, verb.out, 2), verb.out_lies, sequence);
    holder.tape.seed(y, tensor::copy_of(holder.context, probe, device::MemoryCategory::activation));
  }
  holder.tape.backward();
  if (parts) parts->end_pass();
  if (verb.in.rank() > 0) outcome.dx = values(holder.tape.take_gradient(x));
  for (const nn::Parameter& p : list.all()) outcome.gradients.push_back(values(p.weight.grad));
  holder.tape.clear();
  return outcome;
}

std::vector<double> cut(ModelRank& holder, const std::vector<double>& whole, const Shape& shape, TensorForm lies,
                        bool sequence) {
  if (whole.size() == 1 || shape.rank() == 0) return whole;
  Tensor all = tensor::empty(holder.context, shape, DType::f64, device::MemoryCategory::other);
  std::copy(whole.begin(), whole.end(), all.as<double>());
  return values(part_of(holder, all, lies, sequence));
}

// With `exact`, the forward pass must be bit-identical to that of a single device.
void expect_like_one(const OpCase& verb, bool exact = false) {
  ModelRank single_rank;
  const TpResult one = run(single_rank, verb, false);
  {  // On an axis of size one the operations are bit-identical to nn::single_device_ops().
    ModelRank plain;
    nn::ParameterList list;
    verb.build(list);
    list.materialize(plain.context, DType::f64, true);
    list.initialise(9, plain.context.stream);
    ForwardContext pass = plain.pass(B);
    pass.ops = &nn::single_device_ops();
    pass.training = true;
    Variable x;
    if (verb.in.rank() > 0) x = plain.tape.leaf(random(plain, verb.in, 1));
    EXPECT_EQ(values(verb.run(pass, list, x).value()), one.y);
    plain.tape.clear();
  }
  for (const int size : {2, 3, 4})
    for (const bool sequence : {false, true})
      for (const bool overlap : {false, true})
        run_model_ranks(size, [&](comm::Communicator* world) {
          ModelParallelOptions options;
          options.sequence = sequence;
          options.overlap = overlap;
          options.piece_bytes = 200;
          options.timeout = std::chrono::seconds(60);
          ModelRank holder(world, {.tp = size}, options);
          const TpResult mine = run(holder, verb, sequence);
          const std::string what = fmt::format("{} ranks, sequence {}, overlap {}", size, sequence, overlap);
          const auto y = cut(holder, one.y, verb.out, verb.out_lies, sequence);
          if (exact) {
            EXPECT_EQ(mine.y, y) << what;
          }
          ASSERT_EQ(mine.y.size(), y.size());
          EXPECT_LT(autograd::distance(mine.y, y), kTolerance) << what;
          const auto dx = cut(holder, one.dx, verb.in, verb.in_lies, sequence);
          ASSERT_EQ(mine.dx.size(), dx.size());
          EXPECT_LT(autograd::distance(mine.dx, dx), kTolerance) << what;
          nn::ParameterList list(holder.shares());
          verb.build(list);
          for (size_t i = 0; i < mine.gradients.size(); ++i) {
            const auto whole = parallel::part_of<double>(list.all()[i], one.gradients[i]);
            ASSERT_EQ(mine.gradients[i].size(), whole.size());
            EXPECT_LT(autograd::distance(mine.gradients[i], whole), kTolerance) << what << ' ' << list.all()[i].name;
          }
        });
}

autograd::Weight& weight(nn::ParameterList& list, const char* name) {
  return list.find(name).weight;
}

Tensor ids(ForwardContext& pass, int64_t below, bool some_uncounted) {
  Tensor t = tensor::empty(pass.tape->context(), {B, T}, DType::i32, device::MemoryCategory::other);
  for (int64_t i = 0; i < t.count(); ++i)
    t.as<int32_t>()[i] = some_uncounted && i % 5 == 4 ? -1 : static_cast<int32_t>((i * 7 + 3) % below);
  return t;
}

TEST(TensorParallelOps, ColumnParallelMatchesSingleDeviceBitForBit) {
  expect_like_one({{B, T, kDim},
                   {B, T, kInner},
                   TensorForm::stream,
                   TensorForm::columns,
                   [](nn::ParameterList& list) {
                     list.add("w", {kDim, kInner}, Init::normal(1), true, ShardSpec::along(1));
                     list.add("b", {kInner}, Init::normal(1), false, ShardSpec::along(0));
                   },
                   [](ForwardContext& pass, nn::ParameterList& list, const Variable& x) {
                     return pass.ops->column_parallel(pass, x, weight(list, "w"), &weight(list, "b"));
                   }},
                  true);
}

TEST(TensorParallelOps, RowParallelSumsAndAddsBiasOnce) {
  expect_like_one({{B, T, kInner},
                   {B, T, kDim},
                   TensorForm::columns,
                   TensorForm::stream,
                   [](nn::ParameterList& list) {
                     list.add("w", {kInner, kDim}, Init::normal(1), true, ShardSpec::along(0));
                     list.add("b", {kDim}, Init::normal(1), false);
                   },
                   [](ForwardContext& pass, nn::ParameterList& list, const Variable& x) {
                     return pass.ops->row_parallel(pass, x, weight(list, "w"), &weight(list, "b"));
                   }});
}

TEST(TensorParallelOps, MlpMatchesSingleDeviceWithAndWithoutGate) {
  for (const bool gated : {false, true})
    for (const bool keep : {false, true})
      expect_like_one({{B, T, kDim},
                       {B, T, kDim},
                       TensorForm::stream,
                       TensorForm::stream,
                       [=](nn::ParameterList& list) {
                         const std::vector<int64_t> sections =
                             gated ? std::vector<int64_t>{kInner, kInner} : std::vector<int64_t>{kInner};
                         const int64_t width = gated ? 2 * kInner : kInner;
                         list.add("w1", {kDim, width}, Init::normal(1), true, {1, sections, 1});
                         list.add("b1", {width}, Init::normal(1), false, {0, sections, 1});
                         list.add("w2", {kInner, kDim}, Init::normal(1), true, ShardSpec::along(0));
                         list.add("b2", {kDim}, Init::normal(1), false);
                       },
                       [=](ForwardContext& pass, nn::ParameterList& list, const Variable& x) {
                         const nn::MlpWeights weights{weight(list, "w1"),  &weight(list, "b1"),      weight(list, "w2"),
                                                      &weight(list, "b2"), kernel::Activation::gelu, gated};
                         return pass.ops->mlp(pass, x, weights, keep);
                       }});
}

TEST(TensorParallelOps, VocabParallelEmbeddingMatchesSingleDevice) {
  for (const bool positions : {false, true})
    for (const bool divided : {false, true})
      expect_like_one({{},
                       {B, T, kDim},
                       TensorForm::whole,
                       TensorForm::stream,
                       [=](nn::ParameterList& list) {
                         list.add("table", {kVocab, kDim}, Init::normal(1), true,
                                  divided ? ShardSpec::along(0) : ShardSpec::none());
                         list.add("positions", {T + 2, kDim}, Init::normal(1), true);
                       },
                       [=](ForwardContext& pass, nn::ParameterList& list, const Variable&) {
                         return pass.ops->lookup(pass, ids(pass, kVocab, false), list.find("table"),
                                                 positions ? &list.find("positions") : nullptr, 1);
                       }},
                      true);
}

TEST(TensorParallelOps, VocabParallelLossMatchesSingleDevice) {
  for (const bool bias : {false, true})
    expect_like_one({{B, T, kDim},
                     {},
                     TensorForm::stream,
                     TensorForm::whole,
                     [=](nn::ParameterList& list) {
                       list.add("w", {kVocab, kDim}, Init::normal(2), true, ShardSpec::along(0));
                       if (bias) list.add("b", {kVocab}, Init::normal(1), false, ShardSpec::along(0));
                     },
                     [=](ForwardContext& pass, nn::ParameterList& list, const Variable& x) {
                       return pass.ops
                           ->loss(pass, x, list.find("w"), bias ? &list.find("b") : nullptr, ids(pass, kVocab, true),
                                  0.3)
                           .total;
                     }});
}

TEST(TensorParallelOps, DropoutDrawsSameMaskAsSingleDevice) {
  expect_like_one({{B, T, kDim},
                   {B, T, kDim},
                   TensorForm::stream,
                   TensorForm::stream,
                   [](nn::ParameterList& list) { list.add("unused", {1}, Init::zeros(), false); },
                   [](ForwardContext& pass, nn::ParameterList&, const Variable& x) {
                     return pass.ops->dropout(pass, x, 0.4, pass.dropout_key(3));
                   }},
                  true);
}

TEST(TensorParallelOps, SlicesGradientOfGatheredStream) {
  ModelRank one;
  const Tensor all = random(one, {B, T, kDim}, 1), probe = random(one, {B, T, kDim}, 2);
  run_model_ranks(4, [&](comm::Communicator* world) {
    ModelParallelOptions options;
    options.sequence = true;
    ModelRank holder(world, {.tp = 4}, options);
    ForwardContext pass = holder.pass(B);
    const Variable x = holder.tape.leaf(part_of(holder, all, TensorForm::stream, true));
    const Variable y = pass.ops->gather_stream(pass, x);
    EXPECT_EQ(y.shape(), (Shape{B, T, kDim}));
    EXPECT_EQ(values(y.value()), values(all));
    holder.tape.seed(y, probe);
    holder.tape.backward();
    EXPECT_EQ(values(holder.tape.take_gradient(x)), values(part_of(holder, probe, TensorForm::stream, true)));
    EXPECT_EQ(holder.regions->stream_shape(B, T, kDim), (Shape{1, B * T / 4, kDim}));
  });
}

// Gathered logits equal the logits of a single device for every row.
TEST(TensorParallelOps, GathersLogitsOfAllClasses) {
  const auto run_logits = [](ModelRank& holder, bool sequence) {
    nn::ParameterList list(holder.shares());
    list.add("w", {kVocab, kDim}, Init::normal(1), true, ShardSpec::along(0));
    list.materialize(holder.context, DType::f64, false);
    list.initialise(9, holder.context.stream);
    ForwardContext pass = holder.pass(B);
    const Tensor x = part_of(holder, random(holder, {B, T, kDim}, 1), TensorForm::stream, sequence);
    return values(pass.ops->logits(pass, x, list.find("w"), nullptr));
  };
  ModelRank single_rank;
  const auto one = run_logits(single_rank, false);
  for (const bool sequence : {false, true})
    run_model_ranks(3, [&](comm::Communicator* world) {
      ModelParallelOptions options;
      options.sequence = sequence;
      ModelRank holder(world, {.tp = 3}, options);
      EXPECT_EQ(run_logits(holder, sequence), one);
    });
}

}  // namespace
}  // namespace esp::parallel
