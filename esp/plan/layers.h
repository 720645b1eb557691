// Time of the parts of a model on one rank for one micro-batch: a layer's kernels, its traffic over the tensor, context
// and expert groups and what of that shows, the tables at both ends. Times are of a rank's own share.
#pragma once

#include "esp/plan/estimate.h"
#include "esp/plan/kernels.h"
#include "esp/plan/network.h"
#include "esp/plan/software.h"

namespace esp::plan {

// Everything looked up once per estimate.
struct Setting {
  const Shape& shape;
  const Cluster& cluster;
  const Policy& policy;
  const Software& software;
  Rates rates;
  Group tensor, context, expert;

  Setting(const Shape& shape, const Cluster& cluster, const Policy& policy);
  double tokens() const;  // of a micro-batch on this rank
  double rows() const;    // of them outside divided regions: fewer under sequence parallelism
  double micro_batches() const;
};

// One axis's traffic of one layer and micro-batch; exposed is what kernels do not hide.
struct Pass {
  double forward = 0, backward = 0;
  Pass& operator+=(const Pass& other) {
    forward += other.forward;
    backward += other.backward;
    return *this;
  }
};
struct LayerTraffic {
  Pass time, exposed, bytes;
};

struct LayerTime {
  double forward = 0, backward = 0, weights = 0;  // kernels: outputs, input gradients, weight gradients
  double core = 0;                                // attention's part of forward
  double repeated = 0;                            // of forward, by selective recomputation
  LayerTraffic tensor, context, expert;

  // With exposed traffic; backward with what recomputation repeats.
  double forward_s() const;
  double backward_s(Recompute recompute) const;
};
LayerTime layer_time(const Setting& setting, bool experts, bool attends_across = false);

struct EndTime {
  double forward = 0, backward = 0, weights = 0;
};
EndTime embedding_time(const Setting& setting);
EndTime head_time(const Setting& setting);  // last norm, logits, loss; a share of them where spread over stages

}  // namespace esp::plan
