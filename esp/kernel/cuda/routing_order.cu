// Mixture of experts: places of choices. Integers throughout, so results are bit-identical to the CPU's.
//
// To keep the order among the choices of one expert, one block per expert walks all choices in order, a block's width
// at a time: a choice of this expert follows those of lower threads, which the block counts, and those of earlier
// rounds. Experts are few, choices short, and everything stays in cache.
#include <type_traits>

#include "esp/kernel/cuda/rows.cuh"
#include "esp/kernel/routing.h"

namespace esp::kernel::cuda {
namespace {

constexpr int kWalkers = 1024;  // threads that walk choices together

// Number of earlier threads with `mine`, and the total. All threads of the block take part.
struct Order {
  int before, all;
};
__device__ __forceinline__ Order order_in_block(bool mine) {
  __shared__ int of_warp[kWalkers / 32];
  const unsigned voters = __ballot_sync(0xffffffffu, mine);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) of_warp[warp] = __popc(voters);
  __syncthreads();
  Order order{__popc(voters & ((1u << lane) - 1)), 0};
  for (int w = 0; w < kWalkers / 32; ++w) {
    if (w < warp) order.before += of_warp[w];
    order.all += of_warp[w];
  }
  __syncthreads();  // before the next round writes
  return order;
}

// A block counts some of the choices of one group, then adds to what others counted.
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

// Block (e, g): first choices of the group's tokens in their order, then second choices, and so on.
__global__ void __launch_bounds__(kWalkers)
    drop_kernel(int32_t* kept, const int32_t* choices, int64_t tokens, int64_t num_chosen, int64_t capacity) {
  const auto expert = static_cast<int32_t>(blockIdx.x);
  const int64_t group = int64_t{blockIdx.y} * tokens;
  int64_t taken = 0;
  for (int64_t j = 0; j < num_chosen; ++j)
    for (int64_t first = 0; first < tokens; first += kWalkers) {
      const int64_t t = first + threadIdx.x, at = (group + t) * num_chosen + j;
      const bool mine = t < tokens && choices[at] == expert;
      const Order order = order_in_block(mine);
      if (mine) kept[at] = taken + order.before < capacity ? expert : -1;
      taken += order.all;
    }
}

__global__ void __launch_bounds__(kWalkers) place_kernel(int32_t* places, int32_t* sources, const int64_t* counts,
                                                         const int32_t* kept, int64_t count, int64_t num_chosen) {
  const auto expert = static_cast<int32_t>(blockIdx.x);
  int64_t next = 0;
  for (int32_t e = 0; e < expert; ++e) next += counts[e];
  for (int64_t first = 0; first < count; first += kWalkers) {
    const int64_t i = first + threadIdx.x;
    const int32_t choice = i < count ? kept[i] : -1;
    const bool mine = i < count && choice == expert;
    const Order order = order_in_block(mine);
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

// One block, since it is for reports: a thread's rows in their order, then the threads'.
template <typename A>
__global__ void __launch_bounds__(kThreads)
    sums_kernel(RouteSums* sums, const A* probabilities, const A* lse, const int64_t* loads, double by,
                RouteLosses losses, int64_t rows, int64_t E) {
  __shared__ double meet[kThreads / 32 * 2];
  double values[2] = {0, 0};
  for (int64_t r = threadIdx.x; r < rows; r += kThreads) {
    const int64_t* load = loads + (losses.numbers ? losses.numbers[r] : r) / losses.rows_per_group * E;
    double here = 0;
    for (int64_t e = 0; e < E; ++e)
      here += static_cast<double>(load[e]) * static_cast<double>(probabilities[r * E + e]);
    values[0] += here * by;
    values[1] += static_cast<double>(lse[r]) * static_cast<double>(lse[r]);
  }
  row_sums<kThreads>(values, meet);
  if (threadIdx.x == 0) *sums = {values[0], values[1]};
}

unsigned blocks_for(int64_t count) {
  return static_cast<unsigned>(ceil_div(count, kThreads));
}

}  // namespace

void route_losses(void* slopes, RouteSums* sums, const void* probabilities, const void* lse, const int64_t* loads,
                  int64_t groups, double scale, const RouteLosses& losses, const RouteShape& shape, DType dtype,
                  const device::Stream& stream) {
  ESP_CHECK(dtype == DType::f32 || dtype == DType::f64, "routing in {}", name_of(dtype));
  device::CudaQueue& queue = queue_of(stream);
  const int64_t E = shape.num_experts, count = groups * E;
  const double by = static_cast<double>(E) / static_cast<double>(losses.rows_per_group * shape.num_chosen);
  auto* meet = sums ? static_cast<RouteSums*>(queue.scratch(sizeof(RouteSums))) : nullptr;
  const auto run = [&]<typename A>(std::type_identity<A>) {
    if (count) {
      slopes_kernel<<<blocks_for(count), kThreads, 0, queue.handle>>>(static_cast<A*>(slopes), loads, scale * by,
                                                                      count);
      ESP_CUDA_LAUNCHED();
    }
    if (!sums) return;
    sums_kernel<<<1, kThreads, 0, queue.handle>>>(meet, static_cast<const A*>(probabilities),
                                                  static_cast<const A*>(lse), loads, by, losses, shape.rows, E);
    ESP_CUDA_LAUNCHED();
  };
  dtype == DType::f64 ? run(std::type_identity<double>{}) : run(std::type_identity<float>{});
  if (!sums) return;
  ESP_CUDA_CHECK(cudaMemcpyAsync(sums, meet, sizeof(RouteSums), cudaMemcpyDefault, queue.handle));
  ESP_CUDA_CHECK(cudaStreamSynchronize(queue.handle));
}

void count_choices(int64_t* counts, const int32_t* choices, int64_t groups, int64_t per_group, int64_t num_experts,
                   const device::Stream& stream) {
  constexpr int64_t kMostExperts = 12 << 10;  // whose counts fit in a block's memory
  ESP_CHECK(num_experts <= kMostExperts && groups < 65536, "{} groups, {} experts", groups, num_experts);
  if (groups * num_experts == 0) return;
  ESP_CUDA_CHECK(
      cudaMemsetAsync(counts, 0, static_cast<size_t>(groups * num_experts) * sizeof(int64_t), handle_of(stream)));
  if (per_group == 0) return;
  const dim3 grid(static_cast<unsigned>(ceil_div(per_group, kCountedPerBlock)), static_cast<unsigned>(groups));
  count_kernel<<<grid, kThreads, static_cast<size_t>(num_experts) * sizeof(int), handle_of(stream)>>>(
      reinterpret_cast<unsigned long long*>(counts), choices, per_group, static_cast<int>(num_experts));
  ESP_CUDA_LAUNCHED();
}

void pick_choices(int32_t* here, const int32_t* all, const int32_t* numbers, int64_t rows, int64_t width,
                  const device::Stream& stream) {
  if (rows * width == 0) return;
  pick_kernel<<<blocks_for(rows * width), kThreads, 0, handle_of(stream)>>>(here, all, numbers, rows * width, width);
  ESP_CUDA_LAUNCHED();
}

void put_choices(int32_t* all, const int32_t* here, const int32_t* numbers, int64_t rows, int64_t width,
                 const device::Stream& stream) {
  if (rows * width == 0) return;
  put_kernel<<<blocks_for(rows * width), kThreads, 0, handle_of(stream)>>>(all, here, numbers, rows * width, width);
  ESP_CUDA_LAUNCHED();
}

void drop_overflow(int32_t* kept, const int32_t* choices, int64_t groups, int64_t tokens, int64_t num_chosen,
                   int64_t num_experts, int64_t capacity, const device::Stream& stream) {
  ESP_CHECK(groups < 65536, "{} groups", groups);
  if (groups * tokens * num_chosen == 0) return;
  const dim3 grid(static_cast<unsigned>(num_experts), static_cast<unsigned>(groups));
  drop_kernel<<<grid, kWalkers, 0, handle_of(stream)>>>(kept, choices, tokens, num_chosen, capacity);
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
    place_kernel<<<static_cast<unsigned>(num_experts), kWalkers, 0, queue.handle>>>(places, sources, on_device, kept,
                                                                                    count, num_chosen);
    ESP_CUDA_LAUNCHED();
  }
  ESP_CUDA_CHECK(cudaMemcpyAsync(counts, on_device, bytes, cudaMemcpyDefault, queue.handle));
  ESP_CUDA_CHECK(cudaStreamSynchronize(queue.handle));
  int64_t total = 0;
  for (int64_t e = 0; e < num_experts; ++e) total += counts[e];
  return total;
}

}  // namespace esp::kernel::cuda
