#include "esp/kernel/cuda/gemm_plan.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <sstream>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/device/cuda/check.h"

namespace esp::kernel::cuda {

void cublas_failed(cublasStatus_t status, const char* call, const char* file, int line) {
  throw DeviceError(
      fmt::format("cuBLASLt call {} failed at {}:{}: {}", call, file, line, cublasLtGetStatusString(status)));
}

// The descriptors of a GEMM, owned by the plan. A row-major C = A·B is a column-major Cᵀ = Bᵀ·Aᵀ, so the matrix that
// cuBLASLt calls A is the B of GemmKey.
struct GemmPlanCache::Plan {
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  std::vector<cublasLtMatmulHeuristicResult_t> offered;
  bool chosen = false;
  cublasLtMatmulAlgo_t algo{};

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    if (result) cublasLtMatrixLayoutDestroy(result);
    if (second) cublasLtMatrixLayoutDestroy(second);
    if (first) cublasLtMatrixLayoutDestroy(first);
    if (product) cublasLtMatmulDescDestroy(product);
  }
};

namespace {

cudaDataType_t scale_type(const GemmKey& key) {
  return key.type_c == CUDA_R_64F ? CUDA_R_64F : CUDA_R_32F;
}

template <typename V>
void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, V value) {
  ESP_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value));
}
template <typename V>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, V value) {
  ESP_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
}

bool is_fp8(cudaDataType_t type) {
  return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}
bool has_bias(cublasLtEpilogue_t e) {
  return e == CUBLASLT_EPILOGUE_BIAS || e == CUBLASLT_EPILOGUE_GELU_BIAS || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
         e == CUBLASLT_EPILOGUE_RELU_BIAS;
}
bool has_aux(cublasLtEpilogue_t e) {
  return e == CUBLASLT_EPILOGUE_GELU_AUX || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || e == CUBLASLT_EPILOGUE_DGELU;
}

class Timer {
 public:
  Timer() {
    ESP_CUDA_CHECK(cudaEventCreate(&begin_));
    ESP_CUDA_CHECK(cudaEventCreate(&end_));
  }
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  template <typename F>
  float ms(cudaStream_t stream, F&& f) {
    ESP_CUDA_CHECK(cudaEventRecord(begin_, stream));
    f();
    ESP_CUDA_CHECK(cudaEventRecord(end_, stream));
    ESP_CUDA_CHECK(cudaEventSynchronize(end_));
    float result = 0;
    ESP_CUDA_CHECK(cudaEventElapsedTime(&result, begin_, end_));
    return result;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// Cache key of a ragged GEMM. Its number of rows is rounded up to a power of two. Leading dimensions do not depend on
// the number of rows.
GemmKey ragged_key(GemmKey key) {
  if (!key.ragged) return key;
  int64_t& rows = key.transpose_a ? key.k : key.m;
  constexpr int64_t kMinRows = 16;
  rows = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(rows, kMinRows))));
  return key;
}

// Additional tile shapes to time. On Hopper cuBLASLt has hundreds of tile shapes, but its heuristic offers only eight
// per GEMM. For the shapes of GPT-2 and LLaMA, the variants below were up to 8 % faster than the best of the eight
// (bench/cuda/gemm_algorithms.cpp).
//
// The variants also draw more power. GEMMs with long sums (a large K) are limited by power: with the variants, a step
// of GPT-2 124M took 1.2 % less time, but a step of LLaMA took 1.3 % more. So they are used only for sums of up to
// kShortSum terms, for which the start and the end of a tile take much of the time.
//
// `option` selects the order of tiles and whether two warp groups share a tile.
constexpr int64_t kShortSum = 1024;
struct Variant {
  cublasLtMatmulTile_t tile;
  uint32_t option;
  cublasLtClusterShape_t cluster;
};
constexpr cublasLtClusterShape_t kAlone = CUBLASLT_CLUSTER_SHAPE_1x1x1, kDown = CUBLASLT_CLUSTER_SHAPE_2x1x1,
                                 kAcross = CUBLASLT_CLUSTER_SHAPE_1x2x1;
