// Compares fused GPU kernels with separate reference kernels (ref).
#include "esp/kernel/cuda/activation_backward.h"
#include "esp/kernel/cuda/device_scalars.h"
#include "esp/kernel/cuda/fp8_encode.h"
#include "esp/kernel/cuda/norm_backward.h"
#include "esp/kernel/cuda/test_gpu.h"
#include "esp/kernel/cuda/weight_gemm.h"
#include "esp/kernel/gemm.h"

namespace esp::kernel {
namespace {

using FusedOnGpu = GpuTest;

TEST_F(FusedOnGpu, NormGradientsMatchRef) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (int64_t dim : {64, 504, 768, 1280, 1600, 2048})
      for (int64_t rows : {1, 7, 901})
        for (NormKind kind : {NormKind::layer, NormKind::rms})
          for (bool add : {false, true}) {
            const bool layer = kind == NormKind::layer;
            const NormShape shape{kind, rows, dim, 1e-5};
            const DType wide = DType::f32;
            Array x = Array::random(rows * dim, dtype, 1), dy = Array::random(rows * dim, dtype, 2),
                  gamma = Array::random(dim, dtype, 3), dx = Array::random(rows * dim, dtype, 4),
                  dgamma = Array::random(dim, dtype, 5), dbeta = Array::random(dim, dtype, 6),
                  mean = Array::random(rows, wide, 7, 0.1), rstd = Array::random(rows, wide, 8);
            GpuArray on_x(*this, x), on_dy(*this, dy), on_gamma(*this, gamma), on_dx(*this, dx),
                on_dgamma(*this, dgamma), on_dbeta(*this, dbeta), on_mean(*this, mean), on_rstd(*this, rstd);
            cuda::NormGradients to{.dx = on_dx, .dgamma = on_dgamma, .dbeta = on_dbeta};
            to.add_to_dx = to.add_to_dgamma = to.add_to_dbeta = add;
            if (!layer) to.dbeta = nullptr;
            Array sums(dim, wide);
            GpuArray on_sums(*this, sums);
            if (layer) to.dx_sums = on_sums;
            ASSERT_TRUE(cuda::norm_backward(to, on_dy, on_x, layer ? static_cast<void*>(on_mean) : nullptr, on_rstd,
                                            on_gamma, shape, dtype, stream));
            if (!add) {
              dgamma.fill([](int64_t) { return 0; });
              if (layer) dbeta.fill([](int64_t) { return 0; });
            }
            ref::norm_backward_input(dx.data(), dy.data(), x.data(), layer ? mean.data() : nullptr, rstd.data(),
                                     gamma.data(), shape, add, dtype);
            ref::norm_backward_weight(dgamma.data(), layer ? dbeta.data() : nullptr, dy.data(), x.data(),
                                      layer ? mean.data() : nullptr, rstd.data(), shape, dtype);
            const std::string where = fmt::format("{} {}x{} {} {}", name_of(dtype), rows, dim, layer, add);
            expect_close(on_dx.fetch(), dx, rounding(dtype), where + " dx");
            if (layer) {
              const Array made = on_dx.fetch();
              for (int64_t c = 0; c < dim; ++c) {
                double sum = 0;
                for (int64_t r = 0; r < rows; ++r) sum += made[r * dim + c];
                sums.set(c, sum);
              }
              expect_close(on_sums.fetch(), sums, 2e-6, where + " sums of dx");
            }
            expect_close(on_dgamma.fetch(), dgamma, rounding(dtype), where + " dgamma");
            expect_close(on_dbeta.fetch(), dbeta, rounding(dtype), where + " dbeta");
          }
  // Rows of 100000 elements are not supported: norm_backward returns false and writes nothing.
  EXPECT_FALSE(cuda::norm_backward({}, nullptr, nullptr, nullptr, nullptr, nullptr, {NormKind::rms, 4, 100000, 1e-5},
                                   DType::bf16, stream));
}

TEST_F(FusedOnGpu, LinearGradientsMatchRef) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (auto [in, out, rows] : {std::tuple<int64_t, int64_t, int64_t>{64, 192, 512}, {768, 256, 1024}, {17, 9, 33}})
      for (bool add : {false, true})
        for (bool bias : {false, true}) {
          Array x = Array::random(rows * in, dtype, 1), dy = Array::random(rows * out, dtype, 2),
                dw = Array::random(in * out, dtype, 3), db = Array::random(out, dtype, 4);
          GpuArray on_x(*this, x), on_dy(*this, dy), on_dw(*this, dw), on_db(*this, db);
          cuda::WeightGradients to{.dw = on_dw, .db = bias ? static_cast<void*>(on_db) : nullptr};
          to.add_to_dw = to.add_to_db = add;
          cuda::weight_gemm(to, on_x, on_dy, in, out, rows, dtype, stream);
          if (bias) {  // also tests db from column sums that an earlier kernel computed
            Array known(out, DType::f32), db_known = db;
            for (int64_t c = 0; c < out; ++c) {
              double sum = 0;
              for (int64_t r = 0; r < rows; ++r) sum += dy[r * out + c];
              known.set(c, sum);
              db_known.set(c, sum + (add ? db[c] : 0));
            }
            GpuArray on_known(*this, known), on_db_known(*this, db);
            cuda::WeightGradients only{.db = on_db_known, .add_to_db = add, .dy_sums = on_known};
            cuda::weight_gemm(only, on_x, on_dy, in, out, rows, dtype, stream);
            expect_close(on_db_known.fetch(), db_known, rounding(dtype), "db of known sums");
          }
          GemmOptions options;
          options.transpose_a = true;
          options.beta = add ? 1 : 0;
          ref::gemm(dw.data(), x.data(), dy.data(), in, out, rows, options, dtype);
          if (bias) {
            if (!add) db.fill([](int64_t) { return 0; });
            for (int64_t c = 0; c < out; ++c) {
              double sum = db[c];
              for (int64_t r = 0; r < rows; ++r) sum += dy[r * out + c];
              db.set(c, sum);
            }
          }
          const std::string where = fmt::format("{} {}x{}x{} {} {}", name_of(dtype), in, out, rows, add, bias);
          const double bound = dtype == DType::f32 ? 1e-5 : rounding(dtype);
          expect_close(on_dw.fetch(), dw, bound, where + " dw");
          expect_close(on_db.fetch(), db, bound, where + " db");
        }
}

