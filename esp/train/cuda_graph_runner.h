// CudaGraphRunner: captures the forward and backward passes of a training step into a CUDA graph and replays it. One
// graph launch replaces hundreds of kernel launches.
//
// A CUDA graph contains fixed addresses and scalars, so only steps with the same addresses and scalars can use it: one
// rank that holds the whole model, no dropout, no MoE routing, rows of full length, the same number of micro-batches,
// the same loss scale. Other steps run without a graph. The first step of a kind is not captured, because it allocates
// memory and tunes GEMM algorithms. When the loss scale changes (fp16), the graph is captured again.
#pragma once

#include <functional>
#include <memory>

#include "esp/device/gpu.h"
#include "esp/train/micro_batch_runner.h"

namespace esp::train {

class CudaGraphRunner {
 public:
  explicit CudaGraphRunner(const MicroBatchSetup& setup);
  // Runs the forward and backward passes of a step. `queue` queues the kernels of all micro-batches. This function
  // replays the CUDA graph, captures `queue` into a new graph, or just calls `queue`. `inputs` is the device address of
  // the input rows.
  void run(const BatchRows& rows, const void* inputs, double scale, const std::function<void()>& queue);
  // Drops the graph. Call it when memory that the graph writes to is freed.
  void reset();

 private:
  const device::Stream stream_;
  const std::vector<nn::ParameterList*> parameters_;
  const bool allowed_;
  std::unique_ptr<device::GpuGraph> graph_;
  // Properties of the last step, to which the next step is compared.
  int64_t passes_ = 0;
  const void* inputs_ = nullptr;
  double scale_ = 0;
};

}  // namespace esp::train
