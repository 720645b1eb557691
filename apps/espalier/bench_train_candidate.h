// One candidate of `bench train` (a trainer or a GEMM loop): its processes and their replies. The processes block until
// they are asked for steps.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/espalier/bench_train.h"
#include "esp/net/store/hub.h"

namespace esp::app {

struct BenchCandidate {
  std::string name;
  TrainCase spec;
  std::unique_ptr<net::Hub> hub;  // hub of Espalier's ranks; outlives them
  std::unique_ptr<BenchJob> job;
  std::vector<double> step_s;        // one entry per step of all rounds: seconds on the slowest rank
  std::vector<double> round_s;       // median step time of each round
  std::vector<bench::Words> answer;  // last reply of each rank

  // Mean of a numeric field over the ranks' last replies.
  double mean_of(const std::string& word) const;
};

// Starts Espalier's trainer for a case. If it does not start, throws CommError with the trainer's last output.
BenchCandidate start_trainer(const std::string& name, const TrainCase& spec, RankListener& listener);
// Starts another candidate from the launch options of its processes. They connect with the name `label`.
BenchCandidate start_candidate(const std::string& label, const TrainCase& spec, const launch::LocalOptions& options,
                               RankListener& listener);

// Runs `steps` steps and returns the seconds of each. CommError: a rank failed; it contains that rank's error.
std::vector<double> ask_steps(BenchCandidate& candidate, int steps);
// Runs steps and records them as one more round.
void visit(BenchCandidate& candidate, int steps);

// Tokens per second of `first` divided by that of `second`: the median of the ratios of the rounds.
double speed_ratio(const BenchCandidate& first, const BenchCandidate& second);

}  // namespace esp::app
