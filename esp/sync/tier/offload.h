// What is offloaded in a run: the optimizer's state to the host or a file, and with zero2 and zero3 the gradients to
// the host as soon as they are reduced; with zero3 the values too, where asked for. Owns the host's memory and the link
// to it.
#pragma once

#include <memory>

#include "esp/sync/strategy.h"
#include "esp/sync/tier/offloaded_optimizer.h"

namespace esp::sync {

class Offload final : public GradientSink {
 public:
  // `files`: where what goes to a file goes. `memory`: of the host.
  explicit Offload(device::MemoryAccount& account, const FileOptions& files = {},
                   device::SegmentSource& memory = device::host_memory())
      : files_(files), host_(account, device::MemoryTier::host, memory) {}

  // Where the strategy keeps values beyond the device; before the optimizer is made. Lent.
  void set_values(ValueTier* values) { values_ = values; }
  ValueTier* values() const { return values_; }
  // Once. The optimizer is the caller's and must not outlive this.
  std::unique_ptr<OffloadedOptimizer> make_optimizer(const optim::OptimizerOptions& options,
                                                     const nn::ParameterList& parameters, const device::Stream& stream,
                                                     std::vector<optim::Owned> owned, const TierOptions& tier);

  // Of an optimizer that updates as gradients come, before they do.
  void open_step(double lr, double grad_scale) { optimizer_->open_step(lr, grad_scale); }
  void take(size_t owned, int64_t first, const tensor::Tensor& piece, bool add) override;
  tensor::Tensor taken(size_t owned) override;

  // Between the files and memory, of states and values.
  FileTraffic file_traffic() const;
  const FileOptions& files() const { return files_; }
  device::Pool& host() { return host_; }
  device::HostLink& link() { return link_; }

 private:
  const FileOptions files_;
  device::Pool host_;
  device::HostLink link_;
  ValueTier* values_ = nullptr;  // null: the values are on the device
  OffloadedOptimizer* optimizer_ = nullptr;
};

}  // namespace esp::sync
