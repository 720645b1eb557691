// Training policy: the layout and everything else that changes a step's time or memory. The names are those of the run
// file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace esp::plan {

enum class RecomputePolicy : uint8_t { none, selective, full };
enum class OffloadTarget : uint8_t { none, host, file };

struct Policy {
  int tp = 1, pp = 1, dp = 1, cp = 1, ep = 1;
  int expert_tp = 0;              // 0: tp where experts are divided like the rest (ep = 1), otherwise 1
  bool sequence = false;          // sequence parallel
  std::string context = "ring";   // ring | ulysses | allgather
  std::string schedule = "1f1b";  // gpipe | 1f1b | interleaved | zb-h1 | zb-2p | zb-v | v-half | v-min | dualpipe
  int interleave = 1;             // chunks per stage
  std::vector<int> stage_layers;  // layers of each piece, where uneven; empty: equal, the remainder to the first pieces
  bool vocab_parallel_pipeline = false;  // the head's vocabulary is spread over stages

  int64_t micro_batch = 1, global_batch = 1;  // sequences
  std::string precision = "bf16";             // of GEMMs: fp32 tf32 fp16 bf16 fp8
  int zero = 0;
  int shard_group = 0;         // ranks per set of states; 0: all of dp·cp
  bool keep_gathered = false;  // zero 3: weights are kept after forward
  bool quantised_weights = false, secondary_shard = false, quantised_gradients = false;  // ZeRO++
  OffloadTarget offload = OffloadTarget::none;
  double offload_fraction = 1;
  RecomputePolicy recompute = RecomputePolicy::none;
  int recompute_layers = -1;        // per stage, with full, and in this program's runtime with selective; −1: all
  bool checkpoint_sharded = false;  // inputs kept by recomputation are sharded over tp
  bool flash = true;                // attention scores are not stored
  bool dropout = false;
  bool fused = true;           // bias+activation, norms, softmax in one kernel each
  bool gradients_fp32 = true;  // main gradients in fp32 (18 bytes per parameter) rather than 16 bits (16)
  std::string optimizer = "adam";
  double master_bytes = 4, moment_bytes = 8;  // per parameter, at 16-bit precision
  std::string compress = "none";
  bool overlap_dp = true, overlap_tp = false, overlap_pp = true, overlap_cp = true, overlap_ep = false;
  double expert_imbalance = 1;  // tokens of the most loaded expert over the mean
  int expert_nodes = 0;         // limit of domains per token, one copy to each; 0: no limit, a copy per expert
  std::string software = "";    // row of the table of software generations; empty: the newest known
  int threads = 1;              // of a cpu rank

  int world() const { return tp * pp * dp * cp; }  // ep divides dp·cp
  int64_t num_micro_batches() const { return global_batch / (micro_batch * dp); }
  // The number of recomputed layers among these.
  double recomputed_share(int64_t layers) const {
    if (recompute == RecomputePolicy::none || layers == 0) return 0;
    const double named = static_cast<double>(recompute_layers) * pp / static_cast<double>(layers);
    return recompute_layers < 0 || named > 1 ? 1 : named;
  }
};

}  // namespace esp::plan
