#include "esp/autograd/functions/cross_entropy.h"

#include <algorithm>

#include "esp/autograd/functions/weights.h"
#include "esp/kernel/cross_entropy.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/gemm.h"

namespace esp::autograd {
namespace {

using device::MemoryCategory;
using tensor::Tensor;

// Maximum bytes of logits in one block of rows on a CPU. Every block reads all of W and its gradient once, so blocks
// should be large: hundreds of rows for a vocabulary of 50,000. 500 rows of logits are small compared with the
// activations.
constexpr int64_t kBlockBytes = int64_t{112} << 20;
// A GPU needs larger blocks: with 16,384 instead of 4,736 rows, a step of GPT-2 124M took 1 % less time. A block has at
// most a quarter of all rows (or 4,096 rows, if that is more), which is small compared with the other memory of a large
// batch.
constexpr int64_t kGpuBlockBytes = int64_t{1600} << 20, kGpuRows = 4096;
constexpr int64_t kMinRows = 64;

Tensor total_of(const tensor::Context& context, const Tensor& losses) {
  Tensor total = tensor::empty(context, {1}, DType::f64, MemoryCategory::other);
  kernel::sum_to(total.as<double>(), losses.data(), losses.count(), losses.dtype(), context.stream);
  return total;
}

Tensor make_losses(const tensor::Context& context, int64_t rows, DType storage) {
  return tensor::empty(context, {rows}, tensor::accumulation_type(storage), MemoryCategory::activation);
}

class CrossEntropyNode final : public Node {
 public:
  CrossEntropyNode(const Variable& logits, Tensor lse, Tensor targets, double scale)
      : logits_(logits), lse_(std::move(lse)), targets_(std::move(targets)), scale_(scale) {}

  void backward_input(Tape& tape) override {
    const Tensor& logits = logits_.value();
    const Tensor d = tensor::copy_of(tape.context(), logits, MemoryCategory::activation);
    kernel::cross_entropy_backward(d.data(), lse_.data(), targets_.as<const int32_t>(), scale_, d.rows(), d.dim(-1),
                                   d.dim(-1), d.dtype(), tape.context().stream);
    tape.accumulate_gradient(logits_.slot(), d);
  }

 private:
  Variable logits_;
  Tensor lse_, targets_;
  double scale_;
};

// Forward has already computed all gradients. The tape reports the weight's gradient as complete only when backward
// reaches this node.
class LinearCrossEntropyNode final : public Node {
 public:
  LinearCrossEntropyNode(int x, Tensor dx, Weight& w, Weight* b) : x_(x), dx_(std::move(dx)), trained_{&w, b} {}
  void backward_input(Tape& tape) override {
    if (x_ >= 0) tape.accumulate_gradient(x_, std::exchange(dx_, {}));
  }
  void backward_weight(Tape&) override {}
  std::span<Weight* const> weights() const override { return trained_.span(); }

