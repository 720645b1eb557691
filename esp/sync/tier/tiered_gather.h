// Gathers a unit's weights from shards that are stored off the device (ZeRO-Infinity, Rajbhandari 2021). Three stages
// run for different units at the same time, while earlier units compute: file to host, host to device, and the
// all-gather over the ranks. With a single rank there is no third stage: the shard is the whole unit and is copied to
// its final memory.
//
// Called only from the thread that uses the UnitWindow. Copies run on a separate thread; the HostLink counts their
// bytes. The caller allocates device memory, so the order of allocations is deterministic.
#pragma once

#include <vector>

#include "esp/base/work.h"
#include "esp/device/host_link.h"
#include "esp/sync/tier/serial_executor.h"
#include "esp/sync/tier/value_tier.h"
#include "esp/sync/timed_communicator.h"
#include "esp/sync/zero/unit_window.h"

namespace esp::sync {

class TieredGather final : public UnitGather {
 public:
  // `values` and `link` must outlive this object.
  TieredGather(TimedCommunicator& ranks, const tensor::Context& context, ValueTier& values, device::HostLink& link,
               size_t num_units, Duration timeout);

  void start(size_t unit, const tensor::Tensor& whole) override;
  void finish(size_t unit, const tensor::Tensor& whole) override;
  void hint(size_t unit, int distance) override;
  void values_changed() override;
  double exposed_ms() const override { return exposed_ms_; }  // time spent waiting for the first two stages
  double fetch_ms(size_t unit) const override { return units_[unit].fetch_ms; }

 private:
  struct UnitStages {
    bool uploaded = false;  // the upload has started or finished
    Work upload;
    tensor::Tensor shard;  // this rank's shard on the device; undefined with a single rank
    Work gathering;
    double fetch_ms = 0;  // duration of the last fetch; written by the executor, read after `upload`
  };
  void start_upload(size_t unit, const tensor::Tensor& into);
  void upload_shard(size_t unit);
  void wait_for_upload(UnitStages& unit_stages);

  TimedCommunicator& ranks_;
  const tensor::Context context_;
  ValueTier& values_;
  device::HostLink& link_;
  const Duration timeout_;
  std::vector<UnitStages> units_;  // [unit]: its stages
  double exposed_ms_ = 0;
  SerialExecutor executor_;
};

}  // namespace esp::sync
