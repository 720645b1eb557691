// State tier: optimizer state off the device, the master copy and the moments of every owned element, in host memory or
// in a file, visited tile by tile.
//
// Slot 0 is the master copy, or the part of it that the weights lack; the others are those of the update rule, in its
// order. Tiles are visited in an order set beforehand, so that a file is read ahead. One thread at a time; pool and
// plan outlive the tier.
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

// Traffic between the file and memory; padding counts the rounding to whole blocks. Zero without a file.
struct FileTraffic {
  uint64_t read = 0, written = 0;
  uint64_t padding_read = 0, padding_written = 0;
};

class StateTier {
 public:
  enum class Access { read, write, update };
  // The state of one tile: an array [tile.count()] for each slot.
  using Visit = std::function<void(const TilePlan::Tile& tile, std::span<std::byte* const> slots)>;

  virtual ~StateTier() = default;
  // Sets the tiles to visit, each once. read: changes are not stored. write: the content before is undefined. An
  // unfinished order is abandoned.
  virtual void begin(Access access, std::vector<size_t> order) = 0;
  virtual void visit_next(size_t num, const Visit& visit) = 0;  // the next `num` of the order
  virtual void end() = 0;                                       // changes are stored
  virtual size_t num_tiles() const = 0;
  void sweep(Access access, const Visit& visit);  // every tile in the plan's order
  // Every slot whole, flat [count], where the state is contiguous in memory; otherwise none.
  virtual std::span<const tensor::Tensor> whole() const { return {}; }
  virtual FileTraffic traffic() const { return {}; }
  virtual std::vector<std::string> notes() const { return {}; }
};

struct StateShape {
  const TilePlan* plan = nullptr;
  uint64_t host_bytes = 0;  // of a state in a file: this many bytes are in host memory instead
  std::vector<DType> slots;
  device::MemoryPool* host = nullptr;  // of the host tier
};

std::unique_ptr<StateTier> make_host_state(const StateShape& shape, const FileOptions& options);
// IoError when the disk is too small: bytes needed, bytes free, and the number of elements that would fit.
std::unique_ptr<StateTier> make_file_state(const StateShape& shape, const FileOptions& options);
// "host" or "file"; UsageError lists them.
std::unique_ptr<StateTier> make_state_tier(std::string_view placement, const StateShape& shape,
                                           const FileOptions& options);

}  // namespace esp::sync
