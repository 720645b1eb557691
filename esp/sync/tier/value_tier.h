// Value tier: stores a rank's shards of the weights off the device, in host memory or in a file (ZeRO-Infinity,
// Rajbhandari 2021). A shard is read whole, for upload to the device. Initialisation, loading and updates write a shard
// one range of elements at a time. The code that uploads a shard counts the uploaded bytes.
//
// Readers (prefetch, fetch, release: any thread) and writers (write, flush: one thread) alternate: no reads between the
// first write and `flush`.
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

  // The flat shard of a unit. In a file: a tensor with shape and type but without memory.
  virtual tensor::Tensor shard(size_t unit) const = 0;
  // Hint that the shard will be needed soon, so that a slow read can begin.
  virtual void prefetch(size_t) {}
  // Waits for the shard and returns it in host memory, valid until `release`. Rethrows a read error.
  virtual const std::byte* fetch(size_t unit) = 0;
  virtual void release(size_t) {}
  // Writes elements from index `first` on. The writes of a unit must be in order and cover the whole shard.
  virtual void write(size_t unit, int64_t first, std::span<const std::byte> from) = 0;
  // Completes all writes and discards shards that were read ahead. Throws IoError if a write failed.
  virtual void flush() {}
  virtual FileTraffic traffic() const { return {}; }
};

struct ValueShape {
  std::vector<int64_t> counts;  // [unit]: number of elements of this rank's shard
  DType type = DType::f32;
  device::MemoryPool* host = nullptr;  // pool of the host tier
};

std::unique_ptr<ValueTier> make_host_values(const ValueShape& shape, const FileOptions& options);
// Throws IoError if the disk is too small.
std::unique_ptr<ValueTier> make_file_values(const ValueShape& shape, const FileOptions& options);
// `placement` is "host" or "file"; throws UsageError for another value.
std::unique_ptr<ValueTier> make_value_tier(std::string_view placement, const ValueShape& shape,
                                           const FileOptions& options);

}  // namespace esp::sync
