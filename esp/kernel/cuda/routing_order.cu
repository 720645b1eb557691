// Mixture of experts: computes the position of each choice in the buffer that is ordered by expert. All arithmetic is
// in integers, so results are bit-identical to the CPU.
//
// The choices of one expert must keep their order. So one thread block per expert loops over all choices in order; each
// round processes as many choices as the block has threads. The position of a choice is the number of this expert's
// choices in earlier rounds, plus the number of its choices in lower threads of this round. There are few experts and
// little data, so everything stays in cache.
#include <type_traits>

#include "esp/kernel/cuda/row_reduce.cuh"
#include "esp/kernel/routing.h"

namespace esp::kernel::cuda {
namespace {

constexpr int kRankThreads = 1024;  // threads per block

// rank_in_block counts the threads of the block that pass mine = true: `before` counts those with a lower index than
// the calling thread, `all` counts all of them. All threads of the block must call it.
struct BlockRank {
  int before, all;
};
__device__ __forceinline__ BlockRank rank_in_block(bool mine) {
  __shared__ int of_warp[kRankThreads / 32];
  const unsigned voters = __ballot_sync(0xffffffffu, mine);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) of_warp[warp] = __popc(voters);
  __syncthreads();
  BlockRank order{__popc(voters & ((1u << lane) - 1)), 0};
  for (int w = 0; w < kRankThreads / 32; ++w) {
    if (w < warp) order.before += of_warp[w];
    order.all += of_warp[w];
  }
  __syncthreads();  // the next round may now overwrite of_warp
  return order;
}

// Number of choices that a thread block counts. It counts a contiguous range of choices of one group in shared memory,
// then adds its counts to the result.
constexpr int64_t kCountedPerBlock = 16 * kThreads;
__global__ void __launch_bounds__(kThreads)
    count_kernel(unsigned long long* counts, const int32_t* choices, int64_t per_group, int num_experts) {
  extern __shared__ int here[];
  for (int e = static_cast<int>(threadIdx.x); e < num_experts; e += kThreads) here[e] = 0;
  __syncthreads();
  const int64_t group = blockIdx.y, first = int64_t{blockIdx.x} * kCountedPerBlock;
  const int64_t last = min(first + kCountedPerBlock, per_group);
  for (int64_t i = first + threadIdx.x; i < last; i += kThreads)
    if (const int32_t e = choices[group * per_group + i]; e >= 0) atomicAdd(&here[e], 1);
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < num_experts; e += kThreads)
    if (here[e]) atomicAdd(&counts[group * num_experts + e], static_cast<unsigned long long>(here[e]));
}

// Block (e, g) processes expert e and group g: the first choices of the group's tokens in order, then the second
// choices, and so on.
__global__ void __launch_bounds__(kRankThreads)
    drop_kernel(int32_t* kept, const int32_t* choices, int64_t tokens, int64_t num_chosen, int64_t capacity) {
  const auto expert = static_cast<int32_t>(blockIdx.x);
  const int64_t group = int64_t{blockIdx.y} * tokens;
  int64_t taken = 0;
  for (int64_t j = 0; j < num_chosen; ++j)
    for (int64_t first = 0; first < tokens; first += kRankThreads) {
      const int64_t t = first + threadIdx.x, at = (group + t) * num_chosen + j;
      const bool mine = t < tokens && choices[at] == expert;
      const BlockRank order = rank_in_block(mine);
      if (mine) kept[at] = taken + order.before < capacity ? expert : -1;
      taken += order.all;
    }
}

