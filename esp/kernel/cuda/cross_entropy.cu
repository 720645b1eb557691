// Cross entropy: one thread block per row of logits. The row is read once for its maximum and the sum of exponentials.
// The gradient reads the row again, from cache, and overwrites it. If a call computes both loss and gradient, and the
// row fits in shared memory, the row stays in shared memory between the two computations.
#include "esp/kernel/cross_entropy.h"

#include "esp/kernel/cuda/online_softmax.cuh"
#include "esp/kernel/vocab_parallel_cross_entropy.h"

namespace esp::kernel::cuda {
namespace {

constexpr int kShort = 256, kLong = 512, kWhole = 1024;
constexpr int64_t kLongRow = 8192;

template <typename T>
struct CrossEntropyArgs {
  T* logits;
  const int32_t* targets;
  int64_t num_classes, row_stride, first_class;
  Accumulator<T>*losses, *lse;          // outputs when a row holds all classes
  Accumulator<T>*tops, *sums, *picked;  // outputs when a row holds the classes of a vocabulary shard
  Accumulator<T> scale;
};

enum class Pass { forward, backward, fused, part_forward, part_backward, softmax };

// Long rows that are read twice use a large thread block. Fewer rows are then processed at a time, so a row is more
// likely to be in L2 for its second read.
template <Pass what, int kBlock, int N, typename T>
__global__ void __launch_bounds__(kBlock, kBlock == kWhole && sizeof(T) < 8 ? 2 : 1) row_kernel(CrossEntropyArgs<T> a) {
  using A = Accumulator<T>;
  __shared__ A partials[2][kBlock / 32];
  const int64_t r = blockIdx.x;
  T* row = a.logits + r * a.row_stride;
  const int64_t target = what == Pass::softmax || a.targets[r] < 0 ? -1 : a.targets[r] - a.first_class;
  const bool counts = what == Pass::softmax || a.targets[r] >= 0, here = target >= 0 && target < a.num_classes;
  A top = 0, inverse = 0;  // scaled_top and inverse, the arguments of probability_of
  constexpr bool kReads =
      what == Pass::forward || what == Pass::fused || what == Pass::part_forward || what == Pass::softmax;
  constexpr bool kWrites =
      what == Pass::backward || what == Pass::fused || what == Pass::part_backward || what == Pass::softmax;
  if constexpr (kReads) {
    const A at_target = here ? widen(row[target]) : A{0};
    SoftmaxSum<A> mine;
    for_row_packs<kBlock, N>(static_cast<int>(a.num_classes),
                             [&](auto width, int c) { mine.take(load_pack<width()>(row + c)); });
    const SoftmaxSum<A> all = merge_sums<kBlock>(mine, partials);
    top = all.top * kLog2E<A>;
    inverse = A{1} / all.sum;
    if (threadIdx.x == 0) {
      const A lse = all.log_sum();
      // A target out of range gives the loss NaN, because a kernel cannot throw.
      if constexpr (what == Pass::forward || what == Pass::fused) {
        a.losses[r] = !counts ? A{0} : here ? lse - at_target : A(NAN);
        if (a.lse) a.lse[r] = lse;
      } else if constexpr (what == Pass::part_forward) {
        a.tops[r] = all.top;
        a.sums[r] = all.sum;
        a.picked[r] = at_target;
      }
    }
  } else if constexpr (what == Pass::backward) {
    top = a.lse[r] * kLog2E<A>;
    inverse = 1;
  } else {
    top = a.tops[r] * kLog2E<A>;
    inverse = A{1} / a.sums[r];
  }
  if constexpr (kWrites) {
    const A scale = what == Pass::softmax ? A{1} : a.scale, factor = inverse * scale;
    const int mine = here ? static_cast<int>(target) : -1;
    for_row_packs<kBlock, N>(static_cast<int>(a.num_classes), [&](auto width, int c) {
      auto pack = load_pack<width()>(row + c);
      A value[width()];
#pragma unroll
      for (int k = 0; k < width(); ++k) value[k] = probability_of(widen(pack.at[k]), top, factor);
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

template <Pass what, typename T>
void launch_rows(const CrossEntropyArgs<T>& a, int64_t rows, const device::Stream& stream) {
  if (rows == 0) return;
  const auto grid = static_cast<unsigned>(rows);
  const bool packed = a.row_stride % kPack<T> == 0 && aligned(a.logits);
  auto launch = [&](auto block) {
    if (packed)
      row_kernel<what, block(), kPack<T>><<<grid, block(), 0, handle_of(stream)>>>(a);
    else
      row_kernel<what, block(), 1><<<grid, block(), 0, handle_of(stream)>>>(a);
  };
  constexpr bool kTwice = what == Pass::fused || what == Pass::softmax;
  if (a.num_classes >= kLongRow)
    launch(std::integral_constant < int, kTwice ? kWhole : kLong > {});
  else
    launch(std::integral_constant<int, kShort>{});
  ESP_CUDA_LAUNCHED();
}

// Copies 16 bytes to shared memory asynchronously. Only the calling thread can wait for the copy (wait_async).
__device__ __forceinline__ void copy_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n\tcp.async.commit_group;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
}
template <int kLater>
__device__ __forceinline__ void wait_async() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}

// Computes loss and gradient of rows that are kept in shared memory. Every thread copies and uses its own packs. After
// a thread has used a pack of the current row, it starts the copy of the same pack of the next row. So reads,
// arithmetic and writes overlap, and nothing is read twice.
template <int kBlock, typename T>
__global__ void __launch_bounds__(kBlock, kWhole / kBlock) held_row_kernel(CrossEntropyArgs<T> a, int64_t rows) {
  using A = Accumulator<T>;
  constexpr int N = kPack<T>;
  // A thread starts to use its packs when all their copies except the last kLate are complete.
  constexpr int kLate = 4;
  extern __shared__ __align__(16) unsigned char room[];
  __shared__ A partials[2][kBlock / 32];
  auto* const held = reinterpret_cast<Pack<T, N>*>(room);
  const int classes = static_cast<int>(a.num_classes), first = static_cast<int>(threadIdx.x);
  const int packs = (classes + N - 1) / N, mine = first < packs ? (packs - first + kBlock - 1) / kBlock : 0;
  const auto start_copy = [&](int64_t r, int p) { copy_async(held + p, a.logits + r * a.row_stride + int64_t{p} * N); };
  for (int p = first; p < packs; p += kBlock) start_copy(blockIdx.x, p);
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const int32_t target = a.targets[r];
    const bool counts = target >= 0, here = counts && target < classes;
    T* const row = a.logits + r * a.row_stride;
    const A at_target = here && first == 0 ? widen(row[target]) : A{0};
    SoftmaxSum<A> seen;
    const auto take = [&](int k) {
      Pack<T, N> pack = held[first + k * kBlock];
      // the pack contains the last class: mask the elements after it
      if (const int left = classes - (first + k * kBlock) * N; left < N) {
#pragma unroll
        for (int i = 1; i < N; ++i)
          if (i >= left) pack.at[i] = narrow<T>(A(-INFINITY));
      }
      seen.take(pack);
    };
    wait_async<kLate>();
#pragma unroll 4
    for (int k = 0; k < mine - kLate; ++k) take(k);
    wait_async<0>();
#pragma unroll
    for (int k = max(0, mine - kLate); k < mine; ++k) take(k);
    const SoftmaxSum<A> all = merge_sums<kBlock>(seen, partials);
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
      for (int k = 0; k < N; ++k) value[k] = counts ? probability_of(widen(pack.at[k]), top, factor) : A{0};
      if (here && target / N == p) {
#pragma unroll
        for (int k = 0; k < N; ++k)
          if (p * N + k == target) value[k] -= a.scale;
      }
      auto to = narrow_all<T>(value);
      if (const int left = classes - p * N; left < N) {  // elements after the last class keep their values
#pragma unroll
        for (int k = 1; k < N; ++k)
          if (k >= left) to.at[k] = pack.at[k];
      }
      store_pack<N>(row + int64_t{p} * N, to);
      if (next < rows) start_copy(next, p);
    }
  }
}

// Launches the kernel for rows in shared memory. Returns false without a launch if a row does not fit or is not
// suitable.
template <typename T>
bool shared_memory_rows(const CrossEntropyArgs<T>& a, int64_t rows, const device::Stream& stream) {
  if constexpr (sizeof(T) != 2) return false;
  const bool packed = a.row_stride % kPack<T> == 0 && aligned(a.logits);
  if (!packed || a.num_classes < kLongRow || rows == 0) return false;
  device::CudaQueue& queue = queue_of(stream);
  const size_t room = static_cast<size_t>(ceil_div(a.num_classes, kPack<T>)) * 16;
  int most = 0;  // maximum bytes of shared memory of one block
  ESP_CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, stream.device.index));
  constexpr int kTaken = 2 << 10;  // bytes reserved for `partials` and for the CUDA runtime
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
CrossEntropyArgs<T> rows_of(void* logits, const int32_t* targets, int64_t num_classes, int64_t row_stride,
                            double scale) {
  CrossEntropyArgs<T> a{};
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
    launch_rows<Pass::forward>(a, rows, stream);
  });
}

