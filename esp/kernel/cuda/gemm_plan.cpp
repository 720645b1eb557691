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
  throw DeviceError(fmt::format("cuBLASLt: {} ({}) at {}:{}", cublasLtGetStatusString(status), call, file, line));
}

// Descriptors live as long as the plan. Row-major C = A·B is column-major Cᵀ = Bᵀ·Aᵀ: the library's A is our B.
struct GemmPlans::Plan {
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

// What a ragged product's plan is kept under: leading dimensions are of rows, so only the number of these changes.
GemmKey rounded(GemmKey key) {
  if (!key.ragged) return key;
  int64_t& rows = key.transpose_a ? key.k : key.m;
  constexpr int64_t kFewest = 16;
  rows = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(rows, kFewest))));
  return key;
}

// Hopper's products come in hundreds of tiles, of which the heuristic offers eight for a shape. Timed in turns these
// were up to 8 % faster than its eight for the shapes of GPT-2 and LLaMA (bench/cuda/gemm_algorithms.cpp). They also
// draw more power, which is what bounds a step of long sums: with them GPT-2 124M's step was 1.2 % shorter, LLaMA's 1.3
// % longer. So they are for short sums, where a tile's beginning and end count. The option says in what order tiles are
// taken and whether two groups of warps share one.
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

// What the library has of an algorithm: to be asked for anything else is more than its check can bear.
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

GemmPlans::GemmPlans() {
  ESP_CUBLAS_CHECK(cublasLtCreate(&handle_));
}

GemmPlans::~GemmPlans() {
  plans_.clear();
  if (handle_) cublasLtDestroy(handle_);
}

GemmPlans::Plan& GemmPlans::plan_of(const GemmKey& key) {
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
    // The heuristic wants a pointer of the right alignment to be there.
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
  // Partial sums of a divided K meet in fp32: an element is rounded once.
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
  if (const auto known = remembered_.find(key); known != remembered_.end() && !plan.offered.empty()) {
    static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(known->second));
    std::memcpy(&plan.algo, known->second.data(), sizeof plan.algo);
    cublasLtMatmulHeuristicResult_t fits{};
    plan.chosen = cublasLtMatmulAlgoCheck(handle_, plan.product, plan.first, plan.second, plan.result, plan.result,
                                          &plan.algo, &fits) == CUBLAS_STATUS_SUCCESS &&
                  fits.workspaceSize <= kWorkspaceBytes;
  }
  return plan;
}

bool GemmPlans::can(const GemmKey& key) {
  return !plan_of(rounded(key)).offered.empty();
}

