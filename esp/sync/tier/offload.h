// What is offloaded in a run: the optimizer's state to the host or a file, and with zero2 and zero3 the gradients to
// the host as soon as they are reduced. Owns the host's memory and the link to it.
#pragma once

#include <memory>

#include "esp/sync/strategy.h"
#include "esp/sync/tier/offloaded_optimizer.h"

namespace esp::sync {

class Offload final : public GradientSink {
 public:
  explicit Offload(device::MemoryAccount& account) : host_(account, device::MemoryTier::host) {}

  // Once. The optimizer is the caller's and must not outlive this.
  std::unique_ptr<OffloadedOptimizer> make_optimizer(const optim::OptimizerOptions& options,
                                                     const nn::ParameterList& parameters, const device::Stream& stream,
                                                     std::vector<optim::Owned> owned, const TierOptions& tier);

  void take(size_t owned, int64_t first, const tensor::Tensor& piece, bool add) override;
  tensor::Tensor taken(size_t owned) override;

  device::Pool& host() { return host_; }
  device::HostLink& link() { return link_; }

 private:
  device::Pool host_;
  device::HostLink link_;
  OffloadedOptimizer* optimizer_ = nullptr;
};

}  // namespace esp::sync
