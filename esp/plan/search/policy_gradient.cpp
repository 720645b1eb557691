// REINFORCE (Williams 1992) with a baseline. A choice is an episode: axis after axis, a value is drawn from a softmax
// over what the rules still allow, its logits a table by the axis, the value before it and the value. The reward is the
// negative logarithm of the choice's value (or how far it is too large); a batch's mean is the baseline and its spread
// the unit. A little is always drawn evenly, so that no value is given up for good.
#include <algorithm>
#include <cmath>

#include "esp/plan/search/draws.h"
#include "esp/plan/search/methods.h"

namespace esp::plan {
namespace {

constexpr size_t kBatch = 64;
constexpr int kAgents = 4;
constexpr double kRate = 0.5, kEvenly = 0.08, kTooLargeCost = 3;

class Agent {
 public:
  Agent(const Problem& problem, Rules& rules, Draws draws) : problem_(problem), rules_(rules), draws_(draws) {
    size_t before = 1;
    for (const Axis& axis : problem.axes()) {
      logits_.emplace_back(before * axis.values.size(), 0.0);
      before = axis.values.size();
    }
  }

  bool draw(Choice& choice) {
    choice = {};
    std::vector<double> odds;
    for (size_t axis = 0; axis < problem_.num_axes(); ++axis) {
      if (!odds_of(choice, axis, odds)) return false;
      double left = draws_.unit();
      size_t value = 0, last = 0;
      for (; value < odds.size(); ++value) {
        if (odds[value] > 0) last = value;
        if ((left -= odds[value]) < 0) break;
      }
      choice[axis] = static_cast<uint8_t>(value < odds.size() ? value : last);
    }
    return true;
  }

  // logits += rate · advantage · (1{value} − odds)
  void learn(const Choice& choice, double advantage) {
    std::vector<double> odds;
    for (size_t axis = 0; axis < problem_.num_axes(); ++axis) {
      Choice before = choice;
      if (!odds_of(before, axis, odds)) return;
      double* row = row_of(choice, axis);
      for (size_t value = 0; value < odds.size(); ++value)
        row[value] += kRate * advantage * ((value == choice[axis] ? 1.0 : 0.0) - odds[value]) / kBatch;
    }
  }

 private:
  double* row_of(const Choice& choice, size_t axis) {
    const size_t before = axis == 0 ? 0 : choice[axis - 1];
    return logits_[axis].data() + before * problem_.axes()[axis].values.size();
  }

  // Of each value that the rules allow after the choice's axes before; the choice's own at `axis` is overwritten.
  bool odds_of(Choice& choice, size_t axis, std::vector<double>& odds) {
    const double* row = row_of(choice, axis);
    odds.assign(problem_.axes()[axis].values.size(), 0);
    double sum = 0, num_allowed = 0;
    const double most = *std::max_element(row, row + odds.size());
    for (size_t value = 0; value < odds.size(); ++value) {
      choice[axis] = static_cast<uint8_t>(value);
      if (!rules_.allowed(choice, axis + 1)) continue;
      odds[value] = std::exp(std::max(-30.0, row[value] - most));
      sum += odds[value];
      ++num_allowed;
    }
    for (double& one : odds)
      if (one > 0) one = (1 - kEvenly) * one / sum + kEvenly / num_allowed;
    return num_allowed > 0;
  }

  const Problem& problem_;
  Rules& rules_;
  Draws draws_;
  std::vector<std::vector<double>> logits_;
};

double reward_of(const Answer& answer, double worst) {
  return answer.feasible() ? -std::log(std::max(answer.value, 1e-300))
                           : worst - kTooLargeCost - std::min(answer.excess, 10.0);
}

void live(Inquiry& inquiry, Agent& agent, int64_t episodes) {
  double worst = 0;  // reward of what fits
  bool any = false;
  for (int64_t done = 0; done < episodes; done += kBatch) {
    std::vector<Choice> batch;
    std::vector<Answer> answers;
    for (size_t i = 0; i < kBatch; ++i) {
      Choice choice;
      if (!agent.draw(choice)) continue;  // the axes drawn first left nothing to a later one
      const Answer answer = inquiry.ask(choice);
      if (answer.feasible()) {
        const double reward = reward_of(answer, 0);
        worst = any ? std::min(worst, reward) : reward;
        any = true;
      }
      batch.push_back(choice);
      answers.push_back(answer);
    }
    if (batch.size() < 2) continue;
    double mean = 0, square = 0;
    std::vector<double> rewards;
    for (const Answer& answer : answers) {
      rewards.push_back(reward_of(answer, worst));
      mean += rewards.back();
      square += rewards.back() * rewards.back();
    }
    const auto n = static_cast<double>(rewards.size());
    mean /= n;
    const double spread = std::sqrt(std::max(square / n - mean * mean, 1e-12));
    for (size_t i = 0; i < batch.size(); ++i) agent.learn(batch[i], (rewards[i] - mean) / spread);
  }
}

}  // namespace

SearchResult search_policy_gradient(const Problem& problem, const SearchOptions& options) {
  Inquiry inquiry(problem, options, true);
  Rules rules(problem);
  const int64_t most = budget(problem, options);
  for (int i = 0; i < kAgents; ++i) {
    Agent agent(problem, rules, Draws(options.seed, 200 + static_cast<uint64_t>(i)));
    live(inquiry, agent, most / kAgents);
  }
  return inquiry.finish("gradient", false);
}

}  // namespace esp::plan
