// Training policy: the parallel layout and all other settings that change the time or memory of a step. Field names are
// those of a run file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace esp::plan {

enum class RecomputePolicy : uint8_t { none, selective, full };
enum class OffloadTarget : uint8_t { none, host, file };

struct Policy {
  int tp = 1, pp = 1, dp = 1, cp = 1, ep = 1;
  int expert_tp = 0;  // tensor ranks per expert. 0: tp if ep = 1 (experts are sharded like other weights), otherwise 1
  bool sequence = false;          // sequence parallelism in the tensor group
  std::string context = "ring";   // context-parallel method: ring | ulysses | allgather
  std::string schedule = "1f1b";  // gpipe | 1f1b | interleaved | zb-h1 | zb-2p | zb-v | v-half | v-min | dualpipe
  int interleave = 1;             // chunks of layers per stage
  // number of layers of each piece; empty: equal, and the first pieces get the remainder
  std::vector<int> stage_layers;
  bool vocab_parallel_pipeline = false;  // the head's vocabulary is sharded over the pipeline stages

  int64_t micro_batch = 1, global_batch = 1;  // numbers of sequences
  std::string precision = "bf16";             // precision of the GEMMs: fp32 tf32 fp16 bf16 fp8
  int zero = 0;
  int shard_group = 0;         // number of ranks over which the states are sharded; 0: all dp·cp ranks
  bool keep_gathered = false;  // ZeRO 3: weights gathered in forward stay in memory until backward
  bool quantised_weights = false, secondary_shard = false, quantised_gradients = false;  // the three options of ZeRO++
  OffloadTarget offload = OffloadTarget::none;
  double offload_fraction = 1;
  RecomputePolicy recompute = RecomputePolicy::none;
  // number of recomputed layers per stage, for recompute = full and, in Espalier, selective; −1: all
  int recompute_layers = -1;
  // recomputation keeps the input of each layer; true: that input is sharded over the tensor group
  bool checkpoint_sharded = false;
  bool flash = true;  // fused attention, which does not store the attention scores
  bool dropout = false;
  bool fused = true;  // bias + activation function are one kernel; so is each norm and each softmax
  // gradients are accumulated in fp32 (18 bytes of states per parameter) rather than in 16 bits (16 bytes)
  bool gradients_fp32 = true;
  std::string optimizer = "adam";
  double master_bytes = 4, moment_bytes = 8;  // bytes per parameter of master copy and moments, at 16-bit precision
  std::string compress = "none";
  bool overlap_dp = true, overlap_tp = false, overlap_pp = true, overlap_cp = true, overlap_ep = false;
  double expert_imbalance = 1;  // tokens of the most loaded expert / mean over all experts
  // maximum number of nodes per token, each of which receives the token once; 0: no limit, and every expert gets a copy
  int expert_nodes = 0;
  std::string software = "";  // name of a row of software.cpp; empty: the newest row
  int threads = 1;            // threads per rank on a CPU

  int world() const { return tp * pp * dp * cp; }  // ep is not a factor, because expert ranks are also dp·cp ranks
  int64_t num_micro_batches() const { return global_batch / (micro_batch * dp); }
  // Fraction of the model's `layers` layers that is recomputed.
  double recomputed_share(int64_t layers) const {
    if (recompute == RecomputePolicy::none || layers == 0) return 0;
    const double named = static_cast<double>(recompute_layers) * pp / static_cast<double>(layers);
    return recompute_layers < 0 || named > 1 ? 1 : named;
  }
};

}  // namespace esp::plan
