#include "esp/sync/tier/offloaded_optimizer.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/halves.h"

namespace esp::sync {
namespace {

DType storage_of(std::span<const optim::OptimizerShard> owned) {
  for (const optim::OptimizerShard& one : owned) {
    const int64_t count = one.range.end - one.range.begin;
    ESP_CHECK(one.values.count() == count && one.values.dtype() == owned[0].values.dtype(), "[{}, {}) of unit {}",
              one.range.begin, one.range.end, one.range.unit);
    ESP_CHECK(!one.grads.defined() || (one.grads.count() == count && one.grads.dtype() == one.values.dtype()),
              "gradients of [{}, {}) of unit {}", one.range.begin, one.range.end, one.range.unit);
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

OffloadedOptimizer::OffloadedOptimizer(std::unique_ptr<optim::Rule> rule, const nn::ParameterList& parameters,
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
      taken_(options.early ? tensor::Tensor()
                           : tensor::Tensor(host, {plan_.count}, type_, device::MemoryCategory::gradient)),
      updating_(taken_),
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
    for (size_t range = owned_.size(); range-- > 0;) walk_.push_back(range);
    downs_ = std::make_unique<SerialExecutor>("esp-down");
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
  const Span span{first, first + piece.count()};
  ESP_CHECK(piece.dtype() == type_ && first >= 0 && span.end <= of.end - of.begin, "[{}, {}) of [{}, {})", first,
            span.end, of.begin, of.end);
  if (options_.early) {
    ESP_CHECK(!add && piece.count() == of.end - of.begin,
              "early update: got [{}, {}) of [{}, {}) alone; expected the whole range", first, span.end, of.begin,
              of.end);
    return take_early(range, piece);
  }
  std::byte* const place = at(taken_, plan_.begins[range] + first);
  if (add) {
    const tensor::Tensor term(host_, {piece.count()}, type_, device::MemoryCategory::buffer);
    link_.down(term.data(), piece.data(), piece.bytes(), stream_);
    kernel::add_to(place, term.data(), piece.count(), type_, device::host_side(stream_));
  } else {
    link_.down(place, piece.data(), piece.bytes(), stream_);
  }
  // Keeps the spans sorted and merges adjacent ones.
  std::vector<Span>& spans = covered_[range];
  auto from = std::find_if(spans.begin(), spans.end(), [&](const Span& s) { return s.end >= span.begin; });
  auto to = std::find_if(from, spans.end(), [&](const Span& s) { return s.begin > span.end; });
  Span joined = span;
  if (from != to) joined = {std::min(span.begin, from->begin), std::max(span.end, std::prev(to)->end)};
  spans.insert(spans.erase(from, to), joined);
}

tensor::Tensor OffloadedOptimizer::gradient(size_t range) const {
  ESP_CHECK(!options_.early, "early updates store no gradients");
  const optim::UnitRange& of = owned_[range].range;
  return taken_.slice(plan_.begins[range], plan_.begins[range] + of.end - of.begin);
}

void OffloadedOptimizer::drop_gradients() {
  ESP_CHECK(seen_.empty(), "gradients of an early update cannot be dropped");
  for (auto& spans : covered_) spans.clear();
}

// Copies ranges without taken gradients down now, whole.
void OffloadedOptimizer::collect() {
  for (size_t range = 0; range < owned_.size(); ++range) {
    const int64_t count = owned_[range].range.end - owned_[range].range.begin;
    if (covered_[range].empty() && owned_[range].grads.defined()) take_gradient(range, 0, owned_[range].grads);
    ESP_CHECK(count == 0 || (covered_[range].size() == 1 && covered_[range][0].end - covered_[range][0].begin == count),
              "range {}: gradients are missing", range);
  }
  drop_gradients();
}

void OffloadedOptimizer::finish_update() {
  if (updates_) updates_->wait(in_time());
}

void OffloadedOptimizer::open_step(double lr, double grad_scale) {
  ESP_CHECK(options_.early && !open_, "open_step: early updates only, once per step");
  finish_update();
  release_states();
  open_ = true;
  now_ = {lr, grad_scale, num_steps_ + 1, false};
  opened_ = Work::pending();
  updates_->post([this, work = opened_] {
    try {
      state_->begin(StateTier::Access::update, tiles_of(walk_));
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

// This thread keeps the piece until it was copied: if another thread dropped the last handle, memory would be freed at
// an unpredictable time.
void OffloadedOptimizer::take_early(size_t range, const tensor::Tensor& piece) {
  ESP_CHECK(open_, "range {}: open_step was not called", range);
  wait_for_coming(kMaxPendingRanges);
  auto there = std::make_shared<device::GpuEvent>(stream_.device);
  there->record(stream_);
  const Work done = Work::pending();
  coming_.push_back(PendingGradients{done, piece});
  updates_->post([this, range, from = static_cast<const std::byte*>(piece.data()), there, done] {
    try {
      opened_.wait(Deadline::after_ms(0));
      walk_to(range);
      update_range(range, from, there);
      done.complete();
    } catch (...) {
      done.fail(std::current_exception());
    }
  });
}

void OffloadedOptimizer::wait_for_coming(size_t most) {
  while (coming_.size() > most) {
    coming_.front().done.wait(in_time());
    coming_.pop_front();
  }
}

// A changed order of gradients changes the order of read-ahead.
void OffloadedOptimizer::walk_to(size_t range) {
  const size_t at = seen_.size();
  ESP_CHECK(std::find(seen_.begin(), seen_.end(), range) == seen_.end(), "range {}: gradients arrived twice in a step",
            range);
  if (walk_[at] != range) {
    const auto from = walk_.begin() + static_cast<std::ptrdiff_t>(at);
    std::rotate(from, std::find(from, walk_.end(), range), std::find(from, walk_.end(), range) + 1);
    state_->end();
    state_->begin(StateTier::Access::update, tiles_of(std::span(walk_).subspan(at)));
  }
  seen_.push_back(range);
}

// On the update thread: tiles are copied down ahead of it, and their weights up behind it.
void OffloadedOptimizer::update_range(size_t range, const std::byte* piece,
                                      const std::shared_ptr<device::GpuEvent>& there) {
  const size_t first = first_tiles_[range], num = first_tiles_[range + 1] - first, stage = next_stage_;
  const auto place = [&](size_t i) {
    return at(stages_, static_cast<int64_t>((stage + i) % kNumStages) * plan_.largest);
  };
  const auto values_place = [&](size_t i) {
    return place(i) + bytes(static_cast<int64_t>(kNumStages) * plan_.largest);
  };
  std::vector<Work> falling(num);
  const auto fall = [&](size_t i) {
    const TilePlan::Tile& tile = plan_.tiles[first + i];
    falling[i] = Work::pending();
    downs_->post([this, &tile, to = place(i), values = values_place(i),
                  from = piece + bytes(tile.begin - plan_.begins[range]), risen = rising_[(stage + i) % kNumStages],
                  there, work = falling[i]] {
      try {
        risen.wait(in_time());
        if (options_.split_master) fetch_values(tile.segments[0], values, beside());
        link_.down(to, from, bytes(tile.count()), beside(), there.get());
        work.complete();
      } catch (...) {
        work.fail(std::current_exception());
      }
    });
  };
  const device::Stream host{.device = {}, .pool = host_threads_.get(), .queue = nullptr};
  size_t i = 0;
  try {
    for (size_t ahead = 0; ahead < std::min(num, kNumStages - 1); ++ahead) fall(ahead);
    state_->visit_next(num, [&](const TilePlan::Tile& tile, std::span<std::byte* const> slots) {
      falling[i].wait(in_time());
      update_tile(tile, slots, place(i), values_place(i), now_, host);
      const Work risen = rising_[(stage + i) % kNumStages] = Work::pending();
      uploads_.post([this, &tile, values = place(i), risen] {
        try {
          send_up(tile, values, beside());
          risen.complete();
        } catch (...) {
          risen.fail(std::current_exception());
        }
      });
      if (i + kNumStages - 1 < num) fall(i + kNumStages - 1);
      ++i;
    });
  } catch (...) {
    // Copies to the host must end before their memory is reused.
    try {
      downs_->wait(in_time());
    } catch (const Error&) {
      // The first error is being thrown already.
    }
    throw;
  }
  next_stage_ = (stage + num) % kNumStages;
}

void OffloadedOptimizer::step(double lr, double grad_scale) {
  if (options_.early) {
    ESP_CHECK(open_ && lr == now_.lr && grad_scale == now_.grad_scale,
              "step({}, {}): arguments differ from those of open_step", lr, grad_scale);
    wait_for_coming(0);
    ESP_CHECK(seen_.size() == owned_.size(), "gradients arrived for {} of {} ranges", seen_.size(), owned_.size());
    for (const Work& risen : rising_) risen.wait(in_time());
    state_->end();
    seen_.clear();
    open_ = false;
    ++num_steps_;
    return;
  }
  collect();
  release_states();
  finish_update();
  const optim::UpdateStep step{lr, grad_scale, ++num_steps_, false};
  const bool delayed = options_.delay_after > 0 && num_steps_ > options_.delay_after;
  if (delayed) install_ahead();
  std::swap(taken_, updating_);
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
    if (install) uploads_.post([this, &tile] { send_up(tile, at(updating_, tile.begin), beside()); });
  });
  if (install) uploads_.wait(in_time());
}

void OffloadedOptimizer::update_tile(const TilePlan::Tile& tile, std::span<std::byte* const> slots, std::byte* tile_at,
                                     const std::byte* values, optim::UpdateStep step, const device::Stream& stream) {
  const DType master_type = tensor::accumulation_type(type_);
  auto* const lower = reinterpret_cast<uint16_t*>(slots[0]);
  std::byte* const master = options_.split_master ? master_.as<std::byte>() : slots[0];
  if (options_.split_master) kernel::join_halves(master_.as<float>(), values, lower, tile.count(), stream);
  for (const TilePlan::Run& run : tile.runs) {
    const size_t skip = static_cast<size_t>(run.begin - tile.begin) * size_of(master_type);
    std::byte* const both = tile_at + bytes(run.begin - tile.begin);
    if (!run.updated) {
      kernel::cast(both, type_, master + skip, master_type, run.end - run.begin, stream);
      continue;
    }
    kernel::StepBuffers buffers;
    buffers.master = master + skip;
    buffers.weights = both;
    buffers.grad = both;
    for (size_t i = 0; i < rule_->slots().size(); ++i)
      (rule_->slots()[i] == "m" ? buffers.m : buffers.v) = slots[i + 1] + skip;
    buffers.count = run.end - run.begin;
    buffers.grad_type = type_;
    step.decay = run.decay;
    rule_->update(buffers, step, stream);
  }
  if (options_.split_master) kernel::split_halves(lower, master_.as<float>(), tile.count(), stream);
}

void OffloadedOptimizer::send_up(const TilePlan::Tile& tile, std::byte* values, const device::Stream& stream) {
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

std::byte* OffloadedOptimizer::place_of(const TilePlan::Tile& tile) const {
  return options_.early ? at(stages_, 0) : at(updating_, tile.begin);
}

// The current weights.
void OffloadedOptimizer::fetch_values(const TilePlan::Segment& segment, std::byte* to, const device::Stream& stream) {
  const int64_t count = segment.end - segment.begin;
  const optim::OptimizerShard& owned = owned_[segment.range];
  if (!options_.values) return link_.down(to, at(owned.values, segment.first), bytes(count), stream);
  const auto unit = static_cast<size_t>(owned.range.unit);
  std::memcpy(to, options_.values->fetch(unit) + bytes(segment.first), bytes(count));
  if (segment.first + count == owned.range.end - owned.range.begin) options_.values->release(unit);
}

// Installs the weights of the last delayed update, now that the device has computed with the old ones.
void OffloadedOptimizer::install_ahead() {
  ESP_CHECK(!options_.early);
  if (pending_ == PendingWeights::master)
    state_->sweep(StateTier::Access::read, [&](const TilePlan::Tile& tile, std::span<std::byte* const> slots) {
      kernel::cast(at(updating_, tile.begin), type_, slots[0], tensor::accumulation_type(type_), tile.count(),
                   device::host_side(stream_));
    });
  if (pending_ != PendingWeights::none)
    for (const TilePlan::Tile& tile : plan_.tiles) send_up(tile, place_of(tile), stream_);
}

void OffloadedOptimizer::fill_master(StateTier::Access access) {
  const DType master_type = tensor::accumulation_type(type_);
  state_->sweep(access, [&](const TilePlan::Tile& tile, std::span<std::byte* const> slots) {
    std::byte* const values = place_of(tile);
    if (options_.split_master) {  // the weights are the upper half of the master copy
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
  drop_gradients();  // without delay the weights overwrote the gradients
  fill_master(StateTier::Access::update);
  pending_ = PendingWeights::none;
}

// Where the weights are as precise as the master copy they are the only slot shown, as by the optimizer on the device,
// so that checkpoints of the two are equal; unless the master copy is ahead.
bool OffloadedOptimizer::shows_master() const {
  return type_ != tensor::accumulation_type(type_) || options_.delay_after > 0;
}

std::span<optim::OptimizerState> OffloadedOptimizer::states() {
  finish_update();
  if (!states_.empty()) return states_;
  if (state_->whole().empty() || options_.split_master) {
    show_by_tiles();
  } else {
    show_whole();
  }
  return states_;
}

void OffloadedOptimizer::show_whole() {
  const std::span<const tensor::Tensor> slots = state_->whole();
  for (size_t range = 0; range < owned_.size(); ++range) {
    const optim::UnitRange& of = owned_[range].range;
    const auto show = [&](std::string_view slot, const tensor::Tensor& flat) {
      states_.push_back({slot, of, flat.slice(plan_.begins[range], plan_.begins[range] + of.end - of.begin)});
    };
    if (shows_master()) show("master", slots[0]);
    for (size_t i = 0; i < rule_->slots().size(); ++i) show(rule_->slots()[i], slots[i + 1]);
  }
}

// Every segment of every tile is a separate state, in storage order.
void OffloadedOptimizer::show_by_tiles() {
  shown_ = {};
  const DType type = tensor::accumulation_type(type_);
  std::vector<std::string_view> names;
  if (shows_master()) names.push_back("master");
  names.insert(names.end(), rule_->slots().begin(), rule_->slots().end());
  for (size_t i = 0; i < names.size(); ++i)
    shown_.slots.emplace_back(host_, tensor::Shape{plan_.largest}, type, device::MemoryCategory::buffer);
  for (size_t tile = 0; tile < plan_.tiles.size(); ++tile)
    for (size_t slot = 0; slot < names.size(); ++slot)
      for (const TilePlan::Segment& segment : plan_.tiles[tile].segments) {
        const optim::UnitRange& of = owned_[segment.range].range;
        const int64_t begin = of.begin + segment.first, count = segment.end - segment.begin;
        const Place place{tile, slot, segment.begin - plan_.tiles[tile].begin};
        states_.push_back({names[slot],
                           {of.unit, begin, begin + count},
                           tensor::Tensor::borrow(nullptr, {count}, type),
                           [this, place](int64_t first, const tensor::Tensor& to) {
                             load_shown(place.tile);
                             const int64_t from = place.first + first;
                             std::memcpy(to.data(), shown_.slots[place.slot].slice(from, from + to.count()).data(),
                                         to.bytes());
                           },
                           [this, state = states_.size()](const tensor::Tensor& from) { take_shown(state, from); }});
        shown_.places.push_back(place);
      }
}

// The whole master copy: the weights are its upper half.
void OffloadedOptimizer::load_shown(size_t tile) {
  if (shown_.tile == tile) return;
  if (!shown_.tile || shown_.next != tile) {
    std::vector<size_t> order(plan_.tiles.size() - tile);
    std::iota(order.begin(), order.end(), tile);
    state_->begin(StateTier::Access::read, std::move(order));
  }
  shown_.tile.reset();
  state_->visit_next(1, [&](const TilePlan::Tile& of, std::span<std::byte* const> slots) {
    const size_t hidden = shows_master() ? 0 : 1;
    for (size_t i = 0; i < shown_.slots.size(); ++i) {
      const tensor::Tensor to = shown_.slots[i].slice(0, of.count());
      if (i > 0 || !options_.split_master) {
        std::memcpy(to.data(), slots[i + hidden], to.bytes());
        continue;
      }
      fetch_values(of.segments[0], place_of(of), stream_);
      kernel::join_halves(to.as<float>(), place_of(of), reinterpret_cast<const uint16_t*>(slots[0]), of.count(),
                          device::host_side(stream_));
    }
  });
  shown_.tile = tile;
  shown_.next = tile + 1;
}

void OffloadedOptimizer::take_shown(size_t state, const tensor::Tensor& values) {
  ESP_CHECK(state == shown_.num_taken, "state {} of {} written after {} states", state, states_.size(),
            shown_.num_taken);
  if (state == 0) {
    shown_.tile.reset();
    std::vector<size_t> order(plan_.tiles.size());
    std::iota(order.begin(), order.end(), size_t{0});
    state_->begin(StateTier::Access::write, std::move(order));
  }
  const Place& place = shown_.places[state];
  const tensor::Tensor to = shown_.slots[place.slot].slice(place.first, place.first + values.count());
  std::memcpy(to.data(), values.data(), to.bytes());
  ++shown_.num_taken;
  if (shown_.num_taken < states_.size() && shown_.places[shown_.num_taken].tile == place.tile) return;
  state_->visit_next(
      1, [&](const TilePlan::Tile& tile, std::span<std::byte* const> slots) { write_shown_states(tile, slots); });
}

// After a restore of a split master copy the weights are recomputed from it, so that they are its rounding.
void OffloadedOptimizer::write_shown_states(const TilePlan::Tile& tile, std::span<std::byte* const> slots) {
  const size_t hidden = shows_master() ? 0 : 1;
  const device::Stream host = device::host_side(stream_);
  if (hidden > 0) kernel::fill(slots[0], 0, tile.count(), tensor::accumulation_type(type_), host);
  for (size_t i = 0; i < shown_.slots.size(); ++i) {
    const tensor::Tensor from = shown_.slots[i].slice(0, tile.count());
    if (i > 0 || !options_.split_master) {
      std::memcpy(slots[i + hidden], from.data(), from.bytes());
      continue;
    }
    kernel::split_halves(reinterpret_cast<uint16_t*>(slots[0]), from.as<float>(), tile.count(), host);
    kernel::cast(place_of(tile), type_, from.data(), DType::f32, tile.count(), host);
    send_up(tile, place_of(tile), stream_);
  }
}

void OffloadedOptimizer::states_restored() {
  finish_update();
  if (shown_.num_taken > 0) {
    ESP_CHECK(shown_.num_taken == states_.size(), "{} of {} states were restored", shown_.num_taken, states_.size());
    state_->end();
  }
  release_states();
  drop_gradients();
  if (!shows_master()) fill_master(StateTier::Access::update);
  pending_ = shows_master() ? PendingWeights::master : PendingWeights::none;
}

void OffloadedOptimizer::release_states() {
  states_.clear();
  shown_ = {};
}

std::unique_ptr<OffloadedOptimizer> make_offloaded_optimizer(const optim::OptimizerOptions& options,
                                                             const nn::ParameterList& parameters,
                                                             const device::Stream& stream, device::MemoryPool& host,
                                                             device::HostLink& link,
                                                             std::vector<optim::OptimizerShard> owned,
                                                             const TierOptions& tier) {
  return std::make_unique<OffloadedOptimizer>(optim::make_rule(options), parameters, stream, host, link,
                                              std::move(owned), tier);
}

}  // namespace esp::sync
