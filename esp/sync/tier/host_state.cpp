// The table of placements, and the one in the host's memory.
#include "esp/base/table.h"
#include "esp/sync/tier/state_tier.h"

namespace esp::sync {
namespace {

class HostState final : public StateTier {
 public:
  explicit HostState(const StateShape& shape) : plan_(*shape.plan), element_bytes_(size_of(shape.type)) {
    for (size_t slot = 0; slot < shape.num_slots; ++slot)
      slots_.emplace_back(*shape.host, tensor::Shape{plan_.count}, shape.type, device::MemoryCategory::optimizer);
    at_.resize(shape.num_slots);
  }

  void sweep(Access, const Visit& visit) override {
    for (const TilePlan::Tile& tile : plan_.tiles) {
      for (size_t slot = 0; slot < slots_.size(); ++slot)
        at_[slot] = slots_[slot].as<std::byte>() + static_cast<size_t>(tile.begin) * element_bytes_;
      visit(tile, at_);
    }
  }
  std::vector<tensor::Tensor> gather() override { return slots_; }
  void scatter(std::span<const tensor::Tensor>) override {}  // they are the state itself

 private:
  const TilePlan& plan_;
  const size_t element_bytes_;
  std::vector<tensor::Tensor> slots_;
  std::vector<std::byte*> at_;
};

struct Row {
  std::string_view name;
  std::unique_ptr<StateTier> (*make)(const StateShape&, const FileOptions&);
};
constexpr Row kPlacements[] = {{"host", make_host_state}, {"file", make_file_state}};

}  // namespace

std::unique_ptr<StateTier> make_host_state(const StateShape& shape, const FileOptions&) {
  return std::make_unique<HostState>(shape);
}

std::unique_ptr<StateTier> make_state_tier(std::string_view placement, const StateShape& shape,
                                           const FileOptions& options) {
  return find_row("optimizer placement", kPlacements, placement).make(shape, options);
}

}  // namespace esp::sync
