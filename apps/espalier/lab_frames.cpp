#include "apps/espalier/lab_frames.h"

#include <algorithm>

#include <fmt/format.h>

#include "apps/espalier/text_table.h"
#include "esp/base/check.h"
#include "esp/comm/algo/table.h"
#include "esp/comm/executor.h"
#include "esp/comm/plan.h"
#include "esp/net/inproc/threads.h"
#include "esp/net/transport.h"

namespace esp::app {
namespace {

using Memory = std::vector<int32_t>;  // one element per chunk; bit r is set if the sum contains rank r's value

comm::Schedule schedule_of(int rank, int size) {
  comm::CollectiveSpec problem;
  problem.rank = rank;
  problem.size = size;
  problem.count = static_cast<size_t>(size);
  return comm::find_algorithm(comm::Op::all_reduce, "ring_shift0").build(problem);
}

// Memory of every rank before the first round and after each round, indexed by round and rank.
std::vector<std::vector<Memory>> run_rounds(int size) {
  int num_rounds = schedule_of(0, size).num_rounds;
  std::vector<std::vector<Memory>> seen(static_cast<size_t>(num_rounds) + 1,
                                        std::vector<Memory>(static_cast<size_t>(size)));
  net::run_threads(size, [&](net::World& world) {
    auto rank = static_cast<size_t>(world.rank);
    std::unique_ptr<net::Transport> transport = net::open_transport("inproc", world, world.world_group());
    comm::Executor executor(*transport);
    comm::Schedule whole = schedule_of(world.rank, size);
    Memory memory(static_cast<size_t>(size), int32_t{1} << rank);
    seen[0][rank] = memory;
    for (int round = 0; round < num_rounds; ++round) {
      comm::Schedule part;
      part.num_rounds = num_rounds;
      for (const comm::Action& action : whole.actions)
        if (action.round == round && action.type != comm::ActionType::copy) part.actions.push_back(action);
      std::unique_ptr<comm::Plan> plan = comm::make_plan(part, sizeof(int32_t), 0, memory.size());
      net::Tag tag;
      tag.sequence = static_cast<uint64_t>(round) + 1;
      auto outcome = executor.run(*plan, memory.data(), memory.data(), DType::i32, comm::ReduceOp::sum, tag,
                                  Deadline::after(std::chrono::seconds(10)));
      ESP_CHECK(outcome == comm::Executor::RunStatus::done, "ring all-reduce: round {} did not finish on rank {}",
                round, world.rank);
      seen[static_cast<size_t>(round) + 1][rank] = memory;
    }
  });
  return seen;
}

std::string in_letters(int32_t sum, size_t chunk, int size) {
  std::string text;
  for (int r = 0; r < size; ++r)
    if (sum & (int32_t{1} << r))
      text += fmt::format("{}{}{}", text.empty() ? "" : "+", static_cast<char>('a' + r), chunk);
  return text;
}

}  // namespace

std::vector<comm::RingFrame> run_ring_frames(int size) {
  ESP_CHECK(size >= 2 && size <= 26, "ring frames: got {} ranks; expected 2 to 26", size);
  std::vector<std::vector<Memory>> seen = run_rounds(size);
  int32_t all = static_cast<int32_t>((int64_t{1} << size) - 1);
  std::vector<comm::RingFrame> frames;
  auto draw = [&](std::string title, size_t after, int moving_round, bool finished_only) {
    comm::RingFrame frame{std::move(title), {}, std::vector<std::string>(static_cast<size_t>(size))};
    for (size_t r = 0; r < static_cast<size_t>(size); ++r) {
      frame.cells.emplace_back();
      for (size_t c = 0; c < static_cast<size_t>(size); ++c)
        frame.cells.back().push_back(!finished_only || seen[after][r][c] == all ? in_letters(seen[after][r][c], c, size)
                                                                                : "");
      if (moving_round < 0) continue;
      for (const comm::Action& action : schedule_of(static_cast<int>(r), size).actions)
        if (action.type == comm::ActionType::send && action.round == moving_round)
          frame.moving[r] = in_letters(seen[after][r][action.region.offset], action.region.offset, size);
    }
    frames.push_back(std::move(frame));
  };
  auto steps = static_cast<size_t>(size) - 1;
  draw("start", 0, -1, false);
  for (size_t step = 0; step < steps; ++step) {
    draw(fmt::format("reduce-scatter, step {} in progress", step + 1), step, static_cast<int>(step), false);
    draw(fmt::format("reduce-scatter, step {} done", step + 1), step + 1, -1, false);
  }
  draw("each rank owns one finished sum", steps, -1, true);
  draw("all-gather done", seen.size() - 1, -1, false);
  return frames;
}

std::string difference(const std::vector<comm::RingFrame>& real, const std::vector<comm::RingFrame>& expected) {
  if (real.size() != expected.size()) return fmt::format("{} frames, expected {}", real.size(), expected.size());
  for (size_t i = 0; i < real.size(); ++i) {
    if (real[i].moving != expected[i].moving) return fmt::format("frame {}: the messages in transit differ", i + 1);
    for (size_t r = 0; r < real[i].cells.size(); ++r)
      for (size_t c = 0; c < real[i].cells[r].size(); ++c)
        if (real[i].cells[r][c] != expected[i].cells.at(r).at(c))
          return fmt::format("frame {}: worker {} chunk {} holds {}, expected {}", i + 1, r, c, real[i].cells[r][c],
                             expected[i].cells[r][c]);
  }
  return "";
}

std::string to_text(const comm::RingFrame& frame, int number) {
  Cells head = {fmt::format("frame {}: {}", number, frame.title)};
  std::vector<Cells> rows;
  for (size_t r = 0; r < frame.cells.size(); ++r) {
    Cells row = {fmt::format("  worker {}", r)};
    for (const std::string& cell : frame.cells[r]) row.push_back(cell.empty() ? "·" : cell);
    if (!frame.moving[r].empty())
      row.push_back(fmt::format("{} → worker {}", frame.moving[r], (r + 1) % frame.cells.size()));
    rows.push_back(row);
  }
  size_t widest = 0;
  for (const Cells& row : rows) widest = std::max(widest, row.size());
  Cells blank(widest);
  // head[0] is the title. It is printed above the table, not in its first column.
  return head[0] + "\n" + text_table(blank, rows).substr(1);
}

}  // namespace esp::app
