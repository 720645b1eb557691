// Cross entropy: one block per row of logits. The row is read once for its maximum and the sum of exponentials; the
// gradient reads it again, from cache, and overwrites it. If both are requested and the row fits, it stays in shared
// memory in between.
#include "esp/kernel/cross_entropy.h"

#include "esp/kernel/cross_entropy_part.h"
#include "esp/kernel/cuda/soft_row.cuh"

namespace esp::kernel::cuda {
namespace {

constexpr int kShort = 256, kLong = 512, kWhole = 1024;
constexpr int64_t kLongRow = 8192;

template <typename T>
struct Rows {
  T* logits;
  const int32_t* targets;
  int64_t num_classes, row_stride, first_class;
  Accumulator<T>*losses, *lse;          // whole rows
  Accumulator<T>*tops, *sums, *picked;  // parts
  Accumulator<T> scale;
};

enum class Do { forward, backward, fused, part_forward, part_backward, softmax };

// Where a long row is read twice its block is large: the fewer rows are under way at a time, the surer a row is still
// in the second-level cache when it is read again.
template <Do what, int kBlock, int N, typename T>
__global__ void __launch_bounds__(kBlock, kBlock == kWhole && sizeof(T) < 8 ? 2 : 1) row_kernel(Rows<T> a) {
  using A = Accumulator<T>;
  __shared__ A meet[2][kBlock / 32];
  const int64_t r = blockIdx.x;
  T* row = a.logits + r * a.row_stride;
  const int64_t target = what == Do::softmax || a.targets[r] < 0 ? -1 : a.targets[r] - a.first_class;
  const bool counts = what == Do::softmax || a.targets[r] >= 0, here = target >= 0 && target < a.num_classes;
  A top = 0, inverse = 0;  // of share_of
  constexpr bool kReads = what == Do::forward || what == Do::fused || what == Do::part_forward || what == Do::softmax;
  constexpr bool kWrites =
      what == Do::backward || what == Do::fused || what == Do::part_backward || what == Do::softmax;
  if constexpr (kReads) {
    const A at_target = here ? widen(row[target]) : A{0};
    SoftSum<A> mine;
    walk_row<kBlock, N>(static_cast<int>(a.num_classes),
                        [&](auto width, int c) { mine.take(load_pack<width()>(row + c)); });
    const SoftSum<A> all = merged<kBlock>(mine, meet);
    top = all.top * kLog2E<A>;
    inverse = A{1} / all.sum;
    if (threadIdx.x == 0) {
      const A lse = all.log_sum();
      // No class of that number: nothing sensible can be said, so something visible is.
      if constexpr (what == Do::forward || what == Do::fused) {
        a.losses[r] = !counts ? A{0} : here ? lse - at_target : A(NAN);
        if (a.lse) a.lse[r] = lse;
      } else if constexpr (what == Do::part_forward) {
        a.tops[r] = all.top;
        a.sums[r] = all.sum;
        a.picked[r] = at_target;
      }
    }
  } else if constexpr (what == Do::backward) {
    top = a.lse[r] * kLog2E<A>;
    inverse = 1;
  } else {
    top = a.tops[r] * kLog2E<A>;
    inverse = A{1} / a.sums[r];
  }
  if constexpr (kWrites) {
    const A scale = what == Do::softmax ? A{1} : a.scale, factor = inverse * scale;
    const int mine = here ? static_cast<int>(target) : -1;
    walk_row<kBlock, N>(static_cast<int>(a.num_classes), [&](auto width, int c) {
      auto pack = load_pack<width()>(row + c);
      A value[width()];
#pragma unroll
      for (int k = 0; k < width(); ++k) value[k] = share_of(widen(pack.at[k]), top, factor);
      if (static_cast<unsigned>(mine - c) < static_cast<unsigned>(width())) {
#pragma unroll
        for (int k = 0; k < width(); ++k)
          if (c + k == mine) value[k] -= scale;
      }
      if (!counts) {  // ignored row
#pragma unroll
        for (int k = 0; k < width(); ++k) value[k] = 0;
      }
      store_pack<width()>(row + c, narrow_all<T>(value));
    });
  }
}

template <Do what, typename T>
void launch_rows(const Rows<T>& a, int64_t rows, const device::Stream& stream) {
  if (rows == 0) return;
  const auto grid = static_cast<unsigned>(rows);
  const bool packed = a.row_stride % kPack<T> == 0 && aligned(a.logits);
  auto launch = [&](auto block) {
    if (packed)
      row_kernel<what, block(), kPack<T>><<<grid, block(), 0, handle_of(stream)>>>(a);
    else
      row_kernel<what, block(), 1><<<grid, block(), 0, handle_of(stream)>>>(a);
  };
  constexpr bool kTwice = what == Do::fused || what == Do::softmax;
  if (a.num_classes >= kLongRow)
    launch(std::integral_constant < int, kTwice ? kWhole : kLong > {});
  else
    launch(std::integral_constant<int, kShort>{});
  ESP_CUDA_LAUNCHED();
}

// Sixteen bytes on their way to shared memory, for the thread that asks.
__device__ __forceinline__ void ask(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n\tcp.async.commit_group;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
}
template <int kLater>
__device__ __forceinline__ void wait_for_all_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}

// Loss and gradient. Every thread has packs of its own in shared memory and asks for one of the next row as soon as it
// has used up this row's: reading, arithmetic and writing go on side by side, and nothing is read twice.
template <int kBlock, typename T>
__global__ void __launch_bounds__(kBlock, kWhole / kBlock) held_row_kernel(Rows<T> a, int64_t rows) {
  using A = Accumulator<T>;
  constexpr int N = kPack<T>;
  constexpr int kLate = 4;  // packs of a thread that may still be on their way when the first is looked at
  extern __shared__ __align__(16) unsigned char room[];
  __shared__ A meet[2][kBlock / 32];
  auto* const held = reinterpret_cast<Pack<T, N>*>(room);
  const int classes = static_cast<int>(a.num_classes), first = static_cast<int>(threadIdx.x);
  const int packs = (classes + N - 1) / N, mine = first < packs ? (packs - first + kBlock - 1) / kBlock : 0;
  const auto ask_for = [&](int64_t r, int p) { ask(held + p, a.logits + r * a.row_stride + int64_t{p} * N); };
  for (int p = first; p < packs; p += kBlock) ask_for(blockIdx.x, p);
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const int32_t target = a.targets[r];
    const bool counts = target >= 0, here = counts && target < classes;
    T* const row = a.logits + r * a.row_stride;
    const A at_target = here && first == 0 ? widen(row[target]) : A{0};
    SoftSum<A> seen;
    const auto take = [&](int k) {
      Pack<T, N> pack = held[first + k * kBlock];
      if (const int left = classes - (first + k * kBlock) * N; left < N) {  // the last class is in it
#pragma unroll
        for (int i = 1; i < N; ++i)
          if (i >= left) pack.at[i] = narrow<T>(A(-INFINITY));
      }
      seen.take(pack);
    };
    wait_for_all_but<kLate>();
#pragma unroll 4
    for (int k = 0; k < mine - kLate; ++k) take(k);
    wait_for_all_but<0>();
#pragma unroll
    for (int k = max(0, mine - kLate); k < mine; ++k) take(k);
    const SoftSum<A> all = merged<kBlock>(seen, meet);
    if (first == 0) {
      const A lse = all.log_sum();
      a.losses[r] = !counts ? A{0} : here ? lse - at_target : A(NAN);
    }
    const A top = all.top * kLog2E<A>, factor = A{1} / all.sum * a.scale;
    const int64_t next = r + gridDim.x;
#pragma unroll 4
    for (int p = first; p < packs; p += kBlock) {
      const Pack<T, N> pack = held[p];
      A value[N];
#pragma unroll
      for (int k = 0; k < N; ++k) value[k] = counts ? share_of(widen(pack.at[k]), top, factor) : A{0};
      if (here && target / N == p) {
#pragma unroll
        for (int k = 0; k < N; ++k)
          if (p * N + k == target) value[k] -= a.scale;
      }
      auto to = narrow_all<T>(value);
      if (const int left = classes - p * N; left < N) {  // what lies past the last class stays
#pragma unroll
        for (int k = 1; k < N; ++k)
          if (k >= left) to.at[k] = pack.at[k];
      }
      store_pack<N>(row + int64_t{p} * N, to);
      if (next < rows) ask_for(next, p);
    }
  }
}

