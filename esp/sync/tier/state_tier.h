// State tier: stores the optimizer state off the device, in host memory or in a file. It holds the master copy and the
// moments of every owned element and is visited tile by tile.
//
// Slot 0 is the master copy, or its lower half if it is split. The other slots are those of the update rule, in its
// order. The order of visits is set beforehand, so that a file is read ahead. Only one thread at a time may use a tier;
// pool and plan must outlive it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "esp/sync/tier/reserved_file.h"
#include "esp/sync/tier/tile_plan.h"
#include "esp/tensor/tensor.h"

namespace esp::sync {

// Bytes between the file and memory. `padding` counts the bytes added by rounding to whole blocks. All zero if there is
// no file.
struct FileTraffic {
  uint64_t read = 0, written = 0;
  uint64_t padding_read = 0, padding_written = 0;
};

class StateTier {
 public:
  enum class Access { read, write, update };
  // Receives the state of one tile: for each slot an array of tile.count() elements.
  using Visit = std::function<void(const TilePlan::Tile& tile, std::span<std::byte* const> slots)>;

  virtual ~StateTier() = default;
  // Sets the tiles to visit and their order; each tile at most once. Access::read: changes are not stored.
  // Access::write: the previous content is undefined. An unfinished order is abandoned.
  virtual void begin(Access access, std::vector<size_t> order) = 0;
  virtual void visit_next(size_t num, const Visit& visit) = 0;  // visits the next `num` tiles of the order
  virtual void end() = 0;                                       // ends the visits and stores all changes
  virtual size_t num_tiles() const = 0;
  void sweep(Access access, const Visit& visit);  // visits all tiles in the order of the plan
  // If the state is contiguous in memory: one flat tensor of all elements per slot. Otherwise empty.
  virtual std::span<const tensor::Tensor> whole() const { return {}; }
  virtual FileTraffic traffic() const { return {}; }
  virtual std::vector<std::string> notes() const { return {}; }
};

struct StateShape {
  const TilePlan* plan = nullptr;
  uint64_t host_bytes = 0;  // state in a file: bytes of the state that stay in host memory
  std::vector<DType> slots;
  device::MemoryPool* host = nullptr;  // pool of the host tier
};

std::unique_ptr<StateTier> make_host_state(const StateShape& shape, const FileOptions& options);
// Throws IoError if the disk is too small. The message contains the bytes needed, the bytes free, and the largest size
// that fits.
std::unique_ptr<StateTier> make_file_state(const StateShape& shape, const FileOptions& options);
// `placement` is "host" or "file"; throws UsageError for another value.
std::unique_ptr<StateTier> make_state_tier(std::string_view placement, const StateShape& shape,
                                           const FileOptions& options);

}  // namespace esp::sync
