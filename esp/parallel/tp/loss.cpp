#include "esp/parallel/tp/loss.h"

#include <algorithm>

#include "esp/autograd/functions/weights.h"
#include "esp/device/gpu.h"
#include "esp/kernel/copy.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/gemm.h"
#include "esp/kernel/vocab_parallel_cross_entropy.h"
#include "esp/nn/shard.h"

namespace esp::parallel {

using autograd::Tape;
using autograd::Variable;
using autograd::Weight;
using device::MemoryCategory;
using tensor::Tensor;

namespace {

Weight* weight_of(const nn::Parameter* parameter) {
  return parameter ? const_cast<Weight*>(&parameter->weight) : nullptr;
}

// Backward node without computation: all gradients were computed in forward.
class VocabularyLossNode final : public autograd::Node {
 public:
  VocabularyLossNode(int x, Tensor dx, Weight& w, Weight* b) : x_(x), dx_(std::move(dx)), trained_{&w, b} {}
  void backward_input(Tape& tape) override {
    if (x_ >= 0) tape.accumulate_gradient(x_, std::exchange(dx_, {}));
  }
  void backward_weight(Tape&) override {}
  std::span<Weight* const> weights() const override { return trained_.span(); }

 private:
  int x_;
  Tensor dx_;
  autograd::TrainedWeights trained_;
};

// Computes the vocabulary-parallel loss of one block of rows at a time. The buffers have the size of one block.
struct Blocks {
  const tensor::Context& context;
  TpCommunicator& tp_comm;
  Tensor table, bias;
  Weight& w;
  Weight* b;
  kernel::VocabShard part;
  double scale;
  bool records;
  DType type;
  Tensor logits;                        // logits of one block
  Tensor local_max, max, sums, picked;  // row statistics of one block; sums and picked are adjacent in memory

  // Computes the losses of the rows x; their gradient goes to dx if it is defined.
  void run(const Tensor& x, const int32_t* targets, void* losses, const Tensor& dx, Work& moving, bool overlap) {
    const device::Stream& stream = context.stream;
    const int64_t rows = x.dim(0), in = x.dim(1), classes = part.num_classes;
    kernel::GemmOptions gemm;
    gemm.transpose_b = true;
    gemm.bias = bias.data();
    kernel::gemm(logits.data(), x.data(), table.data(), rows, classes, in, gemm, type, stream);
    reduce_over_vocabulary(targets, rows);
    kernel::vocab_cross_entropy_losses(losses, max.data(), sums.data(), picked.data(), targets, rows, type, stream);
    if (!records) return;
    kernel::vocab_cross_entropy_backward(logits.data(), max.data(), sums.data(), targets, scale, rows, part, type,
                                         stream);
    if (dx.defined()) {
      kernel::gemm(dx.data(), logits.data(), table.data(), rows, in, classes, {}, type, stream);
      if (overlap) moving = tp_comm.start_all_reduce(dx);
    }
    if (w.trained) {
      kernel::GemmOptions weight;
      weight.transpose_a = true;
      weight.beta = autograd::beta_for(w);
      kernel::gemm(w.grad.data(), logits.data(), x.data(), classes, in, rows, weight, type, stream);
    }
    if (b && b->trained)
      kernel::add_column_sums(autograd::gradient_to_add_to(b, stream), logits.data(), rows, classes, type, stream);
  }

