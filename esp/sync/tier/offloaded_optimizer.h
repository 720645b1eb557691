// An optimizer whose state lies beyond the device (ZeRO-Offload, Ren 2021; ZeRO-Infinity, Rajbhandari 2021): gradients
// come down to the host, the update runs there tile by tile, and the new values go up, each once over the HostLink.
//
// Gradients arrive in `take_gradient` while backward runs, or are taken whole from Owned::grads at `step`. The host
// keeps them in storage type; an update writes the new values over them (both are read and written at the same element
// only), so the host needs no third buffer: 2 + 12 bytes per element in mixed precision. The up-copy of a tile overlaps
// the update of the next. The bits are those of the optimizer on the device, whatever the tiles and the placement.
//
// Delayed update (delay_after = W > 0): steps are numbered from 0; from step W on, `step` hands the gradients to a
// thread of the host and returns, and the values they lead to are installed by the next `step`: the device computes
// step k while the gradients of k − 1 are applied, w[k+1] = update(w[k], gradient at w[k−1]). Step W installs nothing.
// Two buffers of gradients then (2 bytes more). The state is one update ahead of the values on the device; a checkpoint
// keeps both, and resuming goes on from there bit for bit.
//
// Early update (early = true): `open_step` says how this step updates, and every range is updated by a thread of the
// host as soon as its gradients are taken, while backward goes on. They come whole, a range at a time, pass through a
// few tiles of the host's memory and are kept nowhere: 12 bytes per element in mixed precision, and no norm of all of
// them before the first is used. `step` waits for the last. The state is met in the order in which gradients came the
// step before (at first: the last range first), so that what lies in a file is read ahead.
//
// Split master (split_master = true, of bf16, early): of the master copy only the half that the values lack is kept
// (kernel/halves.h), and the values come down with the gradients: 10 bytes per element.
//
// One thread calls; list, stream, pool and link outlive the optimizer.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "esp/base/work.h"
#include "esp/device/host_link.h"
#include "esp/optim/rule.h"
#include "esp/sync/tier/lane.h"
#include "esp/sync/tier/state_tier.h"
#include "esp/sync/tier/value_tier.h"

namespace esp::sync {

struct TierOptions {
  std::string placement = "host";  // of the optimizer's state: host, file
  int64_t tile = 4 << 20;          // elements updated, copied and streamed at once
  uint64_t host_bytes = 0;         // placement file: so much of the state lies in the host's memory instead
  int64_t delay_after = 0;         // steps before the delayed update begins; 0: never
  bool early = false;              // ranges are updated as their gradients come
  bool split_master = false;       // early, bf16: the values are the upper half of the master copy
  int64_t host_threads = 1;        // of the delayed and the early update, beside the device's own
  int64_t timeout_s = 600;         // longest wait for an update
  FileOptions file;
  // Where the values lie, when not on the device: Owned::values are its shards, and nothing goes up. Lent.
  ValueTier* values = nullptr;
};

class OffloadedOptimizer final : public optim::Optimizer {
 public:
  // `owned`: one storage type; `grads` may be undefined where take_gradient will bring every element. `host` is a pool
  // of the host tier.
  OffloadedOptimizer(std::unique_ptr<optim::Rule> rule, const nn::ParameterList& parameters,
                     const device::Stream& stream, device::Pool& host, device::HostLink& link,
                     std::vector<optim::Owned> owned, const TierOptions& options);

  // Elements [first, first + piece.count()) of an owned range; overwrites what came before, or is added to it.
  void take_gradient(size_t range, int64_t first, const tensor::Tensor& piece, bool add = false);
  // What was taken, on the host: for norms. Valid until the next step.
  tensor::Tensor gradient(size_t range) const;
  // Forgets what was taken, for a step that is not to be.
  void drop_gradients();
  // Waits for a delayed update under way and throws what it threw. Installs nothing.
  void settle();
  // Early: before the first gradient of a step, with what `step` will be given.
  void open_step(double lr, double grad_scale);

  void step(double lr, double grad_scale) override;
  // A tile at a time where the state lies in a file, or the master copy in halves: never whole in memory.
  std::span<optim::State> states() override;
  void states_restored() override;
  int64_t num_steps() const override { return num_steps_; }
  void set_num_steps(int64_t steps) override { num_steps_ = steps; }
  void refresh_master() override;

  FileTraffic file_traffic() const { return state_->traffic(); }
  std::vector<std::string> notes() const { return state_->notes(); }  // for the log

