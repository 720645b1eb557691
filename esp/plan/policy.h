// How it is trained: the layout and everything that changes a step's time or memory. The names are the run file's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace esp::plan {

enum class Recompute : uint8_t { none, selective, full };
enum class Offload : uint8_t { none, host, file };

struct Policy {
  int tp = 1, pp = 1, dp = 1, cp = 1, ep = 1;
  int expert_tp = 0;              // 0: tp where experts are divided like the rest (ep = 1), else 1
  bool sequence = false;          // sequence parallel
  std::string context = "ring";   // ring | ulysses | allgather
  std::string schedule = "1f1b";  // gpipe | 1f1b | interleaved | zb-h1 | zb-2p | zb-v | v-half | v-min | dualpipe
  int interleave = 1;             // chunks per stage
  std::vector<int> stage_layers;  // layers of each piece, where uneven; empty: equal, the rest to the first pieces
  bool vocab_parallel_pipeline = false;  // head's vocabulary spread over stages

  int64_t micro_batch = 1, global_batch = 1;  // sequences
  std::string precision = "bf16";             // of products: fp32 tf32 fp16 bf16 fp8
  int zero = 0;
  int shard_group = 0;         // ranks a state is sharded over; 0: all of dp·cp
  bool keep_gathered = false;  // zero 3: weights stay after forward
  bool quantised_weights = false, secondary_shard = false, quantised_gradients = false;  // ZeRO++
  Offload offload = Offload::none;
  double offload_fraction = 1;
  Recompute recompute = Recompute::none;
  int recompute_layers = -1;        // per stage, with full and in our own runtime with selective; −1: all
  bool checkpoint_sharded = false;  // recomputation's kept inputs divided over tp
  bool flash = true;                // attention scores are never stored
  bool dropout = false;
  bool fused = true;           // bias+activation, norms, softmax in one kernel each
  bool gradients_fp32 = true;  // main gradients in fp32 (18 bytes a parameter) rather than 16 bits (16)
  std::string optimizer = "adam";
  double master_bytes = 4, moment_bytes = 8;  // per parameter, at 16-bit precision
  std::string compress = "none";
  bool overlap_dp = true, overlap_tp = false, overlap_pp = true, overlap_cp = true, overlap_ep = false;
  double expert_imbalance = 1;  // most loaded expert's tokens over the mean
  int expert_nodes = 0;       // domains a token's experts lie in at most, sent once to each; 0: any, a copy per expert
  std::string software = "";  // row of the table of software generations; empty: the newest known
  int threads = 1;            // of a cpu rank

  int world() const { return tp * pp * dp * cp; }  // ep divides dp·cp
  int64_t num_micro_batches() const { return global_batch / (micro_batch * dp); }
  // Of so many layers, the part that is recomputed.
  double recomputed_share(int64_t layers) const {
    if (recompute == Recompute::none || layers == 0) return 0;
    const double named = static_cast<double>(recompute_layers) * pp / static_cast<double>(layers);
    return recompute_layers < 0 || named > 1 ? 1 : named;
  }
};

}  // namespace esp::plan
