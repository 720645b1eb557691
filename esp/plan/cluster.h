// Hardware description of a cluster: its processors (GPUs, TPUs or CPUs), the links between them by tier, and prices.
// Plain data, read from TOML (catalog.h has the built-in entries). Every figure is from a datasheet or a measurement;
// `sources` records which.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace esp::plan {

// Fractions of the datasheet rates that software reaches. They are constants of a chip and a software generation, the
// same for every model, layout and publication.
struct Efficiency {
  double gemm_peak = 0.85;          // best GEMM rate / dense peak, for large shapes without a partial wave
  double gemm_fp8_peak = 0.75;      // the same for GEMMs with 8-bit inputs
  int tile_m = 128, tile_n = 128;   // GEMM output tile of one multiprocessor; shapes are rounded up to whole tiles
  double gemm_depth = 128;          // depth k at which computing a tile takes as long as loading its first operands
  double memory = 0.85;             // bandwidth of large streaming kernels / peak memory bandwidth
  double attention_forward = 0.60;  // fused attention rate / dense peak, for long sequences
  double attention_backward = 0.45;
  double launch_us = 3;  // fixed time of a kernel when the queue is empty, µs
  // kernel rate over hours of training under the power limit / rate of the same kernel run in isolation
  double sustained = 0.92;
  double collective_sms = 0.05;  // fraction of the compute rate that is lost while a collective runs
};

struct Processor {
  std::string name;          // "A100-80GB-SXM"
  std::string kind = "gpu";  // gpu | cpu
  int year = 0;
  double fp32_flops = 0, tf32_flops = 0, fp16_flops = 0, bf16_flops = 0, fp8_flops = 0,
         fp4_flops = 0;                           // dense FLOP/s by precision; 0: the chip does not support it
  double memory_bytes = 0, memory_bandwidth = 0;  // memory_bytes: bytes; memory_bandwidth: bytes/s
  double l2_bytes = 0;
  int multiprocessors = 0;
  double watts = 0, price_per_hour = 0;
  Efficiency efficiency;
  std::map<std::string, std::string> sources;  // field name → source of its figure

  // Dense peak FLOP/s of a GEMM precision ("fp32" "tf32" "fp16" "bf16" "fp8"). UsageError if the chip does not support
  // it.
  double flops(const std::string& precision) const;
};

// One tier of links. A message of x bytes takes at least α + x / bandwidth. Large collectives reach `efficiency` ·
// bandwidth; with `half_bytes` bytes per hop they reach half of that.
struct LinkSpec {
  std::string name;
  double bandwidth = 0;  // bytes/s per processor, in each direction
  double latency = 0;    // α of short messages, seconds
  // α of long messages, which use the full rate; short messages use half the rate and the lower α `latency`
  double bulk = 0;
  double efficiency = 0.8;
  double half_bytes = 0;
  double setup = 0;             // seconds per collective call, independent of message size and group size
  double sum_gain = 1;          // rate of an all-reduce inside the switches / rate of a ring; used if in_network_sum
  bool in_network_sum = false;  // the switches can reduce (NVLS, SHARP)
};

struct Cluster {
  std::string name;
  Processor processor;
  int num_nodes = 1, per_node = 8;
  // number of processors that the fast links (`inside`) connect: a node, a bridged pair, or a rack of 72
  int domain = 8;
  LinkSpec inside, across;    // inside: links within a domain; across: network between nodes. Figures are per processor
  LinkSpec host;              // link between a processor and the host memory
  double disk_bandwidth = 0;  // bytes/s of a node's disks, divided by its number of processors
  double host_memory_bytes = 0;  // bytes of host memory per node
  // leaf–spine network: uplinks of a leaf have 1/oversubscription of the bandwidth of its nodes
  double oversubscription = 1;
  int leaf_nodes = 0;                 // nodes per leaf; 0: one switch, no spine
  std::string fabric = "leaf-spine";  // leaf-spine | rail | torus
  std::vector<int> torus;             // sizes of the torus dimensions
  double reserved_bytes = 0;          // bytes per processor outside any allocator: CUDA context, communication buffers
  double mtbf_hours = 0;              // mean time between failures of one node; 0: never fails
  // Figures measured by `espalier plan calibrate`, by key (calibrated_rates.h).
  std::map<std::string, double> measured;

  int size() const { return num_nodes * per_node; }
};

}  // namespace esp::plan
