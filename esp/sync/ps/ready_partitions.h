// Tracks which partitions are ready to be pushed: counts the gradients of each partition as backward completes them.
//
// Called only from the thread that runs backward. Between `arm` and `flush` each parameter's gradient arrives at most
// once.
#pragma once

#include <functional>
#include <vector>

#include "esp/sync/ps/layout.h"

namespace esp::sync {

class ReadyPartitions {
 public:
  // Sets on_ready of every parameter. `ready` is called once per partition between `arm` and the end of `flush`.
  ReadyPartitions(nn::ParameterList& parameters, const ServerLayout& layout, std::function<void(int partition)> ready);
  void arm();
  // After backward: calls `untouched` for each parameter without a gradient, then counts it as complete.
  void flush(const std::function<void(nn::Parameter&)>& untouched);

 private:
  void delivered(size_t parameter);

  nn::ParameterList& parameters_;
  std::function<void(int)> ready_;
  std::vector<std::vector<int>> partitions_;  // [parameter]: the partitions that contain its elements
  // [partition]: the number of its parameters, and how many of their gradients have not arrived
  std::vector<int> num_parameters_, missing_;
  std::vector<bool> arrived_;  // [parameter]: its gradient has arrived
  bool armed_ = false;
};

}  // namespace esp::sync
