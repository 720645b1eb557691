// Compares norms, softmax, cross entropy and activations with the reference kernels (ref).
#include "esp/kernel/activation.h"
#include "esp/kernel/cross_entropy.h"
#include "esp/kernel/cuda/test_gpu.h"
#include "esp/kernel/norm.h"
#include "esp/kernel/softmax.h"
#include "esp/kernel/vocab_parallel_cross_entropy.h"

namespace esp::kernel {
namespace {

class RowKernelsOnGpu : public GpuTest {};

constexpr Activation kActivations[] = {Activation::none,     Activation::relu, Activation::gelu,
                                       Activation::gelu_erf, Activation::silu, Activation::tanh};

TEST_F(RowKernelsOnGpu, NormsMatchRef) {
  const std::pair<int64_t, int64_t> sizes[] = {{1, 8}, {5, 7}, {37, 768}, {20, 1030}, {9, 1600}, {6, 4096}, {3, 9000}};
  for (DType dtype : kFloating)
    for (NormKind kind : {NormKind::layer, NormKind::rms})
      for (auto [rows, dim] : sizes)
        for (bool residual : {false, true}) {
          const std::string where =
              fmt::format("{} {} {}x{}{}", name_of(dtype), kind == NormKind::layer ? "layer" : "rms", rows, dim,
                          residual ? " residual" : "");
          const NormShape shape{kind, rows, dim, 1e-5};
          const bool layer = kind == NormKind::layer;
          const DType wide = accumulator_of(dtype);
          Array x = Array::random(rows * dim, dtype, 1, 2), other = Array::random(rows * dim, dtype, 2);
          Array gamma = Array::random(dim, dtype, 3), beta = Array::random(dim, dtype, 4);
          Array y(rows * dim, dtype), sum(rows * dim, dtype), mean(rows, wide), rstd(rows, wide);
          GpuArray on_x(*this, x), on_other(*this, other), on_gamma(*this, gamma), on_beta(*this, beta);
          GpuArray on_y(*this, y), on_sum(*this, sum), on_mean(*this, mean), on_rstd(*this, rstd);
          norm_forward(on_y, layer ? static_cast<void*>(on_mean) : nullptr, on_rstd,
                       residual ? static_cast<void*>(on_sum) : nullptr, on_x,
                       residual ? static_cast<void*>(on_other) : nullptr, on_gamma,
                       layer ? static_cast<void*>(on_beta) : nullptr, shape, dtype, stream);
          ref::norm_forward(y.data(), layer ? mean.data() : nullptr, rstd.data(), residual ? sum.data() : nullptr,
                            x.data(), residual ? other.data() : nullptr, gamma.data(), layer ? beta.data() : nullptr,
                            shape, dtype);
          expect_near(on_y.fetch(), y, 16, 4, where + " y");
          expect_near(on_rstd.fetch(), rstd, 16, 1, where + " rstd");
          if (layer) expect_near(on_mean.fetch(), mean, 16, 1, where + " mean");
          if (residual) {
            EXPECT_TRUE(on_sum.fetch().same_bits(sum)) << where;
          }

          Array dy = Array::random(rows * dim, dtype, 5);
          GpuArray on_dy(*this, dy), back_mean(*this, mean), back_rstd(*this, rstd);
          const void* at_mean = layer ? static_cast<void*>(back_mean) : nullptr;
          for (bool accumulate : {false, true}) {
            Array dx = Array::random(rows * dim, dtype, 6);
            GpuArray on_dx(*this, dx);
            norm_backward_input(on_dx, on_dy, on_x, at_mean, back_rstd, on_gamma, shape, accumulate, dtype, stream);
            ref::norm_backward_input(dx.data(), dy.data(), x.data(), layer ? mean.data() : nullptr, rstd.data(),
                                     gamma.data(), shape, accumulate, dtype);
            expect_near(on_dx.fetch(), dx, 64, 4, where + " dx");
          }
          Array dgamma = Array::random(dim, dtype, 7), dbeta = Array::random(dim, dtype, 8);
          GpuArray on_dgamma(*this, dgamma), on_dbeta(*this, dbeta);
          norm_backward_weight(on_dgamma, layer ? static_cast<void*>(on_dbeta) : nullptr, on_dy, on_x, at_mean,
                               back_rstd, shape, dtype, stream);
          ref::norm_backward_weight(dgamma.data(), layer ? dbeta.data() : nullptr, dy.data(), x.data(),
                                    layer ? mean.data() : nullptr, rstd.data(), shape, dtype);
          expect_close(on_dgamma.fetch(), dgamma, rounding(dtype), where + " dgamma");
          if (layer) expect_close(on_dbeta.fetch(), dbeta, rounding(dtype), where + " dbeta");
        }
}

TEST_F(RowKernelsOnGpu, WeightGradientsOfManyRowsAreDeterministic) {
  const NormShape shape{NormKind::layer, 5000, 768, 1e-5};
  for (DType dtype : {DType::f32, DType::bf16}) {
    Array x = Array::random(shape.rows * shape.dim, dtype, 1), dy = Array::random(shape.rows * shape.dim, dtype, 2);
    Array mean(shape.rows, DType::f32), rstd(shape.rows, DType::f32), dgamma(shape.dim, dtype), dbeta(shape.dim, dtype);
    rstd.fill([](int64_t) { return 1.5; });
    GpuArray on_x(*this, x), on_dy(*this, dy), on_mean(*this, mean), on_rstd(*this, rstd);
    GpuArray first(*this, dgamma), second(*this, dgamma), other(*this, dbeta);
    norm_backward_weight(first, other, on_dy, on_x, on_mean, on_rstd, shape, dtype, stream);
    norm_backward_weight(second, nullptr, on_dy, on_x, on_mean, on_rstd, shape, dtype, stream);
    ref::norm_backward_weight(dgamma.data(), dbeta.data(), dy.data(), x.data(), mean.data(), rstd.data(), shape, dtype);
    expect_close(first.fetch(), dgamma, rounding(dtype), "dgamma");
    expect_close(other.fetch(), dbeta, rounding(dtype), "dbeta");
    EXPECT_TRUE(first.fetch().same_bits(second.fetch()));
  }
}

TEST_F(RowKernelsOnGpu, ActivationsMatchRef) {
  for (DType dtype : kFloating)
    for (Activation activation : kActivations)
      for (int64_t count : {3, 4096, 5001})
        for (int64_t shift : {0, 1}) {
          const std::string where = fmt::format("{} {} {}", name_of(dtype), name_of(activation), count);
          Array x = Array::random(count, dtype, 1, 8), y(count, dtype), dy = Array::random(count, dtype, 2);
          GpuArray on_x(*this, x, shift), on_y(*this, y, shift), on_dy(*this, dy, shift);
          activation_forward(on_y, on_x, count, activation, dtype, stream);
          ref::activation_forward(y.data(), x.data(), count, activation, dtype);
          expect_near(on_y.fetch(), y, 16, 0.1, where);
          for (bool accumulate : {false, true}) {
            Array dx = Array::random(count, dtype, 3);
            GpuArray on_dx(*this, dx, shift);
            activation_backward(on_dx, on_dy, on_x, count, activation, accumulate, dtype, stream);
            ref::activation_backward(dx.data(), dy.data(), x.data(), count, activation, accumulate, dtype);
            expect_near(on_dx.fetch(), dx, 32, 1, where + " backward");
          }
        }
}

TEST_F(RowKernelsOnGpu, SwigluMatchesRef) {
  for (DType dtype : kFloating)
    for (auto [rows, width] : {std::pair<int64_t, int64_t>{3, 5}, {17, 64}, {9, 1000}}) {
      Array x = Array::random(rows * 2 * width, dtype, 1, 6), y(rows * width, dtype), dx(rows * 2 * width, dtype);
      Array dy = Array::random(rows * width, dtype, 2);
      GpuArray on_x(*this, x), on_y(*this, y), on_dx(*this, dx), on_dy(*this, dy);
      swiglu_forward(on_y, on_x, rows, width, dtype, stream);
      ref::swiglu_forward(y.data(), x.data(), rows, width, dtype);
      expect_near(on_y.fetch(), y, 32, 1, "swiglu");
      swiglu_backward(on_dx, on_dy, on_x, rows, width, dtype, stream);
      ref::swiglu_backward(dx.data(), dy.data(), x.data(), rows, width, dtype);
      expect_near(on_dx.fetch(), dx, 64, 4, "swiglu backward");
    }
}

TEST_F(RowKernelsOnGpu, SoftmaxOfScoresMatchesRef) {
  for (DType dtype : kFloating)
    for (const SoftmaxShape& shape : {SoftmaxShape{6, 10, 0, 10, false},
                                      {64, 33, 32, 33, true},
                                      {12, 512, 6, 300, true},
                                      {3, 4000, 0, 4000, false},
                                      {4, 16, 0, 0, false}}) {
      Array x = Array::random(shape.rows * shape.cols, dtype, 1, 20),
            d = Array::random(shape.rows * shape.cols, dtype, 2);
      GpuArray on_x(*this, x), on_d(*this, d);
      softmax_forward(on_x, shape, dtype, stream);
      ref::softmax_forward(x.data(), shape, dtype);
      expect_near(on_x.fetch(), x, 64, 0.1, "softmax");
      GpuArray p(*this, x);
      softmax_backward(on_d, p, shape, dtype, stream);
      ref::softmax_backward(d.data(), x.data(), shape, dtype);
      expect_near(on_d.fetch(), d, 64, 0.5, "softmax backward");
    }
}

TEST_F(RowKernelsOnGpu, CrossEntropyMatchesRef) {
  for (DType dtype : kFloating)
    for (auto [rows, classes, stride] : {std::tuple<int64_t, int64_t, int64_t>{4, 10, 10},
                                         {7, 1000, 1024},
                                         {5, 50257, 50304},
                                         {3, 333, 333},
                                         // More rows than thread blocks. A 16-bit row of 60001 classes fits in shared
                                         // memory only if its block is alone on a multiprocessor; a row of 130000
                                         // classes does not fit.
                                         {900, 8201, 8208},
                                         {300, 60001, 60008},
                                         {2, 130000, 130000}}) {
      if (rows * classes > 1000000 && dtype != DType::bf16) continue;
      const std::string where = fmt::format("{} {}x{}/{}", name_of(dtype), rows, classes, stride);
      const DType wide = accumulator_of(dtype);
      Array logits = Array::random(rows * stride, dtype, 1, 10), losses(rows, wide), lse(rows, wide);
      std::vector<int32_t> targets;
      for (int64_t r = 0; r < rows; ++r) targets.push_back(r == 1 ? -1 : static_cast<int32_t>((r * 7919) % classes));
      GpuVector<int32_t> on_targets(*this, targets);
      GpuArray on_logits(*this, logits), on_losses(*this, losses), on_lse(*this, lse), fused(*this, logits),
          again(*this, losses);
      cross_entropy_forward(on_losses, on_lse, on_logits, on_targets, rows, classes, stride, dtype, stream);
      cross_entropy_fused(again, fused, on_targets, 0.125, rows, classes, stride, dtype, stream);
      cross_entropy_backward(on_logits, on_lse, on_targets, 0.125, rows, classes, stride, dtype, stream);
      ref::cross_entropy_forward(losses.data(), lse.data(), logits.data(), targets.data(), rows, classes, stride,
                                 dtype);
      ref::cross_entropy_backward(logits.data(), lse.data(), targets.data(), 0.125, rows, classes, stride, dtype);
      expect_near(on_losses.fetch(), losses, 32, 10, where + " losses");
      expect_near(on_lse.fetch(), lse, 32, 10, where + " lse");
      expect_near(again.fetch(), losses, 32, 10, where + " fused losses");
      expect_near(on_logits.fetch(), logits, 64, 0.01, where + " gradient");
      expect_near(fused.fetch(), logits, 64, 0.01, where + " fused gradient");
    }
}

TEST_F(RowKernelsOnGpu, InvalidTargetGivesNaN) {
  for (auto [classes, dtype] : {std::pair{10, DType::f32}, {9000, DType::bf16}}) {
    Array logits = Array::random(2 * classes, dtype, 1), losses(2, DType::f32);
    GpuVector<int32_t> targets(*this, {3, classes});
    GpuArray on_logits(*this, logits), on_losses(*this, losses);
    cross_entropy_fused(on_losses, on_logits, targets, 1, 2, classes, classes, dtype, stream);
    const Array got = on_losses.fetch();
    EXPECT_TRUE(std::isfinite(got[0]));
    EXPECT_TRUE(std::isnan(got[1]));
  }
}

TEST_F(RowKernelsOnGpu, VocabShardsMatchRef) {
  const int64_t rows = 6, classes = 400, stride = 404;
  for (DType dtype : kFloating) {
    const DType wide = accumulator_of(dtype);
    const VocabShard part{100, classes, stride};
    Array logits = Array::random(rows * stride, dtype, 1, 10), tops(rows, wide), sums(rows, wide), picked(rows, wide);
    const std::vector<int32_t> targets = {0, 100, 499, 500, -1, 321};
    GpuVector<int32_t> on_targets(*this, targets);
    GpuArray on_logits(*this, logits), on_tops(*this, tops), on_sums(*this, sums), on_picked(*this, picked);
    vocab_cross_entropy_forward(on_tops, on_sums, on_picked, on_logits, on_targets, rows, part, dtype, stream);
    ref::vocab_cross_entropy_forward(tops.data(), sums.data(), picked.data(), logits.data(), targets.data(), rows, part,
                                     dtype);
    EXPECT_TRUE(on_tops.fetch().same_bits(tops));
    EXPECT_TRUE(on_picked.fetch().same_bits(picked));
    expect_near(on_sums.fetch(), sums, 64, 1, "sums");
    GpuArray back_sums(*this, sums);
    vocab_cross_entropy_backward(on_logits, on_tops, back_sums, on_targets, 0.5, rows, part, dtype, stream);
    ref::vocab_cross_entropy_backward(logits.data(), tops.data(), sums.data(), targets.data(), 0.5, rows, part, dtype);
    expect_near(on_logits.fetch(), logits, 64, 0.01, "gradient");
  }
}

TEST_F(RowKernelsOnGpu, SoftmaxOfRowsMatchesRef) {
  for (DType dtype : kFloating)
    for (int64_t cols : {5, 64, 1001}) {
      Array x = Array::random(7 * cols, dtype, 1, 10), y(7 * cols, dtype);
      GpuArray on_x(*this, x), on_y(*this, y);
      softmax_forward(on_y, on_x, 7, cols, dtype, stream);
      ref::softmax_forward(y.data(), x.data(), 7, cols, dtype);
      expect_near(on_y.fetch(), y, 64, 0.1, "softmax");
    }
}

}  // namespace
}  // namespace esp::kernel
