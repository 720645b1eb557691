#include "esp/comm/plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "esp/base/check.h"

namespace esp::comm {
namespace {

// Stores, for every interval of a buffer, the step that wrote it last and the steps that have read it since.
class AccessHistory {
 public:
  // Records that step `step_index` reads or writes [begin, end), and adds the steps it depends on to `before`. Returns
  // true if an earlier step wrote part of the range.
  bool record_access(int64_t begin, int64_t end, bool writes, uint32_t step_index, std::vector<uint32_t>& before) {
    if (begin >= end) return false;
    cut(begin);
    cut(end);
    bool written = false;
    for (int64_t at = begin; at < end;) {
      auto found = intervals_.find(at);
      if (found == intervals_.end()) {  // no step has accessed the gap before the next interval
        auto next = intervals_.upper_bound(at);
        int64_t stop = next == intervals_.end() ? end : std::min(end, next->first);
        found = intervals_.emplace(at, AccessInterval{stop, -1, {}}).first;
      }
      AccessInterval& interval = found->second;
      if (interval.writer >= 0 && static_cast<uint32_t>(interval.writer) != step_index) {
        before.push_back(static_cast<uint32_t>(interval.writer));
        written = true;
      }
      if (writes) {
        for (uint32_t reader : interval.readers)
          if (reader != step_index) before.push_back(reader);
        interval.readers.clear();
        interval.writer = step_index;
      } else if (interval.readers.empty() || interval.readers.back() != step_index) {
        interval.readers.push_back(step_index);
      }
      at = interval.end;
    }
    return written;
  }

 private:
  struct AccessInterval {
    int64_t end;
    int64_t writer;
    std::vector<uint32_t> readers;  // steps that read the interval after its last write
  };

  void cut(int64_t at) {
    auto next = intervals_.upper_bound(at);
    if (next == intervals_.begin()) return;
    auto interval = std::prev(next);
    if (interval->first == at || interval->second.end <= at) return;
    AccessInterval tail = interval->second;
    interval->second.end = at;
    intervals_.emplace(at, std::move(tail));
  }

  std::map<int64_t, AccessInterval> intervals_;  // key: begin of the interval
};

class Planner {
 public:
  Planner(const Schedule& schedule, size_t element_bytes, std::optional<ptrdiff_t> alias, size_t input_count)
      : schedule_(schedule), unit_(element_bytes), alias_(alias), plan_(std::make_unique<Plan>()) {
    plan_->input_bytes = input_count * unit_;
    plan_->scratch_bytes = schedule.scratch_count * unit_;
    plan_->num_rounds = schedule.num_rounds;
  }

  // Returns null if the input must be stashed first, because a step needs it after it was overwritten, or because it is
  // swapped with a peer.
  std::unique_ptr<Plan> build() {
    for (const Action& action : schedule_.actions)
      if (!add(action)) return nullptr;
    lay_out_edges();
    lay_out_lanes();
    size_t num_steps = plan_->steps.size();
    plan_->transfers.resize(num_steps);
    plan_->contexts.resize(num_steps);
    plan_->waiting.resize(num_steps);
    plan_->end_ps.resize(num_steps);
    plan_->ready.reserve(num_steps);
    plan_->posted.resize(plan_->lanes.size());
    plan_->finished.resize(plan_->lanes.size());
    size_t most = 0;
    for (const PlanStep& step : plan_->steps) most = std::max<size_t>(most, step.num_sources);
    plan_->operands.resize(most);
    return std::move(plan_);
  }

 private:
  BufferOffset place_of(const BufferRegion& region) const { return {region.buffer, region.offset * unit_}; }

  bool identity(const Action& action) const {
    const BufferRegion& from = action.sources[0];
    return alias_ && action.region.buffer == Buffer::output && from.buffer == Buffer::input &&
           static_cast<ptrdiff_t>(from.offset) + *alias_ == static_cast<ptrdiff_t>(action.region.offset);
  }

  bool add(const Action& action) {
    bool message = action.type == ActionType::send || action.type == ActionType::receive ||
                   action.type == ActionType::receive_reduce;
    if (action.region.count == 0 && !message) return true;
    if (action.type == ActionType::copy && identity(action)) return true;
    auto step_index = static_cast<uint32_t>(plan_->steps.size());
    PlanStep step;
    step.type = action.type;
    step.location = place_of(action.region);
    step.bytes = action.region.count * unit_;
    step.first_source = static_cast<uint32_t>(plan_->sources.size());
    step.num_sources = static_cast<uint32_t>(action.sources.size());
    step.from_operand = action.type == ActionType::receive_reduce && !action.sources.empty();
    std::vector<uint32_t> before;
    for (const BufferRegion& source : action.sources) {
      plan_->sources.push_back(place_of(source));
      if (!record_access(source, false, step_index, before)) return false;
    }
    bool reads = action.type == ActionType::send || (action.type == ActionType::receive_reduce && !step.from_operand);
    if (reads && !record_access(action.region, false, step_index, before)) return false;
    if (action.type != ActionType::send && !record_access(action.region, true, step_index, before)) return false;
    if (action.region.count == 0) add_signal_dependencies(action, step_index, before);
    if (alias_ && swaps_with_peer(action, before)) return false;
    std::sort(before.begin(), before.end());
    before.erase(std::unique(before.begin(), before.end()), before.end());
    step.num_before = static_cast<uint32_t>(before.size());
    plan_->first_before.push_back(static_cast<uint32_t>(plan_->before.size()));
    plan_->before.insert(plan_->before.end(), before.begin(), before.end());
    rounds_.push_back(action.round);
    if (message) lanes_[{action.peer, action.type == ActionType::send}].push_back(step_index);
    plan_->steps.push_back(step);
    return true;
  }

