// Offloaded optimizer (ZeRO-Offload, Ren 2021; ZeRO-Infinity, Rajbhandari 2021): the optimizer state is stored off the
// device. Gradients are copied to the host, the update runs there tile by tile, and the new weights are copied back.
// Every element crosses the HostLink once in each direction.
//
// Gradients arrive in `take_gradient` while backward runs, or `step` copies them from OptimizerShard::grads. The host
// keeps them in the storage type. An update overwrites each gradient with the new weight after reading it, so the host
// needs no third buffer: 2 + 12 bytes per element in mixed precision. While the weights of a tile are uploaded, the
// next tile is updated. Results are bit-identical to the optimizer on the device, for any tiles and placement.
//
// Delayed update (delay_after = W > 0): steps are numbered from 0. From step W on, `step` passes the gradients to a
// host thread and returns; the next `step` installs the resulting weights. So the device computes step k while the
// gradients of step k − 1 are applied: w[k+1] = update(w[k], gradient at w[k−1]). Step W installs nothing. This needs
// two gradient buffers (2 more bytes per element). The state is one update ahead of the weights on the device; a
// checkpoint contains both, and a resume is bit-identical.
//
// Early update (early = true): `open_step` sets the parameters of the update. A host thread then updates every range as
// soon as its gradients have arrived, while backward continues. Gradients arrive one whole range at a time, pass
// through a few tiles of host memory and are not stored: 12 bytes per element in mixed precision. The global norm is
// not known when they are used. `step` waits for the last range. The state is visited in the order in which the
// gradients of the previous step arrived (at first: the last range first), so that a file is read ahead.
//
// Split master (split_master = true; needs bf16 and early): the bf16 weights are the upper 16 bits of the fp32 master
// copy, and only the lower 16 bits are stored (kernel/split_master.h). The weights are copied to the host with the
// gradients: 10 bytes per element.
//
// All calls come from one thread. The parameter list, stream, pool and link must outlive the optimizer.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "esp/base/work.h"
#include "esp/device/host_link.h"
#include "esp/optim/update_rule.h"
#include "esp/sync/tier/serial_executor.h"
#include "esp/sync/tier/state_tier.h"
#include "esp/sync/tier/value_tier.h"

namespace esp::sync {

struct TierOptions {
  std::string placement = "host";  // placement of the optimizer state: host or file
  int64_t tile = 4 << 20;          // number of elements that are updated, copied and streamed at a time
  uint64_t host_bytes = 0;         // placement file: bytes of the state that stay in host memory
  int64_t delay_after = 0;         // first step whose update is delayed; 0: no delay
  bool early = false;              // early update: each range is updated once its gradients have arrived
  bool split_master = false;       // needs early and bf16: the weights are the upper half of the master copy
  int64_t host_threads = 1;        // threads of delayed and early updates, in addition to the device's pool
  int64_t timeout_s = 600;         // maximum wait for an update
  FileOptions file;
  // The value tier, if the weights are stored off the device: then OptimizerShard::values are its shards, and nothing
  // is uploaded. Not owned.
  ValueTier* values = nullptr;
};

class OffloadedOptimizer final : public optim::Optimizer {
 public:
  // All ranges of `owned` have one storage type. Their `grads` may be undefined if take_gradient delivers every
  // element. `host` is a pool of the host tier.
  OffloadedOptimizer(std::unique_ptr<optim::UpdateRule> rule, const nn::ParameterList& parameters,
                     const device::Stream& stream, device::MemoryPool& host, device::HostLink& link,
                     std::vector<optim::OptimizerShard> owned, const TierOptions& options);

  // Receives elements [first, first + piece.count()) of an owned range. `add`: true: adds to the gradients received
  // before; false: replaces them.
  void take_gradient(size_t range, int64_t first, const tensor::Tensor& piece, bool add = false);
  // The gradients of a range, in host memory; used for norms. Valid until the next step.
  tensor::Tensor gradient(size_t range) const;
  // Discards the received gradients; call if a step is skipped.
  void drop_gradients();
  // Waits for a delayed update in flight and rethrows its error. Does not install its weights.
  void finish_update();
  // Early update: call before the first gradient of a step arrives, with the arguments that `step` will get.
  void open_step(double lr, double grad_scale);

  void step(double lr, double grad_scale) override;
  // The state, for checkpoints. If it is in a file, or the master copy is split, only one tile at a time is in memory.
  std::span<optim::OptimizerState> states() override;
  void states_restored() override;
  int64_t num_steps() const override { return num_steps_; }
  void set_num_steps(int64_t steps) override { num_steps_ = steps; }
  void refresh_master() override;

  FileTraffic file_traffic() const { return state_->traffic(); }
  std::vector<std::string> notes() const { return state_->notes(); }  // for the log

