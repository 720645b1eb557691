// One candidate of `bench train` (a trainer or a GEMM loop): its processes, asleep until asked for steps, and their
// replies.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/espalier/bench_train.h"
#include "esp/net/store/hub.h"

namespace esp::app {

struct Candidate {
  std::string name;
  TrainCase it;
  std::unique_ptr<net::Hub> hub;  // of this program's ranks; outlives them
  std::unique_ptr<BenchJob> job;
  std::vector<double> step_s;        // of all rounds, the slowest rank of each step
  std::vector<double> round_s;       // the median of each round
  std::vector<bench::Words> answer;  // the last reply, by rank

  // Mean of a number over the ranks' last replies.
  double mean_of(const std::string& word) const;
};

// Starts this program's trainer for a case, with its number of ranks. Throws CommError with its last output if it fails
// to start.
Candidate start_trainer(const std::string& name, const TrainCase& it, Switchboard& board);
// Starts any other candidate, given the start of its processes; `label` is the name with which they connect.
Candidate start_candidate(const std::string& label, const TrainCase& it, const launch::LocalOptions& options,
                          Switchboard& board);

// Seconds of each step. CommError with the error of a rank.
std::vector<double> ask_steps(Candidate& candidate, int steps);
// The same, recorded as one more round.
void visit(Candidate& candidate, int steps);

// Speed-up of the first per token: the median of the rounds' ratios.
double speed_ratio(const Candidate& first, const Candidate& second);

}  // namespace esp::app
