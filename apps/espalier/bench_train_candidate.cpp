#include "apps/espalier/bench_train_candidate.h"

#include <algorithm>

#include <fmt/format.h>

#include "apps/espalier/bench_comm.h"
#include "esp/base/error.h"
#include "esp/launch/world.h"

namespace esp::app {
namespace {

constexpr std::chrono::seconds kStartTimeout(120);

}  // namespace

double BenchCandidate::mean_of(const std::string& word) const {
  double sum = 0;
  for (const bench::Words& words : answer)
    if (const auto found = words.find(word); found != words.end()) sum += std::strtod(found->second.c_str(), nullptr);
  return answer.empty() ? 0 : sum / static_cast<double>(answer.size());
}

BenchCandidate start_trainer(const std::string& name, const TrainCase& spec, RankListener& listener) {
  const launch::LocalOptions options = espalier_trainer(spec, listener);
  if (spec.ranks == 1) {
    BenchCandidate candidate = start_candidate("espalier", spec, options, listener);
    candidate.name = name;
    return candidate;
  }
  BenchCandidate candidate;
  candidate.name = name;
  candidate.spec = spec;
  launch::LocalWorld world = launch::start_local_world(options);
  candidate.hub = std::move(world.hub);
  candidate.job = std::make_unique<BenchJob>("espalier", spec.ranks, std::move(world.job), listener,
                                             Deadline::after(kStartTimeout));
  return candidate;
}

BenchCandidate start_candidate(const std::string& label, const TrainCase& spec, const launch::LocalOptions& options,
                               RankListener& listener) {
  BenchCandidate candidate;
  candidate.name = label;
  candidate.spec = spec;
  candidate.job = std::make_unique<BenchJob>(label, options.num_ranks, std::make_unique<launch::LocalJob>(options),
                                             listener, Deadline::after(kStartTimeout));
  return candidate;
}

std::vector<double> ask_steps(BenchCandidate& candidate, int steps) {
  // Steps take seconds: a process that reaches this deadline hangs.
  const Deadline deadline = Deadline::after(std::chrono::minutes(10));
  std::vector<Reply> replies = candidate.job->exchange(fmt::format("run steps={}", steps), deadline);
  std::vector<double> seconds(static_cast<size_t>(steps));
  candidate.answer.clear();
  for (size_t rank = 0; rank < replies.size(); ++rank) {
    auto& [verb, words] = replies[rank];
    if (verb != "done")
      throw CommError(CommError::Kind::aborted, static_cast<int>(rank),
                      fmt::format("{}: rank {} failed: {}", candidate.name, rank, words["why"]));
    const std::vector<double> times = parse_times(words["ns"]);
    for (size_t i = 0; i < std::min(times.size(), seconds.size()); ++i)
      seconds[i] = std::max(seconds[i], times[i] * 1e-9);
    candidate.answer.push_back(std::move(words));
  }
  return seconds;
}

void visit(BenchCandidate& candidate, int steps) {
  const std::vector<double> seconds = ask_steps(candidate, steps);
  candidate.step_s.insert(candidate.step_s.end(), seconds.begin(), seconds.end());
  candidate.round_s.push_back(median(seconds));
}

double speed_ratio(const BenchCandidate& first, const BenchCandidate& second) {
  std::vector<double> ratios;
  const double tokens =
      static_cast<double>(first.spec.tokens_per_step()) / static_cast<double>(second.spec.tokens_per_step());
  for (size_t i = 0; i < std::min(first.round_s.size(), second.round_s.size()); ++i)
    ratios.push_back(tokens * second.round_s[i] / first.round_s[i]);
  return median(ratios);
}

}  // namespace esp::app
