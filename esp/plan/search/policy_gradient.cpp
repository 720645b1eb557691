// REINFORCE (Williams 1992) with a baseline.
//
// Episode: one choice. The value of each axis, in order, is sampled from a softmax over the values that the rules still
// allow. The logit of a value is a sum of table entries: one for the value itself, and one for each pair of the value
// and the value of a previous axis. So preferences with and without a pipeline are learned separately.
//
// Reward: the negative logarithm of the choice's value, or of its excess of memory. The goal is the best choice, not a
// good mean. So the baseline is a high quantile of the batch, and only rewards above it contribute (the risk-seeking
// gradient of Petersen et al. 2021). A small fraction of values is sampled uniformly, so that every value is still
// tried.
#include <algorithm>
#include <cmath>

#include "esp/plan/search/methods.h"
#include "esp/plan/search/random_choice.h"

namespace esp::plan {
namespace {

constexpr size_t kBatch = 64;
constexpr int kAgents = 4;
constexpr double kRate = 12, kEvenly = 0.1, kTooLargeCost = 3;
constexpr double kQuantile = 0.85;

class Agent {
 public:
  Agent(const SearchProblem& problem, RuleCache& rules, RandomStream random)
      : problem_(problem), rules_(rules), draws_(random) {
    const std::vector<SearchAxis>& axes = problem.axes();
    for (size_t axis = 0; axis < axes.size(); ++axis) {
      tables_.emplace_back();
      // one table per previous axis; the last (before = axis) is for the value itself
      for (size_t before = 0; before <= axis; ++before)
        tables_[axis].emplace_back((before < axis ? axes[before].values.size() : 1) * axes[axis].values.size(), 0.0);
    }
  }

  bool draw(Choice& choice) {
    choice = {};
    for (size_t axis = 0; axis < problem_.num_axes(); ++axis) {
      if (!odds_of(choice, axis)) return false;
      double left = draws_.unit();
      size_t value = 0, last = 0;
      for (; value < odds_.size(); ++value) {
        if (odds_[value] > 0) last = value;
        if ((left -= odds_[value]) < 0) break;
      }
      choice[axis] = static_cast<uint8_t>(value < odds_.size() ? value : last);
    }
    return true;
  }

  // Updates the tables of every axis: += rate · advantage · (1{value} − odds).
  void learn(const Choice& choice, double advantage) {
    for (size_t axis = 0; axis < problem_.num_axes(); ++axis) {
      Choice before = choice;
      if (!odds_of(before, axis)) return;
      const double step = kRate * advantage / kBatch / static_cast<double>(axis + 1);
      for (size_t of = 0; of <= axis; ++of) {
        double* row = row_of(choice, axis, of);
        for (size_t value = 0; value < odds_.size(); ++value)
          row[value] += step * ((value == choice[axis] ? 1.0 : 0.0) - odds_[value]);
      }
    }
  }

 private:
  double* row_of(const Choice& choice, size_t axis, size_t of) {
    const size_t row = of < axis ? choice[of] : 0;
    return tables_[axis][of].data() + row * problem_.axes()[axis].values.size();
  }

  // Computes odds_: the probability of each value of `axis` after the previous axes of the choice; 0 if the rules
  // forbid the value. Overwrites choice[axis].
  bool odds_of(Choice& choice, size_t axis) {
    odds_.assign(problem_.axes()[axis].values.size(), 0);
    for (size_t of = 0; of <= axis; ++of) {
      const double* row = row_of(choice, axis, of);
      for (size_t value = 0; value < odds_.size(); ++value) odds_[value] += row[value];
    }
    const double most = *std::max_element(odds_.begin(), odds_.end());
    double sum = 0, num_allowed = 0;
    for (size_t value = 0; value < odds_.size(); ++value) {
      choice[axis] = static_cast<uint8_t>(value);
      if (!rules_.allowed(choice, axis + 1)) {
        odds_[value] = 0;
        continue;
      }
      odds_[value] = std::exp(std::max(-30.0, odds_[value] - most));
      sum += odds_[value];
      ++num_allowed;
    }
    for (double& one : odds_)
      if (one > 0) one = (1 - kEvenly) * one / sum + kEvenly / num_allowed;
    return num_allowed > 0;
  }

  const SearchProblem& problem_;
  RuleCache& rules_;
  RandomStream draws_;
  // [axis][previous axis; last: the axis itself][value of the previous axis × value of the axis]
  std::vector<std::vector<std::vector<double>>> tables_;
  std::vector<double> odds_;
};

double reward_of(const Evaluation& answer, double worst) {
  return answer.feasible() ? -std::log(std::max(answer.value, 1e-300))
                           : worst - kTooLargeCost - std::min(answer.excess, 10.0);
}

void live(Evaluator& evaluator, Agent& agent, int64_t episodes) {
  double worst = 0;  // lowest reward so far of a choice that fits
  bool any = false;
  for (int64_t done = 0; done < episodes; done += kBatch) {
    std::vector<Choice> batch;
    std::vector<Evaluation> answers;
    for (size_t i = 0; i < kBatch; ++i) {
      Choice choice;
      if (!agent.draw(choice)) continue;  // the values drawn so far left an axis without an allowed value
      const Evaluation answer = evaluator.evaluate(choice);
      if (answer.feasible()) {
        const double reward = reward_of(answer, 0);
        worst = any ? std::min(worst, reward) : reward;
        any = true;
      }
      batch.push_back(choice);
      answers.push_back(answer);
    }
    if (batch.size() < 2) continue;
    std::vector<double> rewards;
    for (const Evaluation& answer : answers) rewards.push_back(reward_of(answer, worst));
    std::vector<double> sorted = rewards;
    std::sort(sorted.begin(), sorted.end());
    const double baseline = sorted[static_cast<size_t>(kQuantile * static_cast<double>(sorted.size() - 1))];
    const double spread = std::max(sorted.back() - baseline, 1e-9);
    for (size_t i = 0; i < batch.size(); ++i)
      if (rewards[i] > baseline) agent.learn(batch[i], (rewards[i] - baseline) / spread);
  }
}

}  // namespace

SearchResult search_policy_gradient(const SearchProblem& problem, const SearchOptions& options) {
  Evaluator evaluator(problem, options, true);
  RuleCache rules(problem);
  const int64_t most = budget(problem, options);
  for (int i = 0; i < kAgents; ++i) {
    Agent agent(problem, rules, RandomStream(options.seed, 200 + static_cast<uint64_t>(i)));
    live(evaluator, agent, most / kAgents);
  }
  return evaluator.finish("gradient", false);
}

}  // namespace esp::plan
