#include "esp/device/host_pool.h"

#include <memory>

#include "esp/device/cuda/queue.h"

namespace esp::device {
namespace {

struct HostSide {
  MemoryAccount own;  // counts the pool's memory if the queue has no MemoryAccount
  std::unique_ptr<MemoryPool> pool;
};

}  // namespace

MemoryPool& host_pool(const Stream& stream) {
  CudaQueue& queue = queue_of(stream);
  auto& side = queue.get_or_create<HostSide>();
  if (!side.pool) side.pool = std::make_unique<MemoryPool>(queue.account ? *queue.account : side.own, MemoryTier::host);
  return *side.pool;
}

}  // namespace esp::device