constexpr Variant kVariants[] = {
    {CUBLASLT_MATMUL_TILE_128x144, 1, kDown},   {CUBLASLT_MATMUL_TILE_128x144, 3, kAcross},
    {CUBLASLT_MATMUL_TILE_128x152, 1, kDown},   {CUBLASLT_MATMUL_TILE_128x152, 3, kAcross},
    {CUBLASLT_MATMUL_TILE_128x168, 1, kDown},   {CUBLASLT_MATMUL_TILE_128x168, 3, kAcross},
    {CUBLASLT_MATMUL_TILE_128x160, 1, kDown},   {CUBLASLT_MATMUL_TILE_128x160, 3, kAcross},
    {CUBLASLT_MATMUL_TILE_128x136, 1, kDown},   {CUBLASLT_MATMUL_TILE_128x144, 3, kAlone},
    {CUBLASLT_MATMUL_TILE_64x256, 1, kDown},    {CUBLASLT_MATMUL_TILE_64x344, 1, kDown},
    {CUBLASLT_MATMUL_TILE_192x192, 7, kAcross}, {CUBLASLT_MATMUL_TILE_256x128, 7, kDown},
};

bool set(cublasLtMatmulAlgo_t& algo, cublasLtMatmulAlgoConfigAttributes_t attribute, auto value) {
  return cublasLtMatmulAlgoConfigSetAttribute(&algo, attribute, &value, sizeof value) == CUBLAS_STATUS_SUCCESS;
}

// Returns true if the algorithm lists the variant's tile and option as supported. cublasLtMatmulAlgoCheck may be called
// only with supported values.
bool has(const cublasLtMatmulAlgo_t& algo, const Variant& variant) {
  std::array<uint32_t, CUBLASLT_MATMUL_TILE_END> tiles{};
  int32_t options = 0;
  size_t bytes = 0, ignored = 0;
  if (cublasLtMatmulAlgoCapGetAttribute(&algo, CUBLASLT_ALGO_CAP_TILE_IDS, tiles.data(), sizeof tiles, &bytes) !=
          CUBLAS_STATUS_SUCCESS ||
      cublasLtMatmulAlgoCapGetAttribute(&algo, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX, &options, sizeof options,
                                        &ignored) != CUBLAS_STATUS_SUCCESS)
    return false;
  const auto end = tiles.begin() + static_cast<std::ptrdiff_t>(bytes / sizeof(uint32_t));
  return variant.option <= static_cast<uint32_t>(options) &&
         std::find(tiles.begin(), end, static_cast<uint32_t>(variant.tile)) != end;
}

void set_columns(cublasLtMatrixLayout_t layout, int64_t columns) {
  const auto value = static_cast<uint64_t>(columns);
  ESP_CUBLAS_CHECK(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &value, sizeof value));
}

}  // namespace

GemmPlanCache::GemmPlanCache() {
  ESP_CUBLAS_CHECK(cublasLtCreate(&handle_));
}

GemmPlanCache::~GemmPlanCache() {
  plans_.clear();
  if (handle_) cublasLtDestroy(handle_);
}

