#include "esp/sync/tier/offloaded_optimizer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/kernel/elementwise.h"

namespace esp::sync {
namespace {

DType storage_of(std::span<const optim::Owned> owned) {
  for (const optim::Owned& one : owned) {
    const int64_t count = one.range.end - one.range.begin;
    ESP_CHECK(one.values.count() == count && one.values.dtype() == owned[0].values.dtype(), "[{}, {}) of unit {}",
              one.range.begin, one.range.end, one.range.unit);
    ESP_CHECK(!one.grads.defined() || (one.grads.count() == count && one.grads.dtype() == one.values.dtype()),
              "gradients of [{}, {}) of unit {}", one.range.begin, one.range.end, one.range.unit);
  }
  return owned.empty() ? DType::f32 : owned[0].values.dtype();
}

const TierOptions& checked(const TierOptions& options) {
  if (options.tile < 1) throw UsageError(fmt::format("optimizer tiles of {} elements: 1 at least", options.tile));
  if (options.delay_after < 0) throw UsageError(fmt::format("delay_after = {}: 0 for never", options.delay_after));
  if (options.host_threads < 1) throw UsageError(fmt::format("host_threads = {}: 1 at least", options.host_threads));
  return options;
}

}  // namespace

OffloadedOptimizer::OffloadedOptimizer(std::unique_ptr<optim::Rule> rule, const nn::ParameterList& parameters,
                                       const device::Stream& stream, device::Pool& host, device::HostLink& link,
                                       std::vector<optim::Owned> owned, const TierOptions& options)
    : rule_(std::move(rule)),
      stream_(stream),
      host_(host),
      link_(link),
      options_(checked(options)),
      owned_(std::move(owned)),
      type_(storage_of(owned_)),
      plan_(plan_tiles(parameters, owned_, options.tile)),
      taken_(host, {plan_.count}, type_, device::MemoryCategory::gradient),
      updating_(taken_),
      covered_(owned_.size()),
      copies_("esp-up") {
  state_ = make_state_tier(options.placement,
                           {&plan_, 1 + rule_->slots().size(), tensor::accumulation_type(type_), &host}, options.file);
  if (options.delay_after > 0) {
    updating_ = tensor::Tensor(host, {plan_.count}, type_, device::MemoryCategory::gradient);
    if (options.host_threads > 1)
      host_threads_ = std::make_unique<device::ThreadPool>(static_cast<int>(options.host_threads));
    updates_ = std::make_unique<Lane>("esp-update");
  }
  fill_master(StateTier::Access::write);
}

std::byte* OffloadedOptimizer::at(const tensor::Tensor& flat, int64_t element) const {
  return flat.as<std::byte>() + bytes(element);
}

void OffloadedOptimizer::take_gradient(size_t range, int64_t first, const tensor::Tensor& piece, bool add) {
  const optim::Range& of = owned_[range].range;
  const Span span{first, first + piece.count()};
  ESP_CHECK(piece.dtype() == type_ && first >= 0 && span.end <= of.end - of.begin, "[{}, {}) of [{}, {})", first,
            span.end, of.begin, of.end);
  std::byte* const place = at(taken_, plan_.begins[range] + first);
  if (add) {
    const tensor::Tensor term(host_, {piece.count()}, type_, device::MemoryCategory::buffer);
    link_.down(term.data(), piece.data(), piece.bytes(), stream_);
    kernel::add_to(place, term.data(), piece.count(), type_, device::host_side(stream_));
  } else {
    link_.down(place, piece.data(), piece.bytes(), stream_);
  }
  // Keeps the spans in order and joins those that touch.
  std::vector<Span>& spans = covered_[range];
  auto from = std::find_if(spans.begin(), spans.end(), [&](const Span& s) { return s.end >= span.begin; });
  auto to = std::find_if(from, spans.end(), [&](const Span& s) { return s.begin > span.end; });
  Span joined = span;
  if (from != to) joined = {std::min(span.begin, from->begin), std::max(span.end, std::prev(to)->end)};
  spans.insert(spans.erase(from, to), joined);
}

tensor::Tensor OffloadedOptimizer::gradient(size_t range) const {
  const optim::Range& of = owned_[range].range;
  return taken_.slice(plan_.begins[range], plan_.begins[range] + of.end - of.begin);
}

void OffloadedOptimizer::drop_gradients() {
  for (auto& spans : covered_) spans.clear();
}

// Ranges of which nothing was taken come down now, whole.
void OffloadedOptimizer::collect() {
  for (size_t range = 0; range < owned_.size(); ++range) {
    const int64_t count = owned_[range].range.end - owned_[range].range.begin;
    if (covered_[range].empty() && owned_[range].grads.defined()) take_gradient(range, 0, owned_[range].grads);
    ESP_CHECK(count == 0 || (covered_[range].size() == 1 && covered_[range][0].end - covered_[range][0].begin == count),
              "range {}: not every gradient was taken", range);
  }
  drop_gradients();
}

void OffloadedOptimizer::settle() {
  if (updates_) updates_->wait(Deadline::after_ms(options_.timeout_s * 1000));
}

void OffloadedOptimizer::step(double lr, double grad_scale) {
  collect();
  release_states();
  settle();
  const optim::UpdateStep step{lr, grad_scale, ++num_steps_, false};
  const bool delayed = options_.delay_after > 0 && num_steps_ > options_.delay_after;
  if (delayed) install_ahead();
  std::swap(taken_, updating_);
  if (!delayed) {
    update(step, device::host_side(stream_), true);
    ahead_ = Ahead::none;
    return;
  }
  ahead_ = Ahead::buffer;
  updates_->post([this, step] { update(step, {.device = {}, .pool = host_threads_.get(), .queue = nullptr}, false); });
}

void OffloadedOptimizer::update(const optim::UpdateStep& step, const device::Stream& stream, bool install) {
  state_->sweep(StateTier::Access::update, [&](const TilePlan::Tile& tile, std::span<std::byte* const> slots) {
    update_tile(tile, slots, step, stream);
    if (install)
      copies_.post([this, &tile] { send_up(tile, {.device = stream_.device, .pool = nullptr, .queue = nullptr}); });
  });
  if (install) copies_.wait(Deadline::after_ms(options_.timeout_s * 1000));
}

void OffloadedOptimizer::update_tile(const TilePlan::Tile& tile, std::span<std::byte* const> slots,
                                     optim::UpdateStep step, const device::Stream& stream) {
  const DType master_type = tensor::accumulation_type(type_);
  for (const TilePlan::Run& run : tile.runs) {
    const size_t skip = static_cast<size_t>(run.begin - tile.begin) * size_of(master_type);
    std::byte* const both = at(updating_, run.begin);  // a gradient before, a value after
    if (!run.updated) {
      kernel::cast(both, type_, slots[0] + skip, master_type, run.end - run.begin, stream);
      continue;
    }
    kernel::StepBuffers buffers;
    buffers.master = slots[0] + skip;
    buffers.weights = both;
    buffers.grad = both;
    for (size_t i = 0; i < rule_->slots().size(); ++i)
      (rule_->slots()[i] == "m" ? buffers.m : buffers.v) = slots[i + 1] + skip;
    buffers.count = run.end - run.begin;
    buffers.grad_type = type_;
    step.decay = run.decay;
    rule_->update(buffers, step, stream);
  }
}

void OffloadedOptimizer::send_up(const TilePlan::Tile& tile, const device::Stream& stream) {
  for (const TilePlan::Segment& segment : tile.segments) {
    std::byte* const from = at(updating_, segment.begin);
    const size_t size = bytes(segment.end - segment.begin);
    if (options_.values) {
      options_.values->write(static_cast<size_t>(owned_[segment.range].range.unit), segment.first, {from, size});
    } else {
      link_.up(at(owned_[segment.range].values, segment.first), from, size, stream);
    }
  }
}

// The values as they are, over what updating_ holds.
void OffloadedOptimizer::fetch_values(const TilePlan::Segment& segment) {
  std::byte* const to = at(updating_, segment.begin);
  const int64_t count = segment.end - segment.begin;
  const optim::Owned& owned = owned_[segment.range];
  if (!options_.values) return link_.down(to, at(owned.values, segment.first), bytes(count), stream_);
  const auto unit = static_cast<size_t>(owned.range.unit);
  std::memcpy(to, options_.values->bring(unit) + bytes(segment.first), bytes(count));
  if (segment.first + count == owned.range.end - owned.range.begin) options_.values->release(unit);
}

// The values of the last delayed update, which the device may have now that it has computed with the old ones.
void OffloadedOptimizer::install_ahead() {
  if (ahead_ == Ahead::master)
    state_->sweep(StateTier::Access::read, [&](const TilePlan::Tile& tile, std::span<std::byte* const> slots) {
      kernel::cast(at(updating_, tile.begin), type_, slots[0], tensor::accumulation_type(type_), tile.count(),
                   device::host_side(stream_));
    });
  if (ahead_ != Ahead::none)
    for (const TilePlan::Tile& tile : plan_.tiles) send_up(tile, stream_);
}

void OffloadedOptimizer::fill_master(StateTier::Access access) {
  const size_t element = size_of(tensor::accumulation_type(type_));
  state_->sweep(access, [&](const TilePlan::Tile& tile, std::span<std::byte* const> slots) {
    for (const TilePlan::Segment& segment : tile.segments) fetch_values(segment);
    kernel::cast(slots[0], tensor::accumulation_type(type_), at(updating_, tile.begin), type_, tile.count(),
                 device::host_side(stream_));
    if (access == StateTier::Access::write)
      for (std::byte* slot : slots.subspan(1)) std::memset(slot, 0, static_cast<size_t>(tile.count()) * element);
  });
}

void OffloadedOptimizer::refresh_master() {
  settle();
  release_states();
  drop_gradients();  // without delay their memory was just used for the values
  fill_master(StateTier::Access::update);
  ahead_ = Ahead::none;
}

// Where values are as exact as the master copy they are shown as the only one, as by the optimizer on the device, so
// that checkpoints of the two agree; unless the master copy is ahead.
bool OffloadedOptimizer::shows_master() const {
  return type_ != tensor::accumulation_type(type_) || options_.delay_after > 0;
}

std::span<optim::State> OffloadedOptimizer::states() {
  settle();
  if (!states_.empty()) return states_;
  gathered_ = state_->gather();
  for (size_t range = 0; range < owned_.size(); ++range) {
    const optim::Range& of = owned_[range].range;
    const auto show = [&](std::string_view slot, const tensor::Tensor& flat) {
      states_.push_back({slot, of, flat.slice(plan_.begins[range], plan_.begins[range] + of.end - of.begin)});
    };
    if (shows_master()) show("master", gathered_[0]);
    for (size_t i = 0; i < rule_->slots().size(); ++i) show(rule_->slots()[i], gathered_[i + 1]);
  }
  return states_;
}

void OffloadedOptimizer::states_restored() {
  settle();
  if (!states_.empty()) state_->scatter(gathered_);
  release_states();
  drop_gradients();
  if (!shows_master()) fill_master(StateTier::Access::update);
  ahead_ = shows_master() ? Ahead::master : Ahead::none;
}

void OffloadedOptimizer::release_states() {
  states_.clear();
  gathered_.clear();
}

std::unique_ptr<OffloadedOptimizer> make_offloaded_optimizer(const optim::OptimizerOptions& options,
                                                             const nn::ParameterList& parameters,
                                                             const device::Stream& stream, device::Pool& host,
                                                             device::HostLink& link, std::vector<optim::Owned> owned,
                                                             const TierOptions& tier) {
  return std::make_unique<OffloadedOptimizer>(optim::make_rule(options), parameters, stream, host, link,
                                              std::move(owned), tier);
}

}  // namespace esp::sync
