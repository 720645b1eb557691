// The list of value tiers, and the value tier in host memory.
#include "esp/base/table.h"
#include "esp/device/gpu.h"
#include "esp/sync/tier/value_tier.h"

namespace esp::sync {
namespace {

class HostValues final : public ValueTier {
 public:
  explicit HostValues(const ValueShape& shape) {
    for (const int64_t count : shape.counts)
      shards_.emplace_back(*shape.host, tensor::Shape{count}, shape.type, device::MemoryCategory::parameter);
  }

  tensor::Tensor shard(size_t unit) const override { return shards_[unit]; }
  const std::byte* fetch(size_t unit) override { return shards_[unit].as<std::byte>(); }
  void write(size_t unit, int64_t first, std::span<const std::byte> from) override {
    const tensor::Tensor& to = shards_[unit];
    const size_t skip = static_cast<size_t>(first) * size_of(to.dtype());
    ESP_CHECK(skip + from.size() <= to.bytes(), "write to unit {}: got {} bytes from byte {}; the shard has {} bytes",
              unit, from.size(), skip, to.bytes());
    device::transfer(to.as<std::byte>() + skip, from.data(), from.size());
  }

 private:
  std::vector<tensor::Tensor> shards_;
};

struct Row {
  std::string_view name;
  std::unique_ptr<ValueTier> (*make)(const ValueShape&, const FileOptions&);
};
constexpr Row kPlacements[] = {{"host", make_host_values}, {"file", make_file_values}};

}  // namespace

std::unique_ptr<ValueTier> make_host_values(const ValueShape& shape, const FileOptions&) {
  return std::make_unique<HostValues>(shape);
}

std::unique_ptr<ValueTier> make_value_tier(std::string_view placement, const ValueShape& shape,
                                           const FileOptions& options) {
  return find_row("sync.offload_params", kPlacements, placement).make(shape, options);
}

}  // namespace esp::sync
