#include "esp/kernel/gemm_check.h"

#include <cmath>
#include <utility>

#include "esp/base/clock.h"
#include "esp/kernel/floating.h"

namespace esp::kernel {
namespace {

thread_local GemmCheck* current = nullptr;

template <typename T>
double wide(T value) {
  return static_cast<double>(static_cast<Accumulator<T>>(value));
}

bool can_be_checked(const GemmOptions& o) {
  return o.beta == 0 && !o.pre_activation_in && (o.activation == Activation::none || o.pre_activation);
}

// Column sums of values, and column sums of their magnitudes. The magnitudes give the bound of the rounding error.
struct Sums {
  explicit Sums(int64_t count) : plain(static_cast<size_t>(count)), absolute(static_cast<size_t>(count)) {}
  void add(int64_t at, double value) {
    plain[static_cast<size_t>(at)] += value;
    absolute[static_cast<size_t>(at)] += std::abs(value);
  }
  std::vector<double> plain, absolute;
};

// sums[j] += x[i][j] over rows i, in memory order.
template <typename T>
void add_rows(Sums& sums, const T* x, int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  if (column_stride == 1) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) sums.add(j, wide(x[i * row_stride + j]));
  } else {
    for (int64_t j = 0; j < columns; ++j)
      for (int64_t i = 0; i < rows; ++i) sums.add(j, wide(x[i * row_stride + j * column_stride]));
  }
}

// want += left · op(B), where left has k elements and op(B) is [k, n].
template <typename T>
void add_product(Sums& want, const Sums& left, const T* b, int64_t n, int64_t k, int64_t row_stride,
                 int64_t column_stride) {
  const auto take = [&](int64_t p, int64_t j) {
    const double value = wide(b[p * row_stride + j * column_stride]);
    want.plain[static_cast<size_t>(j)] += left.plain[static_cast<size_t>(p)] * value;
    want.absolute[static_cast<size_t>(j)] += left.absolute[static_cast<size_t>(p)] * std::abs(value);
  };
  if (column_stride == 1) {
    for (int64_t p = 0; p < k; ++p)
      for (int64_t j = 0; j < n; ++j) take(p, j);
  } else {
    for (int64_t j = 0; j < n; ++j)
      for (int64_t p = 0; p < k; ++p) take(p, j);
  }
}

// Bound of the rounding error of a sum of K terms, relative to the sum of their magnitudes. The bound assumes that all
// rounding errors have the same sign. Usually the errors have random signs, and the total is far smaller. But when many
// small terms of one sign are added to a large one, all are rounded in the same direction. An example is the softmax
// gradient of an almost zero loss.
double rounding_of(int64_t k, DType dtype) {
  return static_cast<double>(k + 2) * (dtype == DType::f64 ? 0x1p-53 : 0x1p-24);
}
double stored_rounding(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-10 : 0;
}

template <typename T>
std::optional<GemmFault> check_as(const T* c, const T* a, const T* b, int64_t m, int64_t n, int64_t k,
                                  const GemmOptions& o, DType dtype) {
  const GemmStrides stride = strides_of(m, n, k, o);
  Sums left(k), want(n), got(n);
  add_rows(left, a, m, k, stride.a_row, stride.a_col);
  add_product(want, left, b, n, k, stride.b_row, stride.b_col);
  add_rows(got, c, m, n, stride.c_row, 1);
  const double rounding = rounding_of(k, dtype), rows = static_cast<double>(m);
  std::optional<GemmFault> worst;
  double most = 1;
  for (size_t j = 0; j < static_cast<size_t>(n); ++j) {
    const double bias = o.bias ? wide(static_cast<const T*>(o.bias)[j]) : 0;
    const double sum = o.alpha * want.plain[j] + rows * bias;
    const double size = std::abs(o.alpha) * want.absolute[j] + rows * std::abs(bias);
    // Skips columns that may overflow the type. The gradient check detects overflow.
    if (!std::isfinite(size) || size > 1e36 || (dtype == DType::f16 && size > 6e4)) continue;
    double allowed = rounding * size + stored_rounding(dtype) * got.absolute[j] + rows * 1e-30;
    if (dtype == DType::f16) allowed += rows * 0x1p-24;  // subnormals of f16 have an absolute rounding error
    const double off = std::abs(got.plain[j] - sum) / allowed;
    if (off <= most) continue;
    most = std::isfinite(off) ? off : most;
    worst = GemmFault{m, n, k, static_cast<int64_t>(j), got.plain[j], sum, allowed};
  }
  return worst;
}

}  // namespace

std::optional<GemmFault> check_gemm_result(const void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k,
                                           const GemmOptions& options, DType dtype) {
  if (!can_be_checked(options)) return std::nullopt;
  const void* sums = options.activation == Activation::none ? c : options.pre_activation;
  std::optional<GemmFault> fault;
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    fault = check_as(static_cast<const T*>(sums), static_cast<const T*>(a), static_cast<const T*>(b), m, n, k, options,
                     dtype);
  });
  return fault;
}

GemmCheck::Scope::Scope(GemmCheck* check) : outer_(current) {
  current = check;
}
GemmCheck::Scope::~Scope() {
  current = outer_;
}

GemmCheck* GemmCheck::of_this_thread() {
  return current;
}

void GemmCheck::begin(uint64_t seed) {
  drawn_.reset();
  if (num_passed_ > 0)
    drawn_ = static_cast<int64_t>((seed * 0x9e3779b97f4a7c15u >> 32) % static_cast<uint64_t>(num_passed_));
  num_passed_ = 0;
}

void GemmCheck::pass(void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k, const GemmOptions& options,
                     DType dtype) {
  if (!can_be_checked(options) || m == 0 || n == 0 || k == 0 || drawn_ != num_passed_++) return;
  if (std::exchange(spoil_, false)) {
    // Flips the highest exponent bit of the first element: the largest error that one bit can cause.
    auto* last = static_cast<unsigned char*>(options.activation == Activation::none ? c : options.pre_activation) +
                 size_of(dtype) - 1;
    *last ^= 0x40;
  }
  ++num_checked_;
  const int64_t begun = now_ns();
  if (auto found = check_gemm_result(c, a, b, m, n, k, options, dtype); found && !fault_) fault_ = found;
  last_ns_ = now_ns() - begun;
}

}  // namespace esp::kernel
