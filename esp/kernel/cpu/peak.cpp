#include "esp/kernel/peak.h"
#include "esp/kernel/cuda_dispatch.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "esp/base/clock.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/peak.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Runs ten independent chains of FMAs, which hide the latency of an FMA. Returns the number of FLOPs. `sink` receives a
// result, so that the compiler does not remove the work.
template <typename T>
double multiply_add_chains(int64_t rounds, T* sink) {
  const hn::ScalableTag<T> d;
  const auto a = hn::Set(d, static_cast<T>(0.999999)), b = hn::Set(d, static_cast<T>(1e-6));
  auto x0 = hn::Set(d, T{0}), x1 = hn::Set(d, T{1}), x2 = hn::Set(d, T{2}), x3 = hn::Set(d, T{3}),
       x4 = hn::Set(d, T{4}), x5 = hn::Set(d, T{5}), x6 = hn::Set(d, T{6}), x7 = hn::Set(d, T{7}),
       x8 = hn::Set(d, T{8}), x9 = hn::Set(d, T{9});
  for (int64_t i = 0; i < rounds; ++i) {
    x0 = hn::MulAdd(x0, a, b);
    x1 = hn::MulAdd(x1, a, b);
    x2 = hn::MulAdd(x2, a, b);
    x3 = hn::MulAdd(x3, a, b);
    x4 = hn::MulAdd(x4, a, b);
    x5 = hn::MulAdd(x5, a, b);
    x6 = hn::MulAdd(x6, a, b);
    x7 = hn::MulAdd(x7, a, b);
    x8 = hn::MulAdd(x8, a, b);
    x9 = hn::MulAdd(x9, a, b);
  }
  const auto sum = hn::Add(hn::Add(hn::Add(x0, x1), hn::Add(x2, x3)),
                           hn::Add(hn::Add(x4, x5), hn::Add(hn::Add(x6, x7), hn::Add(x8, x9))));
  *sink = hn::GetLane(sum);
  return static_cast<double>(rounds) * 10 * 2 * static_cast<double>(hn::Lanes(d));
}

double burst_f32(int64_t rounds, float* sink) {
  return multiply_add_chains<float>(rounds, sink);
}
const char* target_name() {
  return hwy::TargetName(HWY_TARGET);
}
double burst_f64(int64_t rounds, double* sink) {
#if HWY_HAVE_FLOAT64
  return multiply_add_chains<double>(rounds, sink);
#else
  *sink = 0;
  return 0 * static_cast<double>(rounds);
#endif
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(burst_f32);
HWY_EXPORT(burst_f64);
HWY_EXPORT(target_name);

const char* cpu_instructions() {
  return HWY_DYNAMIC_DISPATCH(target_name)();
}

double fma_peak(DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::fma_peak(dtype, stream);
  constexpr int64_t kRounds = 200'000, kAll_ns = 50'000'000;
  const int num_threads = stream.num_threads();
  std::atomic<int> num_started{0};
  std::atomic<double> sum{0};
  const auto one = [&](int) {
    num_started.fetch_add(1);
    while (num_started.load() < num_threads) std::this_thread::yield();
    const int64_t end = now_ns() + kAll_ns;
    double best = 0;
    for (int64_t begun = now_ns(), now = begun; now <= end || best == 0; begun = now) {
      float f = 0;
      double d = 0;
      const double done = dtype == DType::f64 ? HWY_DYNAMIC_DISPATCH(burst_f64)(kRounds, &d)
                                              : HWY_DYNAMIC_DISPATCH(burst_f32)(kRounds, &f);
      now = now_ns();
      // A burst that ends after the measured interval is not counted, because other threads may have been idle during
      // it.
      if (now <= end || best == 0)
        best = std::max(best, (done + 0 * (static_cast<double>(f) + d)) / (static_cast<double>(now - begun) * 1e-9));
    }
    sum.fetch_add(best);
  };
  if (stream.pool) {
    stream.pool->run(one);
  } else {
    one(0);
  }
  return sum.load();
}

}  // namespace esp::kernel
#endif  // HWY_ONCE
