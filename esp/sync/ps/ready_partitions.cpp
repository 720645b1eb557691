#include "esp/sync/ps/ready_partitions.h"

#include "esp/base/check.h"

namespace esp::sync {

ReadyPartitions::ReadyPartitions(nn::ParameterList& parameters, const ServerLayout& layout,
                                 std::function<void(int)> ready)
    : parameters_(parameters),
      ready_(std::move(ready)),
      partitions_(parameters.all().size()),
      num_parameters_(layout.partitions.size()),
      arrived_(parameters.all().size()) {
  for (size_t i = 0; i < partitions_.size(); ++i) {
    nn::Parameter& p = parameters.all()[i];
    const int64_t begin = parameters.units()[static_cast<size_t>(p.unit)].first + p.offset, end = begin + p.count();
    for (size_t k = 0; k < layout.partitions.size(); ++k)
      if (layout.partitions[k].begin < end && begin < layout.partitions[k].end) {
        partitions_[i].push_back(static_cast<int>(k));
        ++num_parameters_[k];
      }
    p.weight.on_ready = [this, i] { delivered(i); };
  }
}

void ReadyPartitions::arm() {
  missing_ = num_parameters_;
  arrived_.assign(arrived_.size(), false);
  armed_ = true;
}

void ReadyPartitions::delivered(size_t parameter) {
  if (!armed_) return;
  ESP_CHECK(!arrived_[parameter], "gradient of {}: completed twice in one pass", parameters_.all()[parameter].name);
  arrived_[parameter] = true;
  for (const int partition : partitions_[parameter])
    if (--missing_[static_cast<size_t>(partition)] == 0) ready_(partition);
}

void ReadyPartitions::flush(const std::function<void(nn::Parameter&)>& untouched) {
  if (!armed_) return;
  for (size_t i = 0; i < arrived_.size(); ++i)
    if (!arrived_[i]) {
      untouched(parameters_.all()[i]);
      delivered(i);
    }
  armed_ = false;
}

}  // namespace esp::sync
