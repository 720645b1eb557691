// Time model of kernels: GEMMs by tiles and waves, all other kernels by bytes moved.
//
// A GEMM of m×n over k is divided into tiles; a multiprocessor computes one tile at a time. A partial last wave costs
// as much as a full one, and each tile pays for loading its first operands. As in cuBLAS, the tile is chosen from a few
// sizes. The model does not depend on the network or the layout.
#pragma once

#include <string>

#include "esp/plan/cluster.h"

namespace esp::plan {

// Rates of a processor for one precision, looked up once per estimate.
struct ProcessorRates {
  double gemm = 0;               // sustained FLOP/s of GEMMs in this precision, for the best shapes
  double gemm16 = 0;             // the same for 16-bit inputs (or inputs of the precision, if it is wider)
  double attention_forward = 0;  // FLOP/s of fused attention for long sequences
  double attention_backward = 0;
  double bandwidth = 0;  // sustained memory bandwidth, bytes/s
  double launch_s = 0;
  double tile_m = 128, tile_n = 128, depth = 128;
  double multiprocessors = 0;  // 0: a CPU, which is modelled without tiles
  double input_bytes = 2;      // bytes of one element of a GEMM input
  double element_bytes = 2;    // bytes of one activation element
};
ProcessorRates processor_rates(const Processor& processor, const std::string& precision);

// Rate of fused attention / the best rate on this chip, by generation: 1 (2022, GEMMs and softmax do not overlap), 2
// (FlashAttention 2, 2023), 3 (best for the chip). Generations 1 and 2 do not use the instructions that Hopper and
// Blackwell introduced.
double attention_share(const Processor& processor, int generation);

struct Gemm {
  double m = 0, n = 0, k = 0;
  double batch = 1;
  double out_bytes = 2;      // bytes moved per element of the result; 8 if it is accumulated in fp32
  bool wide_inputs = false;  // inputs have 16 bits although the precision has 8
  // grouped GEMM, each group with its own weights: only half of a group's loads overlap arithmetic
  bool grouped = false;
};
double gemm_s(const ProcessorRates& rates, const Gemm& gemm);
// Time of `kernels` kernels that together move `bytes` bytes.
double stream_s(const ProcessorRates& rates, double bytes, double kernels = 1);

struct Attention {
  double batch = 1, heads = 1, kv_heads = 1;
  double queries = 0, keys = 0;  // number of queries and of keys of one sequence
  double qk_dim = 0, v_dim = 0;
  bool causal = true;
};
double attention_flops(const Attention& attention);  // FLOPs of forward; causal attention needs half
double flash_forward_s(const ProcessorRates& rates, const Attention& attention);
double flash_backward_s(const ProcessorRates& rates, const Attention& attention);

// Fraction of the memory bandwidth that rows of `elements` elements reach: below 1 if a row is not a multiple of 128
// bytes.
double alignment(double elements);

}  // namespace esp::plan
