// Embedding lookups copy rows. The gradient of the table is a segmented sum without atomics. Ids are sorted (stably, so
// equal ids keep their order), and the sorted list is split into chunks of kChunk entries. A segment is a contiguous
// range of equal ids. A thread block sums the segments of its chunk. If a segment lies inside the chunk, the block adds
// the sum to the table. If a segment crosses a chunk boundary, the block writes a partial sum to scratch memory. A
// second kernel then adds these partial sums, in the block of the chunk where the segment starts. The order of every
// sum depends only on the ids.
#include "esp/kernel/embedding.h"

#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "esp/kernel/cuda/elements.cuh"
#include "esp/kernel/cuda/tile_sums.cuh"

namespace esp::kernel::cuda {
namespace {

// A thread loads several rows before it uses the first. For an id out of range it reads row 0 and discards it, so no
// load depends on a branch.
template <typename T, int N, bool kPositions>
struct Lookup {
  struct Inputs {
    Pack<T, N> row, position;
    bool known;
  };
  T* y;
  const int32_t* ids;
  const T *table, *positions;
  int64_t per_row, num_rows, period, first_position;
  __device__ Inputs load(int64_t i) const {
    Inputs in;
    const auto [row, col] = divide(i, per_row);
    const int32_t id = ids[row];
    in.known = id >= 0 && id < num_rows;
    in.row = load_pack<N>(table + ((in.known ? id : 0) * per_row + col) * N);
    if constexpr (kPositions)
      in.position = load_pack<N>(positions + ((first_position + divide(row, period).rest) * per_row + col) * N);
    return in;
  }
  __device__ void apply(int64_t i, const Inputs& in) const {
    Accumulator<T> values[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const Accumulator<T> value = widen(in.row.at[k]);
      values[k] = in.known ? value : Accumulator<T>{0};
      if constexpr (kPositions) values[k] += widen(in.position.at[k]);
    }
    store_pack<N>(y + i * N, narrow_all<T>(values));
  }
};

constexpr int kChunk = 32;  // number of sorted entries that a block processes

struct SortKeys {
  struct Inputs {
    int32_t id;
  };
  uint32_t *keys, *places;
  const int32_t* ids;
  uint32_t num_rows;
  __device__ Inputs load(int64_t i) const { return {ids[i]}; }
  __device__ void apply(int64_t i, const Inputs& in) const {
    keys[i] = min(static_cast<uint32_t>(in.id), num_rows);  // ids out of range become num_rows, which sorts to the end
    places[i] = static_cast<uint32_t>(i);
  }
};

template <typename T, int N>
struct ScatterArgs {
  T* table;
  const T* dy;
  const uint32_t *keys, *places;
  int64_t count, dim, num_rows;
  // Partial sums [2·chunks, dim]. Row 2·chunk: the segment that continues from the previous chunk. Row 2·chunk + 1: the
  // segment that starts in this chunk and continues in the next one.
  Accumulator<T>* parts;
};

// Sums the segments of one chunk. blockIdx.y selects the columns; each thread processes one pack of columns.
template <typename T, int N>
__global__ void __launch_bounds__(128) sum_segments(ScatterArgs<T, N> a) {
  using A = Accumulator<T>;
  __shared__ uint32_t keys[kChunk + 2], places[kChunk];
  const int64_t first = int64_t{blockIdx.x} * kChunk;
  const int n = static_cast<int>(min(int64_t{kChunk}, a.count - first));
  const auto none = static_cast<uint32_t>(a.num_rows);
  for (int i = threadIdx.x; i < n + 2; i += blockDim.x) {
    const int64_t at = first + i - 1;
    keys[i] = at >= 0 && at < a.count ? a.keys[at] : none;
    if (i >= 1 && i <= n) places[i - 1] = a.places[at];
  }
  __syncthreads();
  const int64_t c = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * N;
  if (c >= a.dim) return;
  for (int begin = 0; begin < n;) {
    const uint32_t id = keys[begin + 1];
    if (id == none) return;
    int end = begin + 1;
    while (end < n && keys[end + 1] == id) ++end;
    A sum[N] = {};
#pragma unroll 4
    for (int i = begin; i < end; ++i) {
      const auto in = load_pack<N>(a.dy + places[i] * a.dim + c);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += widen(in.at[k]);
    }
    const bool enters = begin == 0 && keys[0] == id, leaves = end == n && keys[n + 1] == id;
    if (enters || leaves) {
      A* to = a.parts + (int64_t{blockIdx.x} * 2 + (enters ? 0 : 1)) * a.dim + c;
#pragma unroll
      for (int k = 0; k < N; ++k) to[k] = sum[k];
    } else {
      T* row = a.table + id * a.dim + c;
      Pack<T, N> to = load_pack<N>(row);
#pragma unroll
      for (int k = 0; k < N; ++k) to.at[k] = narrow<T>(widen(to.at[k]) + sum[k]);
      store_pack<N>(row, to);
    }
    begin = end;
  }
}

// Adds the partial sums of a segment. The block of a chunk does this if the segment starts in this chunk and continues
// in the next one.
template <typename T, int N>
__global__ void __launch_bounds__(128) join_segments(ScatterArgs<T, N> a) {
  using A = Accumulator<T>;
  const int64_t first = int64_t{blockIdx.x} * kChunk, last = first + kChunk - 1;
  if (last + 1 >= a.count) return;
  const uint32_t id = a.keys[last];
  if (id == a.num_rows || a.keys[last + 1] != id) return;
  // True if the segment starts in an earlier chunk. The block of that chunk then adds the partial sums.
  const bool enters = first > 0 && a.keys[first] == id && a.keys[first - 1] == id;
  if (enters) return;
  const int64_t c = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * N;
  if (c >= a.dim) return;
  A sum[N];
  T* row = a.table + id * a.dim + c;
  Pack<T, N> to = load_pack<N>(row);
  const A* from = a.parts + (int64_t{blockIdx.x} * 2 + 1) * a.dim + c;
#pragma unroll
  for (int k = 0; k < N; ++k) sum[k] = widen(to.at[k]) + from[k];
  // Finds the last chunk of the segment by binary search. With a known end, several partial sums can be loaded at once.
  int64_t last_chunk = blockIdx.x + 1, beyond = (a.count + kChunk - 1) / kChunk;
  while (last_chunk + 1 < beyond) {
    const int64_t middle = (last_chunk + beyond) / 2;
    if (a.keys[middle * kChunk] == id)
      last_chunk = middle;
    else
      beyond = middle;
  }
#pragma unroll 8
  for (int64_t chunk = blockIdx.x + 1; chunk <= last_chunk; ++chunk) {
    const auto more = load_pack<N>(a.parts + chunk * 2 * a.dim + c);
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] += more.at[k];
  }
#pragma unroll
  for (int k = 0; k < N; ++k) to.at[k] = narrow<T>(sum[k]);
  store_pack<N>(row, to);
}

// dpositions[p] += Σ_k dy[p + k·period]. A block sums up to 32 packs of columns of one p, with eight threads along k.
template <typename T, int N>
__global__ void __launch_bounds__(kAcross* kDown)
    sum_positions(T* to, const T* dy, int64_t dim, int64_t period, int64_t count) {
  using A = Accumulator<T>;
  __shared__ A partials[kDown][kAcross * N];
  const int64_t c = (int64_t{blockIdx.y} * kAcross + threadIdx.x) * N;
  A sum[N] = {};
  if (c < dim) {
#pragma unroll 8
    for (int64_t r = blockIdx.x + threadIdx.y * period; r < count; r += kDown * period) {
      const auto from = load_pack<N>(dy + r * dim + c);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += widen(from.at[k]);
    }
  }
  sum_down(sum, partials, [&](int i, A total) {
    const int64_t column = int64_t{blockIdx.y} * kAcross * N + i;
    if (column >= dim) return;
    T& place = to[blockIdx.x * dim + column];
    place = narrow<T>(widen(place) + total);
  });
}

int64_t padded(int64_t bytes) {
  return ceil_div(bytes, 256) * 256;
}

// Calls f(std::integral_constant<int, N>{}): with the pack width if rows consist of whole packs, else with N = 1.
template <typename T, typename F>
void with_width(int64_t dim, bool all_aligned, F&& f) {
  if (all_aligned && dim % kPack<T> == 0)
    f(std::integral_constant<int, kPack<T>>{});
  else
    f(std::integral_constant<int, 1>{});
}

}  // namespace

