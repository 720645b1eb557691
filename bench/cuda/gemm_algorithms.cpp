// Searches for cuBLASLt algorithms that are faster than those its heuristic returns for a shape. Starting from the
// heuristic's first algorithm, it draws random tiles, options, clusters and split-K values for some seconds and times
// each choice briefly. The six fastest of these choices, the heuristic's three fastest algorithms and the choice of
// kernel::gemm are then timed under load in five rounds: each runs 12 ms of warm-up and 12 ms that are measured. Prints
// a Markdown row for each shape.
//
//   gemm_algorithms [seconds per shape, 12] [part of a shape's name]
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "esp/device/gpu.h"
#include "esp/kernel/cuda/gemm_settings.h"
#include "esp/kernel/gemm.h"

namespace {

using namespace esp;
constexpr device::Device kGpu{device::DeviceKind::cuda, 0};

#define CHECK(call)                                                                       \
  do {                                                                                    \
    if (const auto status_ = (call); static_cast<int>(status_) != 0) {                    \
      fmt::print(stderr, "{} failed with status {}\n", #call, static_cast<int>(status_)); \
      std::exit(1);                                                                       \
    }                                                                                     \
  } while (0)

struct Shape {
  const char* name;
  int64_t m, n, k;  // row-major C = A·B
  bool transpose_a = false, transpose_b = false, bias = false;
};
constexpr Shape kShapes[] = {
    {"124M up + bias", 65536, 3072, 768, false, false, true},
    {"124M down + bias", 65536, 768, 3072, false, false, true},
    {"124M qkv + bias", 65536, 2304, 768, false, false, true},
    {"124M down, input gradient", 65536, 3072, 768, false, true},
    {"124M up, input gradient", 65536, 768, 3072, false, true},
    {"124M up, weight gradient", 768, 3072, 65536, true},
    {"124M logits", 16384, 50304, 768, false, true},
    {"124M logits, input gradient", 16384, 768, 50304},
    {"124M logits, weight gradient", 50304, 768, 16384, true},
    {"1558M up + bias", 16384, 6400, 1600, false, false, true},
    {"1558M down + bias", 16384, 1600, 6400, false, false, true},
    {"1.1B gate and up", 16384, 16384, 2048},
    {"1.1B down", 16384, 2048, 8192},
    {"1.1B gate and up, input gradient", 16384, 2048, 16384, false, true},
    {"1.1B down, input gradient", 16384, 8192, 2048, false, true},
    {"1.1B gate and up, weight gradient", 2048, 16384, 16384, true},
};

using Algo = cublasLtMatmulAlgo_t;

template <typename V>
V get(const Algo& algo, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  V value{};
  size_t bytes = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algo, attribute, &value, sizeof value, &bytes);
  return value;
}
template <typename V>
bool set(Algo& algo, cublasLtMatmulAlgoConfigAttributes_t attribute, V value) {
  return cublasLtMatmulAlgoConfigSetAttribute(&algo, attribute, &value, sizeof value) == CUBLAS_STATUS_SUCCESS;
}
std::string text(const Algo& algo) {
  return fmt::format("tile {} option {} cluster {} split {}", get<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_TILE_ID),
                     get<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION),
                     get<uint16_t>(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID),
                     get<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
}

// Tiles that the algorithm's family supports. With other tiles, cuBLASLt crashes in its check.
std::vector<uint32_t> tiles_of(const Algo& algo) {
  std::vector<uint32_t> tiles(CUBLASLT_MATMUL_TILE_END);
  size_t bytes = 0;
  cublasLtMatmulAlgoCapGetAttribute(&algo, CUBLASLT_ALGO_CAP_TILE_IDS, tiles.data(), tiles.size() * 4, &bytes);
  tiles.resize(bytes / 4);
  return tiles;
}
uint32_t options_of(const Algo& algo) {
  int32_t most = 0;
  size_t bytes = 0;
  cublasLtMatmulAlgoCapGetAttribute(&algo, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX, &most, sizeof most, &bytes);
  return static_cast<uint32_t>(most);
}

