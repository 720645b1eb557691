#include "esp/train/cuda_graph_runner.h"

#include "esp/device/is_cuda.h"

namespace esp::train {
namespace {

bool serves(const MicroBatchSetup& setup) {
  const RunConfig& config = *setup.config;
  return device::is_cuda(setup.context.stream) && config.run.graph && setup.mesh->shape().size() == 1 &&
         config.sync.method == "allreduce" && config.sync.buckets != "cycle" && config.sync.compress == "none" &&
         config.sync.offload == "none" && config.model.dropout == 0 && config.model.experts == 0 &&
         config.model.classes == 0 && config.model.arch != "bert" && config.model.arch != "t5" &&
         config.train.activations == "lean";
}

}  // namespace

CudaGraphRunner::CudaGraphRunner(const MicroBatchSetup& setup)
    : stream_(setup.context.stream), parameters_{&setup.model->parameters()}, allowed_(serves(setup)) {}

void CudaGraphRunner::reset() {
  graph_.reset();
  passes_ = 0;
}

void CudaGraphRunner::run(const BatchRows& rows, const void* inputs, double scale, const std::function<void()>& queue) {
  if (!allowed_ || passes_ != rows.num_micro_batches || inputs_ != inputs || scale_ != scale) {
    passes_ = rows.num_micro_batches;
    inputs_ = inputs;
    scale_ = scale;
    graph_.reset();
    return queue();
  }
  if (!graph_) {
    auto graph = std::make_unique<device::GpuGraph>();
    graph->begin(stream_);
    try {
      queue();
    } catch (...) {
      graph->abandon(stream_);
      throw;
    }
    graph->end(stream_);
    graph_ = std::move(graph);
  } else {
    // A replay runs only the GPU kernels. So the host marks the gradients as written here, as the passes do without a
    // graph.
    for (nn::ParameterList* list : parameters_)
      for (nn::Parameter& p : list->all()) p.weight.stale = false;
  }
  graph_->replay(stream_);
}

}  // namespace esp::train
