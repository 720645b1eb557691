// Kernel time model: GEMMs by tiles and waves, everything else by bytes moved.
//
// A GEMM of m×n over k is divided into tiles, one per multiprocessor at a time; a partial last wave costs a full one,
// and each tile pays for fetching its first operands. As in cuBLAS, the tile is chosen from a few sizes. Independent of
// model and layout.
#pragma once

#include <string>

#include "esp/plan/cluster.h"

namespace esp::plan {

// A processor's rates with one precision, looked up once.
struct Rates {
  double product = 0;            // flop/s of GEMMs of the precision, best shapes, sustained
  double product16 = 0;          // the same with 16-bit inputs (or of the precision, where it is wider)
  double attention_forward = 0;  // flop/s of fused attention, long sequences
  double attention_backward = 0;
  double bandwidth = 0;  // bytes/s
  double launch_s = 0;
  double tile_m = 128, tile_n = 128, depth = 128;
  double multiprocessors = 0;  // 0: no tiles (a CPU), rate only
  double input_bytes = 2;      // of one element of the precision
  double element_bytes = 2;    // of one element of activations
};
Rates rates_of(const Processor& processor, const std::string& precision);

// Fraction of the chip's best fused attention that a generation reaches: 1 (2022: no overlap of GEMMs and softmax), 2
// (FlashAttention 2, 2023), 3 (the chip's best). Earlier generations do not use instructions that Hopper and Blackwell
// introduced.
double attention_share(const Processor& processor, int generation);

struct Gemm {
  double m = 0, n = 0, k = 0;
  double batch = 1;
  double out_bytes = 2;  // moved per element of the result; 8 for accumulation in 32 bits
  bool wide = false;     // stays in 16 bits when the precision is 8
  bool grouped = false;  // grouped GEMM with separate weights: only half of a group's loads hide behind arithmetic
};
double gemm_s(const Rates& rates, const Gemm& product);
// `bytes` streamed in `kernels` kernels.
double stream_s(const Rates& rates, double bytes, double kernels = 1);

struct Attention {
  double batch = 1, heads = 1, kv_heads = 1;
  double queries = 0, keys = 0;  // lengths
  double qk_dim = 0, v_dim = 0;
  bool causal = true;
};
double attention_flops(const Attention& attention);  // forward, as computed (half when causal)
double flash_forward_s(const Rates& rates, const Attention& attention);
double flash_backward_s(const Rates& rates, const Attention& attention);

// Fraction of memory transactions used when rows are not a multiple of 128 bytes.
double alignment(double elements);

}  // namespace esp::plan
