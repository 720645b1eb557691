// Adam over many buffers in one kernel: a block has a run of one of them, found in a list.
#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "esp/kernel/cuda/adam.cuh"
#include "esp/kernel/cuda/captured.h"

namespace esp::kernel::cuda {
namespace {

constexpr int kMostRates = 4;  // weight decays that differ
constexpr int kTurns = 16;     // packs of a thread: what it takes to find the buffer is shared among them
// Elements of a pack: sixteen bytes of the moments, so that the threads of a warp write whole lines at a time.
template <typename T>
inline constexpr int kTogether = 16 / sizeof(Accumulator<T>);

struct Entry {
  void *master, *m, *v, *weights;  // master: of halves the lower ones
  const void* grad;
  int64_t count;
  uint32_t first_block, rates;
  bool operator==(const Entry&) const = default;
};

template <typename A>
struct RatesOf {
  AdamRates<A> at[kMostRates];
};

template <typename T, bool kHalves>
__global__ void __launch_bounds__(kThreads) many_kernel(const Entry* entries, const uint32_t* entry_of_block,
                                                        const __grid_constant__ RatesOf<Accumulator<T>> rates) {
  constexpr int N = kTogether<T>;
  using A = Accumulator<T>;
  const Entry entry = entries[entry_of_block[blockIdx.x]];
  const AdamRates<A> rate = rates.at[entry.rates];
  const int64_t first = (int64_t{blockIdx.x - entry.first_block} * kThreads * kTurns + threadIdx.x) * N;
  const auto run = [&](auto width, int64_t at) {
    using Op = Adam<T, width(), kHalves>;
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
  for (int turn = 0; turn < kTurns; ++turn) {
    const int64_t at = first + int64_t{turn} * kThreads * N;
    if (at + N <= entry.count)
      run(std::integral_constant<int, N>{}, at);
    else
      for (int64_t one = at; one < entry.count; ++one) run(std::integral_constant<int, 1>{}, one);
  }
}

class List {
 public:
  List() = default;
  List(const List&) = delete;
  List& operator=(const List&) = delete;
  ~List() {
    cudaFree(entries_);
    cudaFree(entry_of_block_);
  }
  void set(std::vector<Entry> entries, int64_t per_block, cudaStream_t queue) {
    uint32_t blocks = 0;
    for (Entry& one : entries) {
      one.first_block = blocks;
      blocks += static_cast<uint32_t>(ceil_div(one.count, per_block));
    }
    if (entries == host_) return;
    std::vector<uint32_t> map;
    map.reserve(blocks);
    for (size_t i = 0; i < entries.size(); ++i)
      map.insert(map.end(), static_cast<size_t>(ceil_div(entries[i].count, per_block)), static_cast<uint32_t>(i));
    ESP_CUDA_CHECK(cudaStreamSynchronize(queue));  // the old list may be in use
    cudaFree(entries_);
    cudaFree(entry_of_block_);
    entries_ = nullptr, entry_of_block_ = nullptr;
    ESP_CUDA_CHECK(cudaMalloc(&entries_, entries.size() * sizeof(Entry)));
    ESP_CUDA_CHECK(cudaMalloc(&entry_of_block_, map.size() * sizeof(uint32_t)));
    // In the queue's order: a copy that does not say so may still be under way when the kernel reads.
    ESP_CUDA_CHECK(
        cudaMemcpyAsync(entries_, entries.data(), entries.size() * sizeof(Entry), cudaMemcpyHostToDevice, queue));
    ESP_CUDA_CHECK(
        cudaMemcpyAsync(entry_of_block_, map.data(), map.size() * sizeof(uint32_t), cudaMemcpyHostToDevice, queue));
    host_ = std::move(entries);
    blocks_ = blocks;
  }
  const Entry* entries() const { return entries_; }
  const uint32_t* entry_of_block() const { return entry_of_block_; }
  uint32_t blocks() const { return blocks_; }

 private:
  std::vector<Entry> host_;
  Entry* entries_ = nullptr;
  uint32_t* entry_of_block_ = nullptr;
  uint32_t blocks_ = 0;
};

// By the first buffer: a queue may have several optimizers, each with the same buffers every step.
struct Lists {
  std::map<const void*, List> of;
};

}  // namespace

void adam_steps(std::span<const StepBuffers> buffers, std::span<const AdamStep> steps, const device::Stream& stream) {
  std::vector<Entry> entries;
  std::vector<double> decays;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const StepBuffers& b = buffers[i];
    if (b.count == 0) continue;
    size_t rates = static_cast<size_t>(std::find(decays.begin(), decays.end(), steps[i].weight_decay) - decays.begin());
    if (rates == decays.size() && rates < kMostRates) decays.push_back(steps[i].weight_decay);
    void* const master = b.lower ? b.lower : b.master;
    if (rates == kMostRates || b.grad_type != buffers[0].grad_type || !b.lower != !buffers[0].lower ||
        !aligned(master, b.m, b.v, b.weights, b.grad)) {
      cuda::adam_step(b, steps[i], stream);
      continue;
    }
    entries.push_back({master, b.m, b.v, b.weights, b.grad, b.count, 0, static_cast<uint32_t>(rates)});
  }
  if (entries.empty()) return;
  List& list = queue_of(stream).own<Lists>().of[entries.front().master];
  with_floating(buffers[0].grad_type, [&]<typename T>(std::type_identity<T>) {
    list.set(std::move(entries), int64_t{kThreads} * kTurns * kTogether<T>, handle_of(stream));
    RatesOf<Accumulator<T>> rates{};
    for (size_t i = 0; i < decays.size(); ++i) {
      AdamStep step = steps[0];
      step.weight_decay = decays[i];
      rates.at[i] = rates_of<Accumulator<T>>(step, step.lr, step.grad_scale, step.t);
    }
    ESP_CHECK(!buffers[0].lower || buffers[0].grad_type == DType::bf16, "halves of {}", name_of(buffers[0].grad_type));
    auto* kernel = many_kernel<T, false>;
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
      if (buffers[0].lower) kernel = many_kernel<T, true>;
    kernel<<<list.blocks(), kThreads, 0, handle_of(stream)>>>(list.entries(), list.entry_of_block(), rates);
    ESP_CUDA_LAUNCHED();
  });
}

}  // namespace esp::kernel::cuda
