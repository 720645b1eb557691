// Runs of lab moe: a small model with experts that is really trained, its routers under decreasing capacities, and its
// experts divided over ranks with counted communication.
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

// Of the experts of one layer, over a held-out batch.
struct ExpertLoads {
  std::vector<int64_t> loads;
  double balance = 0;  // E·Σ f_e·p_e: 1 for equal shares, E where one expert has all tokens
};

class MoeTraining {
 public:
  MoeTraining(const MoeLabOptions& options, double aux);
  ~MoeTraining();

  void train();
  double loss();                     // per token, over the held-out batch
  std::vector<ExpertLoads> loads();  // by layer
  // Fraction of choices that a capacity factor drops, over all layers.
  struct Drops {
    double factor = 0;
    int64_t capacity = 0, dropped = 0, choices = 0;
  };
  Drops drops(double factor);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// One layer forward and backward on ranks that divide the experts, each with `batch` sequences.
struct ExpertTraffic {
  int ranks = 1;
  bool balanced = false;       // every expert gets equally many rows; otherwise by a random router
  uint64_t calls = 0;          // irregular all-to-alls of one rank
  uint64_t counted_bytes = 0;  // sent in them by all ranks
  uint64_t integer_bytes = 0;  // sent before, for the counts
  double formula_bytes = 0;    // 4·(ep − 1)/ep·k·T·h·e of all ranks
};
ExpertTraffic exchange_bytes(const MoeLabOptions& options, int ranks, bool balanced);

}  // namespace esp::app