void embedding_forward(void* y, const int32_t* ids, const void* table, const void* positions, int64_t count,
                       int64_t dim, int64_t num_rows, int64_t period, int64_t first_position, DType dtype,
                       const device::Stream& stream) {
  ESP_CHECK(!positions || period >= 1, "position period: got {}; must be >= 1", period);
  ESP_CHECK(num_rows >= 1, "embedding table: got {} rows; must be >= 1", num_rows);
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    with_width<T>(dim, aligned(y, table, positions), [&](auto width) {
      auto launch = [&](auto with_positions) {
        launch_pass<2>(Lookup<T, width(), with_positions()>{static_cast<T*>(y), ids, static_cast<const T*>(table),
                                                            static_cast<const T*>(positions), dim / width(), num_rows,
                                                            period, first_position},
                       count * dim / width(), handle_of(stream));
      };
      positions ? launch(std::true_type{}) : launch(std::false_type{});
    });
  });
}

void embedding_backward(void* dtable, const int32_t* ids, const void* dy, int64_t count, int64_t dim, int64_t num_rows,
                        DType dtype, const device::Stream& stream) {
  if (count == 0 || dim == 0) return;
  device::CudaQueue& queue = queue_of(stream);
  const int bits = std::bit_width(static_cast<uint64_t>(num_rows)), n = static_cast<int>(count);
  size_t sort_bytes = 0;
  ESP_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, static_cast<const uint32_t*>(nullptr),
                                                 static_cast<uint32_t*>(nullptr), static_cast<const uint32_t*>(nullptr),
                                                 static_cast<uint32_t*>(nullptr), n, 0, bits, queue.handle));
  const int64_t list = padded(count * 4), chunks = ceil_div(count, kChunk);
  const int64_t parts = padded(2 * chunks * dim * static_cast<int64_t>((dtype == DType::f64 ? 8 : 4)));
  auto* scratch = static_cast<std::byte*>(queue.scratch(static_cast<size_t>(4 * list + parts) + sort_bytes));
  auto list_at = [&](int k) { return reinterpret_cast<uint32_t*>(scratch + k * list); };
  launch_pass<2>(SortKeys{list_at(0), list_at(1), ids, static_cast<uint32_t>(num_rows)}, count, queue.handle);
  ESP_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(scratch + 4 * list + parts, sort_bytes, list_at(0), list_at(2),
                                                 list_at(1), list_at(3), n, 0, bits, queue.handle));
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    with_width<T>(dim, aligned(dtable, dy), [&](auto width) {
      const ScatterArgs<T, width()> a{static_cast<T*>(dtable),
                                      static_cast<const T*>(dy),
                                      list_at(2),
                                      list_at(3),
                                      count,
                                      dim,
                                      num_rows,
                                      reinterpret_cast<Accumulator<T>*>(scratch + 4 * list)};
      const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(ceil_div(dim, 128 * width())));
      sum_segments<<<grid, 128, 0, queue.handle>>>(a);
      join_segments<<<grid, 128, 0, queue.handle>>>(a);
      ESP_CUDA_LAUNCHED();
    });
  });
}

void position_backward(void* dpositions, const void* dy, int64_t count, int64_t dim, int64_t period,
                       int64_t first_position, DType dtype, const device::Stream& stream) {
  ESP_CHECK(period >= 1, "position period: got {}; must be >= 1", period);
  if (count == 0 || dim == 0) return;
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    T* to = static_cast<T*>(dpositions) + first_position * dim;
    with_width<T>(dim, aligned(to, dy), [&](auto width) {
      const dim3 grid(static_cast<unsigned>(std::min(count, period)),
                      static_cast<unsigned>(ceil_div(dim, kAcross * width())));
      sum_positions<T, width()>
          <<<grid, dim3(kAcross, kDown), 0, handle_of(stream)>>>(to, static_cast<const T*>(dy), dim, period, count);
      ESP_CUDA_LAUNCHED();
    });
  });
}

}  // namespace esp::kernel::cuda
