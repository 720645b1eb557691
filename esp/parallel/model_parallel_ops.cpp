#include "esp/parallel/model_parallel_ops.h"

#include <algorithm>
#include <optional>

#include "esp/autograd/functions/bias.h"
#include "esp/autograd/functions/embedding.h"
#include "esp/autograd/functions/pointwise.h"
#include "esp/kernel/elementwise.h"
#include "esp/parallel/cp/ring.h"
#include "esp/parallel/cp/ulysses.h"
#include "esp/parallel/ep/expert_parallel.h"
#include "esp/parallel/tp/dropout.h"
#include "esp/parallel/tp/linear.h"
#include "esp/parallel/tp/loss.h"
#include "esp/parallel/tp/mlp.h"

namespace esp::parallel {

using autograd::Tape;
using autograd::Variable;
using autograd::Weight;
using device::MemoryCategory;
using nn::ForwardContext;
using nn::Parameter;
using tensor::Tensor;

namespace {

Weight& weight_of(const Parameter& parameter) {
  return const_cast<Weight&>(parameter.weight);
}

ContextLayout layout_of(bool ulysses, bool causal) {
  return !ulysses && causal ? ContextLayout::zigzag : ContextLayout::contiguous;
}

class ShardedOps final : public ModelParallelOps {
 public:
  ShardedOps(const Mesh& mesh, const ModelParallelOptions& options) {
    context_.comm = mesh.group(MeshAxis::context);
    context_.timeout = options.timeout;
    context_.trace = options.trace;
    context_.waited_ms = &waited_for_context_ms_;
    experts_ = make_token_dispatcher({mesh.group(MeshAxis::expert), mesh.group(MeshAxis::context),
                                      options.sequence ? mesh.group(MeshAxis::tensor) : nullptr},
                                     options.timeout, options.trace);
    ulysses_ = options.context == "ulysses";
    if (comm::Communicator* comm = mesh.group(MeshAxis::tensor))
      axis_ = {&tp_comm_.emplace(*comm, options.timeout, options.trace), options.sequence, options.keep_gathered,
               options.overlap, options.piece_bytes};
  }

  Variable column_parallel(ForwardContext& pass, const Variable& x, Weight& w, Weight* b) const override {
    if (axis_.single_rank()) return nn::ParallelOps::column_parallel(pass, x, w, b);
    return column_parallel_linear(*pass.tape, axis_, x, w, b, pass.num_sequences);
  }

  Variable row_parallel(ForwardContext& pass, const Variable& x, Weight& w, Weight* b) const override {
    if (axis_.single_rank()) return nn::ParallelOps::row_parallel(pass, x, w, b);
    return with_bias(*pass.tape, row_parallel_linear(*pass.tape, axis_, x, w), b);
  }

  Variable mlp(ForwardContext& pass, const Variable& x, const nn::MlpWeights& p, bool keep) const override {
    if (axis_.single_rank()) return nn::ParallelOps::mlp(pass, x, p, keep);
    return with_bias(*pass.tape, parallel::mlp(*pass.tape, axis_, x, p, keep, pass.num_sequences), p.b2);
  }

  Variable lookup(ForwardContext& pass, const Tensor& ids, const Parameter& table, const Parameter* positions,
                  int64_t first_position) const override;
  autograd::Loss loss(ForwardContext& pass, const Variable& x, const Parameter& w, const Parameter* b,
                      const Tensor& targets, double scale) const override {
    if (w.cut_dim >= 0)
      return vocab_parallel_cross_entropy(*pass.tape, axis_, x, w, b, targets, scale, pass.num_sequences);
    ESP_CHECK(!axis_.shards_rows() || x.shape().rank() == 2,
              "replicated head: got an input of shape {}; expected a replicated input of rank 2", x.shape().text());
    return nn::ParallelOps::loss(pass, x, w, b, targets, scale);
  }

  Tensor logits(ForwardContext& pass, const Tensor& x, const Parameter& w, const Parameter* b) const override {
    if (w.cut_dim < 0) return nn::ParallelOps::logits(pass, x, w, b);
    const Tensor all =
        x.shape().rank() == 2 ? x : gather_replicated_rows(*pass.tape, axis_, Variable(x), pass.num_sequences).value();
    return gather_vocab_logits(pass.tape->context(), *axis_.tp_comm, nn::ParallelOps::logits(pass, all, w, b),
                               w.global_shape.dim(0));
  }

  Variable attention(ForwardContext& pass, const Variable& qkv, const autograd::AttentionArgs& options,
                     const kernel::RotaryAngles& rope) const override {
    if (!context_.comm) return nn::ParallelOps::attention(pass, qkv, options, rope);
    ESP_CHECK(pass.tokens, "ForwardContext::tokens must be set if a context axis shards the tokens");
    Variable turned = qkv;
    if (rope.theta > 0)
      turned =
          parallel::rotary(*pass.tape, qkv, options.heads + options.kv_heads, options.head_dim, *pass.tokens, rope);
    ContextGroup group = context_;
    group.layout = layout_of(ulysses_, options.causal);
    group.length = pass.tokens->length;
    return ulysses_ ? ulysses_attention(*pass.tape, turned, options, group)
                    : ring_attention(*pass.tape, turned, options, group);
  }

