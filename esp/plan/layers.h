// Time of each part of a model, per rank and micro-batch: the kernels of a layer; its communication in the tensor-,
// context- and expert-parallel groups, with the exposed part; the embedding; the output head. All times are for the
// shard of one rank.
#pragma once

#include "esp/plan/estimate.h"
#include "esp/plan/kernels.h"
#include "esp/plan/network.h"
#include "esp/plan/software.h"

namespace esp::plan {

// The inputs of one estimate, and values that are looked up once for it.
struct EstimateContext {
  const ModelShape& shape;
  const Cluster& cluster;
  const Policy& policy;
  const Software& software;
  ProcessorRates rates;
  CollectiveGroup tensor, context, expert;

  EstimateContext(const ModelShape& shape, const Cluster& cluster, const Policy& policy);
  double tokens() const;  // tokens of one micro-batch on this rank
  double rows() const;    // token rows outside tensor-parallel regions; with sequence parallelism tokens() / tp
  double micro_batches() const;
};

// One quantity of a group's traffic (seconds or bytes) per layer and micro-batch, in forward and in backward.
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
  // kernel seconds of the outputs, the input gradients and the weight gradients
  double forward = 0, backward = 0, weights = 0;
  double core = 0;      // seconds of the attention core (scores, softmax, values), included in forward
  double repeated = 0;  // forward seconds that selective recomputation repeats
  LayerTraffic tensor, context, expert;

  // Seconds including exposed traffic; backward_s also includes recomputation.
  double forward_s() const;
  double backward_s(RecomputePolicy recompute) const;
};
LayerTime layer_time(const EstimateContext& context, bool experts, bool attends_across = false);

struct EmbeddingOrHeadTime {
  double forward = 0, backward = 0, weights = 0;
};
EmbeddingOrHeadTime embedding_time(const EstimateContext& context);
// Time of final norm, logits and loss. With vocab_parallel_pipeline each stage computes 1/pp of it.
EmbeddingOrHeadTime head_time(const EstimateContext& context);

}  // namespace esp::plan
