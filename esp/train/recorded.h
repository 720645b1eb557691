// The passes of a step on a GPU, recorded once and replayed: hundreds of launches become one.
//
// What a graph holds is addresses and numbers, so it serves a step whose numbers are the same: one rank that holds the
// whole model, no dropout, no routing, rows of full length, the same number of passes and the same scale of the loss.
// Others run as they are. The first step of a kind is not recorded: memory is taken and products are tuned in it. When
// the scale changes (fp16) the graph is made anew.
#pragma once

#include <functional>
#include <memory>

#include "esp/device/gpu.h"
#include "esp/train/micro_batches.h"

namespace esp::train {

class RecordedPasses {
 public:
  explicit RecordedPasses(const MicroBatchSetup& setup);
  // Does what `queue`, which runs forward and backward of all passes, would do.
  // `inputs` is where the rows lie.
  void run(const Rows& rows, const void* inputs, double scale, const std::function<void()>& queue);
  // What was recorded writes to memory that is no longer there.
  void forget();

 private:
  const device::Stream stream_;
  const std::vector<nn::ParameterList*> parameters_;
  const bool allowed_;
  std::unique_ptr<device::GpuGraph> graph_;
  // Of the last step.
  int64_t passes_ = 0;
  const void* inputs_ = nullptr;
  double scale_ = 0;
};

}  // namespace esp::train
