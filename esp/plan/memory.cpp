// Memory of every pipeline stage by category: states (states.h), activations (activations.h), buffers, allocator slack
// and CUDA context. Buffers are the gathered units of ZeRO 3, the workspace of a layer's backward, logits, gradient
// buckets, and temporary buffers of the update.
#include <algorithm>
#include <cmath>

#include "esp/plan/activations.h"
#include "esp/plan/espalier_memory.h"
#include "esp/plan/software.h"
#include "esp/plan/states.h"

namespace esp::plan {
namespace {

// Fraction of the allocated memory that is lost to fragmentation. All other reserved memory can be released.
constexpr double kFragments = 0.02;

// Number of layers of each kind on one stage.
struct LayerCounts {
  double dense = 0, expert = 0;
  int recomputed = 0;
  double layers() const { return dense + expert; }
};

std::vector<LayerCounts> count_layers(const ModelShape& shape, const Policy& policy, const PipelinePieces& pieces) {
  std::vector<LayerCounts> counts(static_cast<size_t>(pieces.stages));
  for (int i = 0; i < pieces.count(); ++i) {
    LayerCounts& count = counts[static_cast<size_t>(pieces.stage_of(i))];
    const int begin = pieces.first[static_cast<size_t>(i)], size = pieces.layers[static_cast<size_t>(i)];
    if (shape.experts == 0) {
      count.dense += size;
    } else {
      for (int layer = begin; layer < begin + size; ++layer)
        (shape.has_experts(layer) ? count.expert : count.dense) += 1;
    }
  }
  for (LayerCounts& count : counts)
    count.recomputed = policy.recompute_layers < 0 ? static_cast<int>(count.layers()) : policy.recompute_layers;
  return counts;
}

// Activation bytes of a stage for one micro-batch.
double stage_bytes(const LayerCounts& count, const ActivationBytes& dense, const ActivationBytes& expert,
                   const Policy& policy) {
  const auto all = [&](RecomputePolicy how) {
    return count.dense * kept_bytes(dense, how) + count.expert * kept_bytes(expert, how);
  };
  if (policy.recompute != RecomputePolicy::full) return all(policy.recompute);
  const double share = count.layers() > 0 ? std::min(1.0, count.recomputed / count.layers()) : 0;
  return share * all(RecomputePolicy::full) + (1 - share) * all(RecomputePolicy::none);
}

// Bytes of ZeRO 3 that exist at the same time: the current unit, the prefetched unit, and the gradient of a unit that
// is being scattered.
double gathered_bytes(const ModelShape& shape, const Policy& policy) {
  if (policy.zero < 3 || shape.layers == 0) return 0;
  const RankParameters layer = layer_parameters_on_rank(shape, policy, shape.layers - 1);
  const double unit = layer.dense + layer.expert;
  const double tables = (shape.tied ? 1 : 2) * static_cast<double>(shape.vocab * shape.hidden) / policy.tp;
  const double kept = policy.keep_gathered ? 2 * unit * static_cast<double>(shape.layers) / policy.pp : 0;
  return kept + 2 * (2 * unit + tables) + state_bytes(policy).gradient * std::max(unit, tables / 2);
}

}  // namespace

std::vector<Memory> stage_memories(const ModelShape& shape, const Cluster& cluster, const Policy& policy) {
  if (has_espalier_memory(shape, policy)) {
    EspalierMemoryOptions options;
    if (cluster.processor.kind == "gpu") options.device = device::DeviceKind::cuda;
    return espalier_stage_memories(shape, policy, options);
  }
  const Software& software = software_row(policy.software);
  const std::vector<RankParameters> held = parameters_by_stage(shape, policy);
  std::vector<Memory> memories;
  memories.reserve(held.size());
  const bool known = shape.layers > 0 && shape.seq > 0;
  ActivationBytes dense, expert;
  std::vector<LayerCounts> counts;
  PipelinePieces pieces;
  if (known) {
    dense = layer_activations(shape, policy, false);
    if (shape.experts > 0) expert = layer_activations(shape, policy, true);
    pieces = pipeline_pieces(shape, policy);
    counts = count_layers(shape, policy, pieces);
  }
  for (size_t k = 0; k < held.size(); ++k) {
    Memory m = states_of(held[k], policy);
    m.stage = static_cast<int>(k);
    if (known) {
      const LayerCounts& count = counts[k];
      const double live = live_micro_batches(policy, m.stage);
      m.activation = live * stage_bytes(count, dense, expert, policy);
      const ActivationBytes& largest = count.expert > 0 ? expert : dense;
      // Backward recomputes one layer at a time: all its activations, or only its scores, are allocated temporarily.
      m.buffer = largest.working;
      if (policy.recompute == RecomputePolicy::full) m.buffer += largest.sum();
      if (policy.recompute == RecomputePolicy::selective) m.buffer += largest.scores;
      const bool last = pieces.stage_of(pieces.count() - 1) == m.stage;
      // Logits exist only during the loss, when no layer computes. So the larger of logits and layer workspace counts.
      if (last || policy.vocab_parallel_pipeline) m.buffer = std::max(m.buffer, head_bytes(shape, policy));
      m.buffer += gathered_bytes(shape, policy);
      const double n = policy.zero >= 1 ? shard_ranks(policy) : 1;
      const double step = software.step_bytes * (held[k].dense + held[k].expert) / n;
      m.buffer += std::max(0.0, step - m.activation - m.buffer);
    }
    if (policy.dp * policy.cp > 1 && policy.zero < 3)
      m.buffer += std::min(software.bucket_bytes, (held[k].dense + held[k].expert) * software.gradient_bytes);
    m.slack = std::min(kFragments, software.slack) * m.allocated();
    m.cached = software.slack * m.allocated() - m.slack;
    m.other = cluster.reserved_bytes > 0 ? cluster.reserved_bytes : software.other_bytes;
    memories.push_back(m);
  }
  return memories;
}

Memory memory_of(const ModelShape& shape, const Cluster& cluster, const Policy& policy) {
  const std::vector<Memory> all = stage_memories(shape, cluster, policy);
  return *std::max_element(all.begin(), all.end(),
                           [](const Memory& a, const Memory& b) { return a.total() < b.total(); });
}

}  // namespace esp::plan