GemmPlanCache::Plan& GemmPlanCache::plan_of(const GemmKey& key) {
  const auto [place, fresh] = plans_.try_emplace(key);
  Plan& plan = place->second;
  if (!fresh) return plan;
  const cublasOperation_t first = key.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = key.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  ESP_CUBLAS_CHECK(cublasLtMatmulDescCreate(&plan.product, key.compute, scale_type(key)));
  set(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, first);
  set(plan.product, CUBLASLT_MATMUL_DESC_TRANSB, second);
  set(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE, key.epilogue);
  if (key.fast_sums) set(plan.product, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
  if (has_bias(key.epilogue)) set(plan.product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, key.type_c);
  if (has_aux(key.epilogue)) {
    set(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.ldc);
    set(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, key.type_c);
    // Placeholder: the heuristic requires a non-null pointer with the right alignment.
    set(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, reinterpret_cast<void*>(uintptr_t{256}));
  }
  if (has_bias(key.epilogue))
    set(plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<void*>(uintptr_t{256}));
  if (is_fp8(key.type_a)) {
    set(plan.product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, reinterpret_cast<void*>(uintptr_t{256}));
    set(plan.product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, reinterpret_cast<void*>(uintptr_t{256}));
  }
  auto layout = [](cublasLtMatrixLayout_t& to, cudaDataType_t type, int64_t rows, int64_t cols, int64_t ld) {
    ESP_CUBLAS_CHECK(
        cublasLtMatrixLayoutCreate(&to, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), ld));
  };
  layout(plan.first, key.type_b, key.transpose_b ? key.k : key.n, key.transpose_b ? key.n : key.k, key.ldb);
  layout(plan.second, key.type_a, key.transpose_a ? key.m : key.k, key.transpose_a ? key.k : key.m, key.lda);
  layout(plan.result, key.type_c, key.n, key.m, key.ldc);

  cublasLtMatmulPreference_t preference = nullptr;
  ESP_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
  // Split-K algorithms must reduce their partial sums in fp32, so that an element is rounded only once.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  const auto alignment = static_cast<uint32_t>(key.alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
  constexpr int kCandidates = 16;
  plan.offered.resize(kCandidates);
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, plan.product, plan.first, plan.second, plan.result, plan.result,
                                     preference, kCandidates, plan.offered.data(), &found);
  cublasLtMatmulPreferenceDestroy(preference);
  plan.offered.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(found) : 0);
  std::erase_if(plan.offered, [](const auto& one) { return one.state != CUBLAS_STATUS_SUCCESS; });
  if (const auto known = restored_.find(key); known != restored_.end() && !plan.offered.empty()) {
    static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(known->second));
    std::memcpy(&plan.algo, known->second.data(), sizeof plan.algo);
    cublasLtMatmulHeuristicResult_t fits{};
    plan.chosen = cublasLtMatmulAlgoCheck(handle_, plan.product, plan.first, plan.second, plan.result, plan.result,
                                          &plan.algo, &fits) == CUBLAS_STATUS_SUCCESS &&
                  fits.workspaceSize <= kWorkspaceBytes;
  }
  return plan;
}

bool GemmPlanCache::is_supported(const GemmKey& key) {
  return !plan_of(ragged_key(key)).offered.empty();
}

cublasStatus_t GemmPlanCache::launch(Plan& plan, const GemmKey& key, const GemmCall& call,
                                     const cublasLtMatmulAlgo_t& algo, void* workspace, cudaStream_t stream) {
  if (has_bias(key.epilogue)) set(plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias);
  if (has_aux(key.epilogue)) set(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.aux);
  if (call.scale_b) set(plan.product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, call.scale_b);
  if (call.scale_a) set(plan.product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, call.scale_a);
  const float narrow_alpha = static_cast<float>(call.alpha), narrow_beta = static_cast<float>(call.beta);
  const bool wide = scale_type(key) == CUDA_R_64F;
  const void* alpha = wide ? static_cast<const void*>(&call.alpha) : &narrow_alpha;
  const void* beta = wide ? static_cast<const void*>(&call.beta) : &narrow_beta;
  return cublasLtMatmul(handle_, plan.product, alpha, call.b, plan.first, call.a, plan.second, beta,
                        call.c ? call.c : call.d, plan.result, call.d, plan.result, &algo, workspace, kWorkspaceBytes,
                        stream);
}

// Returns the algorithms that the heuristic offers, in its order, followed by the supported variants of its first
// algorithm.
std::vector<cublasLtMatmulAlgo_t> GemmPlanCache::candidates_of(const Plan& plan, int64_t length_of_sums) {
  std::vector<cublasLtMatmulAlgo_t> all;
  for (const auto& one : plan.offered) all.push_back(one.algo);
  if (length_of_sums > kShortSum) return all;
  for (const Variant& variant : kVariants) {
    cublasLtMatmulAlgo_t algo = all.front();
    if (!has(algo, variant)) continue;
    cublasLtMatmulHeuristicResult_t fits{};
    if (set(algo, CUBLASLT_ALGO_CONFIG_TILE_ID, static_cast<uint32_t>(variant.tile)) &&
        set(algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, variant.option) &&
        set(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, static_cast<uint16_t>(variant.cluster)) &&
        set(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, uint32_t{1}) &&
        set(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE}) &&
        cublasLtMatmulAlgoCheck(handle_, plan.product, plan.first, plan.second, plan.result, plan.result, &algo,
                                &fits) == CUBLAS_STATUS_SUCCESS &&
        fits.workspaceSize <= kWorkspaceBytes)
      all.push_back(algo);
  }
  return all;
}

