// The list of state tiers, and the state tier in host memory.
#include <deque>
#include <numeric>
#include <utility>

#include "esp/base/check.h"
#include "esp/base/table.h"
#include "esp/sync/tier/state_tier.h"

namespace esp::sync {
namespace {

class HostState final : public StateTier {
 public:
  explicit HostState(const StateShape& shape) : plan_(*shape.plan) {
    // Only CPU threads access this memory, so it need not be pinned.
    for (const DType type : shape.slots) {
      const device::HostBuffer& memory =
          memory_.emplace_back(shape.host->account(), static_cast<size_t>(plan_.count) * size_of(type),
                               device::AllocateOptions{.category = device::MemoryCategory::optimizer,
                                                       .tier = device::MemoryTier::host,
                                                       .huge_pages = true,
                                                       .zero = false});
      slots_.push_back(tensor::Tensor::borrow(memory.data(), {plan_.count}, type));
    }
    at_.resize(shape.slots.size());
  }

  void begin(Access, std::vector<size_t> order) override {
    order_ = std::move(order);
    next_ = 0;
  }
  void visit_next(size_t num, const Visit& visit) override {
    ESP_CHECK(next_ + num <= order_.size(), "visit_next: got {} tiles from index {}; the order has {} tiles", num,
              next_, order_.size());
    for (const size_t end = next_ + num; next_ < end; ++next_) {
      const TilePlan::Tile& tile = plan_.tiles[order_[next_]];
      for (size_t slot = 0; slot < slots_.size(); ++slot)
        at_[slot] = slots_[slot].as<std::byte>() + static_cast<size_t>(tile.begin) * size_of(slots_[slot].dtype());
      visit(tile, at_);
    }
  }
  void end() override {}
  size_t num_tiles() const override { return plan_.tiles.size(); }
  std::span<const tensor::Tensor> whole() const override { return slots_; }

 private:
  const TilePlan& plan_;
  std::deque<device::HostBuffer> memory_;
  std::vector<tensor::Tensor> slots_;
  std::vector<std::byte*> at_;
  std::vector<size_t> order_;
  size_t next_ = 0;
};

struct Row {
  std::string_view name;
  std::unique_ptr<StateTier> (*make)(const StateShape&, const FileOptions&);
};
constexpr Row kPlacements[] = {{"host", make_host_state}, {"file", make_file_state}};

}  // namespace

void StateTier::sweep(Access access, const Visit& visit) {
  std::vector<size_t> order(num_tiles());
  std::iota(order.begin(), order.end(), size_t{0});
  const size_t num = order.size();
  begin(access, std::move(order));
  visit_next(num, visit);
  end();
}

std::unique_ptr<StateTier> make_host_state(const StateShape& shape, const FileOptions&) {
  return std::make_unique<HostState>(shape);
}

std::unique_ptr<StateTier> make_state_tier(std::string_view placement, const StateShape& shape,
                                           const FileOptions& options) {
  return find_row("optimizer placement", kPlacements, placement).make(shape, options);
}

}  // namespace esp::sync