TEST_F(FusedOnGpu, RecomputesActivationOutputInBackward) {
  for (DType dtype : kFloating)
    for (Activation kind :
         {Activation::gelu, Activation::gelu_erf, Activation::relu, Activation::silu, Activation::tanh})
      for (auto [rows, cols] : {std::pair<int64_t, int64_t>{1, 8}, {33, 13}, {517, 264}})
        for (int way = 0; way < 6; ++way) {
          const int sums = way % 3;  // column sums: 0 none, 1 overwrite, 2 add
          const bool output = way < 3;
          Array d = Array::random(rows * cols, dtype, 1), pre = Array::random(rows * cols, dtype, 2, 3),
                db = Array::random(cols, dtype, 3), slope(rows * cols, dtype), again(rows * cols, dtype);
          pre.set(0, -40), pre.set(1, 40);  // for these arguments the exponential overflows
          GpuArray on_d(*this, d), on_pre(*this, pre), on_db(*this, db);
          cuda::activation_backward_fused(on_d, on_pre, output, rows, cols, kind,
                                          sums ? static_cast<void*>(on_db) : nullptr, sums == 2, dtype, stream);
          ref::activation_backward(slope.data(), d.data(), pre.data(), rows * cols, kind, false, dtype);
          ref::activation_forward(again.data(), pre.data(), rows * cols, kind, dtype);
          const std::string where = fmt::format("{} {} {}x{} {}", name_of(dtype), name_of(kind), rows, cols, way);
          const Array made = on_d.fetch();
          expect_close(made, slope, rounding(dtype), where + " gradient");
          expect_close(on_pre.fetch(), output ? again : pre, rounding(dtype), where + " output");
          for (int64_t c = 0; sums && c < cols; ++c) {
            double sum = sums == 2 ? db[c] : 0;
            for (int64_t r = 0; r < rows; ++r) sum += made[r * cols + c];
            db.set(c, sum);
          }
          expect_close(on_db.fetch(), db, rounding(dtype), where + " sums");
        }
}

TEST_F(FusedOnGpu, RecomputesSwigluOutputInBackward) {
  for (DType dtype : kFloating)
    for (auto [rows, width] : {std::pair<int64_t, int64_t>{1, 8}, {33, 13}, {257, 264}}) {
      Array d = Array::random(rows * width, dtype, 1), pre = Array::random(rows * width * 2, dtype, 2, 3);
      Array d_pre(rows * width * 2, dtype), product(rows * width, dtype);
      GpuArray on_d(*this, d), on_pre(*this, pre), on_x(*this, pre), on_product(*this, product), on_dy(*this, d),
          on_dx(*this, pre), in_place(*this, pre);
      cuda::swiglu_backward_fused(on_d, on_pre, rows, width, dtype, stream);
      ref::swiglu_backward(d_pre.data(), d.data(), pre.data(), rows, width, dtype);
      ref::swiglu_forward(product.data(), pre.data(), rows, width, dtype);
      const std::string where = fmt::format("{} {}x{}", name_of(dtype), rows, width);
      expect_close(on_pre.fetch(), d_pre, rounding(dtype), where + " gradients");
      expect_close(on_d.fetch(), product, rounding(dtype), where + " product");
      // The fused kernel must be bit-identical to two separate kernels, and backward in place to backward out of place.
      swiglu_forward(on_product, on_x, rows, width, dtype, stream);
      swiglu_backward(on_dx, on_dy, on_x, rows, width, dtype, stream);
      swiglu_backward(in_place, on_dy, in_place, rows, width, dtype, stream);
      const Array passes = on_dx.fetch(), fused = on_pre.fetch(), in_place_result = in_place.fetch(),
                  made = on_d.fetch(), forward = on_product.fetch();
      for (int64_t i = 0; i < passes.count(); ++i) {
        ASSERT_EQ(passes[i], fused[i]) << where;
        ASSERT_EQ(passes[i], in_place_result[i]) << where;
      }
      for (int64_t i = 0; i < made.count(); ++i) ASSERT_EQ(made[i], forward[i]) << where;
    }
}

