// DeviceContext: the device on which a rank computes: the CPU, or one GPU with its own queue. Owns the queue and the
// memory sources of the pools, so it must outlive the pools.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "esp/device/gpu.h"

namespace esp::train {

struct GpuOptions {
  bool deterministic = false;  // bitwise reproducible results; slower and more memory
  bool tf32 = false;           // fp32 GEMMs in TF32 (10-bit mantissa)
  bool fp8 = false;            // bf16 linear layers in FP8
  // path of the file of tuned GEMM algorithms, read at the start and written at the end; empty: none
  std::string choices;
};

class DeviceContext {
 public:
  // `device` is the value of run.device. With several GPUs, uses GPU `number` modulo the number of GPUs. DeviceError if
  // the device is not available.
  DeviceContext(const std::string& device, device::MemoryAccount& account, int number = 0,
                const GpuOptions& options = {});
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  device::Stream stream(device::ThreadPool* threads) const;
  device::SegmentSource& memory() { return memory_ ? *memory_ : device::host_memory(); }
  device::SegmentSource& host_memory() { return host_memory_ ? *host_memory_ : device::host_memory(); }

 private:
  const std::string choices_;
  std::optional<device::GpuQueue> queue_;                        // empty: CPU
  std::unique_ptr<device::SegmentSource> memory_, host_memory_;  // null: CPU
};

}  // namespace esp::train
