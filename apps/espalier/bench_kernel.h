// What `bench kernel` measures: each kernel of the training step at the shapes of two models, held against what the
// machine can do at most.
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
  double work = 0;       // floating-point operations, or bytes read and written, in one call
  bool in_flops = true;  // what `work` counts
  double rival_us = 0;   // median of the library given with --against; 0: not asked
};

class Blas;

// Times calls on one stream and reports the rows.
class KernelTimer {
 public:
  KernelTimer(device::Stream stream, DType dtype, double seconds, const Blas* rival,
              std::function<void(const KernelRow&)> report)
      : stream_(stream), dtype_(dtype), seconds_(seconds), rival_(rival), report_(std::move(report)) {}
  const device::Stream& stream() const { return stream_; }
  DType dtype() const { return dtype_; }
  const Blas* rival() const { return rival_; }
  // A rival's call, where there is one, alternates with ours.
  void flops(std::string_view kernel, std::string shape, double count, const std::function<void()>& call,
             const std::function<void()>& rival_call = {});
  void bytes(std::string_view kernel, std::string shape, double count, const std::function<void()>& call);

 private:
  void time(KernelRow row, const std::function<void()>& call, const std::function<void()>& rival_call);
  device::Stream stream_;
  DType dtype_;
  double seconds_;
  const Blas* rival_;
  std::function<void(const KernelRow&)> report_;
};

struct KernelCase {
  std::string_view name, help;
  void (*run)(KernelTimer& timer);
};
std::span<const KernelCase> kernel_cases();
void time_compress(KernelTimer& timer);  // bench_kernel_compress.cpp

}  // namespace esp::app
