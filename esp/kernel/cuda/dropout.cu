// Dropout. The random words of a pack are drawn in registers by the thread that uses them.
#include "esp/kernel/dropout.h"

#include <cmath>

#include "esp/kernel/cuda/elements.cuh"
#include "esp/kernel/cuda/philox.cuh"

namespace esp::kernel::cuda {
namespace {

// Each pack lies in one row. If N > 1, the global index of a pack is a multiple of 4, the start of a Philox block.
template <typename T, int N, bool kResidual, bool kFlat>
struct DropoutOp {
  struct Inputs {
    Pack<T, N> x, residual;
  };
  T* y;
  const T *x, *residual;
  int64_t origin, per_row, row_stride;  // per_row: number of packs in a row; with kFlat the tensor is one long row
  Philox words;
  uint32_t least;
  Accumulator<T> scale;

  __device__ Inputs load(int64_t i) const {
    Inputs in;
    in.x = load_pack<N>(x + i * N);
    if constexpr (kResidual) in.residual = load_pack<N>(residual + i * N);
    return in;
  }
  __device__ void apply(int64_t i, const Inputs& in) const {
    int64_t index = origin + i * N;
    if constexpr (!kFlat) {
      const auto [row, col] = divide(i, per_row);
      index = origin + row * row_stride + col * N;
    }
    Accumulator<T> values[N];
    uint4 block;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (k % 4 == 0) block = words.block(static_cast<uint64_t>(index + k) / 4);
      const uint32_t word = word_of(block, N == 1 ? static_cast<int>(index % 4) : k % 4);
      // Computed for dropped elements too, so that the compiler uses a select instead of a branch
      const Accumulator<T> kept = widen(in.x.at[k]) * scale;
      values[k] = word < least ? Accumulator<T>{0} : kept;
      if constexpr (kResidual) values[k] += widen(in.residual.at[k]);
    }
    store_pack<N>(y + i * N, narrow_all<T>(values));
  }
};

}  // namespace

void dropout(void* y, const void* x, const void* residual, const DropoutShape& shape, DropoutKey key, DType dtype,
             const device::Stream& stream) {
  ESP_CHECK(shape.rate >= 0 && shape.rate < 1, "dropout rate: got {}; must be >= 0 and < 1", shape.rate);
  const int64_t stride = shape.row_stride ? shape.row_stride : shape.cols;
  const int64_t origin = shape.first_row * stride + shape.first_col, count = shape.rows * shape.cols;
  const bool flat = stride == shape.cols;
  const auto least = static_cast<uint32_t>(std::min(std::ceil(shape.rate * 0x1p32), 4294967295.0));
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    auto run = [&](auto width, int64_t first, int64_t n) {
      auto launch = [&](auto with_residual, auto one_row) {
        // A thread loads several packs before it draws the words of the first one.
        launch_pass<with_residual() ? 2 : 4>(
            DropoutOp<T, width(), with_residual(), one_row()>{
                static_cast<T*>(y) + first, static_cast<const T*>(x) + first,
                residual ? static_cast<const T*>(residual) + first : nullptr, origin + first, shape.cols / width(),
                stride, Philox(key.seed, key.purpose), least, static_cast<Accumulator<T>>(1 / (1 - shape.rate))},
            n / width(), handle_of(stream));
      };
      auto with_rows = [&](auto with_residual) {
        flat ? launch(with_residual, std::true_type{}) : launch(with_residual, std::false_type{});
      };
      residual ? with_rows(std::true_type{}) : with_rows(std::false_type{});
    };
    // A pack uses whole Philox blocks, so it has at least four elements.
    constexpr int kWidth = kPack<T> < 4 ? 4 : kPack<T>;
    const bool whole = aligned(y, x, residual) && origin % 4 == 0;
    if (flat)
      for_packs<kWidth>(count, whole, run);
    else if (whole && stride % 4 == 0 && shape.cols % kWidth == 0)
      run(std::integral_constant<int, kWidth>{}, 0, count);
    else
      run(std::integral_constant<int, 1>{}, 0, count);
  });
}

}  // namespace esp::kernel::cuda
