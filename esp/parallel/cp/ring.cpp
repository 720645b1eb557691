#include "esp/parallel/cp/ring.h"

#include <algorithm>
#include <limits>

#include "esp/autograd/functions/pointwise.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/floating.h"
#include "esp/parallel/cp/ring_steps.h"
#include "esp/parallel/cp/strided_rows.h"

namespace esp::parallel {
namespace {

using autograd::GradientTarget;
using autograd::Tape;
using autograd::Variable;
using device::MemoryCategory;
using kernel::AttentionShape;
using nn::TokenMap;
using tensor::Tensor;

void* at(const Tensor& x, int64_t element) {
  return kernel::at(x.data(), element, x.dtype());
}

// --- forward ---

// Computes the attention of the queries of a block to its keys; accumulates into o (in the accumulation type) and lse.
void attend_block(RingSteps& ring, int step, const AttentionBlock& block, const Tensor& qkv, const Tensor& kv,
                  const Tensor& o, const Tensor& lse, const device::Stream& stream) {
  const AttentionShape shape = ring.shape(step, block);
  const int64_t key = block.key * ring.kv_width, value = key + ring.kv_width / 2;
  kernel::attention_forward_block(at(o, block.query * ring.q_width), at(lse, block.query),
                                  at(qkv, block.query * ring.row), at(kv, key), at(kv, value), shape, qkv.dtype(),
                                  stream);
}

// Computes o and lse over all keys.
void forward(const Tape& tape, const Tensor& qkv, RingSteps& ring, const ContextGroup& group, const Tensor& o,
             const Tensor& lse) {
  const device::Stream& stream = tape.context().stream;
  kernel::fill(lse.data(), -std::numeric_limits<double>::infinity(), lse.count(), lse.dtype(), stream);
  Tensor here = ring.kv_buffer(tape, qkv.dtype()), next = ring.kv_buffer(tape, qkv.dtype());
  PendingCalls pending(group);
  ring.pack(here, qkv, stream);
  for (int step = 0; step < ring.size; ++step) {
    Work moved;
    if (step + 1 < ring.size)
      moved =
          pending.start_exchange(here.data(), ring.kv_count(step), next.data(), ring.kv_count(step + 1), qkv.dtype());
    {
      const std::vector<AttentionBlock> blocks = ring.blocks(step);
      const StepSpan span(group, "attention", step, blocks);
      for (const AttentionBlock& block : blocks) attend_block(ring, step, block, qkv, here, o, lse, stream);
    }
    pending.wait(moved, "keys and values");
    std::swap(here, next);
  }
}

// --- backward ---

// Backward of ring attention. Gradients have the accumulation type; rows of dq have `dq_row` elements, dkv is packed.
class Backward {
 public:
  Backward(Tape& tape, RingSteps& ring, const ContextGroup& group, const Tensor& qkv, const Tensor& d_o,
           const Tensor& o, const Tensor& lse, const Tensor& dq, int64_t dq_row)
      : tape_(tape), ring_(ring), group_(group), qkv_(qkv), d_o_(d_o), o_(o), lse_(lse), dq_(dq), dq_row_(dq_row) {}

  // Returns the gradients of this rank's keys and values, summed over all ranks that used them.
  Tensor run() {
    const device::Stream& stream = tape_.context().stream;
    const DType type = qkv_.dtype(), sums = tensor::accumulation_type(type);
    Tensor here = ring_.kv_buffer(tape_, type), next = ring_.kv_buffer(tape_, type);
    Tensor mine = ring_.kv_buffer(tape_, sums), leaving = ring_.kv_buffer(tape_, sums),
           coming = ring_.kv_buffer(tape_, sums);
    Work moved, sums_moved;
    PendingCalls pending(group_);
    ring_.pack(here, qkv_, stream);
    for (int step = 0; step < ring_.size; ++step) {
      if (step + 1 < ring_.size)
        moved = pending.start_exchange(here.data(), ring_.kv_count(step), next.data(), ring_.kv_count(step + 1), type);
      backward_of_step(step, here, mine);
      // The sums from the ranks that processed this block earlier arrive while this rank computes its contribution.
      pending.wait(sums_moved, "sums of keys and values");
      if (step > 0) kernel::add_to(mine.data(), coming.data(), ring_.kv_count(step), sums, stream);
      std::swap(mine, leaving);
      sums_moved =
          pending.start_exchange(leaving.data(), ring_.kv_count(step), coming.data(), ring_.kv_count(step + 1), sums);
      pending.wait(moved, "keys and values");
      std::swap(here, next);
    }
    pending.wait(sums_moved, "sums of keys and values");
    return coming;
  }

