// One trainer (or multiplier) of `bench train`: its processes, asleep until it is asked for steps, and what it
// answered.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/espalier/bench_train.h"
#include "esp/net/store/hub.h"

namespace esp::app {

struct Contender {
  std::string name;
  TrainCase it;
  std::unique_ptr<net::Hub> hub;  // where our own ranks meet; outlives them
  std::unique_ptr<BenchJob> job;
  std::vector<double> step_s;        // of all rounds, the slowest rank of each step
  std::vector<double> round_s;       // the median of each
  std::vector<bench::Words> answer;  // the last, by rank

  // Mean of a number over the ranks' last answers.
  double mean_of(const std::string& word) const;
};

// Our own trainer of a case, with as many ranks as it says. Throws CommError with its last words when it does not come
// up.
Contender start_trainer(const std::string& name, const TrainCase& it, Switchboard& board);
// Any other, from how its processes are started; `label` is how they call themselves.
Contender start_contender(const std::string& label, const TrainCase& it, const launch::LocalOptions& options,
                          Switchboard& board);

// Seconds of each step. CommError says what a rank complained of.
std::vector<double> ask_steps(Contender& contender, int steps);
// The same, kept as one more round.
void visit(Contender& contender, int steps);

// How many times quicker the first is per token, the median of the rounds' own ratios.
double speed_ratio(const Contender& first, const Contender& second);

}  // namespace esp::app
