#include "esp/autograd/functions/fp8_linear.h"

#include <vector>

#include "esp/autograd/functions/weights.h"
#include "esp/device/is_cuda.h"
#include "esp/kernel/cuda/fp8_encode.h"

namespace esp::autograd {
namespace {

using device::MemoryCategory;
using kernel::cuda::Fp8;
using kernel::cuda::Fp8Function;
using kernel::cuda::Fp8GemmOptions;
using kernel::cuda::Fp8Scale;
using kernel::cuda::Fp8Source;
using tensor::Tensor;

// The tensor to which an fp8 scale belongs. A layer has three scales: for its weight, its input, and the gradient of
// its output.
enum Role : int { kWeight, kInput, kGradient };

struct EncodedMatrix {
  Tensor rows, columns;
  const Fp8Scale* scale = nullptr;
};
enum class Layouts : uint8_t { rows, columns, both };

Fp8 kind_of(Role role) {
  return role == kGradient ? Fp8::e5m2 : Fp8::e4m3;
}

constexpr Role kRoles[] = {kWeight, kInput, kGradient};
std::vector<kernel::cuda::ScaleKey> scale_keys(std::span<const Weight* const> weights) {
  std::vector<kernel::cuda::ScaleKey> keys;
  for (const Weight* weight : weights)
    for (Role role : kRoles) keys.push_back({weight, role, kind_of(role)});
  return keys;
}

// Encodes a tensor as fp8. If it is a gradient and the layer has a bias, also adds its column sums to the bias
// gradient.
EncodedMatrix encode(const tensor::Context& context, const Weight& owner, Role role, const Fp8Source& source,
                     int64_t rows, int64_t cols, Layouts layouts, Weight* bias = nullptr) {
  const auto [scale, fresh] = kernel::cuda::find_scale(&owner, role, kind_of(role), context.stream);
  if (fresh) {  // a new scale has no history yet, so an additional pass finds the largest magnitude
    kernel::cuda::encode_fp8({}, source, rows, cols, scale, kind_of(role), DType::bf16, context.stream);
    kernel::cuda::update_fp8_scales(scale, 1, kind_of(role), context.stream);
  }
  EncodedMatrix encoded;
  encoded.scale = scale;
  if (layouts != Layouts::columns)
    encoded.rows = tensor::empty(context, {rows, cols}, DType::u8, MemoryCategory::activation);
  if (layouts != Layouts::rows)
    encoded.columns = tensor::empty(context, {cols, rows}, DType::u8, MemoryCategory::activation);
  kernel::cuda::Fp8Outputs to{.rows = encoded.rows.data(), .columns = encoded.columns.data()};
  if (bias && bias->trained) {
    to.accumulate = beta_for(*bias) != 0;
    to.column_sums = bias->grad.data();
  }
  kernel::cuda::encode_fp8(to, source, rows, cols, scale, kind_of(role), DType::bf16, context.stream);
  return encoded;
}

EncodedMatrix encode_weight(const tensor::Context& context, const Weight& w, Layouts layouts) {
  const Tensor& value = w.fetch_value();
  return encode(context, w, kWeight, {.x = value.data()}, value.dim(0), value.dim(1), layouts);
}

// y = x·W + b. Reads x in its row layout and W in its column layout.
Tensor fp8_gemm(const tensor::Context& context, const tensor::Shape& shape, const EncodedMatrix& x,
                const EncodedMatrix& w, const Weight* b) {
  Tensor y = tensor::empty(context, shape, DType::bf16, MemoryCategory::activation);
  Fp8GemmOptions options;
  options.bias = b ? b->fetch_value().data() : nullptr;
  options.fast_sums = true;
  kernel::cuda::gemm_fp8(y.data(), x.rows.data(), x.scale, w.columns.data(), w.scale, y.rows(), y.dim(-1),
                         w.columns.dim(1), options, DType::bf16, context.stream);
  return y;
}

// dx = dy·Wᵀ. Reads both in their row layout.
void input_grad_gemm(const tensor::Context& context, const GradientTarget& into, const EncodedMatrix& dy,
                     const EncodedMatrix& w) {
  if (!into.tensor.defined()) return;
  Fp8GemmOptions options;
  options.kind_a = Fp8::e5m2;
  options.accumulate = into.accumulate;
  options.fast_sums = true;
  kernel::cuda::gemm_fp8(into.tensor.data(), dy.rows.data(), dy.scale, w.rows.data(), w.scale, dy.rows.dim(0),
                         w.rows.dim(0), w.rows.dim(1), options, DType::bf16, context.stream);
}

// dW = xᵀ·dy. Reads both in their column layout. The sums run over all rows of the batch, so they are accumulated with
// full precision (no fast_sums).
void weight_grad_gemm(const tensor::Context& context, Weight& w, const EncodedMatrix& x, const EncodedMatrix& dy) {
  if (!w.trained) return;
  Fp8GemmOptions options;
  options.kind_b = Fp8::e5m2;
  options.accumulate = beta_for(w) != 0;
  kernel::cuda::gemm_fp8(w.grad.data(), x.columns.data(), x.scale, dy.columns.data(), dy.scale, x.columns.dim(0),
                         dy.columns.dim(0), x.columns.dim(1), options, DType::bf16, context.stream);
}

Layouts layouts_for_backward(bool records, const Weight& w) {
  return records && w.trained ? Layouts::both : Layouts::rows;
}

class Fp8LinearNode final : public Node {
 public:
  Fp8LinearNode(const Variable& x, int y, EncodedMatrix input, EncodedMatrix value, Weight& w, Weight* b)
      : x_(x.slot()), y_(y), input_(std::move(input)), value_(std::move(value)), w_(w), b_(b), trained_{&w, b} {}

