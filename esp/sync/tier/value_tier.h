// Value tier: a rank's shards of the weights off the device, in host memory or in a file (ZeRO-Infinity, Rajbhandari
// 2021). Shards are read whole for upload, and written a range of elements at a time by initialisation, loading and
// updates. The reader counts uploads to the device.
//
// Readers (expect, bring, release: any thread) and writers (write, settle: one thread) alternate: no reads between the
// first write and `settle`.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "esp/sync/tier/reserved_file.h"
#include "esp/sync/tier/state_tier.h"
#include "esp/tensor/tensor.h"

namespace esp::sync {

class ValueTier {
 public:
  virtual ~ValueTier() = default;

  // A unit's shard, flat; in a file: shape and type without memory.
  virtual tensor::Tensor shard(size_t unit) const = 0;
  // Hint that the shard is needed soon: a slow read may begin.
  virtual void prefetch(size_t) {}
  // Returns the shard in host memory, valid until `release`. Waits; rethrows a read error.
  virtual const std::byte* fetch(size_t unit) = 0;
  virtual void release(size_t) {}
  // Writes elements from `first` on. A unit's writes are in order and cover all of it.
  virtual void write(size_t unit, int64_t first, std::span<const std::byte> from) = 0;
  // Completes all writes and discards shards read earlier. IoError for a failed write.
  virtual void flush() {}
  virtual FileTraffic traffic() const { return {}; }
};

struct ValueShape {
  std::vector<int64_t> counts;  // elements of this rank's shard of each unit
  DType type = DType::f32;
  device::MemoryPool* host = nullptr;  // of the host tier
};

std::unique_ptr<ValueTier> make_host_values(const ValueShape& shape, const FileOptions& options);
// IoError when the disk is too small.
std::unique_ptr<ValueTier> make_file_values(const ValueShape& shape, const FileOptions& options);
// "host" or "file"; UsageError lists them.
std::unique_ptr<ValueTier> make_value_tier(std::string_view placement, const ValueShape& shape,
                                           const FileOptions& options);

}  // namespace esp::sync
