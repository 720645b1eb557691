// Memory of every stage, by category: states.h, activations.h, and what is neither: gathered units of ZeRO 3, working
// space of the layer in backward, logits, buckets, temporaries of the update, the allocator's slack, contexts.
#include <algorithm>
#include <cmath>

#include "esp/plan/activations.h"
#include "esp/plan/own_memory.h"
#include "esp/plan/software.h"
#include "esp/plan/states.h"

namespace esp::plan {
namespace {

// Layers of each kind on every stage.
struct Count {
  double dense = 0, expert = 0;
  int recomputed = 0;
  double layers() const { return dense + expert; }
};

std::vector<Count> count_layers(const Shape& shape, const Policy& policy, const Pieces& pieces) {
  std::vector<Count> counts(static_cast<size_t>(pieces.stages));
  for (int i = 0; i < pieces.count(); ++i) {
    Count& count = counts[static_cast<size_t>(pieces.stage_of(i))];
    const int begin = pieces.first[static_cast<size_t>(i)], size = pieces.layers[static_cast<size_t>(i)];
    if (shape.experts == 0) {
      count.dense += size;
    } else {
      for (int layer = begin; layer < begin + size; ++layer)
        (shape.has_experts(layer) ? count.expert : count.dense) += 1;
    }
  }
  for (Count& count : counts)
    count.recomputed = policy.recompute_layers < 0 ? static_cast<int>(count.layers()) : policy.recompute_layers;
  return counts;
}

// Bytes one micro-batch leaves on a stage.
double stage_bytes(const Count& count, const Kept& dense, const Kept& expert, const Policy& policy) {
  const auto all = [&](Recompute how) {
    return count.dense * kept_bytes(dense, how) + count.expert * kept_bytes(expert, how);
  };
  if (policy.recompute != Recompute::full) return all(policy.recompute);
  const double share = count.layers() > 0 ? std::min(1.0, count.recomputed / count.layers()) : 0;
  return share * all(Recompute::full) + (1 - share) * all(Recompute::none);
}

// Units unsharded at once under ZeRO 3: the one computed and the one prefetched, and a unit's gradient on its way out.
double gathered_bytes(const Shape& shape, const Policy& policy) {
  if (policy.zero < 3 || shape.layers == 0) return 0;
  const Held layer = held_layer(shape, policy, shape.layers - 1);
  const double unit = layer.dense + layer.expert;
  const double tables = (shape.tied ? 1 : 2) * static_cast<double>(shape.vocab * shape.hidden) / policy.tp;
  const double kept = policy.keep_gathered ? 2 * unit * static_cast<double>(shape.layers) / policy.pp : 0;
  return kept + 2 * (2 * unit + tables) + state_bytes(policy).gradient * std::max(unit, tables / 2);
}

}  // namespace

std::vector<Memory> stage_memories(const Shape& shape, const Cluster& cluster, const Policy& policy) {
  if (has_own_memory(shape, policy)) {
    OwnMemoryOptions options;
    if (cluster.processor.kind == "gpu") options.device = device::DeviceKind::cuda;
    return own_memories(shape, policy, options);
  }
  const Software& software = software_row(policy.software);
  const std::vector<Held> held = held_by_stage(shape, policy);
  std::vector<Memory> memories;
  memories.reserve(held.size());
  const bool known = shape.layers > 0 && shape.seq > 0;
  Kept dense, expert;
  std::vector<Count> counts;
  Pieces pieces;
  if (known) {
    dense = kept_by_layer(shape, policy, false);
    if (shape.experts > 0) expert = kept_by_layer(shape, policy, true);
    pieces = pieces_of(shape, policy);
    counts = count_layers(shape, policy, pieces);
  }
  for (size_t k = 0; k < held.size(); ++k) {
    Memory m = states_of(held[k], policy);
    m.stage = static_cast<int>(k);
    if (known) {
      const Count& count = counts[k];
      const double live = live_micro_batches(policy, m.stage);
      m.activation = live * stage_bytes(count, dense, expert, policy);
      const Kept& heavy = count.expert > 0 ? expert : dense;
      // Recomputation makes one layer's activations anew, whole or the scores alone.
      m.buffer = heavy.working;
      if (policy.recompute == Recompute::full) m.buffer += heavy.sum();
      if (policy.recompute == Recompute::selective) m.buffer += heavy.scores;
      const bool last = pieces.stage_of(pieces.count() - 1) == m.stage;
      // Logits live while the last piece's loss does, when no layer works.
      if (last || policy.vocab_parallel_pipeline) m.buffer = std::max(m.buffer, head_bytes(shape, policy));
      m.buffer += gathered_bytes(shape, policy);
      const double n = policy.zero >= 1 ? shard_ranks(policy) : 1;
      const double step = software.step_bytes * (held[k].dense + held[k].expert) / n;
      m.buffer += std::max(0.0, step - m.activation - m.buffer);
    }
    if (policy.dp * policy.cp > 1 && policy.zero < 3)
      m.buffer += std::min(software.bucket_bytes, (held[k].dense + held[k].expert) * software.gradient_bytes);
    m.slack = software.slack * m.allocated();
    m.other = cluster.reserved_bytes > 0 ? cluster.reserved_bytes : software.other_bytes;
    memories.push_back(m);
  }
  return memories;
}

Memory memory_of(const Shape& shape, const Cluster& cluster, const Policy& policy) {
  const std::vector<Memory> all = stage_memories(shape, cluster, policy);
  return *std::max_element(all.begin(), all.end(),
                           [](const Memory& a, const Memory& b) { return a.total() < b.total(); });
}

}  // namespace esp::plan