  void backward_input(Tape& tape) override {
    const tensor::Context& context = tape.context();
    const Tensor& dy = tape.gradient_of(y_);
    dy_ = encode(context, w_, kGradient, {.x = dy.data()}, dy.rows(), dy.dim(-1), Layouts::both, b_);
    if (x_ >= 0) input_grad_gemm(context, tape.gradient_into(x_), dy_, value_);
    dy_.rows = {};
    value_ = {};
  }
  void backward_weight(Tape& tape) override {
    weight_grad_gemm(tape.context(), w_, input_, dy_);
    input_ = dy_ = {};
  }
  std::span<Weight* const> weights() const override { return trained_.span(); }

 private:
  int x_, y_;
  EncodedMatrix input_, value_, dy_;
  Weight& w_;
  Weight* b_;
  TrainedWeights trained_;
};

class Fp8MlpNode final : public Node {
 public:
  struct SavedTensors {
    Tensor pre;
    EncodedMatrix input, hidden, value1, value2;
  };
  Fp8MlpNode(const Variable& x, int y, SavedTensors saved, const Fp8Mlp& p)
      : x_(x.slot()), y_(y), saved_(std::move(saved)), p_(p), trained_{&p.w1, p.b1, &p.w2, p.b2} {}

  static Fp8Source hidden_source(const Tensor& pre, const Fp8Mlp& p) {
    return {.x = pre.data(),
            .function = p.gated ? Fp8Function::swiglu : Fp8Function::activation,
            .activation = p.activation};
  }

  void backward_input(Tape& tape) override {
    const tensor::Context& context = tape.context();
    const Tensor& dy = tape.gradient_of(y_);
    const Tensor& pre = saved_.pre;
    const int64_t rows = dy.rows(), width = saved_.value2.rows.dim(0);
    if (p_.w2.trained && !saved_.hidden.columns.defined())
      saved_.hidden = encode(context, p_.w2, kInput, hidden_source(pre, p_), rows, width, Layouts::columns);
    dy_ = encode(context, p_.w2, kGradient, {.x = dy.data()}, rows, dy.dim(-1), Layouts::both, p_.b2);
    {
      const Tensor d_hidden = tape.scratch({rows, width}, DType::bf16);
      input_grad_gemm(context, {d_hidden, false}, dy_, saved_.value2);
      const Fp8Source d_pre_source{
          .x = d_hidden.data(),
          .pre = pre.data(),
          .function = p_.gated ? Fp8Function::swiglu_gradient : Fp8Function::activation_gradient,
          .activation = p_.activation};
      d_pre_ = encode(context, p_.w1, kGradient, d_pre_source, rows, pre.dim(-1), Layouts::both, p_.b1);
    }
    saved_.pre = {};
    if (x_ >= 0) input_grad_gemm(context, tape.gradient_into(x_), d_pre_, saved_.value1);
    dy_.rows = d_pre_.rows = {};
    saved_.value1 = saved_.value2 = {};
  }
  void backward_weight(Tape& tape) override {
    weight_grad_gemm(tape.context(), p_.w2, saved_.hidden, dy_);
    saved_.hidden = dy_ = {};
    weight_grad_gemm(tape.context(), p_.w1, saved_.input, d_pre_);
    saved_.input = d_pre_ = {};
  }
  std::span<Weight* const> weights() const override { return trained_.span(); }