TEST_F(FusedOnGpu, AdamMatchesRefForManyBuffers) {
  for (DType dtype : kFloating) {
    const bool mixed = dtype == DType::bf16 || dtype == DType::f16;
    const DType wide = accumulator_of(dtype);
    struct One {
      Array master, weights, grad, m, v;
    };
    std::vector<One> all;
    std::vector<std::unique_ptr<GpuArray>> there;
    std::vector<StepBuffers> host, gpu;
    std::vector<AdamStep> steps;
    for (int64_t count : {3, 4096, 100, 10001, 1}) {
      const auto seed = static_cast<uint64_t>(count);
      all.push_back({Array::random(count, wide, seed), Array(count, dtype), Array::random(count, dtype, seed + 1),
                     Array::random(count, wide, seed + 2, 0.1), Array(count, wide)});
      all.back().v.fill([](int64_t i) { return 1e-3 * random_unit(4, 4, static_cast<uint64_t>(i)); });
    }
    const int64_t shifts[] = {0, 0, 1, 0, 0};
    for (size_t i = 0; i < all.size(); ++i) {
      One& one = all[i];
      const auto on = [&](const Array& array) -> void* {
        there.push_back(std::make_unique<GpuArray>(*this, array, shifts[i]));
        return *there.back();
      };
      const int64_t count = one.master.count();
      gpu.push_back(
          {on(one.master), mixed ? on(one.weights) : nullptr, on(one.grad), on(one.m), on(one.v), count, dtype});
      host.push_back({one.master.data(), mixed ? one.weights.data() : nullptr, one.grad.data(), one.m.data(),
                      one.v.data(), count, dtype});
      steps.push_back({.lr = 1e-2, .weight_decay = i % 2 ? 0.1 : 0, .t = 3, .grad_scale = 0.5});
    }
    for (int turn = 0; turn < 2; ++turn) {
      // First step: all buffers in one call. Second step: two calls, like two optimizers on one queue.
      const std::span all_gpu(gpu);
      const std::span<const AdamStep> all_steps(steps);
      const size_t first = turn == 0 ? gpu.size() : 2;
      cuda::multi_tensor_adam_step(all_gpu.first(first), all_steps.first(first), stream);
      cuda::multi_tensor_adam_step(all_gpu.subspan(first), all_steps.subspan(first), stream);
      for (size_t i = 0; i < all.size(); ++i) ref::adam_step(host[i], steps[i]);
    }
    size_t at = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      expect_near(there[at++]->fetch(), all[i].master, 8, 1, fmt::format("{} master {}", name_of(dtype), i));
      if (mixed)
        expect_near(there[at++]->fetch(), all[i].weights, 8, 1, fmt::format("{} weights {}", name_of(dtype), i));
      ++at;  // skips the gradient
      expect_near(there[at++]->fetch(), all[i].m, 16, 1, fmt::format("{} m {}", name_of(dtype), i));
      expect_near(there[at++]->fetch(), all[i].v, 16, 1, fmt::format("{} v {}", name_of(dtype), i));
    }
  }
}

double decoded(uint8_t code, cuda::Fp8 kind) {
  const int bits = kind == cuda::Fp8::e4m3 ? 3 : 2, bias = kind == cuda::Fp8::e4m3 ? 7 : 15;
  const int exponent = (code & 0x7f) >> bits, rest = code & ((1 << bits) - 1);
  const double magnitude = exponent ? std::ldexp(1 + std::ldexp(rest, -bits), exponent - bias)
                                    : std::ldexp(std::ldexp(rest, -bits), 1 - bias);
  return code & 0x80 ? -magnitude : magnitude;
}

