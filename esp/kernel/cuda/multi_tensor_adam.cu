// Multi-tensor Adam: one kernel updates many buffers. A thread block processes a range of one buffer, which it looks up
// in a list of all buffers.
#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "esp/kernel/cuda/adam.cuh"
#include "esp/kernel/cuda/device_scalars.h"

namespace esp::kernel::cuda {
namespace {

constexpr int kMaxRates = 4;         // maximum number of different weight decays
constexpr int kPacksPerThread = 16;  // large enough that looking up the buffer costs little per pack
// Elements of a pack: 16 bytes of each moment. The threads of a warp then write whole cache lines.
template <typename T>
inline constexpr int kPackWidth = 16 / sizeof(Accumulator<T>);

struct TensorEntry {
  void *master, *m, *v, *weights;  // master holds the lower halves if the master copy is split
  const void* grad;
  int64_t count;
  uint32_t first_block, rates;
  bool operator==(const TensorEntry&) const = default;
};

template <typename A>
struct AdamRateTable {
  AdamRates<A> at[kMaxRates];
};

template <typename T, bool kSplitMaster>
__global__ void __launch_bounds__(kThreads)
    multi_tensor_adam_kernel(const TensorEntry* entries, const uint32_t* entry_of_block,
                             const __grid_constant__ AdamRateTable<Accumulator<T>> rates) {
  constexpr int N = kPackWidth<T>;
  using A = Accumulator<T>;
  const TensorEntry entry = entries[entry_of_block[blockIdx.x]];
  const AdamRates<A> rate = rates.at[entry.rates];
  const int64_t first = (int64_t{blockIdx.x - entry.first_block} * kThreads * kPacksPerThread + threadIdx.x) * N;
  const auto run = [&](auto width, int64_t at) {
    using Op = Adam<T, width(), kSplitMaster>;
    Op op{static_cast<typename Op::Master*>(entry.master) + at,
          static_cast<A*>(entry.m) + at,
          static_cast<A*>(entry.v) + at,
          entry.weights ? static_cast<T*>(entry.weights) + at : nullptr,
          static_cast<const T*>(entry.grad) + at,
          rate};
    auto in = op.load(0);
    op.apply(0, in);
  };
#pragma unroll 1
  for (int turn = 0; turn < kPacksPerThread; ++turn) {
    const int64_t at = first + int64_t{turn} * kThreads * N;
    if (at + N <= entry.count)
      run(std::integral_constant<int, N>{}, at);
    else
      for (int64_t one = at; one < entry.count; ++one) run(std::integral_constant<int, 1>{}, one);
  }
}

class TensorList {
 public:
  TensorList() = default;
  TensorList(const TensorList&) = delete;
  TensorList& operator=(const TensorList&) = delete;
  ~TensorList() {
    cudaFree(entries_);
    cudaFree(entry_of_block_);
  }
  void set(std::vector<TensorEntry> entries, int64_t per_block, cudaStream_t queue) {
    uint32_t blocks = 0;
    for (TensorEntry& one : entries) {
      one.first_block = blocks;
      blocks += static_cast<uint32_t>(ceil_div(one.count, per_block));
    }
    if (entries == host_) return;
    std::vector<uint32_t> map;
    map.reserve(blocks);
    for (size_t i = 0; i < entries.size(); ++i)
      map.insert(map.end(), static_cast<size_t>(ceil_div(entries[i].count, per_block)), static_cast<uint32_t>(i));
    ESP_CUDA_CHECK(cudaStreamSynchronize(queue));  // waits, because a kernel may still read the old list
    cudaFree(entries_);
    cudaFree(entry_of_block_);
    entries_ = nullptr, entry_of_block_ = nullptr;
    ESP_CUDA_CHECK(cudaMalloc(&entries_, entries.size() * sizeof(TensorEntry)));
    ESP_CUDA_CHECK(cudaMalloc(&entry_of_block_, map.size() * sizeof(uint32_t)));
    // Copies on this queue. A copy on another queue could still be running when the kernel reads the list.
    ESP_CUDA_CHECK(
        cudaMemcpyAsync(entries_, entries.data(), entries.size() * sizeof(TensorEntry), cudaMemcpyHostToDevice, queue));
    ESP_CUDA_CHECK(
        cudaMemcpyAsync(entry_of_block_, map.data(), map.size() * sizeof(uint32_t), cudaMemcpyHostToDevice, queue));
    host_ = std::move(entries);
    blocks_ = blocks;
  }
  const TensorEntry* entries() const { return entries_; }
  const uint32_t* entry_of_block() const { return entry_of_block_; }
  uint32_t blocks() const { return blocks_; }

 private:
  std::vector<TensorEntry> host_;
  TensorEntry* entries_ = nullptr;
  uint32_t* entry_of_block_ = nullptr;
  uint32_t blocks_ = 0;
};

// Buffer lists, indexed by their first buffer. A queue may have several optimizers; each optimizer passes the same
// buffers in every step.
struct TensorListCache {
  std::map<const void*, TensorList> of;
};

}  // namespace

void multi_tensor_adam_step(std::span<const StepBuffers> buffers, std::span<const AdamStep> steps,
                            const device::Stream& stream) {
  std::vector<TensorEntry> entries;
  std::vector<double> decays;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const StepBuffers& b = buffers[i];
    if (b.count == 0) continue;
    size_t rates = static_cast<size_t>(std::find(decays.begin(), decays.end(), steps[i].weight_decay) - decays.begin());
    if (rates == decays.size() && rates < kMaxRates) decays.push_back(steps[i].weight_decay);
    void* const master = b.lower ? b.lower : b.master;
    if (rates == kMaxRates || b.grad_type != buffers[0].grad_type || !b.lower != !buffers[0].lower ||
        !aligned(master, b.m, b.v, b.weights, b.grad)) {
      cuda::adam_step(b, steps[i], stream);
      continue;
    }
    entries.push_back({master, b.m, b.v, b.weights, b.grad, b.count, 0, static_cast<uint32_t>(rates)});
  }
  if (entries.empty()) return;
  TensorList& list = queue_of(stream).get_or_create<TensorListCache>().of[entries.front().master];
  with_floating(buffers[0].grad_type, [&]<typename T>(std::type_identity<T>) {
    list.set(std::move(entries), int64_t{kThreads} * kPacksPerThread * kPackWidth<T>, handle_of(stream));
    AdamRateTable<Accumulator<T>> rates{};
    for (size_t i = 0; i < decays.size(); ++i) {
      AdamStep step = steps[0];
      step.weight_decay = decays[i];
      rates.at[i] = rates_of<Accumulator<T>>(step, step.lr, step.grad_scale, step.t);
    }
    ESP_CHECK(!buffers[0].lower || buffers[0].grad_type == DType::bf16,
              "split master copy: got weights of dtype {}; expected bf16", name_of(buffers[0].grad_type));
    auto* kernel = multi_tensor_adam_kernel<T, false>;
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
      if (buffers[0].lower) kernel = multi_tensor_adam_kernel<T, true>;
    kernel<<<list.blocks(), kThreads, 0, handle_of(stream)>>>(list.entries(), list.entry_of_block(), rates);
    ESP_CUDA_LAUNCHED();
  });
}

}  // namespace esp::kernel::cuda
