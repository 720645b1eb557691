// Tracks which partitions are ready to be pushed: counts the gradients of each as backward delivers them.
//
// One thread, the one that runs backward. Between `arm` and `flush` each parameter's gradient arrives at most once.
#pragma once

#include <functional>
#include <vector>

#include "esp/sync/ps/layout.h"

namespace esp::sync {

class ReadyPartitions {
 public:
  // Sets on_ready of every parameter. `ready` is called once per partition and armed pass.
  ReadyPartitions(nn::ParameterList& parameters, const ServerLayout& layout, std::function<void(int partition)> ready);
  void arm();
  // After backward: calls `untouched` for each parameter without a gradient, and counts it.
  void flush(const std::function<void(nn::Parameter&)>& untouched);

 private:
  void delivered(size_t parameter);

  nn::ParameterList& parameters_;
  std::function<void(int)> ready_;
  std::vector<std::vector<int>> partitions_;   // by parameter
  std::vector<int> num_parameters_, missing_;  // by partition
  std::vector<bool> arrived_;                  // by parameter
  bool armed_ = false;
};

}  // namespace esp::sync
