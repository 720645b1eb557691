#include "esp/parallel/textbook.h"

#include "esp/autograd/functions/apply_mask.h"
#include "esp/autograd/functions/pointwise.h"
#include "esp/autograd/functions/unfused_attention.h"
#include "esp/autograd/recompute.h"
#include "esp/base/error.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/softmax.h"

namespace esp::parallel {

using autograd::Tape;
using autograd::Variable;
using autograd::Weight;
using nn::ForwardContext;
using nn::Parameter;
using tensor::Tensor;

namespace {

class TextbookOps final : public ModelParallelOps {
 public:
  TextbookOps(const Mesh& mesh, const ModelParallelOptions& options) : inner_(make_model_parallel_ops(mesh, options)) {
    if (mesh.shape().cp > 1)
      throw UsageError(
          fmt::format("parallel.cp = {}: must be 1 with train.activations = \"textbook\" (stored attention), which "
                      "needs all tokens of a sequence on one rank",
                      mesh.shape().cp));
  }

  // Always stores the output of the activation.
  Variable mlp(ForwardContext& pass, const Variable& x, const nn::MlpWeights& p, bool) const override {
    return inner_->mlp(pass, x, p, true);
  }

  Variable attention(ForwardContext& pass, const Variable& qkv, const autograd::AttentionArgs& options,
                     const kernel::RotaryAngles& rope) const override {
    Variable turned = qkv;
    if (rope.theta > 0)
      turned = autograd::rotary(*pass.tape, qkv, options.heads + options.kv_heads, options.head_dim, 0, rope);
    if (pass.recompute != nn::RecomputeMode::selective) return autograd::unfused_attention(*pass.tape, turned, options);
    return autograd::recompute(*pass.tape, turned, [options](Tape& tape, const Variable& x) {
      return autograd::unfused_attention(tape, x, options);
    });
  }

  Variable dropout(ForwardContext& pass, const Variable& x, double rate, const kernel::DropoutKey& key) const override {
    if (rate == 0) return x;
    const tensor::Context& context = pass.tape->context();
    const Tensor mask = tensor::empty(context, x.shape(), DType::u8, device::MemoryCategory::activation);
    {
      // Dropout of a tensor of ones gives the mask. It goes through the same operation as any dropout, so elements are
      // numbered as in the whole batch.
      const Tensor ones = pass.tape->scratch(x.shape(), x.dtype());
      kernel::fill(ones.data(), 1, ones.count(), x.dtype(), context.stream);
      const Variable drawn = inner_->dropout(pass, Variable(ones), rate, key);
      kernel::nonzero_mask(mask.as<uint8_t>(), drawn.value().data(), mask.count(), x.dtype(), context.stream);
    }
    return autograd::apply_mask(*pass.tape, x, mask, 1 / (1 - rate));
  }

  Variable column_parallel(ForwardContext& pass, const Variable& x, Weight& w, Weight* b) const override {
    return inner_->column_parallel(pass, x, w, b);
  }
  Variable row_parallel(ForwardContext& pass, const Variable& x, Weight& w, Weight* b) const override {
    return inner_->row_parallel(pass, x, w, b);
  }
  Variable lookup(ForwardContext& pass, const Tensor& ids, const Parameter& table, const Parameter* positions,
                  int64_t first_position) const override {
    return inner_->lookup(pass, ids, table, positions, first_position);
  }
  autograd::Loss loss(ForwardContext& pass, const Variable& x, const Parameter& w, const Parameter* b,
                      const Tensor& targets, double scale) const override {
    return inner_->loss(pass, x, w, b, targets, scale);
  }
  Tensor logits(ForwardContext& pass, const Tensor& x, const Parameter& w, const Parameter* b) const override {
    return inner_->logits(pass, x, w, b);
  }
  Variable gather_stream(ForwardContext& pass, const Variable& x) const override {
    return inner_->gather_stream(pass, x);
  }
  const nn::TokenDispatcher& experts() const override { return inner_->experts(); }

  tensor::Shape stream_shape(int64_t batch, int64_t tokens, int64_t dim) const override {
    return inner_->stream_shape(batch, tokens, dim);
  }
  double exposed_ms() const override { return inner_->exposed_ms(); }
  void reset_times() override { inner_->reset_times(); }

 private:
  std::unique_ptr<ModelParallelOps> inner_;
};

}  // namespace

std::unique_ptr<ModelParallelOps> make_textbook_ops(const Mesh& mesh, const ModelParallelOptions& options) {
  return std::make_unique<TextbookOps>(mesh, options);
}

}  // namespace esp::parallel
