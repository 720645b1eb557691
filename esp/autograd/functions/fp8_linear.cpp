#include "esp/autograd/functions/fp8_linear.h"

#include <vector>

#include "esp/autograd/functions/weights.h"
#include "esp/device/on_cuda.h"
#include "esp/kernel/cuda/fp8_codes.h"

namespace esp::autograd {
namespace {

using device::MemoryCategory;
using kernel::cuda::Fp8;
using kernel::cuda::Fp8GemmOptions;
using kernel::cuda::Fp8Of;
using kernel::cuda::Fp8Scale;
using kernel::cuda::Fp8Source;
using tensor::Tensor;

// What a scale belongs to, beside the weight: the weight, the map's input, the gradient of its output.
enum Role : int { kValue, kInput, kGradient };

struct Coded {
  Tensor rows, columns;
  const Fp8Scale* scale = nullptr;
};
enum class Make : uint8_t { rows, columns, both };

Fp8 kind_of(Role role) {
  return role == kGradient ? Fp8::e5m2 : Fp8::e4m3;
}

constexpr Role kRoles[] = {kValue, kInput, kGradient};
std::vector<kernel::cuda::ScaleOwner> owners_of(std::span<const Weight* const> weights) {
  std::vector<kernel::cuda::ScaleOwner> owners;
  for (const Weight* weight : weights)
    for (Role role : kRoles) owners.push_back({weight, role, kind_of(role)});
  return owners;
}

// The sums of the columns of a gradient are the bias' gradient.
Coded code(const tensor::Context& context, const Weight& owner, Role role, const Fp8Source& source, int64_t rows,
           int64_t cols, Make make, Weight* bias = nullptr) {
  const auto [scale, fresh] = kernel::cuda::kept_scale(&owner, role, kind_of(role), context.stream);
  if (fresh) {  // look first: nothing is known of its size
    kernel::cuda::make_codes({}, source, rows, cols, scale, kind_of(role), DType::bf16, context.stream);
    kernel::cuda::update_fp8_scales(scale, 1, kind_of(role), context.stream);
  }
  Coded coded;
  coded.scale = scale;
  if (make != Make::columns) coded.rows = tensor::empty(context, {rows, cols}, DType::u8, MemoryCategory::activation);
  if (make != Make::rows) coded.columns = tensor::empty(context, {cols, rows}, DType::u8, MemoryCategory::activation);
  kernel::cuda::Fp8Codes to{.rows = coded.rows.data(), .columns = coded.columns.data()};
  if (bias && bias->trained) {
    to.accumulate = beta_for(*bias) != 0;
    to.column_sums = bias->grad.data();
  }
  kernel::cuda::make_codes(to, source, rows, cols, scale, kind_of(role), DType::bf16, context.stream);
  return coded;
}

Coded code_weight(const tensor::Context& context, const Weight& w, Make make) {
  const Tensor& value = w.used_value();
  return code(context, w, kValue, {.x = value.data()}, value.dim(0), value.dim(1), make);
}

// y = x·W + b from the rows of x and the columns of W.
Tensor product(const tensor::Context& context, const tensor::Shape& shape, const Coded& x, const Coded& w,
               const Weight* b) {
  Tensor y = tensor::empty(context, shape, DType::bf16, MemoryCategory::activation);
  Fp8GemmOptions options;
  options.bias = b ? b->used_value().data() : nullptr;
  options.fast_sums = true;
  kernel::cuda::gemm_fp8(y.data(), x.rows.data(), x.scale, w.columns.data(), w.scale, y.rows(), y.dim(-1),
                         w.columns.dim(1), options, DType::bf16, context.stream);
  return y;
}

// dx = dy·Wᵀ from the rows of both.
void input_grad_gemm(const tensor::Context& context, const GradientTarget& into, const Coded& dy, const Coded& w) {
  if (!into.tensor.defined()) return;
  Fp8GemmOptions options;
  options.kind_a = Fp8::e5m2;
  options.accumulate = into.accumulate;
  options.fast_sums = true;
  kernel::cuda::gemm_fp8(into.tensor.data(), dy.rows.data(), dy.scale, w.rows.data(), w.scale, dy.rows.dim(0),
                         w.rows.dim(0), w.rows.dim(1), options, DType::bf16, context.stream);
}

// dW = xᵀ·dy from the columns of both. Sums over all rows of a batch are long: they keep their bits.
void weight_grad_gemm(const tensor::Context& context, Weight& w, const Coded& x, const Coded& dy) {
  if (!w.trained) return;
  Fp8GemmOptions options;
  options.kind_b = Fp8::e5m2;
  options.accumulate = beta_for(w) != 0;
  kernel::cuda::gemm_fp8(w.grad.data(), x.columns.data(), x.scale, dy.columns.data(), dy.scale, x.columns.dim(0),
                         dy.columns.dim(0), x.columns.dim(1), options, DType::bf16, context.stream);
}

Make for_backward(bool records, const Weight& w) {
  return records && w.trained ? Make::both : Make::rows;
}

class EightBitLinearNode final : public Node {
 public:
  EightBitLinearNode(const Variable& x, int y, Coded input, Coded value, Weight& w, Weight* b)
      : x_(x.slot()), y_(y), input_(std::move(input)), value_(std::move(value)), w_(w), b_(b), trained_{&w, b} {}