__global__ void __launch_bounds__(kRankThreads) place_kernel(int32_t* places, int32_t* sources, const int64_t* counts,
                                                             const int32_t* kept, int64_t count, int64_t num_chosen) {
  const auto expert = static_cast<int32_t>(blockIdx.x);
  int64_t next = 0;
  for (int32_t e = 0; e < expert; ++e) next += counts[e];
  for (int64_t first = 0; first < count; first += kRankThreads) {
    const int64_t i = first + threadIdx.x;
    const int32_t choice = i < count ? kept[i] : -1;
    const bool mine = i < count && choice == expert;
    const BlockRank order = rank_in_block(mine);
    if (mine) {
      const auto place = static_cast<int32_t>(next + order.before);
      places[i] = place;
      sources[place] = static_cast<int32_t>(i / num_chosen);
    } else if (expert == 0 && i < count && choice < 0) {
      places[i] = -1;
    }
    next += order.all;
  }
}

__global__ void pick_kernel(int32_t* here, const int32_t* all, const int32_t* numbers, int64_t count, int64_t width) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) here[i] = all[numbers[i / width] * width + i % width];
}
__global__ void put_kernel(int32_t* all, const int32_t* here, const int32_t* numbers, int64_t count, int64_t width) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) all[numbers[i / width] * width + i % width] = here[i];
}

template <typename A>
__global__ void slopes_kernel(A* slopes, const int64_t* loads, double factor, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) slopes[i] = static_cast<A>(factor * static_cast<double>(loads[i]));
}

// Sums for metrics. They are not time-critical, so one block is enough. The order is fixed: first the rows of a thread,
// then the threads.
template <typename A>
__global__ void __launch_bounds__(kThreads)
    sums_kernel(RouteSums* sums, const A* probabilities, const A* lse, const int64_t* loads, double by,
                RouteLosses losses, int64_t rows, int64_t E) {
  __shared__ double partials[kThreads / 32 * 2];
  double values[2] = {0, 0};
  for (int64_t r = threadIdx.x; r < rows; r += kThreads) {
    const int64_t* load = loads + (losses.numbers ? losses.numbers[r] : r) / losses.rows_per_group * E;
    double here = 0;
    for (int64_t e = 0; e < E; ++e)
      here += static_cast<double>(load[e]) * static_cast<double>(probabilities[r * E + e]);
    values[0] += here * by;
    values[1] += static_cast<double>(lse[r]) * static_cast<double>(lse[r]);
  }
  row_sums<kThreads>(values, partials);
  if (threadIdx.x == 0) *sums = {values[0], values[1]};
}

unsigned blocks_for(int64_t count) {
  return static_cast<unsigned>(ceil_div(count, kThreads));
}

}  // namespace

void route_losses(void* slopes, RouteSums* sums, const void* probabilities, const void* lse, const int64_t* loads,
                  int64_t groups, double scale, const RouteLosses& losses, const RouteShape& shape, DType dtype,
                  const device::Stream& stream) {
  ESP_CHECK(dtype == DType::f32 || dtype == DType::f64, "routing: got dtype {}; expected f32 or f64", name_of(dtype));
  device::CudaQueue& queue = queue_of(stream);
  const int64_t E = shape.num_experts, count = groups * E;
  const double by = static_cast<double>(E) / static_cast<double>(losses.rows_per_group * shape.num_chosen);
  auto* partials = sums ? static_cast<RouteSums*>(queue.scratch(sizeof(RouteSums))) : nullptr;
  const auto run = [&]<typename A>(std::type_identity<A>) {
    if (count) {
      slopes_kernel<<<blocks_for(count), kThreads, 0, queue.handle>>>(static_cast<A*>(slopes), loads, scale * by,
                                                                      count);
      ESP_CUDA_LAUNCHED();
    }
    if (!sums) return;
    sums_kernel<<<1, kThreads, 0, queue.handle>>>(partials, static_cast<const A*>(probabilities),
                                                  static_cast<const A*>(lse), loads, by, losses, shape.rows, E);
    ESP_CUDA_LAUNCHED();
  };
  dtype == DType::f64 ? run(std::type_identity<double>{}) : run(std::type_identity<float>{});
  if (!sums) return;
  ESP_CUDA_CHECK(cudaMemcpyAsync(sums, partials, sizeof(RouteSums), cudaMemcpyDefault, queue.handle));
  ESP_CUDA_CHECK(cudaStreamSynchronize(queue.handle));
}

