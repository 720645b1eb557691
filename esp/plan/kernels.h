// Time of one kernel from its sizes: products by tiles and waves, everything else by the bytes it moves.
//
// A product of m×n over k is cut in tiles, one a multiprocessor at a time; the last wave is paid in full however few
// tiles it has, and each tile pays the fetching of its first operands. cuBLAS picks among a handful of tiles, so does
// this. Nothing here knows a model or a layout.
#pragma once

#include <string>

#include "esp/plan/cluster.h"

namespace esp::plan {

// A processor's rates with one precision, looked up once.
struct Rates {
  double product = 0;            // flop/s of products of the precision, best shapes, sustained
  double product16 = 0;          // likewise of 16-bit inputs (or of the precision, where it is wider)
  double attention_forward = 0;  // flop/s of fused attention, long sequences
  double attention_backward = 0;
  double bandwidth = 0;  // bytes/s
  double launch_s = 0;
  double tile_m = 128, tile_n = 128, depth = 128;
  double multiprocessors = 0;  // 0: no tiles (a CPU): rate alone
  double input_bytes = 2;      // of one element of the precision
  double element_bytes = 2;    // of one element of activations
};
Rates rates_of(const Processor& processor, const std::string& precision);

// What fused attention of a generation reaches of the chip's best: 1 (of 2022: no overlap of its products and its
// softmax), 2 (FlashAttention 2, 2023), 3 (the chip's own). Instructions that came with Hopper and Blackwell are left
// unused by what was written before them.
double attention_share(const Processor& processor, int generation);

struct Product {
  double m = 0, n = 0, k = 0;
  double batch = 1;
  double out_bytes = 2;  // moved per element of the result; 8 where it is added to 32 bits in place
  bool wide = false;     // stays in 16 bits when the precision is 8
  bool grouped = false;  // of a batch with weights of their own: a group's loads hide only half behind arithmetic
};
double product_s(const Rates& rates, const Product& product);
// `bytes` streamed by `kernels` of them.
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

// How far memory transactions waste what they fetch when rows are not a multiple of 128 bytes.
double alignment(double elements);

}  // namespace esp::plan
