// Offload: stores the optimizer state in host memory or in a file. With zero2 and zero3 gradients go to the host as
// soon as they are reduced; with zero3 the weights may also be stored in host memory or in a file. Owns the pool of
// host memory and the link between host and device.
#pragma once

#include <memory>

#include "esp/sync/strategy.h"
#include "esp/sync/tier/offloaded_optimizer.h"

namespace esp::sync {

class Offload final : public GradientSink {
 public:
  // `files` configures the file tier; `memory` is the source of host memory.
  explicit Offload(device::MemoryAccount& account, const FileOptions& files = {},
                   device::SegmentSource& memory = device::host_memory())
      : files_(files), host_(account, device::MemoryTier::host, memory) {}

  // Sets the value tier if the weights are not stored on the device; call before the optimizer is created. Not owned.
  void set_values(ValueTier* values) { values_ = values; }
  ValueTier* values() const { return values_; }
  // Creates the optimizer; call once. The caller owns it and must destroy it before this object.
  std::unique_ptr<OffloadedOptimizer> make_optimizer(const optim::OptimizerOptions& options,
                                                     const nn::ParameterList& parameters, const device::Stream& stream,
                                                     std::vector<optim::OptimizerShard> owned, const TierOptions& tier);

  // Early updates: call in each step before its gradients arrive.
  void open_step(double lr, double grad_scale) { optimizer_->open_step(lr, grad_scale); }
  void take_gradient(size_t owned, int64_t first, const tensor::Tensor& piece, bool add) override;
  tensor::Tensor gradient(size_t owned) override;

  // Bytes read from and written to files, for optimizer state and weights together.
  FileTraffic file_traffic() const;
  const FileOptions& files() const { return files_; }
  std::vector<std::string> notes() const;  // features that the file tier lacks on this machine; for the log
  device::MemoryPool& host() { return host_; }
  device::HostLink& link() { return link_; }

 private:
  const FileOptions files_;
  device::MemoryPool host_;
  device::HostLink link_;
  ValueTier* values_ = nullptr;  // null if the weights are on the device
  OffloadedOptimizer* optimizer_ = nullptr;
};

}  // namespace esp::sync
