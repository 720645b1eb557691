// Hardware description: processors, the links between them by tier, and their prices. Plain data, read from TOML
// (catalog.h has the built-in ones); every figure is from a datasheet or a measurement, recorded in `sources`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace esp::plan {

// Achieved fractions of datasheet rates: physical constants of one kind of chip and one software generation,
// independent of model, layout and publication.
struct Efficiency {
  double gemm_peak = 0.85;          // of the dense peak; large shapes with full waves
  double gemm_fp8_peak = 0.75;      // the same with 8-bit inputs
  int tile_m = 128, tile_n = 128;   // output tile of one multiprocessor: shapes are rounded up to it
  double gemm_depth = 128;          // k at which fetching the first operands takes half of a tile's time, elements
  double memory = 0.85;             // of the memory's peak; large streaming kernels
  double attention_forward = 0.60;  // fused attention, of the dense peak at long sequences
  double attention_backward = 0.45;
  double launch_us = 3;     // a kernel's fixed cost when the queue runs empty
  double sustained = 0.92;  // of a kernel's isolated rate, sustained over hours of training: clocks under power limits
  double collective_sms = 0.05;  // of the compute rate lost while a collective runs
};

struct Processor {
  std::string name;          // "A100-80GB-SXM"
  std::string kind = "gpu";  // gpu | cpu
  int year = 0;
  double fp32_flops = 0, tf32_flops = 0, fp16_flops = 0, bf16_flops = 0, fp8_flops = 0,
         fp4_flops = 0;                           // dense, per second; 0: not supported
  double memory_bytes = 0, memory_bandwidth = 0;  // bytes, bytes/s
  double l2_bytes = 0;
  int multiprocessors = 0;
  double watts = 0, price_per_hour = 0;
  Efficiency efficiency;
  std::map<std::string, std::string> sources;  // field → source of its figure

  // Dense peak of a GEMM precision ("fp32" "tf32" "fp16" "bf16" "fp8"); UsageError where the chip does not support it.
  double flops(const std::string& precision) const;
};

// One tier of links. A message of x bytes takes at least α + x / bandwidth; large collectives reach `efficiency` of it,
// and half of that at `half_bytes` per hop.
struct LinkSpec {
  std::string name;
  double bandwidth = 0;  // bytes/s per processor and direction
  double latency = 0;    // α, seconds
  double bulk = 0;       // α of long messages at the full rate; short ones use half the rate with a lower α
  double efficiency = 0.8;
  double half_bytes = 0;
  double setup = 0;             // of one collective call, seconds, independent of size and group
  double sum_gain = 1;          // rate of an all-reduce in the switches over that of a ring, where in_network_sum
  bool in_network_sum = false;  // switches that reduce (NVLS, SHARP)
};

struct Cluster {
  std::string name;
  Processor processor;
  int num_nodes = 1, per_node = 8;
  int domain = 8;           // processors joined by `inside`; may be smaller than a node (bridged pairs) or larger (72)
  LinkSpec inside, across;  // inside: within a domain; across: between nodes, per processor
  LinkSpec host;            // processor ↔ host memory
  double disk_bandwidth = 0;          // bytes/s per processor's share of the node's disks
  double host_memory_bytes = 0;       // per node
  double oversubscription = 1;        // leaf–spine: nodes of one leaf share 1/oversubscription of their uplinks
  int leaf_nodes = 0;                 // nodes below one leaf; 0: one switch, no spine
  std::string fabric = "leaf-spine";  // leaf-spine | rail | torus
  std::vector<int> torus;             // extents of the torus
  double reserved_bytes = 0;          // context and communication buffers outside any allocator, per processor
  double mtbf_hours = 0;              // of one node; 0: never fails
  // Threads of one rank on a CPU cluster, and all calibrated figures: see calibrate.
  std::map<std::string, double> measured;

  int size() const { return num_nodes * per_node; }
};

}  // namespace esp::plan
