// Where a rank's shards of the values lie when they do not lie on the device: in the host's memory or in a file (ZeRO-
// Infinity, Rajbhandari 2021). They are read a shard at a time on their way up, and written a run of elements at a time
// by whoever initialises, loads or updates them. What crosses to the device is the reader's to count.
//
// Readers (expect, bring, release: any thread) and writers (write, settle: one thread) take turns: between the first
// write and `settle` nobody reads.
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

  // A unit's shard, flat; where it lies in a file, shape and type without memory.
  virtual tensor::Tensor shard(size_t unit) const = 0;
  // It will be wanted soon: what takes time may begin.
  virtual void expect(size_t) {}
  // The shard in the host's memory, until `release`. Waits; throws what reading it threw.
  virtual const std::byte* bring(size_t unit) = 0;
  virtual void release(size_t) {}
  // Elements from `first` on. A unit's runs come in order and cover all of it.
  virtual void write(size_t unit, int64_t first, std::span<const std::byte> from) = 0;
  // What was written lies where it belongs, and what was read before is forgotten. IoError of a write that failed.
  virtual void settle() {}
  virtual FileTraffic traffic() const { return {}; }
};

struct ValueShape {
  std::vector<int64_t> counts;  // elements of this rank's shard of each unit
  DType type = DType::f32;
  device::Pool* host = nullptr;  // of the host tier
};

std::unique_ptr<ValueTier> make_host_values(const ValueShape& shape, const FileOptions& options);
// IoError when the disk is too small.
std::unique_ptr<ValueTier> make_file_values(const ValueShape& shape, const FileOptions& options);
// "host" or "file"; UsageError lists them.
std::unique_ptr<ValueTier> make_value_tier(std::string_view placement, const ValueShape& shape,
                                           const FileOptions& options);

}  // namespace esp::sync
