// Time of the parts of a model on one rank per micro-batch: a layer's kernels, its traffic over the tensor, context and
// expert groups with the exposed part, and the tables at both ends. Times are of one rank's share.
#pragma once

#include "esp/plan/estimate.h"
#include "esp/plan/kernels.h"
#include "esp/plan/network.h"
#include "esp/plan/software.h"

namespace esp::plan {

// Values looked up once per estimate.
struct Setting {
  const ModelShape& shape;
  const Cluster& cluster;
  const Policy& policy;
  const Software& software;
  Rates rates;
  CollectiveGroup tensor, context, expert;

  Setting(const ModelShape& shape, const Cluster& cluster, const Policy& policy);
  double tokens() const;  // of a micro-batch on this rank
  double rows() const;    // of them outside tensor-parallel regions: fewer under sequence parallelism
  double micro_batches() const;
};

// One axis's traffic of one layer and micro-batch; exposed: not hidden by kernels.
struct PassTime {
  double forward = 0, backward = 0;
  PassTime& operator+=(const PassTime& other) {
    forward += other.forward;
    backward += other.backward;
    return *this;
  }
};
struct LayerTraffic {
  PassTime time, exposed, bytes;
};

struct LayerTime {
  double forward = 0, backward = 0, weights = 0;  // kernels: outputs, input gradients, weight gradients
  double core = 0;                                // attention's part of forward
  double repeated = 0;                            // of forward, by selective recomputation
  LayerTraffic tensor, context, expert;

  // Including exposed traffic; backward including recomputation.
  double forward_s() const;
  double backward_s(RecomputePolicy recompute) const;
};
LayerTime layer_time(const Setting& setting, bool experts, bool attends_across = false);

struct EndTime {
  double forward = 0, backward = 0, weights = 0;
};
EndTime embedding_time(const Setting& setting);
EndTime head_time(const Setting& setting);  // final norm, logits, loss; a share of them where spread over stages

}  // namespace esp::plan