 private:
  // Computes dq and the dk and dv of the block present at `step`.
  void backward_of_step(int step, const Tensor& kv, const Tensor& dkv) {
    const device::Stream& stream = tape_.context().stream;
    const std::vector<AttentionBlock> blocks = ring_.blocks(step);
    const StepSpan span(group_, "attention, back", step, blocks);
    zero_unseen_keys(step, blocks, dkv);
    for (const AttentionBlock& block : blocks) {
      const AttentionShape shape = ring_.shape(step, block);
      const int64_t key = block.key * ring_.kv_width, value = key + ring_.kv_width / 2;
      const Tensor workspace =
          tape_.scratch({kernel::attention_workspace_bytes(shape, qkv_.dtype(), stream)}, DType::u8);
      kernel::AttentionSums to{at(dq_, block.query * dq_row_), at(dkv, key), at(dkv, value),
                               {ring_.T * dq_row_, dq_row_},   shape.k,      shape.v};
      to.add_q = step > 0 || !block.is_first_of_queries;  // step 0 writes all of dq
      to.add_kv = !block.is_first_of_keys;
      kernel::attention_backward_block(to, at(d_o_, block.query * ring_.q_width), at(o_, block.query * ring_.q_width),
                                       at(qkv_, block.query * ring_.row), at(kv, key), at(kv, value),
                                       at(lse_, block.query), workspace.data(), shape, qkv_.dtype(), stream);
    }
  }

  // Zeroes the gradient sums of contiguous key ranges that no local query attends to, because no block writes them.
  void zero_unseen_keys(int step, const std::vector<AttentionBlock>& blocks, const Tensor& dkv) {
    const TokenMap& keys = ring_.kv_source(step);
    int64_t key = 0;
    for (const nn::TokenRun& run : keys.runs) {
      const bool is_seen = std::any_of(blocks.begin(), blocks.end(), [&](const AttentionBlock& block) {
        return block.key <= key && key < block.key + block.num_keys;
      });
      for (int64_t b = 0; b < ring_.B && !is_seen; ++b)
        kernel::fill(at(dkv, (b * keys.count() + key) * ring_.kv_width), 0, run.count * ring_.kv_width, dkv.dtype(),
                     tape_.context().stream);
      key += run.count;
    }
  }

  Tape& tape_;
  RingSteps& ring_;
  const ContextGroup& group_;
  const Tensor &qkv_, &d_o_, &o_, &lse_, &dq_;
  const int64_t dq_row_;
};

class RingNode final : public autograd::Node {
 public:
  RingNode(const Variable& qkv, int y, Tensor o, Tensor lse, const autograd::AttentionArgs& options,
           const ContextGroup& group)
      : qkv_(qkv), y_(y), o_(std::move(o)), lse_(std::move(lse)), options_(options), group_(group) {}

  void backward_input(Tape& tape) override {
    const device::Stream& stream = tape.context().stream;
    const DType type = qkv_.dtype(), sums = tensor::accumulation_type(type);
    RingSteps ring(qkv_.value(), options_, group_);
    // The attention kernel overwrites its output. If qkv already has a gradient, the kernel writes to scratch memory,
    // which is added to that gradient below.
    const bool is_first = qkv_.needs_grad() && !tape.gradient_of(qkv_.slot()).defined();
    const GradientTarget into =
        is_first ? tape.gradient_into(qkv_) : GradientTarget{tape.scratch(qkv_.shape(), type), true};
    const bool in_place = type == sums;
    const Tensor dq = in_place ? into.tensor : tape.scratch({ring.B, ring.T, ring.q_width}, sums);
    const Tensor dkv = Backward(tape, ring, group_, qkv_.value(), tape.gradient_of(y_), o_, lse_, dq,
                                in_place ? ring.row : ring.q_width)
                           .run();
    const int64_t rows = ring.B * ring.T;
    if (!in_place) copy_rows({into.tensor, 0, ring.row}, {dq, 0, ring.q_width}, rows, ring.q_width, stream);
    copy_rows({into.tensor, ring.q_width, ring.row}, {dkv, 0, ring.kv_width}, rows, ring.kv_width, stream);
    if (!is_first && qkv_.needs_grad()) tape.accumulate_gradient(qkv_.slot(), into.tensor);
  }

 private:
  Variable qkv_;
  int y_;
  Tensor o_, lse_;
  autograd::AttentionArgs options_;
  ContextGroup group_;
};

}  // namespace

Variable ring_attention(Tape& tape, const Variable& qkv, const autograd::AttentionArgs& options,
                        const ContextGroup& group) {
  if (group.size() == 1) return autograd::self_attention(tape, qkv, options);
  const tensor::Context& context = tape.context();
  const DType type = qkv.dtype(), sums = tensor::accumulation_type(type);
  RingSteps ring(qkv.value(), options, group);
  const tensor::Shape shape{ring.B, ring.T, ring.q_width};
  Tensor o = tensor::empty(context, shape, type, MemoryCategory::activation);
  Tensor lse = tensor::empty(context, {ring.B, options.heads, ring.T}, sums, MemoryCategory::activation);
  const Tensor running = type == sums ? o : tape.scratch(shape, sums);
  forward(tape, qkv.value(), ring, group, running, lse);
  if (type != sums) kernel::cast(o.data(), type, running.data(), sums, o.count(), context.stream);
  if (!tape.must_record({&qkv})) return o;
  Variable y = tape.output(o);
  tape.record<RingNode>(1, qkv, y.slot(), std::move(o), std::move(lse), options, group);
  return y;
}

Variable rotary(Tape& tape, const Variable& x, int64_t heads, int64_t head_dim, const TokenMap& tokens,
                const kernel::RotaryAngles& angles) {
  Variable y = x;
  int64_t token = 0;
  for (const nn::TokenRun& run : tokens.runs) {
    y = autograd::rotary_range(tape, y, heads, head_dim, token, token + run.count, run.first, angles);
    token += run.count;
  }
  return y;
}

}  // namespace esp::parallel
