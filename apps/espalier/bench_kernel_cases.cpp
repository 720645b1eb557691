// Cases of `bench kernel`, at the shapes of two models: GPT-2 124M with 2 sequences of 512 tokens, and a byte-level
// model of 6 layers of width 384 with 8 sequences of 256 bytes.
#include <cmath>

#include <fmt/format.h>

#include "apps/espalier/bench_blas.h"
#include "apps/espalier/bench_kernel.h"
#include "esp/kernel/activation.h"
#include "esp/kernel/attention.h"
#include "esp/kernel/cross_entropy.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/gemm.h"
#include "esp/kernel/norm.h"
#include "esp/kernel/optimizer_step.h"

namespace esp::app {
namespace {

struct ModelShape {
  int64_t batch, tokens, channels, heads, vocabulary, parameters;
  int64_t rows() const { return batch * tokens; }
};
constexpr ModelShape kModels[] = {{2, 512, 768, 12, 50257, 124'439'808}, {8, 256, 384, 6, 256, 10'843'392}};

// Uniform values in [-1, 1]: the speed does not depend on the values, and sums of them do not overflow.
std::vector<std::byte> numbers(int64_t count, DType dtype, uint64_t seed) {
  std::vector<std::byte> memory(static_cast<size_t>(count) * size_of(dtype));
  kernel::fill_uniform(memory.data(), -1, 1, seed, 0, 0, count, dtype, {});
  return memory;
}

void time_matmul(KernelTimer& timer, std::string_view pass, std::vector<std::byte>& c, const std::vector<std::byte>& a,
                 const std::vector<std::byte>& b, int64_t m, int64_t n, int64_t k, const kernel::GemmOptions& options) {
  const std::string shape =
      fmt::format("{} {}x{}x{} {}{}", pass, m, n, k, options.transpose_a ? 'T' : 'N', options.transpose_b ? 'T' : 'N');
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  std::function<void()> baseline;
  if (timer.baseline()) baseline = [&] { timer.baseline()->sgemm(c.data(), a.data(), b.data(), m, n, k, options); };
  timer.flops(
      "gemm", shape, flops,
      [&] { kernel::gemm(c.data(), a.data(), b.data(), m, n, k, options, timer.dtype(), timer.stream()); }, baseline);
}

// The GEMMs of one linear layer in training (forward, input gradient, weight gradient), rows × in → out.
void time_linear(KernelTimer& timer, int64_t rows, int64_t in, int64_t out, bool weight_is_out_by_in) {
  const DType dtype = timer.dtype();
  auto x = numbers(rows * in, dtype, 1), w = numbers(in * out, dtype, 2), y = numbers(rows * out, dtype, 3);
  kernel::GemmOptions forward, input, weight;
  forward.transpose_b = weight_is_out_by_in;
  time_matmul(timer, "forward", y, x, w, rows, out, in, forward);
  input.transpose_b = !weight_is_out_by_in;
  time_matmul(timer, "input gradient", x, y, w, rows, in, out, input);
  weight.transpose_a = true;
  weight.beta = 1;
  if (weight_is_out_by_in)
    time_matmul(timer, "weight gradient", w, y, x, out, in, rows, weight);
  else
    time_matmul(timer, "weight gradient", w, x, y, in, out, rows, weight);
}

void time_gemm(KernelTimer& timer) {
  for (const ModelShape& model : kModels) {
    const int64_t c = model.channels;
    time_linear(timer, model.rows(), c, 3 * c, false);
    time_linear(timer, model.rows(), c, c, false);
    time_linear(timer, model.rows(), c, 4 * c, false);
    time_linear(timer, model.rows(), 4 * c, c, false);
    time_linear(timer, model.rows(), c, model.vocabulary, true);
  }
}

// A GEMM with one row, as in text generation. Its speed is limited by the memory bandwidth of reading the weights.
void time_gemv(KernelTimer& timer) {
  const DType dtype = timer.dtype();
  struct Weights {
    int64_t in, out;
    bool transposed;
  };
  for (const Weights& of : {Weights{768, 3072, false}, Weights{768, 50257, true}}) {
    const int64_t in = of.in, out = of.out;
    auto x = numbers(in, dtype, 1), w = numbers(in * out, dtype, 2), y = numbers(out, dtype, 3);
    kernel::GemmOptions options;
    options.transpose_b = of.transposed;
    timer.bytes("gemv", fmt::format("1x{}x{} N{}", out, in, of.transposed ? 'T' : 'N'),
                static_cast<double>(w.size() + x.size() + y.size()),
                [&] { kernel::gemm(y.data(), x.data(), w.data(), 1, out, in, options, dtype, timer.stream()); });
  }
}

void time_attention(KernelTimer& timer) {
  const DType dtype = timer.dtype();
  for (const ModelShape& model : kModels) {
    const int64_t c = model.channels, count = model.rows() * c;
    kernel::AttentionShape shape;
    shape.batch = model.batch;
    shape.num_queries = shape.num_keys = model.tokens;
    shape.heads = shape.kv_heads = model.heads;
    shape.head_dim = c / model.heads;
    shape.q = shape.k = shape.v = {model.tokens * 3 * c, 3 * c};
    shape.o = {model.tokens * c, c};
    shape.causal = true;
    shape.scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
    auto qkv = numbers(3 * count, dtype, 1), d_qkv = qkv, o = numbers(count, dtype, 2), d_o = o;
    auto lse = numbers(model.batch * model.heads * model.tokens, dtype == DType::f64 ? dtype : DType::f32, 3);
    std::vector<std::byte> workspace(
        static_cast<size_t>(kernel::attention_workspace_bytes(shape, dtype, timer.stream())));
    auto part = [&](std::vector<std::byte>& of, int64_t which) {
      return of.data() + static_cast<size_t>(which * c) * size_of(dtype);
    };
    // A causal mask leaves half of the T×T square. Forward has two GEMMs over it, backward five.
    const double half = static_cast<double>(count) * static_cast<double>(model.tokens + 1);
    const std::string text = fmt::format("{} sequences, {} tokens, {} heads of {}, causal", model.batch, model.tokens,
                                         model.heads, shape.head_dim);
    timer.flops("attention", "forward " + text, 2 * half, [&] {
      kernel::attention_forward(o.data(), lse.data(), part(qkv, 0), part(qkv, 1), part(qkv, 2), shape, dtype,
                                timer.stream());
    });
    timer.flops("attention", "backward " + text, 5 * half, [&] {
      kernel::attention_backward(part(d_qkv, 0), part(d_qkv, 1), part(d_qkv, 2), d_o.data(), o.data(), part(qkv, 0),
                                 part(qkv, 1), part(qkv, 2), lse.data(), workspace.data(), shape, dtype,
                                 timer.stream());
    });
  }
}

void time_norm(KernelTimer& timer) {
  const DType dtype = timer.dtype(), statistics = dtype == DType::f64 ? dtype : DType::f32;
  for (const ModelShape& model : kModels) {
    const kernel::NormShape shape{kernel::NormKind::layer, model.rows(), model.channels};
    const int64_t count = shape.rows * shape.dim;
    auto x = numbers(count, dtype, 1), y = x, dy = x, gamma = numbers(shape.dim, dtype, 2), beta = gamma;
    auto mean = numbers(shape.rows, statistics, 3), rstd = mean;
    const std::string text = fmt::format("{}x{}", shape.rows, shape.dim);
    const auto one = static_cast<double>(x.size());
    timer.bytes("norm", "layer forward " + text, 2 * one, [&] {
      kernel::norm_forward(y.data(), mean.data(), rstd.data(), nullptr, x.data(), nullptr, gamma.data(), beta.data(),
                           shape, dtype, timer.stream());
    });
    timer.bytes("norm", "layer input gradient " + text, 3 * one, [&] {
      kernel::norm_backward_input(y.data(), dy.data(), x.data(), mean.data(), rstd.data(), gamma.data(), shape, false,
                                  dtype, timer.stream());
    });
    timer.bytes("norm", "layer weight gradient " + text, 2 * one, [&] {
      kernel::norm_backward_weight(gamma.data(), beta.data(), dy.data(), x.data(), mean.data(), rstd.data(), shape,
                                   dtype, timer.stream());
    });
  }
}

void time_activation(KernelTimer& timer) {
  const DType dtype = timer.dtype();
  for (const ModelShape& model : kModels) {
    const int64_t count = model.rows() * 4 * model.channels;
    auto x = numbers(count, dtype, 1), y = x, dy = x;
    const auto one = static_cast<double>(x.size());
    timer.bytes("activation", fmt::format("gelu forward {}", count), 2 * one, [&] {
      kernel::activation_forward(y.data(), x.data(), count, kernel::Activation::gelu, dtype, timer.stream());
    });
    timer.bytes("activation", fmt::format("gelu gradient {}", count), 3 * one, [&] {
      kernel::activation_backward(y.data(), dy.data(), x.data(), count, kernel::Activation::gelu, false, dtype,
                                  timer.stream());
    });
  }
}

void time_cross_entropy(KernelTimer& timer) {
  const DType dtype = timer.dtype();
  for (const ModelShape& model : kModels) {
    const int64_t rows = model.rows(), classes = model.vocabulary;
    auto logits = numbers(rows * classes, dtype, 1);
    auto losses = numbers(rows, dtype == DType::f64 ? dtype : DType::f32, 2);
    std::vector<int32_t> targets(static_cast<size_t>(rows), 7);
    timer.bytes("cross_entropy", fmt::format("fused {}x{}", rows, classes), 2 * static_cast<double>(logits.size()),
                [&] {
                  kernel::cross_entropy_fused(losses.data(), logits.data(), targets.data(), 1.0, rows, classes, classes,
                                              dtype, timer.stream());
                });
  }
}

void time_optimizer(KernelTimer& timer) {
  const DType dtype = timer.dtype(), master_type = dtype == DType::f64 ? dtype : DType::f32;
  for (const ModelShape& model : kModels) {
    const int64_t count = model.parameters;
    auto master = numbers(count, master_type, 1), m = master, v = master, grad = numbers(count, dtype, 2);
    kernel::fill(v.data(), 1, count, master_type, {});
    kernel::StepBuffers buffers{master.data(), nullptr, grad.data(), m.data(), v.data(), count, dtype};
    kernel::AdamStep step;
    step.lr = 1e-4;
    step.weight_decay = 0.1;
    // An update reads and writes the weights and both moments, and reads the gradients.
    timer.bytes("optimizer", fmt::format("adamw {}", count), static_cast<double>(6 * master.size() + grad.size()),
                [&] { kernel::adam_step(buffers, step, timer.stream()); });
  }
}

constexpr KernelCase kCases[] = {
    {"gemm", "GEMMs of linear layers, forward and both gradients", time_gemm},
    {"gemv", "matrix-vector multiplication, as in text generation", time_gemv},
    {"attention", "causal attention, forward and backward", time_attention},
    {"norm", "LayerNorm, forward and both gradients", time_norm},
    {"activation", "GELU and its gradient", time_activation},
    {"cross_entropy", "cross-entropy loss and gradient of the logits in one pass", time_cross_entropy},
    {"optimizer", "one step of AdamW over all parameters", time_optimizer},
    {"compress", "gradient compressors, in GB/s of fp32 input", time_compress},
};

}  // namespace

std::span<const KernelCase> kernel_cases() {
  return kCases;
}

}  // namespace esp::app