 private:
  // All-reduces three numbers per row over the tensor axis: the maximum, the sum and the logit of the target.
  void reduce_over_vocabulary(const int32_t* targets, int64_t rows) {
    const DType stat = max.dtype();
    const Tensor both = Tensor::borrow(sums.data(), {2 * rows}, stat);
    const Tensor top = max.slice(0, rows);
    picked = both.slice(rows, 2 * rows);
    kernel::vocab_cross_entropy_forward(local_max.data(), both.data(), picked.data(), logits.data(), targets, rows,
                                        part, type, context.stream);
    device::copy(top.data(), local_max.data(), top.bytes(), context.stream);
    tp_comm.run_all_reduce(top, comm::ReduceOp::max);
    kernel::vocab_cross_entropy_rescale(sums.data(), local_max.data(), top.data(), rows, type, context.stream);
    tp_comm.run_all_reduce(both);
  }
};

Tensor total_of(const tensor::Context& context, const Tensor& losses) {
  Tensor total = tensor::empty(context, {1}, DType::f64, MemoryCategory::other);
  kernel::sum_to(total.as<double>(), losses.data(), losses.count(), losses.dtype(), context.stream);
  return total;
}

// Returns the gradient of the stream: the sum of the partial gradients of all ranks.
Tensor sum_over_axis(const tensor::Context& context, const TensorAxis& axis, const Tensor& dx, const Variable& x) {
  if (!axis.sequence) {
    axis.tp_comm->run_all_reduce(dx);
    return dx;
  }
  Tensor part = tensor::empty(context, x.shape(), x.dtype(), MemoryCategory::activation);
  axis.tp_comm->run_reduce_scatter(dx, part);
  return part;
}

}  // namespace

autograd::Loss vocab_parallel_cross_entropy(Tape& tape, const TensorAxis& axis, const Variable& x,
                                            const nn::Parameter& w, const nn::Parameter* b, const Tensor& targets,
                                            double scale, int64_t batch) {
  const tensor::Context& context = tape.context();
  const DType type = x.dtype(), stat = tensor::accumulation_type(type);
  Weight &weight = *weight_of(&w), *bias = weight_of(b);
  const bool records = tape.must_record({&x}, {&weight, bias});
  const int64_t in = x.value().dim(-1);
  const Tensor all = gather_replicated_rows(tape, axis, Variable(x.value()), batch).value();
  const int64_t rows = all.rows();
  ESP_CHECK(targets.count() == rows && targets.dtype() == DType::i32,
            "vocabulary-parallel loss: got {} targets for x {}; expected one int32 target per row", targets.count(),
            all.shape().text());
  const Tensor flat = all.reshape({rows, in});
  Tensor losses = tensor::empty(context, {rows}, stat, MemoryCategory::activation);
  Tensor dx;
  if (records && x.needs_grad()) dx = tensor::empty(context, {rows, in}, type, MemoryCategory::activation);

  const nn::IndexRange held = w.sections.front();
  // A block has as many rows as on a single rank, so that the memory of its logits shrinks with the number of ranks.
  const int64_t block = autograd::rows_of_block(rows, w.global_shape.dim(0) * static_cast<int64_t>(size_of(type)),
                                                context.stream.device.kind);
  const Tensor both = tape.scratch({2 * block}, stat);
  Blocks blocks{context,
                *axis.tp_comm,
                weight.fetch_value(),
                bias ? bias->fetch_value() : Tensor(),
                weight,
                bias,
                {held.begin, held.count(), held.count()},
                scale,
                records,
                type,
                tape.scratch({block, held.count()}, type),
                tape.scratch({block}, stat),
                tape.scratch({block}, stat),
                both,
                {}};
  const bool overlap = axis.overlap && !axis.sequence;
  std::vector<Work> moving;
  for (int64_t first = 0; first < rows; first += block) {
    const int64_t last = std::min(first + block, rows);
    blocks.run(flat.slice(first, last), targets.as<const int32_t>() + first,
               losses.as<std::byte>() + static_cast<size_t>(first) * size_of(stat),
               dx.defined() ? dx.slice(first, last) : Tensor(), moving.emplace_back(), overlap);
  }
  for (const Work& work : moving) axis.tp_comm->wait(work, "gradients of the head's input");
  Tensor total = total_of(context, losses);
  if (!records) return {std::move(total), std::move(losses)};
  if (dx.defined() && !overlap) dx = sum_over_axis(context, axis, dx, x);
  Variable output = tape.output(std::move(total));
  tape.record<VocabularyLossNode>(1, x.slot(), dx.defined() ? dx.reshape(x.shape()) : dx, weight, bias);
  return {std::move(output), std::move(losses)};
}

// The shards of the vocabulary may differ in width. They are padded to the width of the first shard, the widest one.
Tensor gather_vocab_logits(const tensor::Context& context, TpCommunicator& tp_comm, const Tensor& own,
                           int64_t classes) {
  const int64_t rows = own.rows(), widest = nn::Shard{0, tp_comm.size()}.of(classes).count();
  const size_t element = size_of(own.dtype());
  const Tensor sent = tensor::zeros(context, {rows, widest}, own.dtype(), MemoryCategory::buffer);
  const Tensor got = tensor::empty(context, {tp_comm.size(), rows, widest}, own.dtype(), MemoryCategory::buffer);
  const auto row = [&](const Tensor& x, int64_t at) { return x.as<std::byte>() + static_cast<size_t>(at) * element; };
  const auto bytes = [&](int64_t count) { return static_cast<size_t>(count) * element; };
  kernel::copy_rows(sent.data(), bytes(widest), own.data(), bytes(own.dim(-1)), bytes(own.dim(-1)), rows,
                    context.stream);
  tp_comm.run_all_gather(sent, got);
  Tensor y = tensor::empty(context, own.shape().with_last(classes), own.dtype(), MemoryCategory::activation);
  for (int i = 0; i < tp_comm.size(); ++i) {
    const nn::IndexRange held = nn::Shard{i, tp_comm.size()}.of(classes);
    kernel::copy_rows(row(y, held.begin), bytes(classes), row(got, i * rows * widest), bytes(widest),
                      bytes(held.count()), rows, context.stream);
  }
  return y;
}

}  // namespace esp::parallel