void GemmPlanCache::choose(Plan& plan, const GemmKey& key, const GemmCall& call, void* workspace,
                           device::CudaQueue& queue) {
  plan.algo = plan.offered.front().algo;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  ESP_CUDA_CHECK(cudaStreamIsCapturing(queue.handle, &capture));
  // During CUDA graph capture nothing can be timed. The next call outside of a capture chooses the algorithm.
  if (capture != cudaStreamCaptureStatusNone) return;
  plan.chosen = true;
  if (!tune) return;
  // With beta, trials must not change C, so they write to another buffer.
  GemmCall trial = call;
  void* elsewhere = nullptr;
  const int64_t element = key.type_c == CUDA_R_64F ? 8 : key.type_c == CUDA_R_32F ? 4 : 2;
  if (call.beta != 0) {
    if (cudaMalloc(&elsewhere, static_cast<size_t>(key.m * key.ldc * element)) != cudaSuccess) {
      cudaGetLastError();  // no memory for trials: keeps the heuristic's first algorithm
      return;
    }
    trial.c = call.c ? call.c : call.d;
    trial.d = elsewhere;
  }
  // First, one timed call per candidate selects the kLikely fastest candidates. Then these are timed in turn, a few
  // milliseconds each, for several rounds. The turns are needed because a GPU's clock drops by several percent within
  // tens of milliseconds under load, which would favour the candidate that is timed first. The heuristic's first choice
  // is replaced only by a candidate that is faster by more than the timing noise.
  Timer timer;
  using Trial = std::pair<float, size_t>;  // (milliseconds, index of the candidate)
  std::vector<Trial> trials;
  const std::vector<cublasLtMatmulAlgo_t> candidates = candidates_of(plan, key.k);
  auto once = [&](size_t i) { return launch(plan, key, trial, candidates[i], workspace, queue.handle); };
  for (size_t i = 0; i < candidates.size(); ++i)
    if (once(i) == CUBLAS_STATUS_SUCCESS) trials.emplace_back(timer.ms(queue.handle, [&] { once(i); }), i);
  constexpr size_t kLikely = 6;
  std::stable_sort(trials.begin(), trials.end(), [](const Trial& x, const Trial& y) {
    // Sorts the heuristic's first choice to the front, so that it stays in the list
    return (x.second == 0 ? 0 : x.first) < (y.second == 0 ? 0 : y.first);
  });
  if (trials.size() > kLikely) trials.resize(kLikely);
  if (trials.size() > 1) {
    constexpr float kTurnMs = 4;
    constexpr int kRounds = 5, kWarmupTurns = 8;  // the warm-up turns lower the clock to its value under load
    const int calls = std::clamp(static_cast<int>(kTurnMs / std::max(trials[1].first, 0.01f)), 1, 200);
    auto turn = [&](size_t i) {
      return timer.ms(queue.handle, [&] {
        for (int c = 0; c < calls; ++c) once(i);
      });
    };
    for (int i = 0; i < kWarmupTurns; ++i) turn(trials[1].second);
    std::vector<std::array<float, kRounds>> took(trials.size());
    for (int round = 0; round < kRounds; ++round)
      for (size_t i = 0; i < trials.size(); ++i) took[i][static_cast<size_t>(round)] = turn(trials[i].second);
    for (size_t i = 0; i < trials.size(); ++i) {
      std::sort(took[i].begin(), took[i].end());
      trials[i].first = took[i][kRounds / 2] * (trials[i].second == 0 ? 0.99f : 1.0f);
    }
    plan.algo = candidates[std::min_element(trials.begin(), trials.end())->second];
  }
  if (elsewhere) ESP_CUDA_CHECK(cudaFree(elsewhere));
}

