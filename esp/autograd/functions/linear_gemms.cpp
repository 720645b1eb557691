#include "esp/autograd/functions/linear_gemms.h"

#include "esp/autograd/functions/weights.h"
#include "esp/device/is_cuda.h"
#include "esp/kernel/cuda/weight_gemm.h"

namespace esp::autograd {

using tensor::Tensor;

Tensor forward_gemm(const tensor::Context& context, const Tensor& x, const Tensor& w,
                    const kernel::GemmOptions& options) {
  ESP_CHECK(w.shape().rank() == 2 && x.dim(-1) == w.dim(0) && x.dtype() == w.dtype(),
            "linear: got x with shape {}, W with shape {}; expected W [in, out] with in = last dimension of x, and the "
            "same dtype",
            x.shape().text(), w.shape().text());
  Tensor y = tensor::empty(context, x.shape().with_last(w.dim(1)), x.dtype(), device::MemoryCategory::activation);
  kernel::gemm(y.data(), x.data(), w.data(), x.rows(), w.dim(1), w.dim(0), options, x.dtype(), context.stream);
  return y;
}

void input_grad_gemm(const tensor::Context& context, const GradientTarget& into, const Tensor& dy, const Tensor& w,
                     const kernel::GemmOptions& options) {
  if (!into.tensor.defined()) return;
  kernel::GemmOptions all = options;
  all.transpose_b = true;
  all.beta = into.accumulate ? 1 : 0;
  kernel::gemm(into.tensor.data(), dy.data(), w.data(), dy.rows(), w.dim(0), w.dim(1), all, dy.dtype(), context.stream);
}

void weight_grad_gemm(const tensor::Context& context, Weight& w, Weight* b, const Tensor& x, const Tensor& dy,
                      const Tensor& dy_sums, bool ragged) {
  if (device::is_cuda(context.stream)) {
    kernel::cuda::WeightGradients to;
    to.ragged = ragged;
    if (w.trained) to.add_to_dw = beta_for(w) != 0, to.dw = w.grad.data();
    if (b && b->trained) to.add_to_db = beta_for(*b) != 0, to.db = b->grad.data();
    to.dy_sums = dy_sums.data();
    return kernel::cuda::weight_gemm(to, x.data(), dy.data(), x.dim(-1), dy.dim(-1), x.rows(), x.dtype(),
                                     context.stream);
  }
  if (w.trained) {
    kernel::GemmOptions options;
    options.transpose_a = true;
    options.beta = beta_for(w);
    kernel::gemm(w.grad.data(), x.data(), dy.data(), x.dim(-1), dy.dim(-1), x.rows(), options, x.dtype(),
                 context.stream);
  }
  if (b && b->trained)
    kernel::add_column_sums(gradient_to_add_to(b, context.stream), dy.data(), dy.rows(), dy.dim(-1), dy.dtype(),
                            context.stream);
}

}  // namespace esp::autograd
