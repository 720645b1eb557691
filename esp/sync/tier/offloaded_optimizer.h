// Offloaded optimizer (ZeRO-Offload, Ren 2021; ZeRO-Infinity, Rajbhandari 2021): state is off the device; gradients are
// copied to the host, the update runs there tile by tile, and the new weights are copied back, each once over the
// HostLink.
//
// Gradients arrive in `take_gradient` while backward runs, or are taken whole from Owned::grads at `step`. The host
// keeps them in storage type; an update writes the new weights over them (both are read and written at the same element
// only), so the host needs no third buffer: 2 + 12 bytes per element in mixed precision. The upload of a tile overlaps
// the update of the next. Results are bit-identical to the optimizer on the device, for any tiles and placement.
//
// Delayed update (delay_after = W > 0): steps are numbered from 0; from step W on, `step` hands the gradients to a host
// thread and returns, and the next `step` installs the resulting weights: the device computes step k while the
// gradients of k − 1 are applied, w[k+1] = update(w[k], gradient at w[k−1]). Step W installs nothing. This needs two
// gradient buffers (2 bytes more). The state is one update ahead of the weights on the device; a checkpoint contains
// both, and a resume is bit-identical.
//
// Early update (early = true): `open_step` sets the parameters of the update, and a host thread updates every range as
// soon as its gradients are taken, while backward continues. Gradients arrive whole, a range at a time, pass through a
// few tiles of host memory and are not stored: 12 bytes per element in mixed precision, and no global norm before the
// first is used. `step` waits for the last. The state is visited in the order of the gradients of the previous step (at
// first: the last range first), so that a file is read ahead.
//
// Split master (split_master = true, of bf16, early): only the half of the master copy that the weights lack is stored
// (kernel/halves.h), and the weights are copied to the host with the gradients: 10 bytes per element.
//
// One thread; list, stream, pool and link outlive the optimizer.
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
#include "esp/sync/tier/serial_executor.h"
#include "esp/sync/tier/state_tier.h"
#include "esp/sync/tier/value_tier.h"

namespace esp::sync {

struct TierOptions {
  std::string placement = "host";  // of the optimizer state: host, file
  int64_t tile = 4 << 20;          // elements updated, copied and streamed at once
  uint64_t host_bytes = 0;         // placement file: this much of the state is in host memory instead
  int64_t delay_after = 0;         // steps before the delayed update begins; 0: never
  bool early = false;              // each range is updated as its gradients arrive
  bool split_master = false;       // early, bf16: the weights are the upper half of the master copy
  int64_t host_threads = 1;        // of the delayed and the early update, beside the device's own
  int64_t timeout_s = 600;         // longest wait for an update
  FileOptions file;
  // The tier of the weights when they are not on the device: Owned::values are its shards, and nothing is uploaded.
  // Borrowed.
  ValueTier* values = nullptr;
};

class OffloadedOptimizer final : public optim::Optimizer {
 public:
  // `owned`: one storage type; `grads` may be undefined where take_gradient delivers every element. `host` is a pool of
  // the host tier.
  OffloadedOptimizer(std::unique_ptr<optim::Rule> rule, const nn::ParameterList& parameters,
                     const device::Stream& stream, device::MemoryPool& host, device::HostLink& link,
                     std::vector<optim::OptimizerShard> owned, const TierOptions& options);

  // Elements [first, first + piece.count()) of an owned range; overwrites earlier gradients, or adds.
  void take_gradient(size_t range, int64_t first, const tensor::Tensor& piece, bool add = false);
  // The taken gradients, on the host: for norms. Valid until the next step.
  tensor::Tensor gradient(size_t range) const;
  // Discards the taken gradients when a step is skipped.
  void drop_gradients();
  // Waits for a delayed update in flight and rethrows its error. Installs nothing.
  void finish_update();
  // Early: before the first gradient of a step, with the arguments of `step`.
  void open_step(double lr, double grad_scale);

  void step(double lr, double grad_scale) override;
  // One tile at a time where the state is in a file, or the master copy is split: never whole in memory.
  std::span<optim::OptimizerState> states() override;
  void states_restored() override;
  int64_t num_steps() const override { return num_steps_; }
  void set_num_steps(int64_t steps) override { num_steps_ = steps; }
  void refresh_master() override;

