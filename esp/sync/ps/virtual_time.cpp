#include "esp/sync/ps/virtual_time.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <numbers>

#include "esp/base/check.h"
#include "esp/sync/ps/push_queue.h"

namespace esp::sync {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kDiverged = 1e100;    // |x| beyond which a run counts as diverged
constexpr int64_t kMicro = 1'000'000;  // the push queue counts integers: one unit of time is 1e6 of its bytes

int64_t micro(double time) {
  return std::llround(time * static_cast<double>(kMicro));
}

struct PartitionTransfer {
  int layer;
  double push, pull;
};

// One direction of a link. Transfers run one after another, in submission order.
struct Link {
  struct Load {
    int part;
    bool pull;
    double ready, takes;
  };
  std::deque<Load> waiting;
  double free_at = 0;
  double next_end() const {
    return waiting.empty() ? kNever : std::max(free_at, waiting.front().ready) + waiting.front().takes;
  }
};

}  // namespace

PushResult simulate_pushes(const std::vector<PsLayerCost>& layers, const PushPlan& plan) {
  ESP_CHECK(plan.partition > 0 && plan.credit >= 1,
            "simulate_pushes: got partition = {} and credit = {}; expected partition > 0 and credit >= 1",
            plan.partition, plan.credit);
  const auto num_layers = static_cast<int>(layers.size());
  std::vector<PartitionTransfer> parts;
  std::vector<int> missing(layers.size());
  std::vector<double> yielded(layers.size()), in(layers.size(), 0);
  double backward_end = 0;
  for (int l = num_layers - 1; l >= 0; --l) {
    backward_end += layers[static_cast<size_t>(l)].backward;
    yielded[static_cast<size_t>(l)] = backward_end;
  }
  for (int l = 0; l < num_layers; ++l) {
    const PsLayerCost& cost = layers[static_cast<size_t>(l)];
    const double longest = plan.duplex ? std::max(cost.push, cost.pull) : cost.push + cost.pull;
    const int num = std::max(1, static_cast<int>(std::ceil(longest / plan.partition - 1e-9)));
    for (int i = 0; i < num; ++i) parts.push_back({l, cost.push / num, cost.pull / num});
    missing[static_cast<size_t>(l)] = num;
  }

  PushResult run;
  const auto credit = static_cast<int64_t>(plan.credit) * micro(plan.partition);
  PushQueue queue(plan.by_priority, credit), pulls(plan.by_priority, credit);
  Link up, down;
  int next_layer = num_layers - 1;
  double now = 0;
  const auto size_of_part = [&](int p) {
    const PartitionTransfer& part = parts[static_cast<size_t>(p)];
    return micro(plan.duplex ? std::max(part.push, part.pull) : part.push + part.pull);
  };
  const auto dispatch = [&] {
    while (const auto push = queue.next()) {
      const PartitionTransfer& part = parts[static_cast<size_t>(push->partition)];
      up.waiting.push_back({push->partition, false, now, plan.duplex ? part.push : part.push + part.pull});
    }
    while (const auto pull = pulls.next())
      down.waiting.push_back({pull->partition, true, now, parts[static_cast<size_t>(pull->partition)].pull});
  };
  while (next_layer >= 0 || !up.waiting.empty() || !down.waiting.empty()) {
    const double yields = next_layer >= 0 ? yielded[static_cast<size_t>(next_layer)] : kNever;
    now = std::min({yields, up.next_end(), down.next_end()});
    // At each time: first, transfers that end return their credit; then the next partitions are selected and start.
    for (Link* link : {&up, &down})
      while (!link->waiting.empty() && link->next_end() <= now) {
        const Link::Load load = link->waiting.front();
        run.transfers.push_back({parts[static_cast<size_t>(load.part)].layer, load.pull, now - load.takes, now});
        link->waiting.pop_front();
        link->free_at = now;
        const PartitionTransfer& part = parts[static_cast<size_t>(load.part)];
        (load.pull ? pulls : queue).acknowledged(size_of_part(load.part));
        if (plan.duplex && !load.pull) {
          pulls.add({load.part, part.layer, size_of_part(load.part)});
        } else if (--missing[static_cast<size_t>(part.layer)] == 0) {
          in[static_cast<size_t>(part.layer)] = now;
        }
      }
    while (next_layer >= 0 && yielded[static_cast<size_t>(next_layer)] <= now) {
      for (size_t p = 0; p < parts.size(); ++p)
        if (parts[p].layer == next_layer)
          queue.add({static_cast<int>(p), next_layer, size_of_part(static_cast<int>(p))});
      --next_layer;
    }
    dispatch();
  }
  double at = backward_end;
  for (size_t l = 0; l < layers.size(); ++l) {
    at = std::max(at, in[l]);
    run.forward_begins.push_back(at);
    at += layers[l].forward;
  }
  run.time = at;
  return run;
}

ClockResult simulate_clocks(const std::vector<double>& step_time, double until, ClockMode pace, int64_t bound) {
  const size_t num = step_time.size();
  ClockResult run;
  run.steps.assign(num, 0);
  std::vector<double> ends(num, kNever);  // [worker]: time at which its current step ends
  std::vector<int64_t> read(num, 0);
  int64_t version = 0;
  const auto slowest = [&] { return *std::min_element(run.steps.begin(), run.steps.end()); };
  const auto begin_allowed = [&](double now) {
    for (size_t i = 0; i < num; ++i) {
      const int64_t ahead = run.steps[i] - slowest();
      if (ends[i] != kNever || (pace != ClockMode::async && ahead > (pace == ClockMode::sync ? 0 : bound))) continue;
      run.largest_gap = std::max(run.largest_gap, ahead);
      read[i] = version;
      ends[i] = now + step_time[i];
    }
  };
  begin_allowed(0);
  while (true) {
    const auto next = static_cast<size_t>(std::min_element(ends.begin(), ends.end()) - ends.begin());
    const double now = ends[next];
    if (now > until) return run;
    ends[next] = kNever;
    ++run.steps[next];
    if (pace != ClockMode::sync) {
      ++run.staleness[version - read[next]];
      ++version;
    } else if (slowest() == run.steps[next]) {
      run.staleness[0] += static_cast<int64_t>(num);
      ++version;
    }
    begin_allowed(now);
  }
}

double delayed_descent(double c, int delay, int64_t steps) {
  std::vector<double> x(static_cast<size_t>(delay) + 1, 1);
  for (int64_t k = 0; k < steps; ++k) {
    const double next = x.back() - c * x.front();
    if (!(std::abs(next) < kDiverged)) return kDiverged;
    x.erase(x.begin());
    x.push_back(next);
  }
  double largest = 0;
  for (const double value : x) largest = std::max(largest, std::abs(value));
  return largest;
}

double largest_stable(int delay) {
  return 2 * std::sin(std::numbers::pi / (2 * (2 * delay + 1)));
}

double push_pull_seconds(double bytes, int num_workers, int num_servers, double bytes_per_s, bool overlapped) {
  return std::max(bytes, num_workers * bytes / num_servers) / bytes_per_s * (overlapped ? 1 : 2);
}

}  // namespace esp::sync