class Matmul {
 public:
  Matmul(cublasLtHandle_t handle, const Shape& s, const std::array<void*, 4>& memory) : handle_(handle), at_(memory) {
    CHECK(cublasLtMatmulDescCreate(&matmul_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    // cuBLASLt is column-major: its A is the row-major B
    describe(CUBLASLT_MATMUL_DESC_TRANSA, s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    describe(CUBLASLT_MATMUL_DESC_TRANSB, s.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (s.bias) {
      describe(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      describe(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
      describe(CUBLASLT_MATMUL_DESC_BIAS_POINTER, at_[0]);
    }
    layout(first_, s.transpose_b ? s.k : s.n, s.transpose_b ? s.n : s.k);
    layout(second_, s.transpose_a ? s.m : s.k, s.transpose_a ? s.k : s.m);
    layout(result_, s.n, s.m);
  }

  static constexpr size_t kWorkspace = size_t{64} << 20;

  std::vector<Algo> from_heuristic() const {
    cublasLtMatmulPreference_t preference = nullptr;
    CHECK(cublasLtMatmulPreferenceCreate(&preference));
    const uint64_t most = kWorkspace;
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction,
                                         sizeof reduction);
    std::vector<cublasLtMatmulHeuristicResult_t> found(64);
    int count = 0;
    CHECK(cublasLtMatmulAlgoGetHeuristic(handle_, matmul_, first_, second_, result_, result_, preference, 64,
                                         found.data(), &count));
    std::vector<Algo> all;
    for (int i = 0; i < count; ++i) all.push_back(found[static_cast<size_t>(i)].algo);
    return all;
  }
  bool fits(const Algo& algo) const {
    cublasLtMatmulHeuristicResult_t result{};
    return cublasLtMatmulAlgoCheck(handle_, matmul_, first_, second_, result_, result_, &algo, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= kWorkspace;
  }
  bool run(const Algo& algo) const {
    const float one = 1, zero = 0;
    return cublasLtMatmul(handle_, matmul_, &one, at_[1], first_, at_[0], second_, &zero, at_[2], result_, at_[2],
                          result_, &algo, at_[3], kWorkspace, nullptr) == CUBLAS_STATUS_SUCCESS;
  }
  // Mean time of one call in microseconds.
  double time(const Algo& algo, int calls) const {
    static cudaEvent_t begin = make_event(), end = make_event();
    CHECK(cudaEventRecord(begin));
    for (int i = 0; i < calls; ++i) run(algo);
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    return 1e3 * static_cast<double>(ms) / calls;
  }

 private:
  template <typename V>
  void describe(cublasLtMatmulDescAttributes_t attribute, V value) {
    CHECK(cublasLtMatmulDescSetAttribute(matmul_, attribute, &value, sizeof value));
  }
  static void layout(cublasLtMatrixLayout_t& to, int64_t rows, int64_t columns) {
    CHECK(cublasLtMatrixLayoutCreate(&to, CUDA_R_16BF, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns),
                                     rows));
  }
  static cudaEvent_t make_event() {
    cudaEvent_t event = nullptr;
    CHECK(cudaEventCreate(&event));
    return event;
  }

  cublasLtHandle_t handle_;
  std::array<void*, 4> at_;
  cublasLtMatmulDesc_t matmul_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, result_ = nullptr;
};

// The same GEMM with kernel::gemm, on a queue whose autotuning has finished.
class Chosen {
 public:
  Chosen(const Shape& s, const std::array<void*, 4>& memory) : shape_(s), at_(memory), queue_(kGpu) {
    kernel::cuda::set_gemm({.tune = true}, queue_.stream());
    options_.transpose_a = s.transpose_a, options_.transpose_b = s.transpose_b;
    if (s.bias) options_.bias = at_[0];
    run();
  }
  double time(int calls) const {
    device::GpuEvent begin(kGpu, true), end(kGpu, true);
    begin.record(queue_.stream());
    for (int i = 0; i < calls; ++i) run();
    end.record(queue_.stream());
    end.finish();
    return 1e3 * end.ms_since(begin) / calls;
  }

 private:
  void run() const {
    kernel::gemm(at_[2], at_[0], at_[1], shape_.m, shape_.n, shape_.k, options_, DType::bf16, queue_.stream());
  }
  Shape shape_;
  std::array<void*, 4> at_;
  device::GpuQueue queue_;
  kernel::GemmOptions options_;
};

struct Timed {
  double once, loaded;
  Algo algo;
  bool from_heuristic;
};

void row(cublasLtHandle_t handle, const Shape& shape, const std::array<void*, 4>& memory, double seconds) {
  const Matmul matmul(handle, shape, memory);
  std::vector<Timed> all;
  std::set<std::string> seen;
  const auto consider = [&](const Algo& algo, bool from_heuristic) {
    if (seen.insert(text(algo)).second && matmul.fits(algo) && matmul.run(algo))
      all.push_back({matmul.time(algo, 2), 0, algo, from_heuristic});
  };
  const std::vector<Algo> from_heuristic = matmul.from_heuristic();
  for (const Algo& algo : from_heuristic) consider(algo, true);
  const Algo first = from_heuristic.front();
  const std::vector<uint32_t> tiles = tiles_of(first);
  const uint32_t options = options_of(first);
  std::mt19937 draw(1);
  const auto one_of = [&](const auto& values) { return values[draw() % values.size()]; };
  constexpr std::array<uint16_t, 6> kClusters{CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_CLUSTER_SHAPE_2x1x1,
                                              CUBLASLT_CLUSTER_SHAPE_1x2x1, CUBLASLT_CLUSTER_SHAPE_2x2x1,
                                              CUBLASLT_CLUSTER_SHAPE_4x1x1, CUBLASLT_CLUSTER_SHAPE_1x4x1};
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!tiles.empty() && std::chrono::steady_clock::now() < until) {
    Algo algo = first;
    const uint32_t split = shape.transpose_a ? one_of(std::array<uint32_t, 4>{1, 2, 4, 6}) : 1;
    if (set(algo, CUBLASLT_ALGO_CONFIG_TILE_ID, one_of(tiles)) &&
        set(algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, static_cast<uint32_t>(draw() % (options + 1))) &&
        set(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, one_of(kClusters)) &&
        set(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, split) &&
        set(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
            uint32_t{split > 1 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE}))
      consider(algo, false);
  }
  const size_t tried = all.size();
  std::sort(all.begin(), all.end(), [](const Timed& x, const Timed& y) { return x.once < y.once; });
  std::vector<Timed> best;
  int of_heuristic = 0, others = 0;
  for (const Timed& one : all)
    if (one.from_heuristic ? of_heuristic++ < 3 : others++ < 6) best.push_back(one);
  const Chosen chosen(shape, memory);
  std::vector<std::vector<double>> turns(best.size());
  std::vector<double> ours;
  for (int round = 0; round < 5; ++round) {
    for (size_t i = 0; i < best.size(); ++i) {
      const int calls = std::max(1, static_cast<int>(12000 / best[i].once));
      matmul.time(best[i].algo, calls);
      turns[i].push_back(matmul.time(best[i].algo, calls));
    }
    const int calls = std::max(1, static_cast<int>(12000 / best.front().once));
    chosen.time(calls);
    ours.push_back(chosen.time(calls));
  }
  std::sort(ours.begin(), ours.end());
  for (size_t i = 0; i < best.size(); ++i) {
    std::sort(turns[i].begin(), turns[i].end());
    best[i].loaded = turns[i][2];
  }
  std::sort(best.begin(), best.end(), [](const Timed& x, const Timed& y) { return x.loaded < y.loaded; });
  const auto heuristic = std::find_if(best.begin(), best.end(), [](const Timed& one) { return one.from_heuristic; });
  fmt::print("| {} | {}×{}×{} | {:.0f} | {:.0f} | {:.0f} | {:.2f} | {} of {} |\n", shape.name, shape.m, shape.n,
             shape.k, heuristic->loaded, best.front().loaded, ours[2], ours[2] / best.front().loaded,
             text(best.front().algo), tried);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 12;
  const std::string_view part = argc > 2 ? argv[2] : "";
  cublasLtHandle_t handle = nullptr;
  CHECK(cublasLtCreate(&handle));
  constexpr size_t kElements = size_t{16384} * 50304;
  std::mt19937 draw(7);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> values(1 << 20);
  std::array<void*, 4> memory{};
  for (size_t i = 0; i < 3; ++i) {
    CHECK(cudaMalloc(&memory[i], kElements * 2));
    for (uint16_t& value : values) {
      const float drawn = normal(draw) * (i == 0 ? 1.0f : 0.03f);
      uint32_t bits = 0;
      std::memcpy(&bits, &drawn, 4);
      value = static_cast<uint16_t>(bits >> 16);
    }
    for (size_t at = 0; at < kElements; at += values.size())
      CHECK(cudaMemcpy(static_cast<uint16_t*>(memory[i]) + at, values.data(),
                       std::min(values.size(), kElements - at) * 2, cudaMemcpyHostToDevice));
  }
  CHECK(cudaMalloc(&memory[3], Matmul::kWorkspace));
  fmt::print(
      "| GEMM | m×n×k | best of the heuristic, µs | best found, µs | Espalier, µs | Espalier / best found | best "
      "algorithm |\n"
      "|---|---|---|---|---|---|---|\n");
  for (const Shape& shape : kShapes)
    if (std::string_view(shape.name).find(part) != std::string_view::npos) row(handle, shape, memory, seconds);
}
