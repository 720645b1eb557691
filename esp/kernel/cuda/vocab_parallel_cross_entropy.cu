// Vocabulary-parallel cross entropy: the steps that process only a few numbers per row. Sums and differences are in
// fp64, as on the CPU.
#include "esp/kernel/vocab_parallel_cross_entropy.h"

#include "esp/kernel/cuda/types.cuh"

namespace esp::kernel::cuda {
namespace {

constexpr int kThreads = 256;

template <typename A>
__global__ void rescale_kernel(A* sums, const A* own_tops, const A* tops, int64_t rows) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (r < rows) sums[r] = static_cast<A>(double{sums[r]} * exp(double{own_tops[r]} - double{tops[r]}));
}

template <typename A>
__global__ void losses_kernel(A* losses, const A* tops, const A* sums, const A* picked, const int32_t* targets,
                              int64_t rows) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (r >= rows) return;
  const double all = tops[r] + log(double{sums[r]});
  losses[r] = targets[r] < 0 ? A{0} : static_cast<A>(all - picked[r]);
}

template <typename F>
void with_sums(DType dtype, F&& f) {  // calls f with the type of the per-row statistics
  if (dtype == DType::f64) return f(std::type_identity<double>{});
  f(std::type_identity<float>{});
}

}  // namespace

void vocab_cross_entropy_rescale(void* sums, const void* own_tops, const void* tops, int64_t rows, DType dtype,
                                 const device::Stream& stream) {
  if (rows == 0) return;
  with_sums(dtype, [&]<typename A>(std::type_identity<A>) {
    rescale_kernel<<<static_cast<unsigned>((rows + kThreads - 1) / kThreads), kThreads, 0, handle_of(stream)>>>(
        static_cast<A*>(sums), static_cast<const A*>(own_tops), static_cast<const A*>(tops), rows);
  });
  ESP_CUDA_LAUNCHED();
}

void vocab_cross_entropy_losses(void* losses, const void* tops, const void* sums, const void* picked,
                                const int32_t* targets, int64_t rows, DType dtype, const device::Stream& stream) {
  if (rows == 0) return;
  with_sums(dtype, [&]<typename A>(std::type_identity<A>) {
    losses_kernel<<<static_cast<unsigned>((rows + kThreads - 1) / kThreads), kThreads, 0, handle_of(stream)>>>(
        static_cast<A*>(losses), static_cast<const A*>(tops), static_cast<const A*>(sums),
        static_cast<const A*>(picked), targets, rows);
  });
  ESP_CUDA_LAUNCHED();
}

}  // namespace esp::kernel::cuda
