// `bench kernel`: times each kernel of a training step at the shapes of two models, and relates it to the machine's
// peak rate.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::app {

struct KernelRow {
  std::string kernel, shape;
  double median_us = 0, best_us = 0;
  double work = 0;         // floating-point operations, or bytes read and written, per call
  bool in_flops = true;    // unit of `work`
  double baseline_us = 0;  // median time of the library given with --against; 0: not measured
};

class Blas;

// Times calls on one stream and reports the rows.
class KernelTimer {
 public:
  KernelTimer(device::Stream stream, DType dtype, double seconds, const Blas* baseline,
              std::function<void(const KernelRow&)> report)
      : stream_(stream), dtype_(dtype), seconds_(seconds), baseline_(baseline), report_(std::move(report)) {}
  const device::Stream& stream() const { return stream_; }
  DType dtype() const { return dtype_; }
  const Blas* baseline() const { return baseline_; }
  // Calls of the baseline library, if one is given, alternate with Espalier's.
  void flops(std::string_view kernel, std::string shape, double count, const std::function<void()>& call,
             const std::function<void()>& baseline_call = {});
  void bytes(std::string_view kernel, std::string shape, double count, const std::function<void()>& call);

 private:
  void time(KernelRow row, const std::function<void()>& call, const std::function<void()>& baseline_call);
  device::Stream stream_;
  DType dtype_;
  double seconds_;
  const Blas* baseline_;
  std::function<void(const KernelRow&)> report_;
};

struct KernelCase {
  std::string_view name, help;
  void (*run)(KernelTimer& timer);
};
std::span<const KernelCase> kernel_cases();
void time_compress(KernelTimer& timer);  // bench_kernel_compress.cpp

}  // namespace esp::app