// False where a row does not fit.
template <typename T>
bool hold_rows(const Rows<T>& a, int64_t rows, const device::Stream& stream) {
  if constexpr (sizeof(T) != 2) return false;
  const bool packed = a.row_stride % kPack<T> == 0 && aligned(a.logits);
  if (!packed || a.num_classes < kLongRow || rows == 0) return false;
  device::CudaQueue& queue = queue_of(stream);
  const size_t room = static_cast<size_t>(ceil_div(a.num_classes, kPack<T>)) * 16;
  int most = 0;  // of a block that is alone
  ESP_CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, stream.device.index));
  constexpr int kTaken = 2 << 10;  // by us and the system
  auto launch = [&](auto block, int sharing) {
    if (room + kTaken > static_cast<size_t>(most / sharing)) return false;
    auto* kernel = held_row_kernel<block(), T>;
    ESP_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(room)));
    int resident = 0;
    ESP_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, block(), room));
    const auto grid = std::min<int64_t>(rows, int64_t{queue.multiprocessors} * resident);
    kernel<<<static_cast<unsigned>(grid), block(), room, queue.handle>>>(a, rows);
    ESP_CUDA_LAUNCHED();
    return true;
  };
  return launch(std::integral_constant<int, kLong>{}, 2) || launch(std::integral_constant<int, kWhole>{}, 1);
}