cublasStatus_t GemmPlans::launch(Plan& plan, const GemmKey& key, const GemmCall& call, const cublasLtMatmulAlgo_t& algo,
                                 void* workspace, cudaStream_t stream) {
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

// The heuristic's, in its order, then the variants of its first that the library has and it did not offer.
std::vector<cublasLtMatmulAlgo_t> GemmPlans::candidates_of(const Plan& plan, int64_t length_of_sums) {
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

void GemmPlans::choose(Plan& plan, const GemmKey& key, const GemmCall& call, void* workspace,
                       device::CudaQueue& queue) {
  plan.algo = plan.offered.front().algo;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  ESP_CUDA_CHECK(cudaStreamIsCapturing(queue.handle, &capture));
  if (capture != cudaStreamCaptureStatusNone) return;  // not for good: tried again outside of a recording
  plan.chosen = true;
  if (!tune) return;
  // What is accumulated into, or read and replaced, must survive the trials: they write somewhere else.
  GemmCall trial = call;
  void* elsewhere = nullptr;
  const int64_t element = key.type_c == CUDA_R_64F ? 8 : key.type_c == CUDA_R_32F ? 4 : 2;
  if (call.beta != 0) {
    if (cudaMalloc(&elsewhere, static_cast<size_t>(key.m * key.ldc * element)) != cudaSuccess) {
      cudaGetLastError();  // no room to try: the heuristic's first it is
      return;
    }
    trial.c = call.c ? call.c : call.d;
    trial.d = elsewhere;
  }
  // One timed call of each selects the likely candidates. These run in turns, a few milliseconds at a time: a GPU's
  // clock drops under load within tens of milliseconds by several percent, which would favour the first one timed. The
  // heuristic's first choice is replaced only by one faster by more than two timings of one algorithm differ.
  Timer timer;
  using Trial = std::pair<float, size_t>;  // milliseconds, candidate
  std::vector<Trial> trials;
  const std::vector<cublasLtMatmulAlgo_t> candidates = candidates_of(plan, key.k);
  auto once = [&](size_t i) { return launch(plan, key, trial, candidates[i], workspace, queue.handle); };
  for (size_t i = 0; i < candidates.size(); ++i)
    if (once(i) == CUBLAS_STATUS_SUCCESS) trials.emplace_back(timer.ms(queue.handle, [&] { once(i); }), i);
  constexpr size_t kLikely = 6;
  std::stable_sort(trials.begin(), trials.end(), [](const Trial& x, const Trial& y) {
    return (x.second == 0 ? 0 : x.first) < (y.second == 0 ? 0 : y.first);  // the first always stays
  });
  if (trials.size() > kLikely) trials.resize(kLikely);
  if (trials.size() > 1) {
    constexpr float kTurnMs = 4;
    constexpr int kRounds = 5, kBefore = 8;  // turns that only bring the clock down
    const int calls = std::clamp(static_cast<int>(kTurnMs / std::max(trials[1].first, 0.01f)), 1, 200);
    auto turn = [&](size_t i) {
      return timer.ms(queue.handle, [&] {
        for (int c = 0; c < calls; ++c) once(i);
      });
    };
    for (int i = 0; i < kBefore; ++i) turn(trials[1].second);
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

// Rows are columns of the library's matrices: those of A and C, or of A and B where their sum is over them.
void GemmPlans::run_ragged(const GemmKey& key, const GemmCall& call, void* workspace, device::CudaQueue& queue) {
  Plan& plan = plan_of(rounded(key));
  if (!plan.offered.empty()) {
    set_columns(plan.second, key.transpose_a ? key.k : key.m);
    set_columns(key.transpose_a ? plan.first : plan.result, key.transpose_a ? key.k : key.m);
    if (launch(plan, key, call, plan.offered.front().algo, workspace, queue.handle) == CUBLAS_STATUS_SUCCESS) return;
  }
  GemmKey exact = key;  // an algorithm that will not have this number of rows: one that will
  exact.ragged = 0;
  Plan& own = plan_of(exact);
  ESP_CHECK(!own.offered.empty(), "cuBLASLt has no algorithm for {}×{}×{}", key.m, key.n, key.k);
  ESP_CUBLAS_CHECK(launch(own, exact, call, own.offered.front().algo, workspace, queue.handle));
}

void GemmPlans::run(const GemmKey& key, const GemmCall& call, void* workspace, device::CudaQueue& queue) {
  if (key.ragged) return run_ragged(key, call, workspace, queue);
  Plan& plan = plan_of(key);
  ESP_CHECK(!plan.offered.empty(), "cuBLASLt has no algorithm for {}×{}×{}", key.m, key.n, key.k);
  if (!plan.chosen) choose(plan, key, call, workspace, queue);
  ESP_CUBLAS_CHECK(launch(plan, key, call, plan.algo, workspace, queue.handle));
}

std::string GemmPlans::origin() const {
  int device = 0;
  cudaDeviceProp properties{};
  ESP_CUDA_CHECK(cudaGetDevice(&device));
  ESP_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  std::string name = properties.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return fmt::format("{}/{}", cublasLtGetVersion(), name);
}

// origin, then the key's sixteen numbers, then the algorithm's eight words.
std::string GemmPlans::text() const {
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
  for (const auto& [key, words] : remembered_)
    if (!plans_.contains(key)) line(key, words.data());
  return all;
}

void GemmPlans::read(std::string_view text) {
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
    if (!words) throw UsageError(fmt::format("GEMM choices: cannot parse line '{}'", one));
    if (from != here) continue;
    k.type_a = static_cast<cudaDataType_t>(a);
    k.type_b = static_cast<cudaDataType_t>(b);
    k.type_c = static_cast<cudaDataType_t>(c);
    k.compute = static_cast<cublasComputeType_t>(compute);
    k.epilogue = static_cast<cublasLtEpilogue_t>(epilogue);
    remembered_[k] = algo;
  }
}

}  // namespace esp::kernel::cuda
