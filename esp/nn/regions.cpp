#include "esp/nn/regions.h"

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

const Regions& on_one() {
  static const Regions regions;
  return regions;
}

Variable Regions::columns(Pass& pass, const Variable& x, Weight& w, Weight* b) const {
  return autograd::linear(*pass.tape, x, w, b);
}

Variable Regions::rows(Pass& pass, const Variable& x, Weight& w, Weight* b) const {
  return autograd::linear(*pass.tape, x, w, b);
}

Variable Regions::perceptron(Pass& pass, const Variable& x, const PerceptronWeights& p, bool keep) const {
  if (p.gated) return autograd::gated_perceptron(*pass.tape, x, p.w1, p.b1, p.w2, p.b2, keep);
  return autograd::perceptron(*pass.tape, x, p.w1, p.b1, p.activation, p.w2, p.b2, keep);
}

Variable Regions::lookup(Pass& pass, const Tensor& ids, const Parameter& table, const Parameter* positions,
                         int64_t first_position) const {
  return autograd::embedding(*pass.tape, ids, *weight_of(&table), weight_of(positions), first_position);
}

autograd::Loss Regions::loss(Pass& pass, const Variable& x, const Parameter& w, const Parameter* b,
                             const Tensor& targets, double scale) const {
  return autograd::linear_cross_entropy(*pass.tape, x, *weight_of(&w), weight_of(b), targets, scale);
}

Tensor Regions::logits(Pass& pass, const Tensor& x, const Parameter& w, const Parameter* b) const {
  const tensor::Context& context = pass.tape->context();
  const Tensor table = w.weight.used_value();  // held: the bias may be of another unit
  const Tensor bias = b ? b->weight.used_value() : Tensor();
  Tensor y = tensor::empty(context, x.shape().with_last(table.dim(0)), x.dtype(), device::MemoryCategory::activation);
  kernel::GemmOptions options;
  options.transpose_b = true;
  options.bias = bias.data();
  kernel::gemm(y.data(), x.data(), table.data(), x.rows(), table.dim(0), table.dim(1), options, x.dtype(),
               context.stream);
  return y;
}

Variable Regions::attention(Pass& pass, const Variable& qkv, const autograd::AttentionOptions& options,
                            const kernel::RotaryAngles& rope) const {
  Variable turned = qkv;
  if (rope.theta > 0)
    turned = autograd::rotary(*pass.tape, qkv, options.heads + options.kv_heads, options.head_dim, 0, rope);
  return autograd::self_attention(*pass.tape, turned, options);
}

Variable Regions::dropout(Pass& pass, const Variable& x, double rate, const kernel::DropoutKey& key) const {
  const int64_t rows_per_sequence = x.value().rows() / x.value().dim(0);
  return autograd::dropout(*pass.tape, x, rate, key, pass.first_sequence * rows_per_sequence);
}

const ExpertExchange& Regions::experts() const {
  static const ExpertExchange nobody_else;
  return nobody_else;
}

Variable Regions::whole(Pass&, const Variable& x) const {
  return x;
}

}  // namespace esp::nn