TEST_F(FusedOnGpu, Fp8EncodingMatchesRefForEveryFunction) {
  using cuda::Fp8Function;
  const DType dtype = DType::bf16;
  for (cuda::Fp8 kind : {cuda::Fp8::e4m3, cuda::Fp8::e5m2})
    for (auto [rows, cols] : {std::pair<int64_t, int64_t>{16, 32}, {80, 96}, {192, 320}})
      for (Fp8Function what : {Fp8Function::identity, Fp8Function::activation, Fp8Function::activation_gradient,
                               Fp8Function::swiglu, Fp8Function::swiglu_gradient}) {
        const int64_t x_cols = what == Fp8Function::swiglu            ? 2 * cols
                               : what == Fp8Function::swiglu_gradient ? cols / 2
                                                                      : cols;
        const Array x = Array::random(rows * x_cols, dtype, 1, 3), pre = Array::random(rows * cols, dtype, 2, 3);
        Array want(rows * cols, DType::f32), sums = Array::random(cols, dtype, 3);
        const Activation gelu = Activation::gelu;
        if (what == Fp8Function::identity) want.fill([&](int64_t i) { return x[i]; });
        Array made(rows * cols, dtype);
        if (what == Fp8Function::activation) ref::activation_forward(made.data(), x.data(), x.count(), gelu, dtype);
        if (what == Fp8Function::activation_gradient)
          ref::activation_backward(made.data(), x.data(), pre.data(), x.count(), gelu, false, dtype);
        if (what == Fp8Function::swiglu) ref::swiglu_forward(made.data(), x.data(), rows, cols, dtype);
        if (what == Fp8Function::swiglu_gradient)
          ref::swiglu_backward(made.data(), x.data(), pre.data(), rows, cols / 2, dtype);
        if (what != Fp8Function::identity) want.fill([&](int64_t i) { return made[i]; });

        GpuArray on_x(*this, x), on_pre(*this, pre), on_sums(*this, sums);
        const std::vector<uint8_t> poison(static_cast<size_t>(rows * cols), 0x7e);
        GpuVector<uint8_t> row_copy(*this, poison), column_copy(*this, poison);
        cuda::Fp8Scale start;
        start.scale = 16, start.inverse = 1.0f / 16;
        GpuVector<cuda::Fp8Scale> state(*this, {start});
        const cuda::Fp8Source from{.x = on_x, .pre = on_pre, .function = what, .activation = gelu};
        cuda::encode_fp8({.rows = row_copy, .columns = column_copy, .column_sums = on_sums, .accumulate = true}, from,
                         rows, cols, state, kind, dtype, stream);
        std::vector<uint8_t> got(poison.size()), turned(poison.size());
        ASSERT_TRUE(row_copy.copy.fetch(got.data()) && column_copy.copy.fetch(turned.data()));
        cuda::Fp8Scale seen;
        ASSERT_TRUE(state.copy.fetch(&seen));
        double highest = 0;
        // Error bound: half a unit in the last place of fp8, plus one unit of bf16, plus the smallest fp8 value
        // (the scale is 16).
        const double last = kind == cuda::Fp8::e4m3 ? 0x1p-4 : 0x1p-3,
                     least = kind == cuda::Fp8::e4m3 ? 0x1p-13 : 0x1p-20;
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < cols; ++c) {
            const double value = want[r * cols + c];
            const uint8_t code = got[static_cast<size_t>(r * cols + c)];
            ASSERT_EQ(code, turned[static_cast<size_t>(c * rows + r)])
                << static_cast<int>(what) << " " << rows << "x" << cols << " at " << r << " " << c;
            ASSERT_NEAR(decoded(code, kind) / 16, value, std::abs(value) * (last + 0x1p-7) + least)
                << static_cast<int>(what) << " at " << r << " " << c;
            highest = std::max(highest, std::abs(value));
          }
        EXPECT_NEAR(seen.amax, highest, highest * 0x1p-7);
        Array total = sums;
        for (int64_t c = 0; c < cols; ++c) {
          double sum = sums[c];
          for (int64_t r = 0; r < rows; ++r) sum += want[r * cols + c];
          total.set(c, sum);
        }
        expect_close(on_sums.fetch(), total, 2 * rounding(dtype), fmt::format("sums of {}", static_cast<int>(what)));
      }
}

TEST_F(FusedOnGpu, Fp8ScaleIsMarkedNewOnlyOnFirstRequest) {
  int owner = 0;
  const auto first = cuda::find_scale(&owner, 1, cuda::Fp8::e4m3, stream);
  const auto again = cuda::find_scale(&owner, 1, cuda::Fp8::e4m3, stream);
  const auto other = cuda::find_scale(&owner, 2, cuda::Fp8::e4m3, stream);
  EXPECT_TRUE(first.fresh && other.fresh);
  EXPECT_FALSE(again.fresh);
  EXPECT_EQ(first.scale, again.scale);
  EXPECT_NE(first.scale, other.scale);
}

}  // namespace
}  // namespace esp::kernel