  Variable dropout(ForwardContext& pass, const Variable& x, double rate, const kernel::DropoutKey& key) const override {
    if (x.shape().rank() == 2 || (!axis_.shards_rows() && !pass.tokens))
      return nn::ParallelOps::dropout(pass, x, rate, key);
    return parallel::dropout(*pass.tape, x, rate, key, rows_of(pass, x));
  }

  // Gathers over the tensor axis only. Over the context axis no gather is needed: rank 0 holds the first token of the
  // sequence, and the other ranks have no target.
  Variable gather_stream(ForwardContext& pass, const Variable& x) const override {
    return gather_replicated_rows(*pass.tape, axis_, x, pass.num_sequences);
  }

  const nn::TokenDispatcher& experts() const override { return *experts_; }

  tensor::Shape stream_shape(int64_t batch, int64_t tokens, int64_t dim) const override {
    if (!axis_.shards_rows()) return {batch, tokens, dim};
    return {1, batch * tokens / axis_.tp_comm->size(), dim};
  }
  double exposed_ms() const override {
    return waited_for_context_ms_ + experts_->exposed_ms() + (tp_comm_ ? tp_comm_->exposed_ms() : 0);
  }
  void reset_times() override {
    waited_for_context_ms_ = 0;
    experts_->reset_times();
    if (tp_comm_) tp_comm_->reset_times();
  }

 private:
  static Variable with_bias(Tape& tape, const Variable& x, Weight* b) {
    return b ? autograd::add_bias(tape, x, *b) : x;
  }

  // The rows of a stream of `batch` sequences with `tokens` local tokens each.
  StreamRows rows_of(const ForwardContext& pass, int64_t batch, int64_t tokens) const {
    const int64_t all = batch * tokens, share = axis_.shards_rows() ? all / axis_.tp_comm->size() : all;
    return {axis_.shards_rows() ? axis_.tp_comm->rank() * share : 0, share, tokens, pass.first_sequence, pass.tokens};
  }
  StreamRows rows_of(const ForwardContext& pass, const Variable& x) const {
    if (!axis_.shards_rows()) return rows_of(pass, x.value().dim(0), x.value().dim(1));
    return rows_of(pass, pass.num_sequences, x.value().rows() * axis_.tp_comm->size() / pass.num_sequences);
  }

  // mutable: the communicator accumulates its waiting time
  mutable std::optional<TpCommunicator> tp_comm_;
  TensorAxis axis_;
  ContextGroup context_;  // layout and length are set per call
  bool ulysses_ = false;
  double waited_for_context_ms_ = 0;
  std::unique_ptr<ExpertParallelDispatcher> experts_;
};

// Converts token ids to row numbers of the local table shard; ids of other shards get numbers outside of the shard.
Tensor shifted(const tensor::Context& context, const Tensor& ids, int64_t first) {
  Tensor own = tensor::empty(context, ids.shape(), DType::i32, MemoryCategory::activation);
  kernel::shift(own.as<int32_t>(), ids.as<const int32_t>(), static_cast<int32_t>(-first), ids.count(), context.stream);
  return own;
}

Tensor positions_of(const tensor::Context& context, const StreamRows& rows, const tensor::Shape& shape,
                    int64_t first_position) {
  Tensor at = tensor::empty(context, shape, DType::i32, MemoryCategory::activation);
  rows.for_each_range([&](int64_t row, int64_t global, int64_t count) {
    for (int64_t i = 0; i < count;) {  // iterates up to the end of each sequence
      const int64_t place = (global + i) % rows.length(), n = std::min(count - i, rows.length() - place);
      kernel::iota(at.as<int32_t>() + row + i, static_cast<int32_t>(first_position + place), n, context.stream);
      i += n;
    }
  });
  return at;
}

Variable ShardedOps::lookup(ForwardContext& pass, const Tensor& ids, const Parameter& table, const Parameter* positions,
                            int64_t first_position) const {
  if (!axis_.shards_rows() && table.cut_dim < 0 && !pass.tokens)
    return nn::ParallelOps::lookup(pass, ids, table, positions, first_position);
  Tape& tape = *pass.tape;
  const tensor::Context& context = tape.context();
  const StreamRows rows = rows_of(pass, ids.dim(0), ids.dim(1));
  const tensor::Shape here = axis_.shards_rows() ? tensor::Shape{1, rows.count} : ids.shape();
  Variable x;
  if (table.cut_dim >= 0) {
    const Tensor own = shifted(context, ids, table.sections.front().begin);
    x = reduce_from_tp(tape, axis_, autograd::embedding(tape, own, weight_of(table), nullptr));
  } else {
    const Tensor own = ids.reshape({ids.count()}).slice(rows.first, rows.first + rows.count).reshape(here);
    x = autograd::embedding(tape, own, weight_of(table), nullptr);
  }
  if (!positions) return x;
  const Tensor at = positions_of(context, rows, here, first_position);
  return autograd::add(tape, x, autograd::embedding(tape, at, weight_of(*positions), nullptr));
}

}  // namespace

std::unique_ptr<ModelParallelOps> make_model_parallel_ops(const Mesh& mesh, const ModelParallelOptions& options) {
  return std::make_unique<ShardedOps>(mesh, options);
}

nn::TokenMap local_tokens(const MeshShape& shape, const Coordinates& here, const ModelParallelOptions& options,
                          int64_t length, bool causal) {
  return context_tokens(layout_of(options.context == "ulysses", causal), length, shape.cp, here.cp);
}

}  // namespace esp::parallel
