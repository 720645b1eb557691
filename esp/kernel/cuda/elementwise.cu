// Elementwise kernels over flat arrays.
#include "esp/kernel/elementwise.h"

#include "esp/kernel/cuda/elements.cuh"

namespace esp::kernel::cuda {
namespace {

template <typename T, int N>
struct Fill {
  struct Inputs {};
  T* y;
  T value;
  __device__ Inputs load(int64_t) const { return {}; }
  __device__ void apply(int64_t i, const Inputs&) const {
    Pack<T, N> to;
#pragma unroll
    for (int k = 0; k < N; ++k) to.at[k] = value;
    store_pack<N>(y + i * N, to);
  }
};

template <typename To, typename From, int N>
struct Cast {
  using Inputs = Pack<From, N>;
  To* y;
  const From* x;
  __device__ Inputs load(int64_t i) const { return load_pack<N>(x + i * N); }
  __device__ void apply(int64_t i, const Inputs& in) const {
    Pack<To, N> to;
#pragma unroll
    for (int k = 0; k < N; ++k) to.at[k] = narrow<To>(static_cast<Accumulator<To>>(widen(in.at[k])));
    store_pack<N>(y + i * N, to);
  }
};

template <typename T, int N>
struct Add {
  struct Inputs {
    Pack<T, N> a, b;
  };
  T* y;
  const T *a, *b;
  __device__ Inputs load(int64_t i) const { return {load_pack<N>(a + i * N), load_pack<N>(b + i * N)}; }
  __device__ void apply(int64_t i, const Inputs& in) const {
    Pack<T, N> to;
#pragma unroll
    for (int k = 0; k < N; ++k) to.at[k] = narrow<T>(widen(in.a.at[k]) + widen(in.b.at[k]));
    store_pack<N>(y + i * N, to);
  }
};

template <typename T, int N>
struct Scale {
  using Inputs = Pack<T, N>;
  T* y;
  Accumulator<T> factor;
  __device__ Inputs load(int64_t i) const { return load_pack<N>(y + i * N); }
  __device__ void apply(int64_t i, const Inputs& in) const {
    Pack<T, N> to;
#pragma unroll
    for (int k = 0; k < N; ++k) to.at[k] = narrow<T>(widen(in.at[k]) * factor);
    store_pack<N>(y + i * N, to);
  }
};

// Adds a bias to rows of `per_row` packs. The bias is read from L1.
template <typename T, int N>
struct AddBias {
  using Inputs = Pack<T, N>;
  T* y;
  const T* bias;
  int64_t per_row;
  __device__ Inputs load(int64_t i) const { return load_pack<N>(y + i * N); }
  __device__ void apply(int64_t i, const Inputs& in) const {
    const auto from = load_pack<N>(bias + divide(i, per_row).rest * N);
    Pack<T, N> to;
#pragma unroll
    for (int k = 0; k < N; ++k) to.at[k] = narrow<T>(widen(in.at[k]) + widen(from.at[k]));
    store_pack<N>(y + i * N, to);
  }
};

// Transposes tiles of 32×32 through shared memory. The rows of a tile are padded by one element, so that the elements
// of a column lie in different shared-memory banks.
template <typename T>
__global__ void transpose_kernel(T* y, const T* x, int64_t rows, int64_t cols, int64_t tiles_across,
                                 int64_t tiles_down) {
  __shared__ T tile[32][33];
  const int64_t batch = blockIdx.x / (tiles_across * tiles_down), within = blockIdx.x % (tiles_across * tiles_down);
  const int64_t row0 = within / tiles_across * 32, col0 = within % tiles_across * 32;
  const T* from = x + batch * rows * cols;
  T* to = y + batch * rows * cols;
  for (int r = threadIdx.y; r < 32; r += blockDim.y)
    if (row0 + r < rows && col0 + threadIdx.x < cols)
      tile[r][threadIdx.x] = from[(row0 + r) * cols + col0 + threadIdx.x];
  __syncthreads();
  for (int c = threadIdx.y; c < 32; c += blockDim.y)
    if (col0 + c < cols && row0 + threadIdx.x < rows) to[(col0 + c) * rows + row0 + threadIdx.x] = tile[threadIdx.x][c];
}

// Transposes 16-bit elements in tiles of 128×64, with 16-byte reads and writes. A 32-bit word of a tile holds two
// neighbours of a row. The numbers of rows and columns must be multiples of eight.
constexpr int kTileRows = 128, kTileCols = 64;
__global__ void __launch_bounds__(kThreads)
    transpose_packs(uint4* y, const uint4* x, int64_t rows, int64_t cols, int64_t tiles_across, int64_t tiles_down) {
  constexpr int kWords = kTileCols / 2, kPacks = kTileCols / 8, kLoads = kTileRows * kPacks / kThreads;
  constexpr int kEights = kTileRows / 8, kStores = kEights * kWords / kThreads;
  __shared__ uint32_t tile[kTileRows][kWords + 1];
  const auto [batch, within] = divide(blockIdx.x, tiles_across * tiles_down);
  const auto [down, across] = divide(within, tiles_across);
  const int64_t row0 = down * kTileRows, col0 = across * kTileCols;
  const uint4* from = x + batch * rows * cols / 8;
  uint4* to = y + batch * rows * cols / 8;
  uint4 in[kLoads];
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    const int i = threadIdx.x + kThreads * k;
    const int64_t r = row0 + i / kPacks, c = col0 + i % kPacks * 8;
    in[k] = r < rows && c < cols ? from[(r * cols + c) / 8] : uint4{};
  }
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    const int i = threadIdx.x + kThreads * k;
    uint32_t* words = &tile[i / kPacks][i % kPacks * 4];
    words[0] = in[k].x, words[1] = in[k].y, words[2] = in[k].z, words[3] = in[k].w;
  }
  __syncthreads();
  // Eight words, one from each of eight rows, give eight elements for each of two result rows.
#pragma unroll
  for (int k = 0; k < kStores; ++k) {
    const int i = threadIdx.x + kThreads * k, eight = i % kEights, word = i / kEights;
    const int64_t r = row0 + 8 * eight, c = col0 + 2 * word;
    if (r >= rows || c >= cols) continue;
    uint32_t v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = tile[8 * eight + j][word];
    const auto halves = [&](uint32_t which) {
      return make_uint4(__byte_perm(v[0], v[1], which), __byte_perm(v[2], v[3], which), __byte_perm(v[4], v[5], which),
                        __byte_perm(v[6], v[7], which));
    };
    to[(c * rows + r) / 8] = halves(0x5410);
    to[((c + 1) * rows + r) / 8] = halves(0x7632);
  }
}

}  // namespace

