// Offload of a run: the optimizer state to the host or a file; with zero2 and zero3 the gradients to the host as soon
// as they are reduced; with zero3 optionally the weights. Owns the host memory and the link.
#pragma once

#include <memory>

#include "esp/sync/strategy.h"
#include "esp/sync/tier/offloaded_optimizer.h"

namespace esp::sync {

class Offload final : public GradientSink {
 public:
  // `files`: options of files. `memory`: of host memory.
  explicit Offload(device::MemoryAccount& account, const FileOptions& files = {},
                   device::SegmentSource& memory = device::host_memory())
      : files_(files), host_(account, device::MemoryTier::host, memory) {}

  // Sets the tier of the weights; before the optimizer is created. Borrowed.
  void set_values(ValueTier* values) { values_ = values; }
  ValueTier* values() const { return values_; }
  // Once. The caller owns the optimizer and must destroy it first.
  std::unique_ptr<OffloadedOptimizer> make_optimizer(const optim::OptimizerOptions& options,
                                                     const nn::ParameterList& parameters, const device::Stream& stream,
                                                     std::vector<optim::OptimizerShard> owned, const TierOptions& tier);

  // With an optimizer that updates early: called before the gradients arrive.
  void open_step(double lr, double grad_scale) { optimizer_->open_step(lr, grad_scale); }
  void take(size_t owned, int64_t first, const tensor::Tensor& piece, bool add) override;
  tensor::Tensor taken(size_t owned) override;

  // Traffic between files and memory, of states and weights.
  FileTraffic file_traffic() const;
  const FileOptions& files() const { return files_; }
  std::vector<std::string> notes() const;  // features that the file tier lacks on this machine, for the log
  device::MemoryPool& host() { return host_; }
  device::HostLink& link() { return link_; }

 private:
  const FileOptions files_;
  device::MemoryPool host_;
  device::HostLink link_;
  ValueTier* values_ = nullptr;  // null: the weights are on the device
  OffloadedOptimizer* optimizer_ = nullptr;
};

}  // namespace esp::sync
