#include "apps/espalier/bench_train_contender.h"

#include <algorithm>

#include <fmt/format.h>

#include "apps/espalier/bench_comm.h"
#include "esp/base/error.h"
#include "esp/launch/world.h"

namespace esp::app {
namespace {

constexpr std::chrono::seconds kToComeUp(120);

}  // namespace

double Contender::mean_of(const std::string& word) const {
  double sum = 0;
  for (const bench::Words& words : answer)
    if (const auto found = words.find(word); found != words.end()) sum += std::strtod(found->second.c_str(), nullptr);
  return answer.empty() ? 0 : sum / static_cast<double>(answer.size());
}

Contender start_trainer(const std::string& name, const TrainCase& it, Switchboard& board) {
  const launch::LocalOptions options = our_trainer(it, board);
  if (it.ranks == 1) {
    Contender alone = start_contender("espalier", it, options, board);
    alone.name = name;
    return alone;
  }
  Contender contender;
  contender.name = name;
  contender.it = it;
  launch::LocalWorld world = launch::start_local_world(options);
  contender.hub = std::move(world.hub);
  contender.job =
      std::make_unique<BenchJob>("espalier", it.ranks, std::move(world.job), board, Deadline::after(kToComeUp));
  return contender;
}

Contender start_contender(const std::string& label, const TrainCase& it, const launch::LocalOptions& options,
                          Switchboard& board) {
  Contender contender;
  contender.name = label;
  contender.it = it;
  contender.job = std::make_unique<BenchJob>(label, options.num_ranks, std::make_unique<launch::LocalJob>(options),
                                             board, Deadline::after(kToComeUp));
  return contender;
}

std::vector<double> ask_steps(Contender& contender, int steps) {
  // Ten minutes for what takes seconds: only something that hangs gets there.
  const Deadline deadline = Deadline::after(std::chrono::minutes(10));
  std::vector<Reply> replies = contender.job->exchange(fmt::format("run steps={}", steps), deadline);
  std::vector<double> seconds(static_cast<size_t>(steps));
  contender.answer.clear();
  for (size_t rank = 0; rank < replies.size(); ++rank) {
    auto& [verb, words] = replies[rank];
    if (verb != "done")
      throw CommError(CommError::Kind::aborted, static_cast<int>(rank),
                      fmt::format("{}: {}", contender.name, words["why"]));
    const std::vector<double> times = parse_times(words["ns"]);
    for (size_t i = 0; i < std::min(times.size(), seconds.size()); ++i)
      seconds[i] = std::max(seconds[i], times[i] * 1e-9);
    contender.answer.push_back(std::move(words));
  }
  return seconds;
}

void visit(Contender& contender, int steps) {
  const std::vector<double> seconds = ask_steps(contender, steps);
  contender.step_s.insert(contender.step_s.end(), seconds.begin(), seconds.end());
  contender.round_s.push_back(median(seconds));
}

double speed_ratio(const Contender& first, const Contender& second) {
  std::vector<double> ratios;
  const double tokens =
      static_cast<double>(first.it.tokens_per_step()) / static_cast<double>(second.it.tokens_per_step());
  for (size_t i = 0; i < std::min(first.round_s.size(), second.round_s.size()); ++i)
    ratios.push_back(tokens * second.round_s[i] / first.round_s[i]);
  return median(ratios);
}

}  // namespace esp::app