 private:
  static constexpr size_t kNumStages = 4;   // tiles of gradients and values on the host, early
  static constexpr size_t kMostComing = 1;  // ranges whose gradients wait on the device for their update
  struct Span {
    int64_t begin, end;
  };
  struct Coming {
    Work done;
    tensor::Tensor piece;
  };
  // Where a state shown by tiles lies: in which tile, from which of its elements on.
  struct Place {
    size_t tile, slot;
    int64_t first;
  };
  enum class Ahead { none, buffer, master };  // where values lie that the device does not have yet

  std::byte* at(const tensor::Tensor& flat, int64_t element) const;
  size_t bytes(int64_t count) const { return static_cast<size_t>(count) * size_of(type_); }
  bool shows_master() const;
  void collect();
  void update(const optim::UpdateStep& step, const device::Stream& stream, bool install);
  // `both` holds the tile's gradients before, its values after; `values` what they are before, where they are half of
  // the master copy.
  void update_tile(const TilePlan::Tile& tile, std::span<std::byte* const> slots, std::byte* both,
                   const std::byte* values, optim::UpdateStep step, const device::Stream& stream);
  void send_up(const TilePlan::Tile& tile, std::byte* values, const device::Stream& stream);
  void fetch_values(const TilePlan::Segment& segment, std::byte* to, const device::Stream& stream);
  void show_whole();
  void show_by_tiles();
  void bring_shown(size_t tile);
  void take_shown(size_t state, const tensor::Tensor& values);
  void write_shown(const TilePlan::Tile& tile, std::span<std::byte* const> slots);
  std::byte* place_of(const TilePlan::Tile& tile) const;  // of gradients and values, where there is time
  void take_early(size_t range, const tensor::Tensor& piece);
  void update_range(size_t range, const std::byte* piece, const std::shared_ptr<device::GpuEvent>& there);
  void walk_to(size_t range);
  std::vector<size_t> tiles_of(std::span<const size_t> ranges) const;
  void wait_for_coming(size_t most);
  device::Stream beside() const { return {.device = stream_.device, .pool = nullptr, .queue = nullptr}; }
  Deadline in_time() const { return Deadline::after_ms(options_.timeout_s * 1000); }
  void install_ahead();
  void fill_master(StateTier::Access access);
  void release_states();

  const std::unique_ptr<optim::Rule> rule_;
  const device::Stream stream_;
  device::Pool& host_;
  device::HostLink& link_;
  const TierOptions options_;
  const std::vector<optim::Owned> owned_;
  const DType type_;
  const TilePlan plan_;
  tensor::Tensor taken_;                    // gradients of the step under way, flat [count]
  tensor::Tensor updating_;                 // gradients that become values; the same memory as taken_ without delay
  std::vector<std::vector<Span>> covered_;  // by range: which elements were taken, in order, apart
  std::unique_ptr<StateTier> state_;
  std::vector<optim::State> states_;
  // Of states shown by tiles: the tile in memory, by shown slot, and the states' places.
  struct Shown {
    std::vector<tensor::Tensor> slots;
    std::vector<Place> places;   // by state
    std::optional<size_t> tile;  // which one was read
    size_t next = 0;             // the one that the walk comes to
    size_t num_taken = 0;        // states written so far
  };
  Shown shown_;
  int64_t num_steps_ = 0;
  Ahead ahead_ = Ahead::none;
  tensor::Tensor stages_;                // early: [kNumStages · largest tile], twice with a split master
  tensor::Tensor master_;                // split: a tile's, while it is updated
  std::array<Work, kNumStages> rising_;  // values on their way up, by stage; the update thread's
  size_t next_stage_ = 0;                // likewise
  std::vector<size_t> first_tiles_;      // by range, and the end
  std::vector<size_t> walk_, seen_;      // ranges in the order of the step before, and of this one
  bool open_ = false;
  optim::UpdateStep now_;
  Work opened_;
  std::deque<Coming> coming_;
  std::unique_ptr<device::ThreadPool> host_threads_;  // last, with the lanes: they end before what they touch
  Lane copies_;
  std::unique_ptr<Lane> downs_, updates_;
};

std::unique_ptr<OffloadedOptimizer> make_offloaded_optimizer(const optim::OptimizerOptions& options,
                                                             const nn::ParameterList& parameters,
                                                             const device::Stream& stream, device::Pool& host,
                                                             device::HostLink& link, std::vector<optim::Owned> owned,
                                                             const TierOptions& tier);

}  // namespace esp::sync
