// Which partitions are ready to be pushed: counts the gradients that each is made of as backward delivers them.
//
// One thread, the one that runs backward. Between `arm` and `flush` each parameter's gradient is expected once.
#pragma once

#include <functional>
#include <vector>

#include "esp/sync/ps/layout.h"

namespace esp::sync {

class ReadyPartitions {
 public:
  // Sets on_ready of every parameter. `ready` hears of each partition once per armed pass.
  ReadyPartitions(nn::ParameterList& parameters, const ServerLayout& layout, std::function<void(int partition)> ready);
  void arm();
  // After backward: calls `untouched` for each parameter that had no part in it, and counts it.
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