  // True if the action receives into memory that this rank also sends in the same round, which can happen only in
  // place. Two ranks that both wait for their send to complete before they receive would deadlock.
  bool swaps_with_peer(const Action& action, const std::vector<uint32_t>& before) const {
    if (action.type == ActionType::send) return false;
    return std::any_of(before.begin(), before.end(), [&](uint32_t earlier) {
      return plan_->steps[earlier].type == ActionType::send && rounds_[earlier] == action.round;
    });
  }

  // A zero-byte message means that its sender has received all earlier zero-byte messages. The send therefore depends
  // on those receives.
  void add_signal_dependencies(const Action& action, uint32_t step_index, std::vector<uint32_t>& before) {
    if (action.type == ActionType::send)
      before.insert(before.end(), received_signals_.begin(), received_signals_.end());
    else
      received_signals_.push_back(step_index);
  }

  // Returns false if the step reads an input that was overwritten.
  bool record_access(const BufferRegion& region, bool writes, uint32_t step_index, std::vector<uint32_t>& before) {
    ESP_CHECK(!(writes && region.buffer == Buffer::input), "a schedule must not write its input");
    auto begin = static_cast<int64_t>(region.offset);
    auto end = begin + static_cast<int64_t>(region.count);
    if (region.buffer == Buffer::input) {
      if (!alias_) return true;  // out of place, the input is never written
      return !memory_[1].record_access(begin + *alias_, end + *alias_, false, step_index, before);
    }
    memory_[region.buffer == Buffer::output ? 1 : 2].record_access(begin, end, writes, step_index, before);
    return true;
  }

  void lay_out_edges() {
    Plan& plan = *plan_;
    plan.first_before.push_back(static_cast<uint32_t>(plan.before.size()));
    for (uint32_t earlier : plan.before) plan.steps[earlier].num_after++;
    uint32_t next = 0;
    for (PlanStep& step : plan.steps) {
      step.first_after = next;
      next += step.num_after;
      step.num_after = 0;
    }
    plan.after.resize(next);
    for (uint32_t later = 0; later < plan.steps.size(); ++later)
      for (uint32_t i = plan.first_before[later]; i < plan.first_before[later + 1]; ++i) {
        PlanStep& earlier = plan.steps[plan.before[i]];
        plan.after[earlier.first_after + earlier.num_after++] = later;
      }
  }

  void lay_out_lanes() {
    for (const auto& [key, steps] : lanes_) {
      MessageLane lane{key.first, key.second, static_cast<uint32_t>(plan_->lane_steps.size()),
                       static_cast<uint32_t>(steps.size())};
      for (uint32_t i = 0; i < steps.size(); ++i) {
        plan_->steps[steps[i]].lane = static_cast<int>(plan_->lanes.size());
        plan_->steps[steps[i]].message = i;
      }
      plan_->lane_steps.insert(plan_->lane_steps.end(), steps.begin(), steps.end());
      plan_->lanes.push_back(lane);
    }
  }

  const Schedule& schedule_;
  const size_t unit_;
  const std::optional<ptrdiff_t> alias_;
  std::unique_ptr<Plan> plan_;
  AccessHistory memory_[3];
  std::vector<int> rounds_;  // round of each step
  std::vector<uint32_t> received_signals_;
  std::map<std::pair<int, bool>, std::vector<uint32_t>> lanes_;
};

}  // namespace

std::unique_ptr<Plan> make_plan(const Schedule& schedule, size_t element_bytes, std::optional<ptrdiff_t> alias,
                                size_t input_count) {
  Schedule forwarded = forward_copies(schedule);
  std::unique_ptr<Plan> plan;
  if (alias) plan = Planner(forwarded, element_bytes, alias, input_count).build();
  if (alias && !plan) plan = Planner(schedule, element_bytes, alias, input_count).build();
  bool stash = alias && !plan;
  if (!plan) plan = Planner(forwarded, element_bytes, std::nullopt, input_count).build();
  plan->stash = stash;
  // Scratch and stash share no cache line.
  plan->scratch_bytes = (plan->scratch_bytes + 63) / 64 * 64;
  size_t memory = plan->scratch_bytes + (stash ? plan->input_bytes : 0);
  if (memory > 0) plan->memory = std::make_unique_for_overwrite<std::byte[]>(memory + 64);
  return plan;
}

}  // namespace esp::comm