 private:
  int x_;
  Tensor dx_;
  TrainedWeights trained_;
};

}  // namespace

// Number of rows per block: the rows are divided into the smallest number of blocks that fit, all of about equal size.
int64_t rows_of_block(int64_t rows, int64_t row_bytes, device::DeviceKind kind) {
  const bool gpu = kind == device::DeviceKind::cuda;
  int64_t most = std::max(kMinRows, (gpu ? kGpuBlockBytes : kBlockBytes) / row_bytes);
  if (gpu) most = std::min(most, std::max(kGpuRows, rows / 4));
  const int64_t num_blocks = std::max<int64_t>(1, (rows + most - 1) / most),
                even = (rows + num_blocks - 1) / num_blocks;
  return std::min(rows, (even + kMinRows - 1) / kMinRows * kMinRows);
}

Loss cross_entropy(Tape& tape, const Variable& logits, const Tensor& targets, double scale) {
  const Tensor& z = logits.value();
  ESP_CHECK(targets.count() == z.rows() && targets.dtype() == DType::i32,
            "cross entropy: got {} targets; expected one i32 per row of logits {}", targets.count(), z.shape().text());
  const tensor::Context& context = tape.context();
  const bool records = tape.must_record({&logits});
  Tensor losses = make_losses(context, z.rows(), z.dtype());
  Tensor lse = records ? make_losses(context, z.rows(), z.dtype()) : Tensor();
  kernel::cross_entropy_forward(losses.data(), lse.data(), z.data(), targets.as<const int32_t>(), z.rows(), z.dim(-1),
                                z.dim(-1), z.dtype(), context.stream);
  Tensor total = total_of(context, losses);
  if (!records) return {std::move(total), std::move(losses)};
  Variable output = tape.output(std::move(total));
  tape.record<CrossEntropyNode>(1, logits, std::move(lse), targets, scale);
  return {std::move(output), std::move(losses)};
}

Loss linear_cross_entropy(Tape& tape, const Variable& x, Weight& w, Weight* b, const Tensor& targets, double scale) {
  const tensor::Context& context = tape.context();
  const device::Stream& stream = context.stream;
  const DType type = x.dtype();
  // These are tensor handles, not references. With sharded parameters, gathering the bias may release the table,
  // because a tied table can belong to another ZeRO unit.
  const Tensor table = w.fetch_value(), bias = b ? b->fetch_value() : Tensor();
  const int64_t rows = x.value().rows(), in = x.value().dim(-1), classes = table.dim(0);
  ESP_CHECK(table.dim(1) == in && targets.count() == rows && targets.dtype() == DType::i32,
            "linear cross entropy: got x with shape {}, W with shape {}, {} targets; expected W [classes, in] and one "
            "i32 target per row of x",
            x.shape().text(), table.shape().text(), targets.count());
  const bool records = tape.must_record({&x}, {&w, b});
  Tensor losses = make_losses(context, rows, type);
  Tensor dx;
  if (records && x.needs_grad()) dx = tensor::empty(context, x.shape(), type, MemoryCategory::activation);

  const int64_t block = rows_of_block(rows, classes * static_cast<int64_t>(size_of(type)), stream.device.kind);
  const Tensor logits = tape.scratch({block, classes}, type);
  const size_t element = size_of(type), loss_bytes = size_of(losses.dtype());
  for (int64_t first = 0; first < rows; first += block) {
    const int64_t count = std::min(block, rows - first);
    const std::byte* x_block = x.value().as<std::byte>() + static_cast<size_t>(first * in) * element;
    const int32_t* target_block = targets.as<const int32_t>() + first;
    void* loss_block = losses.as<std::byte>() + static_cast<size_t>(first) * loss_bytes;
    kernel::GemmOptions forward;
    forward.transpose_b = true;
    forward.bias = bias.data();
    kernel::gemm(logits.data(), x_block, table.data(), count, classes, in, forward, type, stream);
    if (!records) {
      kernel::cross_entropy_forward(loss_block, nullptr, logits.data(), target_block, count, classes, classes, type,
                                    stream);
      continue;
    }
    kernel::cross_entropy_fused(loss_block, logits.data(), target_block, scale, count, classes, classes, type, stream);
    if (dx.defined())
      kernel::gemm(dx.as<std::byte>() + static_cast<size_t>(first * in) * element, logits.data(), table.data(), count,
                   in, classes, {}, type, stream);
    if (w.trained) {
      kernel::GemmOptions weight;
      weight.transpose_a = true;
      weight.beta = beta_for(w);
      kernel::gemm(w.grad.data(), logits.data(), x_block, classes, in, count, weight, type, stream);
    }
    if (b && b->trained)
      kernel::add_column_sums(gradient_to_add_to(b, stream), logits.data(), count, classes, type, stream);
  }
  Tensor total = total_of(context, losses);
  if (!records) return {std::move(total), std::move(losses)};
  Variable output = tape.output(std::move(total));
  tape.record<LinearCrossEntropyNode>(1, x.slot(), std::move(dx), w, b);
  return {std::move(output), std::move(losses)};
}

void seed(Tape& tape, const Loss& loss) {
  Tensor one = tensor::empty(tape.context(), {1}, DType::f64, MemoryCategory::other);
  kernel::fill(one.data(), 1, 1, DType::f64, tape.context().stream);
  tape.seed(loss.total, std::move(one));
}

void backward(Tape& tape, const Loss& loss) {
  seed(tape, loss);
  tape.backward();
}

}  // namespace esp::autograd