// Runs a GEMM with a plan for a rounded number of rows, after setting the actual number in the plan. cuBLASLt is
// column-major, so for it these rows are columns: of A and C, or of A and B if the sum runs over the rows.
void GemmPlanCache::run_ragged(const GemmKey& key, const GemmCall& call, void* workspace, device::CudaQueue& queue) {
  Plan& plan = plan_of(ragged_key(key));
  if (!plan.offered.empty()) {
    set_columns(plan.second, key.transpose_a ? key.k : key.m);
    set_columns(key.transpose_a ? plan.first : plan.result, key.transpose_a ? key.k : key.m);
    if (launch(plan, key, call, plan.offered.front().algo, workspace, queue.handle) == CUBLAS_STATUS_SUCCESS) return;
  }
  GemmKey exact = key;  // the algorithm does not support this number of rows: use a plan for exactly this number
  exact.ragged = 0;
  Plan& own = plan_of(exact);
  ESP_CHECK(!own.offered.empty(), "GEMM: cuBLASLt has no algorithm for M = {}, N = {}, K = {}", key.m, key.n, key.k);
  ESP_CUBLAS_CHECK(launch(own, exact, call, own.offered.front().algo, workspace, queue.handle));
}

void GemmPlanCache::run(const GemmKey& key, const GemmCall& call, void* workspace, device::CudaQueue& queue) {
  if (key.ragged) return run_ragged(key, call, workspace, queue);
  Plan& plan = plan_of(key);
  ESP_CHECK(!plan.offered.empty(), "GEMM: cuBLASLt has no algorithm for M = {}, N = {}, K = {}", key.m, key.n, key.k);
  if (!plan.chosen) choose(plan, key, call, workspace, queue);
  ESP_CUBLAS_CHECK(launch(plan, key, call, plan.algo, workspace, queue.handle));
}

std::string GemmPlanCache::origin() const {
  int device = 0;
  cudaDeviceProp properties{};
  ESP_CUDA_CHECK(cudaGetDevice(&device));
  ESP_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  std::string name = properties.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return fmt::format("{}/{}", cublasLtGetVersion(), name);
}

// Format of a line: origin(), the numbers of the key, the eight words of the algorithm in hexadecimal.
std::string GemmPlanCache::serialize() const {
  std::string all;
  const std::string from = origin();
  auto line = [&](const GemmKey& k, const uint64_t* words) {
    all += fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", from, k.m, k.n, k.k, k.lda, k.ldb,
                       k.ldc, int{k.type_a}, int{k.type_b}, int{k.type_c}, int{k.compute}, int{k.epilogue},
                       k.transpose_a, k.transpose_b, k.beta, k.aux, k.fast_sums, k.alignment);
    for (int i = 0; i < 8; ++i) all += fmt::format(" {:x}", words[i]);
    all += '\n';
  };
  for (const auto& [key, plan] : plans_)
    if (plan.chosen) line(key, reinterpret_cast<const uint64_t*>(plan.algo.data));
  for (const auto& [key, words] : restored_)
    if (!plans_.contains(key)) line(key, words.data());
  return all;
}

void GemmPlanCache::deserialize(std::string_view text) {
  const std::string here = origin();
  std::istringstream lines{std::string(text)};
  for (std::string one; std::getline(lines, one);) {
    std::istringstream words(one);
    std::string from;
    GemmKey k;
    std::array<uint64_t, 8> algo{};
    int a = 0, b = 0, c = 0, compute = 0, epilogue = 0;
    words >> from >> k.m >> k.n >> k.k >> k.lda >> k.ldb >> k.ldc >> a >> b >> c >> compute >> epilogue >>
        k.transpose_a >> k.transpose_b >> k.beta >> k.aux >> k.fast_sums >> k.alignment >> std::hex;
    for (uint64_t& word : algo) words >> word;
    if (!words)
      throw UsageError(fmt::format(
          "GEMM choices: cannot parse the line '{}'. Delete gemm_choices.txt to time the algorithms again", one));
    if (from != here) continue;
    k.type_a = static_cast<cudaDataType_t>(a);
    k.type_b = static_cast<cudaDataType_t>(b);
    k.type_c = static_cast<cudaDataType_t>(c);
    k.compute = static_cast<cublasComputeType_t>(compute);
    k.epilogue = static_cast<cublasLtEpilogue_t>(epilogue);
    restored_[k] = algo;
  }
}

}  // namespace esp::kernel::cuda
