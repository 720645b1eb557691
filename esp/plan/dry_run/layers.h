// Dry run of the decoder's layers. Each function allocates the same buffers and records the same nodes as the function
// that it models in esp/autograd, esp/parallel/tp or esp/parallel/cp.
#pragma once

#include "esp/device/device.h"
#include "esp/plan/dry_run/tape.h"

namespace esp::plan::dry_run {

// Sizes of a micro-batch and of the weight matrices on one rank.
struct RankSizes {
  int64_t batch = 1, tokens = 1;   // batch: sequences; tokens: tokens of each sequence on this rank
  int64_t length = 1;              // tokens of a whole sequence
  int64_t max_tokens = 1;          // maximum of `tokens` over the ranks of the context group
  std::vector<int64_t> tokens_of;  // `tokens` of every rank of the context group
  int context_rank = 0;
  int64_t dim = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, classes = 0, vocab = 0;
  int64_t element_bytes = 4;  // bytes of a weight or activation; statistics of norm and softmax are fp32
  device::DeviceKind device = device::DeviceKind::cpu;
  int tp = 1, cp = 1;
  int threads = 1;
  bool sequence = false, ulysses = false;
  bool layer_norm = true, gated = false, rotary = false, causal = true;
  double dropout = 0;
  bool recompute_full = false, recompute_selective = false;
  int64_t recompute_layers = -1;  // number of recomputed blocks at the start of each chunk; −1: all

  int64_t rows() const { return batch * tokens; }
  int64_t stream_rows() const { return sequence ? rows() / tp : rows(); }
  int64_t stream_bytes() const { return stream_rows() * dim * element_bytes; }
  int64_t full_bytes() const { return rows() * dim * element_bytes; }
};

struct BlockWeights {
  DryRunWeight *norm1 = nullptr, *norm1_bias = nullptr, *qkv = nullptr, *qkv_bias = nullptr, *out = nullptr,
               *out_bias = nullptr, *norm2 = nullptr, *norm2_bias = nullptr, *up = nullptr, *up_bias = nullptr,
               *down = nullptr, *down_bias = nullptr;
};
struct StemWeights {
  DryRunWeight *table = nullptr, *positions = nullptr;
};
struct HeadWeights {
  DryRunWeight *norm = nullptr, *norm_bias = nullptr, *table = nullptr, *bias = nullptr;
};

DryRunVariable stem(DryRunTape& tape, const RankSizes& s, const StemWeights& w);
DryRunVariable blocks(DryRunTape& tape, const RankSizes& s, const std::vector<BlockWeights>& w,
                      const DryRunVariable& x);
// total: the loss of the micro-batch; losses: the buffer with one loss per row.
struct DryRunLoss {
  DryRunVariable total;
  BufferHandle losses;
};
DryRunLoss loss(DryRunTape& tape, const RankSizes& s, const HeadWeights& w, const DryRunVariable& x);

}  // namespace esp::plan::dry_run
