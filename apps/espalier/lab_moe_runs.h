// Runs of lab moe. They train a small mixture-of-experts model, count dropped tokens by expert capacity, and count the
// bytes that expert-parallel ranks send.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace esp::app {

struct MoeLabOptions {
  int64_t experts = 8, chosen = 2, dim = 64, ffn = 128, seq = 64, batch = 8;
  int steps = 150;
  double aux = 0.01, lr = 3e-3;
  std::vector<int> ranks = {1, 2, 4};
  uint64_t seed = 1;
};

// Loads of the experts of one layer, over a held-out batch.
struct ExpertLoads {
  std::vector<int64_t> loads;
  double balance = 0;  // E·Σ f_e·p_e: 1 for equal shares, E if one expert gets all tokens
};

class MoeTraining {
 public:
  MoeTraining(const MoeLabOptions& options, double aux);
  ~MoeTraining();

  void train();
  double loss();                     // mean per token of the held-out batch
  std::vector<ExpertLoads> loads();  // one entry per layer
  // Routing choices dropped with this capacity factor, summed over all layers.
  struct CapacityDrops {
    double factor = 0;
    int64_t capacity = 0, dropped = 0, choices = 0;
  };
  CapacityDrops drops(double factor);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Traffic of one layer, forward and backward, on ranks that divide the experts. Each rank has `batch` sequences.
struct ExpertTraffic {
  int ranks = 1;
  bool balanced = false;       // true: every expert gets the same number of rows; false: a random router chooses
  uint64_t calls = 0;          // number of irregular all-to-alls that one rank runs
  uint64_t counted_bytes = 0;  // bytes that all ranks send in these all-to-alls
  uint64_t integer_bytes = 0;  // bytes that all ranks send to exchange the row counts
  double formula_bytes = 0;    // 4·(ep − 1)/ep·k·T·h·e, summed over all ranks
};
ExpertTraffic measure_expert_traffic(const MoeLabOptions& options, int ranks, bool balanced);

}  // namespace esp::app
