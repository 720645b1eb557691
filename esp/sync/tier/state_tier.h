// Where an optimizer's state lies when it does not lie on the device: the master copy and the moments of every owned
// element, in the host's memory or in a file, met tile by tile.
//
// Slot 0 is the master copy, or what of it the values lack; the others are the rule's, in its order. Tiles are met in
// an order told beforehand, so that what lies in a file is read ahead. One thread at a time calls; pool and plan
// outlive the tier.
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

// What went between the file and memory; padding is what whole blocks add to it. Zero where there is no file.
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
  // The tiles that will be visited, each once. read: what the visitor leaves is not kept. write: what it finds is not
  // defined. An order that was not walked to its end is given up.
  virtual void begin(Access access, std::vector<size_t> order) = 0;
  virtual void visit_next(size_t num, const Visit& visit) = 0;  // so many of the order
  virtual void end() = 0;                                       // what was left lies where it belongs
  virtual size_t num_tiles() const = 0;
  void sweep(Access access, const Visit& visit);  // every tile in the plan's order
  // Every slot whole, flat [count], where the state lies so in memory; otherwise none.
  virtual std::span<const tensor::Tensor> whole() const { return {}; }
  virtual FileTraffic traffic() const { return {}; }
  virtual std::vector<std::string> notes() const { return {}; }
};

struct StateShape {
  const TilePlan* plan = nullptr;
  uint64_t host_bytes = 0;  // of a state in a file: so much of it lies in the host's memory instead
  std::vector<DType> slots;
  device::Pool* host = nullptr;  // of the host tier
};

std::unique_ptr<StateTier> make_host_state(const StateShape& shape, const FileOptions& options);
// IoError when the disk is too small: bytes wanted, bytes free, and the elements that would fit.
std::unique_ptr<StateTier> make_file_state(const StateShape& shape, const FileOptions& options);
// "host" or "file"; UsageError lists them.
std::unique_ptr<StateTier> make_state_tier(std::string_view placement, const StateShape& shape,
                                           const FileOptions& options);

}  // namespace esp::sync