void fill(void* y, double value, int64_t count, DType dtype, const device::Stream& stream) {
  if (!is_floating(dtype)) {
    ESP_CHECK(value == 0, "fill: got value {} for dtype {}; expected 0, the only fill value for integers on a GPU",
              value, name_of(dtype));
    const size_t bytes = static_cast<size_t>(count) * size_of(dtype);
    if (bytes) ESP_CUDA_CHECK(cudaMemsetAsync(y, 0, bytes, handle_of(stream)));
    return;
  }
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    T* to = static_cast<T*>(y);
    for_packs<kPack<T>>(count, aligned(y), [&](auto width, int64_t first, int64_t n) {
      launch_pass<4>(Fill<T, width()>{to + first, T(static_cast<Accumulator<T>>(value))}, n / width(),
                     handle_of(stream));
    });
  });
}

void cast(void* y, DType to, const void* x, DType from, int64_t count, const device::Stream& stream) {
  with_floating(to, [&]<typename To>(std::type_identity<To>) {
    with_floating(from, [&]<typename From>(std::type_identity<From>) {
      // The pack width gives 16-byte stores of To. Wider packs would leave gaps between the stores of a warp.
      constexpr int kWidth = kPack<To>;
      for_packs<kWidth>(count, aligned(x, y), [&](auto width, int64_t first, int64_t n) {
        launch_pass<2>(Cast<To, From, width()>{static_cast<To*>(y) + first, static_cast<const From*>(x) + first},
                       n / width(), handle_of(stream));
      });
    });
  });
}

void add(void* y, const void* a, const void* b, int64_t count, DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    for_packs<kPack<T>>(count, aligned(y, a, b), [&](auto width, int64_t first, int64_t n) {
      launch_pass<2>(Add<T, width()>{static_cast<T*>(y) + first, static_cast<const T*>(a) + first,
                                     static_cast<const T*>(b) + first},
                     n / width(), handle_of(stream));
    });
  });
}

void scale(void* y, double factor, int64_t count, DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    for_packs<kPack<T>>(count, aligned(y), [&](auto width, int64_t first, int64_t n) {
      launch_pass<4>(Scale<T, width()>{static_cast<T*>(y) + first, static_cast<Accumulator<T>>(factor)}, n / width(),
                     handle_of(stream));
    });
  });
}

void add_bias(void* y, const void* bias, int64_t rows, int64_t cols, DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    T* to = static_cast<T*>(y);
    const T* from = static_cast<const T*>(bias);
    if (aligned(y, bias) && cols % kPack<T> == 0) {
      launch_pass<4>(AddBias<T, kPack<T>>{to, from, cols / kPack<T>}, rows * cols / kPack<T>, handle_of(stream));
    } else {
      launch_pass<4>(AddBias<T, 1>{to, from, cols}, rows * cols, handle_of(stream));
    }
  });
}

void transpose(void* y, const void* x, int64_t batch, int64_t rows, int64_t cols, DType dtype,
               const device::Stream& stream) {
  if (batch * rows * cols == 0) return;
  const int64_t across = ceil_div(cols, 32), down = ceil_div(rows, 32);
  const auto grid = static_cast<unsigned>(batch * across * down);
  auto launch = [&]<typename T>(std::type_identity<T>) {
    transpose_kernel<<<grid, dim3(32, 8), 0, handle_of(stream)>>>(static_cast<T*>(y), static_cast<const T*>(x), rows,
                                                                  cols, across, down);
    ESP_CUDA_LAUNCHED();
  };
  if (size_of(dtype) == 2 && rows % 8 == 0 && cols % 8 == 0 && aligned(y, x)) {
    const int64_t tiles_across = ceil_div(cols, kTileCols), tiles_down = ceil_div(rows, kTileRows);
    transpose_packs<<<static_cast<unsigned>(batch * tiles_across * tiles_down), kThreads, 0, handle_of(stream)>>>(
        static_cast<uint4*>(y), static_cast<const uint4*>(x), rows, cols, tiles_across, tiles_down);
    ESP_CUDA_LAUNCHED();
    return;
  }
  switch (size_of(dtype)) {  // copies bits: only the element size matters
    case 8:
      return launch(std::type_identity<uint64_t>{});
    case 4:
      return launch(std::type_identity<uint32_t>{});
    case 2:
      return launch(std::type_identity<uint16_t>{});
    default:
      return launch(std::type_identity<uint8_t>{});
  }
}

}  // namespace esp::kernel::cuda