  void backward_input(Tape& tape) override {
    const tensor::Context& context = tape.context();
    const Tensor& dy = tape.gradient_of(y_);
    dy_ = code(context, w_, kGradient, {.x = dy.data()}, dy.rows(), dy.dim(-1), Make::both, b_);
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
  Coded input_, value_, dy_;
  Weight& w_;
  Weight* b_;
  TrainedWeights trained_;
};

class EightBitPerceptronNode final : public Node {
 public:
  struct Kept {
    Tensor pre;
    Coded input, hidden, value1, value2;
  };
  EightBitPerceptronNode(const Variable& x, int y, Kept kept, const Fp8Mlp& p)
      : x_(x.slot()), y_(y), kept_(std::move(kept)), p_(p), trained_{&p.w1, p.b1, &p.w2, p.b2} {}

  static Fp8Source hidden_of(const Tensor& pre, const Fp8Mlp& p) {
    return {.x = pre.data(), .what = p.gated ? Fp8Of::gated : Fp8Of::activation, .activation = p.activation};
  }

  void backward_input(Tape& tape) override {
    const tensor::Context& context = tape.context();
    const Tensor& dy = tape.gradient_of(y_);
    const Tensor& pre = kept_.pre;
    const int64_t rows = dy.rows(), width = kept_.value2.rows.dim(0);
    if (p_.w2.trained && !kept_.hidden.columns.defined())
      kept_.hidden = code(context, p_.w2, kInput, hidden_of(pre, p_), rows, width, Make::columns);
    dy_ = code(context, p_.w2, kGradient, {.x = dy.data()}, rows, dy.dim(-1), Make::both, p_.b2);
    {
      const Tensor d_hidden = tape.scratch({rows, width}, DType::bf16);
      input_grad_gemm(context, {d_hidden, false}, dy_, kept_.value2);
      const Fp8Source slope{.x = d_hidden.data(),
                            .pre = pre.data(),
                            .what = p_.gated ? Fp8Of::gated_slope : Fp8Of::slope,
                            .activation = p_.activation};
      d_pre_ = code(context, p_.w1, kGradient, slope, rows, pre.dim(-1), Make::both, p_.b1);
    }
    kept_.pre = {};
    if (x_ >= 0) input_grad_gemm(context, tape.gradient_into(x_), d_pre_, kept_.value1);
    dy_.rows = d_pre_.rows = {};
    kept_.value1 = kept_.value2 = {};
  }
  void backward_weight(Tape& tape) override {
    weight_grad_gemm(tape.context(), p_.w2, kept_.hidden, dy_);
    kept_.hidden = dy_ = {};
    weight_grad_gemm(tape.context(), p_.w1, kept_.input, d_pre_);
    kept_.input = d_pre_ = {};
  }
  std::span<Weight* const> weights() const override { return trained_.span(); }