void count_choices(int64_t* counts, const int32_t* choices, int64_t groups, int64_t per_group, int64_t num_experts,
                   const device::Stream& stream) {
  constexpr int64_t kMaxExperts = 12 << 10;  // the counts must fit in the shared memory of a block
  ESP_CHECK(num_experts <= kMaxExperts && groups < 65536,
            "count_choices: got {} groups, {} experts; expected at most 65535 groups, 12288 experts", groups,
            num_experts);
  if (groups * num_experts == 0) return;
  ESP_CUDA_CHECK(
      cudaMemsetAsync(counts, 0, static_cast<size_t>(groups * num_experts) * sizeof(int64_t), handle_of(stream)));
  if (per_group == 0) return;
  const dim3 grid(static_cast<unsigned>(ceil_div(per_group, kCountedPerBlock)), static_cast<unsigned>(groups));
  count_kernel<<<grid, kThreads, static_cast<size_t>(num_experts) * sizeof(int), handle_of(stream)>>>(
      reinterpret_cast<unsigned long long*>(counts), choices, per_group, static_cast<int>(num_experts));
  ESP_CUDA_LAUNCHED();
}

void gather_choices(int32_t* here, const int32_t* all, const int32_t* numbers, int64_t rows, int64_t width,
                    const device::Stream& stream) {
  if (rows * width == 0) return;
  pick_kernel<<<blocks_for(rows * width), kThreads, 0, handle_of(stream)>>>(here, all, numbers, rows * width, width);
  ESP_CUDA_LAUNCHED();
}

void scatter_choices(int32_t* all, const int32_t* here, const int32_t* numbers, int64_t rows, int64_t width,
                     const device::Stream& stream) {
  if (rows * width == 0) return;
  put_kernel<<<blocks_for(rows * width), kThreads, 0, handle_of(stream)>>>(all, here, numbers, rows * width, width);
  ESP_CUDA_LAUNCHED();
}

void drop_overflow(int32_t* kept, const int32_t* choices, int64_t groups, int64_t tokens, int64_t num_chosen,
                   int64_t num_experts, int64_t capacity, const device::Stream& stream) {
  ESP_CHECK(groups < 65536, "drop_overflow: got {} groups; expected at most 65535", groups);
  if (groups * tokens * num_chosen == 0) return;
  const dim3 grid(static_cast<unsigned>(num_experts), static_cast<unsigned>(groups));
  drop_kernel<<<grid, kRankThreads, 0, handle_of(stream)>>>(kept, choices, tokens, num_chosen, capacity);
  ESP_CUDA_LAUNCHED();
}

int64_t order_by_expert(int32_t* places, int32_t* sources, int64_t* counts, const int32_t* kept, int64_t rows,
                        int64_t num_chosen, int64_t num_experts, const device::Stream& stream) {
  device::CudaQueue& queue = queue_of(stream);
  const int64_t count = rows * num_chosen;
  const size_t bytes = static_cast<size_t>(num_experts) * sizeof(int64_t);
  auto* on_device = static_cast<int64_t*>(queue.scratch(bytes));
  count_choices(on_device, kept, 1, count, num_experts, stream);
  if (count) {
    place_kernel<<<static_cast<unsigned>(num_experts), kRankThreads, 0, queue.handle>>>(places, sources, on_device,
                                                                                        kept, count, num_chosen);
    ESP_CUDA_LAUNCHED();
  }
  ESP_CUDA_CHECK(cudaMemcpyAsync(counts, on_device, bytes, cudaMemcpyDefault, queue.handle));
  ESP_CUDA_CHECK(cudaStreamSynchronize(queue.handle));
  int64_t total = 0;
  for (int64_t e = 0; e < num_experts; ++e) total += counts[e];
  return total;
}

}  // namespace esp::kernel::cuda
