#include "esp/sync/tier/offloaded_optimizer.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/split_master.h"

namespace esp::sync {
namespace {

DType storage_of(std::span<const optim::OptimizerShard> owned) {
  for (const optim::OptimizerShard& one : owned) {
    const int64_t count = one.range.end - one.range.begin;
    ESP_CHECK(one.values.count() == count && one.values.dtype() == owned[0].values.dtype(),
              "owned range [{}, {}) of unit {}: got {} values of type {}; expected {} of type {}", one.range.begin,
              one.range.end, one.range.unit, one.values.count(), name_of(one.values.dtype()), count,
              name_of(owned[0].values.dtype()));
    ESP_CHECK(!one.grads.defined() || (one.grads.count() == count && one.grads.dtype() == one.values.dtype()),
              "owned range [{}, {}) of unit {}: count or type of the gradients differs from that of the values",
              one.range.begin, one.range.end, one.range.unit);
  }
  return owned.empty() ? DType::f32 : owned[0].values.dtype();
}

const TierOptions& checked(const TierOptions& options) {
  if (options.tile < 1)
    throw UsageError(fmt::format("optimizer tile: got {} elements; expected at least 1.", options.tile));
  if (options.delay_after < 0)
    throw UsageError(fmt::format("delay_after: got {}; expected at least 0 (0: never).", options.delay_after));
  if (options.host_threads < 1)
    throw UsageError(fmt::format("host_threads: got {}; expected at least 1.", options.host_threads));
  if (options.early && options.delay_after > 0)
    throw UsageError("delay_after: cannot be combined with an early update. Set delay_after = 0.");
  if (options.split_master && !options.early)
    throw UsageError("split master copy: needs an early update. Set update_early = true.");
  return options;
}

}  // namespace

OffloadedOptimizer::OffloadedOptimizer(std::unique_ptr<optim::UpdateRule> rule, const nn::ParameterList& parameters,
                                       const device::Stream& stream, device::MemoryPool& host, device::HostLink& link,
                                       std::vector<optim::OptimizerShard> owned, const TierOptions& options)
    : rule_(std::move(rule)),
      stream_(stream),
      host_(host),
      link_(link),
      options_(checked(options)),
      owned_(std::move(owned)),
      type_(storage_of(owned_)),
      plan_(plan_tiles(parameters, owned_, options.tile, options.early)),
      gradients_(options.early ? tensor::Tensor()
                               : tensor::Tensor(host, {plan_.count}, type_, device::MemoryCategory::gradient)),
      updating_(gradients_),
      covered_(owned_.size()),
      uploads_("esp-up") {
  if (options.split_master && type_ != DType::bf16)
    throw UsageError(fmt::format("split master copy: got weights of {}; expected bf16.", name_of(type_)));
  std::vector<DType> slots(1 + rule_->slots().size(), tensor::accumulation_type(type_));
  if (options.split_master) slots[0] = DType::i16;
  state_ = make_state_tier(options.placement, {&plan_, options.host_bytes, std::move(slots), &host}, options.file);
  if (options.delay_after > 0) updating_ = tensor::Tensor(host, {plan_.count}, type_, device::MemoryCategory::gradient);
  if (options.early) {
    const int64_t arrays = options.split_master ? 2 : 1;
    stages_ = tensor::Tensor(host, {arrays * static_cast<int64_t>(kNumStages) * plan_.largest}, type_,
                             device::MemoryCategory::buffer);
    if (options.split_master)
      master_ = tensor::Tensor(host, {plan_.largest}, DType::f32, device::MemoryCategory::buffer);
    size_t tile = 0;
    for (size_t range = 0; range <= owned_.size(); ++range) {
      const int64_t begin = range < owned_.size() ? plan_.begins[range] : plan_.count;
      while (tile < plan_.tiles.size() && plan_.tiles[tile].begin < begin) ++tile;
      first_tiles_.push_back(tile);
    }
    for (size_t range = owned_.size(); range-- > 0;) range_order_.push_back(range);
    downloads_ = std::make_unique<SerialExecutor>("esp-down");
  }
  if (options.delay_after > 0 || options.early) {
    if (options.host_threads > 1)
      host_threads_ = std::make_unique<device::ThreadPool>(static_cast<int>(options.host_threads));
    updates_ = std::make_unique<SerialExecutor>("esp-update");
  }
  fill_master(StateTier::Access::write);
}

std::byte* OffloadedOptimizer::at(const tensor::Tensor& flat, int64_t element) const {
  return flat.as<std::byte>() + bytes(element);
}

void OffloadedOptimizer::take_gradient(size_t range, int64_t first, const tensor::Tensor& piece, bool add) {
  const optim::UnitRange& of = owned_[range].range;
  const ElementSpan span{first, first + piece.count()};
  ESP_CHECK(piece.dtype() == type_ && first >= 0 && span.end <= of.end - of.begin,
            "take_gradient: got elements [{}, {}) of type {}; expected elements within [0, {}) of type {}", first,
            span.end, name_of(piece.dtype()), of.end - of.begin, name_of(type_));
  if (options_.early) {
    ESP_CHECK(!add && piece.count() == of.end - of.begin,
              "early update: got elements [{}, {}); expected the whole range [0, {}), once", first, span.end,
              of.end - of.begin);
    return start_early_update(range, piece);
  }
  std::byte* const to_host = at(gradients_, plan_.begins[range] + first);
  if (add) {
    const tensor::Tensor term(host_, {piece.count()}, type_, device::MemoryCategory::buffer);
    link_.down(term.data(), piece.data(), piece.bytes(), stream_);
    kernel::add_to(to_host, term.data(), piece.count(), type_, device::host_side(stream_));
  } else {
    link_.down(to_host, piece.data(), piece.bytes(), stream_);
  }
  // Keeps the received spans of the range sorted and merges adjacent ones.
  std::vector<ElementSpan>& spans = covered_[range];
  auto from = std::find_if(spans.begin(), spans.end(), [&](const ElementSpan& s) { return s.end >= span.begin; });
  auto to = std::find_if(from, spans.end(), [&](const ElementSpan& s) { return s.begin > span.end; });
  ElementSpan merged = span;
  if (from != to) merged = {std::min(span.begin, from->begin), std::max(span.end, std::prev(to)->end)};
  spans.insert(spans.erase(from, to), merged);
}

tensor::Tensor OffloadedOptimizer::gradient(size_t range) const {
  ESP_CHECK(!options_.early, "gradient: not available, because an early update stores no gradients");
  const optim::UnitRange& of = owned_[range].range;
  return gradients_.slice(plan_.begins[range], plan_.begins[range] + of.end - of.begin);
}

void OffloadedOptimizer::drop_gradients() {
  ESP_CHECK(arrived_.empty(), "drop_gradients: an early update has already used gradients of this step");
  for (auto& spans : covered_) spans.clear();
}

// Copies gradients to the host for each range of which take_gradient has received nothing.
void OffloadedOptimizer::copy_missing_gradients() {
  for (size_t range = 0; range < owned_.size(); ++range) {
    const int64_t count = owned_[range].range.end - owned_[range].range.begin;
    if (covered_[range].empty() && owned_[range].grads.defined()) take_gradient(range, 0, owned_[range].grads);
    ESP_CHECK(count == 0 || (covered_[range].size() == 1 && covered_[range][0].end - covered_[range][0].begin == count),
              "step: gradients of range {} are incomplete; expected all {} elements", range, count);
  }
  drop_gradients();
}

void OffloadedOptimizer::finish_update() {
  if (updates_) updates_->wait(deadline());
}

void OffloadedOptimizer::open_step(double lr, double grad_scale) {
  ESP_CHECK(options_.early, "open_step: needs options.early = true (each range is updated when its gradients arrive)");
  ESP_CHECK(!open_, "open_step: called a second time in one step; expected once");
  finish_update();
  release_states();
  open_ = true;
  now_ = {lr, grad_scale, num_steps_ + 1, false};
  opened_ = Work::pending();
  updates_->post([this, work = opened_] {
    try {
      state_->begin(StateTier::Access::update, tiles_of(range_order_));
      work.complete();
    } catch (...) {
      work.fail(std::current_exception());
    }
  });
}

std::vector<size_t> OffloadedOptimizer::tiles_of(std::span<const size_t> ranges) const {
  std::vector<size_t> tiles;
  for (const size_t range : ranges)
    for (size_t tile = first_tiles_[range]; tile < first_tiles_[range + 1]; ++tile) tiles.push_back(tile);
  return tiles;
}

// The calling thread keeps `piece` until it has been copied. If the update thread dropped the last handle, the memory
// would be freed at an unpredictable time.
void OffloadedOptimizer::start_early_update(size_t range, const tensor::Tensor& piece) {
  ESP_CHECK(open_, "take_gradient: gradients of range {} arrived before open_step was called", range);
  wait_for_pending(kMaxPendingRanges);
  auto gradients_ready = std::make_shared<device::GpuEvent>(stream_.device);
  gradients_ready->record(stream_);
  const Work done = Work::pending();
  pending_gradients_.push_back(PendingGradients{done, piece});
  updates_->post([this, range, from = static_cast<const std::byte*>(piece.data()), gradients_ready, done] {
    try {
      opened_.wait(Deadline::after_ms(0));
      advance_to(range);
      update_range(range, from, gradients_ready);
      done.complete();
    } catch (...) {
      done.fail(std::current_exception());
    }
  });
}

void OffloadedOptimizer::wait_for_pending(size_t limit) {
  while (pending_gradients_.size() > limit) {
    pending_gradients_.front().done.wait(deadline());
    pending_gradients_.pop_front();
  }
}

// If `range` is not the next one in the order, moves `range` to the front of the ranges still to come and restarts the
// read-ahead with this new order.
void OffloadedOptimizer::advance_to(size_t range) {
  const size_t at = arrived_.size();
  ESP_CHECK(std::find(arrived_.begin(), arrived_.end(), range) == arrived_.end(),
            "range {}: gradients arrived twice in a step", range);
  if (range_order_[at] != range) {
    const auto from = range_order_.begin() + static_cast<std::ptrdiff_t>(at);
    std::rotate(from, std::find(from, range_order_.end(), range), std::find(from, range_order_.end(), range) + 1);
    state_->end();
    state_->begin(StateTier::Access::update, tiles_of(std::span(range_order_).subspan(at)));
  }
  arrived_.push_back(range);
}

// Runs on the update thread. The gradients of later tiles are copied to the host during the update of a tile; its
// weights are copied to the device after it.
void OffloadedOptimizer::update_range(size_t range, const std::byte* piece,
                                      const std::shared_ptr<device::GpuEvent>& gradients_ready) {
  const size_t first = first_tiles_[range], num = first_tiles_[range + 1] - first, stage = next_stage_;
  const auto to_host = [&](size_t i) {
    return at(stages_, static_cast<int64_t>((stage + i) % kNumStages) * plan_.largest);
  };
  const auto values_at = [&](size_t i) { return to_host(i) + bytes(static_cast<int64_t>(kNumStages) * plan_.largest); };
  std::vector<Work> downloads(num);
  const auto start_download = [&](size_t i) {
    const TilePlan::Tile& tile = plan_.tiles[first + i];
    downloads[i] = Work::pending();
    downloads_->post(
        [this, &tile, to = to_host(i), values = values_at(i), from = piece + bytes(tile.begin - plan_.begins[range]),
         previous_upload = stage_uploads_[(stage + i) % kNumStages], gradients_ready, work = downloads[i]] {
          try {
            previous_upload.wait(deadline());
            if (options_.split_master) fetch_values(tile.segments[0], values, host_stream());
            link_.down(to, from, bytes(tile.count()), host_stream(), gradients_ready.get());
            work.complete();
          } catch (...) {
            work.fail(std::current_exception());
          }
        });
  };
  const device::Stream host{.device = {}, .pool = host_threads_.get(), .queue = nullptr};
  size_t i = 0;
  try {
    for (size_t ahead = 0; ahead < std::min(num, kNumStages - 1); ++ahead) start_download(ahead);
    state_->visit_next(num, [&](const TilePlan::Tile& tile, std::span<std::byte* const> slots) {
      downloads[i].wait(deadline());
      update_tile(tile, slots, to_host(i), values_at(i), now_, host);
      const Work upload = stage_uploads_[(stage + i) % kNumStages] = Work::pending();
      uploads_.post([this, &tile, values = to_host(i), upload] {
        try {
          upload_values(tile, values, host_stream());
          upload.complete();
        } catch (...) {
          upload.fail(std::current_exception());
        }
      });
      if (i + kNumStages - 1 < num) start_download(i + kNumStages - 1);
      ++i;
    });
  } catch (...) {
    // Copies to the host must end before the caller reuses their memory.
    try {
      downloads_->wait(deadline());
    } catch (const Error&) {
      // Ignored, because the first error is being thrown already.
    }
    throw;
  }
  next_stage_ = (stage + num) % kNumStages;
}

void OffloadedOptimizer::step(double lr, double grad_scale) {
  if (options_.early) {
    ESP_CHECK(open_ && lr == now_.lr && grad_scale == now_.grad_scale,
              "step: got lr = {} and grad_scale = {}; expected {} and {}, as in a preceding open_step", lr, grad_scale,
              now_.lr, now_.grad_scale);
    wait_for_pending(0);
    ESP_CHECK(arrived_.size() == owned_.size(), "step: got the gradients of {} ranges; expected all {}",
              arrived_.size(), owned_.size());
    for (const Work& upload : stage_uploads_) upload.wait(deadline());
    state_->end();
    arrived_.clear();
    open_ = false;
    ++num_steps_;
    return;
  }
  copy_missing_gradients();
  release_states();
  finish_update();
  const optim::UpdateStep step{lr, grad_scale, ++num_steps_, false};
  const bool delayed = options_.delay_after > 0 && num_steps_ > options_.delay_after;
  if (delayed) install_ahead();
  std::swap(gradients_, updating_);
  if (!delayed) {
    update(step, device::host_side(stream_), true);
    pending_ = PendingWeights::none;
    return;
  }
  pending_ = PendingWeights::buffer;
  updates_->post([this, step] { update(step, {.device = {}, .pool = host_threads_.get(), .queue = nullptr}, false); });
}

void OffloadedOptimizer::update(const optim::UpdateStep& step, const device::Stream& stream, bool install) {
  state_->sweep(StateTier::Access::update, [&](const TilePlan::Tile& tile, std::span<std::byte* const> slots) {
    update_tile(tile, slots, at(updating_, tile.begin), nullptr, step, stream);
    if (install) uploads_.post([this, &tile] { upload_values(tile, at(updating_, tile.begin), host_stream()); });
  });
  if (install) uploads_.wait(deadline());
}

void OffloadedOptimizer::update_tile(const TilePlan::Tile& tile, std::span<std::byte* const> slots, std::byte* tile_at,
                                     const std::byte* values, optim::UpdateStep step, const device::Stream& stream) {
  const DType master_type = tensor::accumulation_type(type_);
  auto* const lower = reinterpret_cast<uint16_t*>(slots[0]);
  std::byte* const master = options_.split_master ? master_.as<std::byte>() : slots[0];
  if (options_.split_master) kernel::join_master_weights(master_.as<float>(), values, lower, tile.count(), stream);
  for (const TilePlan::UpdateRange& part : tile.update_ranges) {
    const size_t skip = static_cast<size_t>(part.begin - tile.begin) * size_of(master_type);
    std::byte* const both = tile_at + bytes(part.begin - tile.begin);
    if (!part.updated) {
      kernel::cast(both, type_, master + skip, master_type, part.end - part.begin, stream);
      continue;
    }
    kernel::StepBuffers buffers;
    buffers.master = master + skip;
    buffers.weights = both;
    buffers.grad = both;
    for (size_t i = 0; i < rule_->slots().size(); ++i)
      (rule_->slots()[i] == "m" ? buffers.m : buffers.v) = slots[i + 1] + skip;
    buffers.count = part.end - part.begin;
    buffers.grad_type = type_;
    step.decay = part.decay;
    rule_->update(buffers, step, stream);
  }
  if (options_.split_master) kernel::split_master_weights(lower, master_.as<float>(), tile.count(), stream);
}

void OffloadedOptimizer::upload_values(const TilePlan::Tile& tile, std::byte* values, const device::Stream& stream) {
  for (const TilePlan::Segment& segment : tile.segments) {
    std::byte* const from = values + bytes(segment.begin - tile.begin);
    const size_t size = bytes(segment.end - segment.begin);
    if (options_.values) {
      options_.values->write(static_cast<size_t>(owned_[segment.range].range.unit), segment.first, {from, size});
    } else {
      link_.up(at(owned_[segment.range].values, segment.first), from, size, stream);
    }
  }
}

std::byte* OffloadedOptimizer::staging_of(const TilePlan::Tile& tile) const {
  return options_.early ? at(stages_, 0) : at(updating_, tile.begin);
}

// Copies the current weights of a segment to host memory.
void OffloadedOptimizer::fetch_values(const TilePlan::Segment& segment, std::byte* to, const device::Stream& stream) {
  const int64_t count = segment.end - segment.begin;
  const optim::OptimizerShard& owned = owned_[segment.range];
  if (!options_.values) return link_.down(to, at(owned.values, segment.first), bytes(count), stream);
  const auto unit = static_cast<size_t>(owned.range.unit);
  std::memcpy(to, options_.values->fetch(unit) + bytes(segment.first), bytes(count));
  if (segment.first + count == owned.range.end - owned.range.begin) options_.values->release(unit);
}

// Copies the weights of the last delayed update to the device. The device no longer needs the old weights.
void OffloadedOptimizer::install_ahead() {
  ESP_CHECK(!options_.early, "install_ahead: early updates install their weights themselves");
  if (pending_ == PendingWeights::master)
    state_->sweep(StateTier::Access::read, [&](const TilePlan::Tile& tile, std::span<std::byte* const> slots) {
      kernel::cast(at(updating_, tile.begin), type_, slots[0], tensor::accumulation_type(type_), tile.count(),
                   device::host_side(stream_));
    });
  if (pending_ != PendingWeights::none)
    for (const TilePlan::Tile& tile : plan_.tiles) upload_values(tile, staging_of(tile), stream_);
}

void OffloadedOptimizer::fill_master(StateTier::Access access) {
  const DType master_type = tensor::accumulation_type(type_);
  state_->sweep(access, [&](const TilePlan::Tile& tile, std::span<std::byte* const> slots) {
    std::byte* const values = staging_of(tile);
    if (options_
            .split_master) {  // the weights are the upper 16 bits of each master value; only the lower bits are reset
      kernel::fill(slots[0], 0, tile.count(), DType::bf16, device::host_side(stream_));
    } else {
      for (const TilePlan::Segment& segment : tile.segments)
        fetch_values(segment, values + bytes(segment.begin - tile.begin), stream_);
      kernel::cast(slots[0], master_type, values, type_, tile.count(), device::host_side(stream_));
    }
    if (access == StateTier::Access::write)
      for (std::byte* slot : slots.subspan(1))
        kernel::fill(slot, 0, tile.count(), master_type, device::host_side(stream_));
  });
}

void OffloadedOptimizer::refresh_master() {
  finish_update();
  release_states();
  drop_gradients();  // without delay the last update overwrote the gradients with weights
  fill_master(StateTier::Access::update);
  pending_ = PendingWeights::none;
}

// The master copy is exposed if it contains more than the weights: if it is more precise, or one update ahead (delayed
// update). Otherwise it is hidden, as with the device optimizer, so that both write equal checkpoints.
bool OffloadedOptimizer::exposes_master() const {
  return type_ != tensor::accumulation_type(type_) || options_.delay_after > 0;
}

std::span<optim::OptimizerState> OffloadedOptimizer::states() {
  finish_update();
  if (!states_.empty()) return states_;
  if (state_->whole().empty() || options_.split_master) {
    expose_tiled_states();
  } else {
    expose_whole_states();
  }
  return states_;
}

void OffloadedOptimizer::expose_whole_states() {
  const std::span<const tensor::Tensor> slots = state_->whole();
  for (size_t range = 0; range < owned_.size(); ++range) {
    const optim::UnitRange& of = owned_[range].range;
    const auto show = [&](std::string_view slot, const tensor::Tensor& flat) {
      states_.push_back({slot, of, flat.slice(plan_.begins[range], plan_.begins[range] + of.end - of.begin)});
    };
    if (exposes_master()) show("master", slots[0]);
    for (size_t i = 0; i < rule_->slots().size(); ++i) show(rule_->slots()[i], slots[i + 1]);
  }
}

// Exposes each segment of each tile as a separate state, in storage order.
void OffloadedOptimizer::expose_tiled_states() {
  exposed_ = {};
  const DType type = tensor::accumulation_type(type_);
  std::vector<std::string_view> names;
  if (exposes_master()) names.push_back("master");
  names.insert(names.end(), rule_->slots().begin(), rule_->slots().end());
  for (size_t i = 0; i < names.size(); ++i)
    exposed_.slots.emplace_back(host_, tensor::Shape{plan_.largest}, type, device::MemoryCategory::buffer);
  for (size_t tile = 0; tile < plan_.tiles.size(); ++tile)
    for (size_t slot = 0; slot < names.size(); ++slot)
      for (const TilePlan::Segment& segment : plan_.tiles[tile].segments) {
        const optim::UnitRange& of = owned_[segment.range].range;
        const int64_t begin = of.begin + segment.first, count = segment.end - segment.begin;
        const StateLocation location{tile, slot, segment.begin - plan_.tiles[tile].begin};
        states_.push_back(
            {names[slot],
             {of.unit, begin, begin + count},
             tensor::Tensor::borrow(nullptr, {count}, type),
             [this, location](int64_t first, const tensor::Tensor& to) {
               load_exposed_tile(location.tile);
               const int64_t from = location.first + first;
               std::memcpy(to.data(), exposed_.slots[location.slot].slice(from, from + to.count()).data(), to.bytes());
             },
             [this, state = states_.size()](const tensor::Tensor& from) { store_exposed_state(state, from); }});
        exposed_.locations.push_back(location);
      }
}

// Loads one tile of the exposed states. A split master copy is assembled: its upper half is the weights.
void OffloadedOptimizer::load_exposed_tile(size_t tile) {
  if (exposed_.tile == tile) return;
  if (!exposed_.tile || exposed_.next != tile) {
    std::vector<size_t> order(plan_.tiles.size() - tile);
    std::iota(order.begin(), order.end(), tile);
    state_->begin(StateTier::Access::read, std::move(order));
  }
  exposed_.tile.reset();
  state_->visit_next(1, [&](const TilePlan::Tile& of, std::span<std::byte* const> slots) {
    const size_t hidden = exposes_master() ? 0 : 1;
    for (size_t i = 0; i < exposed_.slots.size(); ++i) {
      const tensor::Tensor to = exposed_.slots[i].slice(0, of.count());
      if (i > 0 || !options_.split_master) {
        std::memcpy(to.data(), slots[i + hidden], to.bytes());
        continue;
      }
      fetch_values(of.segments[0], staging_of(of), stream_);
      kernel::join_master_weights(to.as<float>(), staging_of(of), reinterpret_cast<const uint16_t*>(slots[0]),
                                  of.count(), device::host_side(stream_));
    }
  });
  exposed_.tile = tile;
  exposed_.next = tile + 1;
}

void OffloadedOptimizer::store_exposed_state(size_t state, const tensor::Tensor& values) {
  ESP_CHECK(state == exposed_.num_taken, "restore: got state {} of {}; expected state {} next", state, states_.size(),
            exposed_.num_taken);
  if (state == 0) {
    exposed_.tile.reset();
    std::vector<size_t> order(plan_.tiles.size());
    std::iota(order.begin(), order.end(), size_t{0});
    state_->begin(StateTier::Access::write, std::move(order));
  }
  const StateLocation& location = exposed_.locations[state];
  const tensor::Tensor to = exposed_.slots[location.slot].slice(location.first, location.first + values.count());
  std::memcpy(to.data(), values.data(), to.bytes());
  ++exposed_.num_taken;
  if (exposed_.num_taken < states_.size() && exposed_.locations[exposed_.num_taken].tile == location.tile) return;
  state_->visit_next(
      1, [&](const TilePlan::Tile& tile, std::span<std::byte* const> slots) { write_exposed_states(tile, slots); });
}

// After a restore of a split master copy, the weights are set to the rounded master copy.
void OffloadedOptimizer::write_exposed_states(const TilePlan::Tile& tile, std::span<std::byte* const> slots) {
  const size_t hidden = exposes_master() ? 0 : 1;
  const device::Stream host = device::host_side(stream_);
  if (hidden > 0) kernel::fill(slots[0], 0, tile.count(), tensor::accumulation_type(type_), host);
  for (size_t i = 0; i < exposed_.slots.size(); ++i) {
    const tensor::Tensor from = exposed_.slots[i].slice(0, tile.count());
    if (i > 0 || !options_.split_master) {
      std::memcpy(slots[i + hidden], from.data(), from.bytes());
      continue;
    }
    kernel::split_master_weights(reinterpret_cast<uint16_t*>(slots[0]), from.as<float>(), tile.count(), host);
    kernel::cast(staging_of(tile), type_, from.data(), DType::f32, tile.count(), host);
    upload_values(tile, staging_of(tile), stream_);
  }
}

void OffloadedOptimizer::states_restored() {
  finish_update();
  if (exposed_.num_taken > 0) {
    ESP_CHECK(exposed_.num_taken == states_.size(), "restore: got {} states; expected all {}", exposed_.num_taken,
              states_.size());
    state_->end();
  }
  release_states();
  drop_gradients();
  if (!exposes_master()) fill_master(StateTier::Access::update);
  pending_ = exposes_master() ? PendingWeights::master : PendingWeights::none;
}

void OffloadedOptimizer::release_states() {
  states_.clear();
  exposed_ = {};
}

std::unique_ptr<OffloadedOptimizer> make_offloaded_optimizer(const optim::OptimizerOptions& options,
                                                             const nn::ParameterList& parameters,
                                                             const device::Stream& stream, device::MemoryPool& host,
                                                             device::HostLink& link,
                                                             std::vector<optim::OptimizerShard> owned,
                                                             const TierOptions& tier) {
  return std::make_unique<OffloadedOptimizer>(optim::make_update_rule(options), parameters, stream, host, link,
                                              std::move(owned), tier);
}

}  // namespace esp::sync