 private:
  int x_, y_;
  Kept kept_;
  Coded dy_, d_pre_;
  Fp8Mlp p_;
  TrainedWeights trained_;
};

}  // namespace

bool fp8_enabled(const tensor::Context& context) {
  return device::on_cuda(context.stream) && kernel::cuda::wants_fp8(context.stream);
}

bool fp8_applicable(const tensor::Context& context, const Variable& x, const Weight& w, const Weight* b) {
  if (!fp8_enabled(context)) return false;
  const Tensor& value = w.used_value();
  const auto on_sixteen = [](const Tensor& t) {
    return !t.defined() || reinterpret_cast<uintptr_t>(t.data()) % 16 == 0;
  };
  return x.dtype() == DType::bf16 && value.dtype() == DType::bf16 && value.shape().rank() == 2 &&
         x.value().rows() % 16 == 0 && value.dim(0) % 16 == 0 && value.dim(1) % 32 == 0 && on_sixteen(value) &&
         on_sixteen(w.grad) && (!b || (on_sixteen(b->used_value()) && on_sixteen(b->grad)));
}

int64_t scale_numbers() {
  return int64_t{kernel::cuda::kScaleNumbers} * std::ssize(kRoles);
}

void save_scales(float* numbers, std::span<const Weight* const> weights, const device::Stream& stream) {
  kernel::cuda::save_scales(numbers, owners_of(weights), stream);
}

void load_scales(const float* numbers, std::span<const Weight* const> weights, const device::Stream& stream) {
  kernel::cuda::load_scales(numbers, owners_of(weights), stream);
}

Variable fp8_linear(Tape& tape, const Variable& x, Weight& w, Weight* b) {
  const tensor::Context& context = tape.context();
  const bool records = tape.wants({&x}, {&w, b});
  const int64_t rows = x.value().rows(), in = x.value().dim(-1), out = w.value.dim(1);
  Coded input = code(context, w, kInput, {.x = x.value().data()}, rows, in, for_backward(records, w));
  Coded value = code_weight(context, w, Make::both);
  Variable y = product(context, x.shape().with_last(out), input, value, b);
  if (!records) return y;
  y = tape.output(y.value());
  input.rows = value.columns = {};
  tape.record<EightBitLinearNode>(1, x, y.slot(), std::move(input), std::move(value), w, b);
  return y;
}

Variable fp8_mlp(Tape& tape, const Variable& x, const Fp8Mlp& p) {
  const tensor::Context& context = tape.context();
  const bool records = tape.wants({&x}, {&p.w1, p.b1, &p.w2, p.b2});
  const int64_t rows = x.value().rows(), in = x.value().dim(-1);
  EightBitPerceptronNode::Kept kept;
  kept.input = code(context, p.w1, kInput, {.x = x.value().data()}, rows, in, for_backward(records, p.w1));
  kept.value1 = code_weight(context, p.w1, Make::both);
  const int64_t wide = kept.value1.rows.dim(1), width = p.gated ? wide / 2 : wide;
  kept.pre = product(context, x.shape().with_last(wide), kept.input, kept.value1, p.b1);
  kept.input.rows = kept.value1.columns = {};
  kept.hidden = code(context, p.w2, kInput, EightBitPerceptronNode::hidden_of(kept.pre, p), rows, width,
                     for_backward(records && p.keep, p.w2));
  kept.value2 = code_weight(context, p.w2, Make::both);
  Variable y = product(context, x.shape().with_last(kept.value2.rows.dim(1)), kept.hidden, kept.value2, p.b2);
  if (!records) return y;
  y = tape.output(y.value());
  kept.hidden.rows = kept.value2.columns = {};
  tape.record<EightBitPerceptronNode>(1, x, y.slot(), std::move(kept), p);
  return y;
}

}  // namespace esp::autograd
