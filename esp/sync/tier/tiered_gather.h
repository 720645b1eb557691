// A unit's values out of shards that lie beyond the device, in three legs that run at different depths of the walk:
// file to host, host to device, and the all-gather over the ranks, while the units before it compute (ZeRO-Infinity,
// Rajbhandari 2021). A rank that is alone has no third leg: its shard is the unit, and goes up into its place.
//
// The window's thread calls. Copies run on a thread of their own and are counted by the link; device memory is taken
// by the caller, so that it is taken in the same order every time.
#pragma once

#include <vector>

#include "esp/base/work.h"
#include "esp/device/host_link.h"
#include "esp/sync/ranks.h"
#include "esp/sync/tier/lane.h"
#include "esp/sync/tier/value_tier.h"
#include "esp/sync/zero/unit_window.h"

namespace esp::sync {

class TieredGather final : public UnitGather {
 public:
  // `values` and `link` outlive it.
  TieredGather(Ranks& ranks, const tensor::Context& context, ValueTier& values, device::HostLink& link,
               size_t num_units, Duration timeout);

  void start(size_t unit, const tensor::Tensor& whole) override;
  void finish(size_t unit, const tensor::Tensor& whole) override;
  void hint(size_t unit, int distance) override;
  void values_changed() override;
  double exposed_ms() const override { return exposed_ms_; }  // of the first two legs
  double fetch_ms(size_t unit) const override { return legs_[unit].fetch_ms; }

 private:
  struct Leg {
    bool lifted = false;  // on its way up, or there
    Work lifting;
    tensor::Tensor shard;  // on the device, where there are others to gather from
    Work gathering;
    double fetch_ms = 0;  // the last time; written by the lane, read after `lifting`
  };
  void lift(size_t unit, const tensor::Tensor& into);
  void lift_shard(size_t unit);
  void wait_for_lift(Leg& leg);

  Ranks& ranks_;
  const tensor::Context context_;
  ValueTier& values_;
  device::HostLink& link_;
  const Duration timeout_;
  std::vector<Leg> legs_;  // by unit
  double exposed_ms_ = 0;
  Lane lane_;
};

}  // namespace esp::sync