template <typename T>
Rows<T> rows_of(void* logits, const int32_t* targets, int64_t num_classes, int64_t row_stride, double scale) {
  Rows<T> a{};
  a.logits = static_cast<T*>(logits);
  a.targets = targets;
  a.num_classes = num_classes;
  a.row_stride = row_stride;
  a.scale = static_cast<Accumulator<T>>(scale);
  return a;
}

}  // namespace

void cross_entropy_forward(void* losses, void* lse, const void* logits, const int32_t* targets, int64_t rows,
                           int64_t num_classes, int64_t row_stride, DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    auto a = rows_of<T>(const_cast<void*>(logits), targets, num_classes, row_stride, 1);
    a.losses = static_cast<Accumulator<T>*>(losses);
    a.lse = static_cast<Accumulator<T>*>(lse);
    launch_rows<Do::forward>(a, rows, stream);
  });
}

void cross_entropy_backward(void* logits, const void* lse, const int32_t* targets, double scale, int64_t rows,
                            int64_t num_classes, int64_t row_stride, DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    auto a = rows_of<T>(logits, targets, num_classes, row_stride, scale);
    a.lse = const_cast<Accumulator<T>*>(static_cast<const Accumulator<T>*>(lse));
    launch_rows<Do::backward>(a, rows, stream);
  });
}

void cross_entropy_fused(void* losses, void* logits, const int32_t* targets, double scale, int64_t rows,
                         int64_t num_classes, int64_t row_stride, DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    auto a = rows_of<T>(logits, targets, num_classes, row_stride, scale);
    a.losses = static_cast<Accumulator<T>*>(losses);
    if (!hold_rows(a, rows, stream)) launch_rows<Do::fused>(a, rows, stream);
  });
}

void softmax_forward(void* y, const void* x, int64_t rows, int64_t cols, DType dtype, const device::Stream& stream) {
  if (y != x)
    ESP_CUDA_CHECK(cudaMemcpyAsync(y, x, static_cast<size_t>(rows * cols) * size_of(dtype), cudaMemcpyDeviceToDevice,
                                   handle_of(stream)));
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    launch_rows<Do::softmax>(rows_of<T>(y, nullptr, cols, cols, 1), rows, stream);
  });
}

void cross_entropy_part_forward(void* tops, void* sums, void* picked, const void* logits, const int32_t* targets,
                                int64_t rows, const ClassPart& part, DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    auto a = rows_of<T>(const_cast<void*>(logits), targets, part.num_classes, part.row_stride, 1);
    a.first_class = part.first_class;
    a.tops = static_cast<A*>(tops);
    a.sums = static_cast<A*>(sums);
    a.picked = static_cast<A*>(picked);
    launch_rows<Do::part_forward>(a, rows, stream);
  });
}

void cross_entropy_part_backward(void* logits, const void* tops, const void* sums, const int32_t* targets, double scale,
                                 int64_t rows, const ClassPart& part, DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    auto a = rows_of<T>(logits, targets, part.num_classes, part.row_stride, scale);
    a.first_class = part.first_class;
    a.tops = const_cast<A*>(static_cast<const A*>(tops));
    a.sums = const_cast<A*>(static_cast<const A*>(sums));
    launch_rows<Do::part_backward>(a, rows, stream);
  });
}

}  // namespace esp::kernel::cuda