 private:
  // early update: number of tile buffers on the host, for gradients and weights
  static constexpr size_t kNumStages = 4;
  // early update: maximum number of ranges whose gradients wait on the device
  static constexpr size_t kMaxPendingRanges = 1;
  struct ElementSpan {
    int64_t begin, end;
  };
  struct PendingGradients {
    Work done;
    tensor::Tensor piece;
  };
  // Location of a tiled state: its tile and slot, and its first element in the tile.
  struct StateLocation {
    size_t tile, slot;
    int64_t first;
  };
  enum class PendingWeights { none, buffer, master };  // where the weights are that are not yet on the device

  std::byte* at(const tensor::Tensor& flat, int64_t element) const;
  size_t bytes(int64_t count) const { return static_cast<size_t>(count) * size_of(type_); }
  bool exposes_master() const;
  void copy_missing_gradients();
  void update(const optim::UpdateStep& step, const device::Stream& stream, bool install);
  // Before the call `both` contains the gradients of the tile; after the call it contains the new weights. With a split
  // master copy `values` contains the old weights.
  void update_tile(const TilePlan::Tile& tile, std::span<std::byte* const> slots, std::byte* both,
                   const std::byte* values, optim::UpdateStep step, const device::Stream& stream);
  void upload_values(const TilePlan::Tile& tile, std::byte* values, const device::Stream& stream);
  void fetch_values(const TilePlan::Segment& segment, std::byte* to, const device::Stream& stream);
  void expose_whole_states();
  void expose_tiled_states();
  void load_exposed_tile(size_t tile);
  void store_exposed_state(size_t state, const tensor::Tensor& values);
  void write_exposed_states(const TilePlan::Tile& tile, std::span<std::byte* const> slots);
  // Host memory of the tile's gradients and weights; with early update the first tile buffer.
  std::byte* staging_of(const TilePlan::Tile& tile) const;
  void start_early_update(size_t range, const tensor::Tensor& piece);
  void update_range(size_t range, const std::byte* piece, const std::shared_ptr<device::GpuEvent>& gradients_ready);
  void advance_to(size_t range);
  std::vector<size_t> tiles_of(std::span<const size_t> ranges) const;
  void wait_for_pending(size_t limit);
  device::Stream host_stream() const { return {.device = stream_.device, .pool = nullptr, .queue = nullptr}; }
  Deadline deadline() const { return Deadline::after_ms(options_.timeout_s * 1000); }
  void install_ahead();
  void fill_master(StateTier::Access access);
  void release_states();

  const std::unique_ptr<optim::UpdateRule> rule_;
  const device::Stream stream_;
  device::MemoryPool& host_;
  device::HostLink& link_;
  const TierOptions options_;
  const std::vector<optim::OptimizerShard> owned_;
  const DType type_;
  const TilePlan plan_;
  tensor::Tensor gradients_;  // gradients of the current step, all elements, flat
  // gradients that an update overwrites with weights; same memory as gradients_ without delay
  tensor::Tensor updating_;
  std::vector<std::vector<ElementSpan>> covered_;  // [range]: the received elements, sorted, without overlaps
  std::unique_ptr<StateTier> state_;
  std::vector<optim::OptimizerState> states_;
  // Tiled states: `slots` holds one tile in memory, one tensor per exposed slot.
  struct ExposedStates {
    std::vector<tensor::Tensor> slots;
    std::vector<StateLocation> locations;  // [state]: its location
    std::optional<size_t> tile;            // index of the tile in memory
    size_t next = 0;                       // index of the tile that the state tier visits next
    size_t num_taken = 0;                  // number of states restored so far
  };
  ExposedStates exposed_;
  int64_t num_steps_ = 0;
  PendingWeights pending_ = PendingWeights::none;
  tensor::Tensor stages_;  // early update: kNumStages tile buffers; with a split master copy twice as many
  tensor::Tensor master_;  // whole master copy of one tile while it is updated, if the master copy is split
  // [tile buffer]: the upload of its weights; used by the update thread only
  std::array<Work, kNumStages> stage_uploads_;
  size_t next_stage_ = 0;            // used by the update thread only
  std::vector<size_t> first_tiles_;  // index of the first tile of each range, and the number of tiles
  // range_order_: ranges in the order of the previous step; arrived_: ranges that arrived in this step
  std::vector<size_t> range_order_, arrived_;
  bool open_ = false;
  optim::UpdateStep now_;
  Work opened_;
  std::deque<PendingGradients> pending_gradients_;
  // Last members: the threads end before the objects that they use.
  std::unique_ptr<device::ThreadPool> host_threads_;
  SerialExecutor uploads_;
  std::unique_ptr<SerialExecutor> downloads_, updates_;
};

std::unique_ptr<OffloadedOptimizer> make_offloaded_optimizer(const optim::OptimizerOptions& options,
                                                             const nn::ParameterList& parameters,
                                                             const device::Stream& stream, device::MemoryPool& host,
                                                             device::HostLink& link,
                                                             std::vector<optim::OptimizerShard> owned,
                                                             const TierOptions& tier);

}  // namespace esp::sync