  FileTraffic file_traffic() const { return state_->traffic(); }
  std::vector<std::string> notes() const { return state_->notes(); }  // for the log

 private:
  static constexpr size_t kNumStages = 4;         // tiles of gradients and weights on the host, early
  static constexpr size_t kMaxPendingRanges = 1;  // ranges whose gradients wait on the device for their update
  struct Span {
    int64_t begin, end;
  };
  struct PendingGradients {
    Work done;
    tensor::Tensor piece;
  };
  // Location of a state shown by tiles: its tile, and the first of its elements there.
  struct Place {
    size_t tile, slot;
    int64_t first;
  };
  enum class PendingWeights { none, buffer, master };  // location of weights that the device does not have yet

  std::byte* at(const tensor::Tensor& flat, int64_t element) const;
  size_t bytes(int64_t count) const { return static_cast<size_t>(count) * size_of(type_); }
  bool shows_master() const;
  void collect();
  void update(const optim::UpdateStep& step, const device::Stream& stream, bool install);
  // `both` holds the tile's gradients before, its weights after; `values` the weights before, where they are half of
  // the master copy.
  void update_tile(const TilePlan::Tile& tile, std::span<std::byte* const> slots, std::byte* both,
                   const std::byte* values, optim::UpdateStep step, const device::Stream& stream);
  void send_up(const TilePlan::Tile& tile, std::byte* values, const device::Stream& stream);
  void fetch_values(const TilePlan::Segment& segment, std::byte* to, const device::Stream& stream);
  void show_whole();
  void show_by_tiles();
  void load_shown(size_t tile);
  void take_shown(size_t state, const tensor::Tensor& values);
  void write_shown_states(const TilePlan::Tile& tile, std::span<std::byte* const> slots);
  std::byte* place_of(const TilePlan::Tile& tile) const;  // gradients and weights, without streaming
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
  device::MemoryPool& host_;
  device::HostLink& link_;
  const TierOptions options_;
  const std::vector<optim::OptimizerShard> owned_;
  const DType type_;
  const TilePlan plan_;
  tensor::Tensor taken_;                    // gradients of the current step, flat [count]
  tensor::Tensor updating_;                 // gradients being turned into weights; aliases taken_ without delay
  std::vector<std::vector<Span>> covered_;  // by range: the taken elements, sorted, disjoint
  std::unique_ptr<StateTier> state_;
  std::vector<optim::OptimizerState> states_;
  // For states shown by tiles: the tile in memory, by shown slot, and the locations of the states.
  struct ShownStates {
    std::vector<tensor::Tensor> slots;
    std::vector<Place> places;   // by state
    std::optional<size_t> tile;  // the tile in memory
    size_t next = 0;             // the next of the walk
    size_t num_taken = 0;        // states written so far
  };
  ShownStates shown_;
  int64_t num_steps_ = 0;
  PendingWeights pending_ = PendingWeights::none;
  tensor::Tensor stages_;                // early: [kNumStages · largest tile], twice with a split master
  tensor::Tensor master_;                // split: of a tile, during its update
  std::array<Work, kNumStages> rising_;  // uploads of weights, by stage; of the update thread
  size_t next_stage_ = 0;                // of the update thread
  std::vector<size_t> first_tiles_;      // by range, and the end
  std::vector<size_t> walk_, seen_;      // ranges in the order of the previous step, and of this one
  bool open_ = false;
  optim::UpdateStep now_;
  Work opened_;
  std::deque<PendingGradients> coming_;
  // last members, with the executors: they end before the objects they use
  std::unique_ptr<device::ThreadPool> host_threads_;
  SerialExecutor uploads_;
  std::unique_ptr<SerialExecutor> downs_, updates_;
};

std::unique_ptr<OffloadedOptimizer> make_offloaded_optimizer(const optim::OptimizerOptions& options,
                                                             const nn::ParameterList& parameters,
                                                             const device::Stream& stream, device::MemoryPool& host,
                                                             device::HostLink& link,
                                                             std::vector<optim::OptimizerShard> owned,
                                                             const TierOptions& tier);

}  // namespace esp::sync
