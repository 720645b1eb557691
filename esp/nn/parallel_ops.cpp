#include "esp/nn/parallel_ops.h"

#include "esp/autograd/functions/embedding.h"
#include "esp/autograd/functions/linear.h"
#include "esp/autograd/functions/pointwise.h"
#include "esp/kernel/gemm.h"

namespace esp::nn {

using autograd::Variable;
using autograd::Weight;
using tensor::Tensor;

namespace {

Weight* weight_of(const Parameter* parameter) {
  return parameter ? const_cast<Weight*>(&parameter->weight) : nullptr;
}

}  // namespace

const ParallelOps& single_device_ops() {
  static const ParallelOps regions;
  return regions;
}

Variable ParallelOps::column_parallel(ForwardContext& pass, const Variable& x, Weight& w, Weight* b) const {
  return autograd::linear(*pass.tape, x, w, b);
}

Variable ParallelOps::row_parallel(ForwardContext& pass, const Variable& x, Weight& w, Weight* b) const {
  return autograd::linear(*pass.tape, x, w, b);
}

Variable ParallelOps::mlp(ForwardContext& pass, const Variable& x, const MlpWeights& p, bool keep) const {
  if (p.gated) return autograd::gated_mlp(*pass.tape, x, p.w1, p.b1, p.w2, p.b2, keep);
  return autograd::mlp(*pass.tape, x, p.w1, p.b1, p.activation, p.w2, p.b2, keep);
}

Variable ParallelOps::lookup(ForwardContext& pass, const Tensor& ids, const Parameter& table,
                             const Parameter* positions, int64_t first_position) const {
  return autograd::embedding(*pass.tape, ids, *weight_of(&table), weight_of(positions), first_position);
}

autograd::Loss ParallelOps::loss(ForwardContext& pass, const Variable& x, const Parameter& w, const Parameter* b,
                                 const Tensor& targets, double scale) const {
  return autograd::linear_cross_entropy(*pass.tape, x, *weight_of(&w), weight_of(b), targets, scale);
}

Tensor ParallelOps::logits(ForwardContext& pass, const Tensor& x, const Parameter& w, const Parameter* b) const {
  const tensor::Context& context = pass.tape->context();
  // Keeps the table in memory while the bias is fetched: the bias may belong to another ZeRO-3 unit.
  const Tensor table = w.weight.fetch_value();
  const Tensor bias = b ? b->weight.fetch_value() : Tensor();
  Tensor y = tensor::empty(context, x.shape().with_last(table.dim(0)), x.dtype(), device::MemoryCategory::activation);
  kernel::GemmOptions options;
  options.transpose_b = true;
  options.bias = bias.data();
  kernel::gemm(y.data(), x.data(), table.data(), x.rows(), table.dim(0), table.dim(1), options, x.dtype(),
               context.stream);
  return y;
}

Variable ParallelOps::attention(ForwardContext& pass, const Variable& qkv, const autograd::AttentionArgs& options,
                                const kernel::RotaryAngles& rope) const {
  Variable turned = qkv;
  if (rope.theta > 0)
    turned = autograd::rotary(*pass.tape, qkv, options.heads + options.kv_heads, options.head_dim, 0, rope);
  return autograd::self_attention(*pass.tape, turned, options);
}

Variable ParallelOps::dropout(ForwardContext& pass, const Variable& x, double rate,
                              const kernel::DropoutKey& key) const {
  const int64_t rows_per_sequence = x.value().rows() / x.value().dim(0);
  return autograd::dropout(*pass.tape, x, rate, key, pass.first_sequence * rows_per_sequence);
}

const TokenDispatcher& ParallelOps::experts() const {
  static const TokenDispatcher single_rank;
  return single_rank;
}

Variable ParallelOps::gather_stream(ForwardContext&, const Variable& x) const {
  return x;
}

}  // namespace esp::nn
