#include "esp/comm/plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "esp/base/check.h"

namespace esp::comm {
namespace {

// The last accesses of each interval.
class History {
 public:
  // Records that step `who` reads or writes [begin, end) and adds its dependencies to `before`. True if a read overlaps
  // a write.
  bool touch(int64_t begin, int64_t end, bool writes, uint32_t who, std::vector<uint32_t>& before) {
    if (begin >= end) return false;
    cut(begin);
    cut(end);
    bool written = false;
    for (int64_t at = begin; at < end;) {
      auto found = pieces_.find(at);
      if (found == pieces_.end()) {  // a gap up to the next piece
        auto next = pieces_.upper_bound(at);
        int64_t stop = next == pieces_.end() ? end : std::min(end, next->first);
        found = pieces_.emplace(at, Piece{stop, -1, {}}).first;
      }
      Piece& piece = found->second;
      if (piece.writer >= 0 && static_cast<uint32_t>(piece.writer) != who) {
        before.push_back(static_cast<uint32_t>(piece.writer));
        written = true;
      }
      if (writes) {
        for (uint32_t reader : piece.readers)
          if (reader != who) before.push_back(reader);
        piece.readers.clear();
        piece.writer = who;
      } else if (piece.readers.empty() || piece.readers.back() != who) {
        piece.readers.push_back(who);
      }
      at = piece.end;
    }
    return written;
  }

 private:
  struct Piece {
    int64_t end;
    int64_t writer;
    std::vector<uint32_t> readers;  // since the writer
  };

  void cut(int64_t at) {
    auto next = pieces_.upper_bound(at);
    if (next == pieces_.begin()) return;
    auto piece = std::prev(next);
    if (piece->first == at || piece->second.end <= at) return;
    Piece tail = piece->second;
    piece->second.end = at;
    pieces_.emplace(at, std::move(tail));
  }

  std::map<int64_t, Piece> pieces_;  // by begin
};

class Planner {
 public:
  Planner(const Schedule& schedule, size_t element_bytes, std::optional<ptrdiff_t> alias, size_t input_count)
      : schedule_(schedule), unit_(element_bytes), alias_(alias), plan_(std::make_unique<Plan>()) {
    plan_->input_bytes = input_count * unit_;
    plan_->scratch_bytes = schedule.scratch_count * unit_;
    plan_->num_rounds = schedule.num_rounds;
  }

  // Null if the input must be copied: it is needed after it was overwritten, or swapped with a peer.
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
    bool message = action.act == Act::send || action.act == Act::receive || action.act == Act::receive_reduce;
    if (action.region.count == 0 && !message) return true;
    if (action.act == Act::copy && identity(action)) return true;
    auto who = static_cast<uint32_t>(plan_->steps.size());
    PlanStep step;
    step.act = action.act;
    step.place = place_of(action.region);
    step.bytes = action.region.count * unit_;
    step.first_source = static_cast<uint32_t>(plan_->sources.size());
    step.num_sources = static_cast<uint32_t>(action.sources.size());
    step.from_operand = action.act == Act::receive_reduce && !action.sources.empty();
    std::vector<uint32_t> before;
    for (const BufferRegion& source : action.sources) {
      plan_->sources.push_back(place_of(source));
      if (!touch(source, false, who, before)) return false;
    }
    bool reads = action.act == Act::send || (action.act == Act::receive_reduce && !step.from_operand);
    if (reads && !touch(action.region, false, who, before)) return false;
    if (action.act != Act::send && !touch(action.region, true, who, before)) return false;
    if (action.region.count == 0) note_signal(action, who, before);
    if (alias_ && swaps(action, before)) return false;
    std::sort(before.begin(), before.end());
    before.erase(std::unique(before.begin(), before.end()), before.end());
    step.num_before = static_cast<uint32_t>(before.size());
    plan_->first_before.push_back(static_cast<uint32_t>(plan_->before.size()));
    plan_->before.insert(plan_->before.end(), before.begin(), before.end());
    rounds_.push_back(action.round);
    if (message) lanes_[{action.peer, action.act == Act::send}].push_back(who);
    plan_->steps.push_back(step);
    return true;
  }

  // In place, a rank may receive into memory it sends in the same round. Two ranks that both wait for their send to be
  // taken before they receive would deadlock.
  bool swaps(const Action& action, const std::vector<uint32_t>& before) const {
    if (action.act == Act::send) return false;
    return std::any_of(before.begin(), before.end(), [&](uint32_t earlier) {
      return plan_->steps[earlier].act == Act::send && rounds_[earlier] == action.round;
    });
  }

  // A zero-byte message implies that everything its sender had received before has been received: it waits for those
  // messages.
  void note_signal(const Action& action, uint32_t who, std::vector<uint32_t>& before) {
    if (action.act == Act::send)
      before.insert(before.end(), signals_heard_.begin(), signals_heard_.end());
    else
      signals_heard_.push_back(who);
  }

  // False when it reads an input that is no longer there.
  bool touch(const BufferRegion& region, bool writes, uint32_t who, std::vector<uint32_t>& before) {
    ESP_CHECK(!(writes && region.buffer == Buffer::input), "a schedule writes its input");
    auto begin = static_cast<int64_t>(region.offset);
    auto end = begin + static_cast<int64_t>(region.count);
    if (region.buffer == Buffer::input) {
      if (!alias_) return true;  // never written
      return !memory_[1].touch(begin + *alias_, end + *alias_, false, who, before);
    }
    memory_[region.buffer == Buffer::output ? 1 : 2].touch(begin, end, writes, who, before);
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
  History memory_[3];
  std::vector<int> rounds_;  // by step
  std::vector<uint32_t> signals_heard_;
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
  // Cache lines of scratch and stash do not mix.
  plan->scratch_bytes = (plan->scratch_bytes + 63) / 64 * 64;
  size_t memory = plan->scratch_bytes + (stash ? plan->input_bytes : 0);
  if (memory > 0) plan->memory = std::make_unique_for_overwrite<std::byte[]>(memory + 64);
  return plan;
}

}  // namespace esp::comm