 private:
  int x_, y_;
  SavedTensors saved_;
  EncodedMatrix dy_, d_pre_;
  Fp8Mlp p_;
  TrainedWeights trained_;
};

}  // namespace

bool fp8_enabled(const tensor::Context& context) {
  return device::is_cuda(context.stream) && kernel::cuda::uses_fp8(context.stream);
}

bool fp8_applicable(const tensor::Context& context, const Variable& x, const Weight& w, const Weight* b) {
  if (!fp8_enabled(context)) return false;
  const Tensor& value = w.fetch_value();
  const auto is_aligned = [](const Tensor& t) {
    return !t.defined() || reinterpret_cast<uintptr_t>(t.data()) % 16 == 0;
  };
  return x.dtype() == DType::bf16 && value.dtype() == DType::bf16 && value.shape().rank() == 2 &&
         x.value().rows() % 16 == 0 && value.dim(0) % 16 == 0 && value.dim(1) % 32 == 0 && is_aligned(value) &&
         is_aligned(w.grad) && (!b || (is_aligned(b->fetch_value()) && is_aligned(b->grad)));
}

int64_t scale_state_size() {
  return int64_t{kernel::cuda::kScaleStateSize} * std::ssize(kRoles);
}

void save_scales(float* numbers, std::span<const Weight* const> weights, const device::Stream& stream) {
  kernel::cuda::save_scales(numbers, scale_keys(weights), stream);
}

void load_scales(const float* numbers, std::span<const Weight* const> weights, const device::Stream& stream) {
  kernel::cuda::load_scales(numbers, scale_keys(weights), stream);
}

Variable fp8_linear(Tape& tape, const Variable& x, Weight& w, Weight* b) {
  const tensor::Context& context = tape.context();
  const bool records = tape.must_record({&x}, {&w, b});
  const int64_t rows = x.value().rows(), in = x.value().dim(-1), out = w.value.dim(1);
  EncodedMatrix input = encode(context, w, kInput, {.x = x.value().data()}, rows, in, layouts_for_backward(records, w));
  EncodedMatrix value = encode_weight(context, w, Layouts::both);
  Variable y = fp8_gemm(context, x.shape().with_last(out), input, value, b);
  if (!records) return y;
  y = tape.output(y.value());
  input.rows = value.columns = {};
  tape.record<Fp8LinearNode>(1, x, y.slot(), std::move(input), std::move(value), w, b);
  return y;
}

Variable fp8_mlp(Tape& tape, const Variable& x, const Fp8Mlp& p) {
  const tensor::Context& context = tape.context();
  const bool records = tape.must_record({&x}, {&p.w1, p.b1, &p.w2, p.b2});
  const int64_t rows = x.value().rows(), in = x.value().dim(-1);
  Fp8MlpNode::SavedTensors saved;
  saved.input = encode(context, p.w1, kInput, {.x = x.value().data()}, rows, in, layouts_for_backward(records, p.w1));
  saved.value1 = encode_weight(context, p.w1, Layouts::both);
  const int64_t wide = saved.value1.rows.dim(1), width = p.gated ? wide / 2 : wide;
  saved.pre = fp8_gemm(context, x.shape().with_last(wide), saved.input, saved.value1, p.b1);
  saved.input.rows = saved.value1.columns = {};
  saved.hidden = encode(context, p.w2, kInput, Fp8MlpNode::hidden_source(saved.pre, p), rows, width,
                        layouts_for_backward(records && p.keep, p.w2));
  saved.value2 = encode_weight(context, p.w2, Layouts::both);
  Variable y = fp8_gemm(context, x.shape().with_last(saved.value2.rows.dim(1)), saved.hidden, saved.value2, p.b2);
  if (!records) return y;
  y = tape.output(y.value());
  saved.hidden.rows = saved.value2.columns = {};
  tape.record<Fp8MlpNode>(1, x, y.slot(), std::move(saved), p);
  return y;
}

}  // namespace esp::autograd
