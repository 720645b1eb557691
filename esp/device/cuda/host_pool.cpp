#include "esp/device/host_pool.h"

#include <memory>

#include "esp/device/cuda/queue.h"

namespace esp::device {
namespace {

struct HostSide {
  MemoryAccount own;  // where the queue has none
  std::unique_ptr<MemoryPool> pool;
};

}  // namespace

MemoryPool& host_pool(const Stream& stream) {
  CudaQueue& queue = queue_of(stream);
  auto& side = queue.own<HostSide>();
  if (!side.pool) side.pool = std::make_unique<MemoryPool>(queue.account ? *queue.account : side.own, MemoryTier::host);
  return *side.pool;
}

}  // namespace esp::device
