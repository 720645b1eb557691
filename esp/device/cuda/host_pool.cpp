#include "esp/device/host_pool.h"

#include <memory>

#include "esp/device/cuda/queue.h"

namespace esp::device {
namespace {

struct HostSide {
  MemoryAccount own;  // where the queue has none
  std::unique_ptr<Pool> pool;
};

}  // namespace

Pool& host_pool(const Stream& stream) {
  Queue& queue = queue_of(stream);
  auto& side = queue.own<HostSide>();
  if (!side.pool) side.pool = std::make_unique<Pool>(queue.account ? *queue.account : side.own, MemoryTier::host);
  return *side.pool;
}

}  // namespace esp::device
