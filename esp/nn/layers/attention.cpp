#include "esp/nn/layers/attention.h"

#include <cmath>

#include "esp/autograd/functions/attention.h"
#include "esp/autograd/functions/pointwise.h"
#include "esp/kernel/copy.h"
#include "esp/nn/parallel_ops.h"

namespace esp::nn {

using autograd::Variable;
using tensor::Tensor;

namespace {

// Returns the options with the head counts of this rank's shard.
AttentionOptions sharded_options(const ParameterList& list, AttentionOptions options) {
  options.heads = list.shares().tensor.of(options.heads).count();
  options.kv_heads = list.shares().tensor.of(options.kv_heads).count();
  return options;
}

autograd::AttentionArgs core_of(const ForwardContext& pass, const AttentionOptions& o, const Tensor& lengths,
                                int64_t first_head, int64_t all_heads) {
  autograd::AttentionArgs core;
  core.heads = o.heads;
  core.kv_heads = o.kv_heads;
  core.head_dim = o.head_dim;
  core.first_head = first_head;
  core.all_heads = all_heads;
  core.causal = o.causal;
  core.key_lengths = lengths;
  core.dropout = o.dropout.rate_in(pass);
  core.key = pass.dropout_key(o.dropout.site);
  core.first_sequence = pass.first_sequence;
  return core;
}

std::byte* at(const Tensor& x, int64_t element) {
  return x.as<std::byte>() + static_cast<size_t>(element) * size_of(x.dtype());
}

// Appends the keys and values of new tokens (the last columns of every row of qkv) to the `length` cached tokens.
void append(const Tensor& cache, int64_t length, const Tensor& qkv, const AttentionOptions& o,
            const device::Stream& stream) {
  const int64_t width = 2 * o.kv_width(), row = qkv.dim(2);
  const size_t bytes = static_cast<size_t>(width) * size_of(qkv.dtype());
  for (int64_t b = 0; b < qkv.dim(0); ++b)
    kernel::copy_rows(at(cache, (b * cache.dim(1) + length) * width), bytes,
                      at(qkv, b * qkv.dim(1) * row + o.q_width()), static_cast<size_t>(row) * size_of(qkv.dtype()),
                      bytes, qkv.dim(1), stream);
}

}  // namespace

SelfAttention::SelfAttention(ParameterList& list, const std::string& name, const AttentionOptions& options)
    : options_(sharded_options(list, options)),
      first_head_(list.shares().tensor.of(options.heads).begin),
      all_heads_(options.heads),
      qkv_(Linear::column_parallel(list, name + ".qkv", options.dim, options.q_width() + 2 * options.kv_width(),
                                   options.bias, options.init,
                                   {options.q_width(), options.kv_width(), options.kv_width()}, options.head_dim)),
      out_(Linear::row_parallel(list, name + ".out", options.q_width(), options.dim, options.bias, options.out_init,
                                options.head_dim)) {}

Variable SelfAttention::operator()(ForwardContext& pass, const Variable& x, const Tensor& lengths) const {
  const autograd::AttentionArgs core = core_of(pass, options_, lengths, first_head_, all_heads_);
  return out_(pass, pass.ops->attention(pass, qkv_(pass, x), core, options_.rope));
}

Variable SelfAttention::extend(ForwardContext& pass, const Variable& x, const Tensor& cache, int64_t length) const {
  const AttentionOptions& o = options_;
  const tensor::Context& context = pass.tape->context();
  Variable qkv = qkv_(pass, x);
  if (o.rope.theta > 0) qkv = autograd::rotary(*pass.tape, qkv, o.heads + o.kv_heads, o.head_dim, length, o.rope);
  const int64_t B = qkv.value().dim(0), T = qkv.value().dim(1), row = qkv.value().dim(2);
  ESP_CHECK(length + T <= cache.dim(1), "KV cache: got {} tokens; the capacity is {}", length + T, cache.dim(1));
  append(cache, length, qkv.value(), o, context.stream);

  kernel::AttentionShape shape;
  shape.batch = B;
  shape.num_queries = T;
  shape.num_keys = length + T;
  shape.heads = o.heads;
  shape.kv_heads = o.kv_heads;
  shape.head_dim = o.head_dim;
  shape.q = {T * row, row};
  shape.k = shape.v = {cache.dim(1) * cache.dim(2), cache.dim(2)};
  shape.o = {T * o.q_width(), o.q_width()};
  shape.causal = o.causal;
  shape.causal_offset = length;
  shape.scale = 1 / std::sqrt(static_cast<double>(o.head_dim));
  const Tensor y = pass.tape->scratch({B, T, o.q_width()}, qkv.dtype());
  const Tensor lse = pass.tape->scratch({B, o.heads, T}, tensor::accumulation_type(qkv.dtype()));
  kernel::attention_forward(y.data(), lse.data(), qkv.value().data(), cache.data(), at(cache, o.kv_width()), shape,
                            qkv.dtype(), context.stream);
  return out_(pass, y);
}

CrossAttention::CrossAttention(ParameterList& list, const std::string& name, const AttentionOptions& options)
    : options_(sharded_options(list, options)),
      first_head_(list.shares().tensor.of(options.heads).begin),
      all_heads_(options.heads),
      q_(Linear::column_parallel(list, name + ".q", options.dim, options.q_width(), options.bias, options.init, {},
                                 options.head_dim)),
      kv_(Linear::column_parallel(list, name + ".kv", options.dim, 2 * options.kv_width(), options.bias, options.init,
                                  {options.kv_width(), options.kv_width()}, options.head_dim)),
      out_(Linear::row_parallel(list, name + ".out", options.q_width(), options.dim, options.bias, options.out_init,
                                options.head_dim)) {}

Variable CrossAttention::operator()(ForwardContext& pass, const Variable& x, const Variable& memory,
                                    const Tensor& lengths) const {
  const Variable q = q_(pass, x), kv = kv_(pass, memory);
  return attend_heads(pass, q, kv, lengths);
}

Variable CrossAttention::attend(ForwardContext& pass, const Variable& x, const Variable& kv,
                                const Tensor& lengths) const {
  return attend_heads(pass, q_(pass, x), kv, lengths);
}

Variable CrossAttention::attend_heads(ForwardContext& pass, const Variable& q, const Variable& kv,
                                      const Tensor& lengths) const {
  return out_(pass,
              autograd::cross_attention(*pass.tape, q, kv, core_of(pass, options_, lengths, first_head_, all_heads_)));
}

}  // namespace esp::nn