void cross_entropy_backward(void* logits, const void* lse, const int32_t* targets, double scale, int64_t rows,
                            int64_t num_classes, int64_t row_stride, DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    auto a = rows_of<T>(logits, targets, num_classes, row_stride, scale);
    a.lse = const_cast<Accumulator<T>*>(static_cast<const Accumulator<T>*>(lse));
    launch_rows<Pass::backward>(a, rows, stream);
  });
}

void cross_entropy_fused(void* losses, void* logits, const int32_t* targets, double scale, int64_t rows,
                         int64_t num_classes, int64_t row_stride, DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    auto a = rows_of<T>(logits, targets, num_classes, row_stride, scale);
    a.losses = static_cast<Accumulator<T>*>(losses);
    if (!shared_memory_rows(a, rows, stream)) launch_rows<Pass::fused>(a, rows, stream);
  });
}

void softmax_forward(void* y, const void* x, int64_t rows, int64_t cols, DType dtype, const device::Stream& stream) {
  if (y != x)
    ESP_CUDA_CHECK(cudaMemcpyAsync(y, x, static_cast<size_t>(rows * cols) * size_of(dtype), cudaMemcpyDeviceToDevice,
                                   handle_of(stream)));
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    launch_rows<Pass::softmax>(rows_of<T>(y, nullptr, cols, cols, 1), rows, stream);
  });
}

void vocab_cross_entropy_forward(void* tops, void* sums, void* picked, const void* logits, const int32_t* targets,
                                 int64_t rows, const VocabShard& part, DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    auto a = rows_of<T>(const_cast<void*>(logits), targets, part.num_classes, part.row_stride, 1);
    a.first_class = part.first_class;
    a.tops = static_cast<A*>(tops);
    a.sums = static_cast<A*>(sums);
    a.picked = static_cast<A*>(picked);
    launch_rows<Pass::part_forward>(a, rows, stream);
  });
}

void vocab_cross_entropy_backward(void* logits, const void* tops, const void* sums, const int32_t* targets,
                                  double scale, int64_t rows, const VocabShard& part, DType dtype,
                                  const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    auto a = rows_of<T>(logits, targets, part.num_classes, part.row_stride, scale);
    a.first_class = part.first_class;
    a.tops = const_cast<A*>(static_cast<const A*>(tops));
    a.sums = const_cast<A*>(static_cast<const A*>(sums));
    launch_rows<Pass::part_backward>(a, rows, stream);
  });
}

}  // namespace esp::kernel::cuda
