#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/replay.h"
#include "esp/comm/schedule_interpreter.h"
#include "esp/comm/symbolic.h"
#include "esp/comm/validate.h"

namespace esp::comm {
namespace {

// Runs the schedule symbolically with one element per chunk, so that element k is chunk k.
class FrameRecorder {
 public:
  explicit FrameRecorder(int size) : sets_(size), memory_(static_cast<size_t>(size)), order_(schedules_) {
    CollectiveSpec spec;
    spec.size = size;
    spec.count = static_cast<size_t>(size);
    for (const CollectiveSpec& mine : specs_for_all_ranks(spec)) schedules_.push_back(all_reduce_ring_shift0(mine));
    order_ = ScheduleInterpreter<SymbolicRanges>(schedules_);
    // Input and output start with the same contents, as in an in-place call.
    for (int r = 0; r < size; ++r) memory_[at(r)].write(0, {{0, at(size), 0, sets_.of(r)}});
  }

  void run_round(int round) {
    order_.run(
        round, [&](int rank, size_t i) { return read(rank, i); },
        [&](int rank, size_t i, SymbolicRanges& message) {
          const Action& action = schedules_[at(rank)].actions[i];
          if (action.type == ActionType::receive_reduce)
            message[0].set = sets_.any_union(message[0].set, read(rank, i)[0].set);
          memory_[at(rank)].write(action.region.offset, message);
        },
        [](int, size_t) {});  // a local action only copies the input to the output, which the constructor has done
  }

  std::string cell(int rank, int chunk) { return in_letters(memory_[at(rank)].read(at(chunk), 1)[0]); }
  bool finished(int rank, int chunk) { return memory_[at(rank)].read(at(chunk), 1)[0].set == sets_.all(); }

  std::string sent_in(int rank, int round) {
    const std::vector<Action>& actions = schedules_[at(rank)].actions;
    for (size_t i = 0; i < actions.size(); ++i)
      if (actions[i].type == ActionType::send && actions[i].round == round) return in_letters(read(rank, i)[0]);
    return "";
  }

 private:
  static size_t at(int i) { return static_cast<size_t>(i); }
  SymbolicRanges read(int rank, size_t i) {
    const BufferRegion& region = schedules_[at(rank)].actions[i].region;
    return memory_[at(rank)].read(region.offset, region.count);
  }
  std::string in_letters(const SymbolicRange& part) {
    std::string text;
    for (int r : sets_.ranks(part.set))
      text += fmt::format("{}{}{}", text.empty() ? "" : "+", static_cast<char>('a' + r), part.first);
    return text;
  }

  RankSets sets_;
  std::vector<SymbolicMemory> memory_;
  std::vector<Schedule> schedules_;
  ScheduleInterpreter<SymbolicRanges> order_;
};

}  // namespace

std::vector<RingFrame> ring_frames(int size) {
  ESP_CHECK(size >= 1 && size <= 26, "ring figure: got {} ranks; expected 1 to 26, one per letter", size);
  FrameRecorder figure(size);
  std::vector<RingFrame> frames;
  auto draw = [&](std::string title, int moving_round, bool finished_only) {
    RingFrame frame{std::move(title), {}, std::vector<std::string>(static_cast<size_t>(size))};
    for (int r = 0; r < size; ++r) {
      frame.cells.emplace_back();
      for (int c = 0; c < size; ++c)
        frame.cells.back().push_back(!finished_only || figure.finished(r, c) ? figure.cell(r, c) : "");
      if (moving_round >= 0) frame.moving[static_cast<size_t>(r)] = figure.sent_in(r, moving_round);
    }
    frames.push_back(std::move(frame));
  };
  draw("start", -1, false);
  for (int step = 0; step < size - 1; ++step) {
    draw(fmt::format("reduce-scatter, step {} in progress", step + 1), step, false);
    figure.run_round(step);
    draw(fmt::format("reduce-scatter, step {} done", step + 1), -1, false);
  }
  draw("each rank owns one finished sum", -1, true);
  figure.run_round(2 * (size - 1));
  draw("all-gather done", -1, false);
  return frames;
}

}  // namespace esp::comm
