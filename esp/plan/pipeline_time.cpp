#include "esp/plan/pipeline_time.h"

#include <algorithm>

namespace esp::plan {
namespace {

// Extra kernel seconds per second of overlapped messages.
constexpr double kBeside = 0.2;

// Seconds of fill and drain. `others`: seconds of one micro-batch on all stages except the slowest; `mean`: times of an
// average stage.
double bubble_s(const Policy& policy, const StageTime& mean, double others, double stages) {
  const std::string& name = policy.schedule;
  const double each = mean.forward + mean.backward + mean.weights, ends = stages - 1;
  if (name == "interleaved") return others / std::max(1, policy.interleave);
  if (name == "zb-h1" || name == "zb-1p") return ends * (mean.forward + std::max(0.0, mean.backward - mean.weights));
  if (name == "zb-2p" || name == "zb-h2" || name == "zb-v" || name == "v-zb")
    return ends * std::max(0.0, mean.forward + mean.backward - 2 * mean.weights);
  if (name == "v-half") return others / 2;
  if (name == "v-min") return others * 2 / 3;
  if (name == "dualpipe") return std::max(0.0, stages / 2 - 1) * std::max(0.0, each + mean.backward - 2 * mean.weights);
  return others;
}

}  // namespace

PipelineTime pipeline_time(const Policy& policy, const PipelinePieces& pieces, const std::vector<StageTime>& times) {
  const double m = static_cast<double>(std::max<int64_t>(1, policy.num_micro_batches()));
  std::vector<double> stage(static_cast<size_t>(pieces.stages), 0.0);
  StageTime sum;
  double send = 0;
  for (int i = 0; i < pieces.count(); ++i) {
    const StageTime& t = times[static_cast<size_t>(i)];
    stage[static_cast<size_t>(pieces.stage_of(i))] += t.forward + t.backward + t.weights;
    sum.forward += t.forward;
    sum.backward += t.backward;
    sum.weights += t.weights;
    send = std::max(send, t.send_s);
  }
  const double P = pieces.stages;
  const auto most = std::max_element(stage.begin(), stage.end());
  const double slowest = *most;
  const double all = sum.forward + sum.backward + sum.weights;
  PipelineTime p;
  p.slowest = static_cast<int>(most - stage.begin());
  p.busy = m * slowest;
  if (pieces.stages > 1) {
    const StageTime mean{sum.forward / P, sum.backward / P, sum.weights / P, 0};
    p.bubble = bubble_s(policy, mean, all - slowest, P);
    // Messages go in both directions. In fill and drain they are always exposed. In the steady state they are exposed
    // unless the policy overlaps them.
    const double steady = (policy.overlap_pp ? kBeside : 1) * m * pieces.chunks;
    p.sending = 2 * send * (P - 1 + steady);
  }
  p.total = p.busy + p.bubble + p.sending;
  return p;
}

}  // namespace esp::plan
