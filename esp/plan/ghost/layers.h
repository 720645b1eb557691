// Dry run of the decoder's layers: each function allocates and records as the function of the same name in
// esp/autograd, esp/parallel/tp and esp/parallel/cp does.
#pragma once

#include "esp/device/device.h"
#include "esp/plan/ghost/tape.h"

namespace esp::plan::ghost {

// One rank's part of a micro-batch and of the matrices.
struct Sizes {
  int64_t batch = 1, tokens = 1;   // sequences, and local tokens of each
  int64_t length = 1;              // of whole sequences
  int64_t most_tokens = 1;         // maximum over the ranks of the context axis
  std::vector<int64_t> tokens_of;  // by rank of the context axis
  int context_rank = 0;
  int64_t dim = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, classes = 0, gather_vocab_logits = 0;
  int64_t element = 4;  // bytes; statistics are of 4
  device::DeviceKind device = device::DeviceKind::cpu;
  int tp = 1, cp = 1;
  int threads = 1;
  bool sequence = false, ulysses = false;
  bool layer_norm = true, gated = false, rotary = false, causal = true;
  double dropout = 0;
  bool recompute_full = false, recompute_selective = false;
  int64_t recompute_layers = -1;  // of each group of blocks the first ones, this many; −1: all

  int64_t rows() const { return batch * tokens; }
  int64_t own_rows() const { return sequence ? rows() / tp : rows(); }
  int64_t stream_bytes() const { return own_rows() * dim * element; }
  int64_t all_bytes() const { return rows() * dim * element; }
};

struct BlockWeights {
  Weight *norm1 = nullptr, *norm1_bias = nullptr, *qkv = nullptr, *qkv_bias = nullptr, *out = nullptr,
         *out_bias = nullptr, *norm2 = nullptr, *norm2_bias = nullptr, *up = nullptr, *up_bias = nullptr,
         *down = nullptr, *down_bias = nullptr;
};
struct StemWeights {
  Weight *table = nullptr, *positions = nullptr;
};
struct HeadWeights {
  Weight *norm = nullptr, *norm_bias = nullptr, *table = nullptr, *bias = nullptr;
};

Variable stem(Tape& tape, const Sizes& s, const StemWeights& w);
Variable blocks(Tape& tape, const Sizes& s, const std::vector<BlockWeights>& w, const Variable& x);
// The total and the per-row losses, held by their handle.
struct Loss {
  Variable total;
  Tensor losses;
};
Loss loss(Tape& tape, const Sizes& s, const HeadWeights& w, const Variable& x);

}  // namespace esp::plan::ghost
