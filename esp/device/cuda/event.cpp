// CUDA events and CUDA graphs.
#include <utility>

#include "esp/base/check.h"
#include "esp/device/cuda/check.h"
#include "esp/device/cuda/queue.h"
#include "esp/device/gpu.h"
#include "esp/device/is_cuda.h"

namespace esp::device {
namespace {

cudaEvent_t event_of(void* event) {
  return static_cast<cudaEvent_t>(event);
}

}  // namespace

GpuEvent::GpuEvent(Device device, bool timed) {
  if (!is_cuda(device)) return;
  ESP_CUDA_CHECK(cudaSetDevice(device.index));
  cudaEvent_t event = nullptr;
  ESP_CUDA_CHECK(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming));
  event_ = event;
}

GpuEvent::~GpuEvent() {
  if (event_) cudaEventDestroy(event_of(event_));
}

GpuEvent::GpuEvent(GpuEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}

GpuEvent& GpuEvent::operator=(GpuEvent&& other) noexcept {
  std::swap(event_, other.event_);
  return *this;
}

void GpuEvent::record(const Stream& stream) {
  if (event_) ESP_CUDA_CHECK(cudaEventRecord(event_of(event_), handle_of(stream)));
}

void GpuEvent::make_wait(const Stream& stream) const {
  if (event_) ESP_CUDA_CHECK(cudaStreamWaitEvent(handle_of(stream), event_of(event_), 0));
}

bool GpuEvent::passed() const {
  if (!event_) return true;
  const cudaError_t state = cudaEventQuery(event_of(event_));
  if (state == cudaErrorNotReady) return false;
  ESP_CUDA_CHECK(state);
  return true;
}

void GpuEvent::finish() const {
  if (event_) ESP_CUDA_CHECK(cudaEventSynchronize(event_of(event_)));
}

double GpuEvent::ms_since(const GpuEvent& earlier) const {
  float ms = 0;
  ESP_CHECK(event_ && earlier.event_);
  ESP_CUDA_CHECK(cudaEventElapsedTime(&ms, event_of(earlier.event_), event_of(event_)));
  return static_cast<double>(ms);
}

GpuGraph::~GpuGraph() {
  if (exec_) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(exec_));
}

void GpuGraph::begin(const Stream& stream) {
  ESP_CHECK(is_cuda(stream) && !exec_,
            "CUDA graph capture: expected a GPU stream, and a GpuGraph without an earlier capture");
  ESP_CUDA_CHECK(cudaStreamBeginCapture(handle_of(stream), cudaStreamCaptureModeThreadLocal));
}

void GpuGraph::end(const Stream& stream) {
  cudaGraph_t graph = nullptr;
  ESP_CUDA_CHECK(cudaStreamEndCapture(handle_of(stream), &graph));
  cudaGraphExec_t exec = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  ESP_CUDA_CHECK(error);
  exec_ = exec;
}

void GpuGraph::abandon(const Stream& stream) noexcept {
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(handle_of(stream), &graph) == cudaSuccess && graph) cudaGraphDestroy(graph);
  cudaGetLastError();
}

void GpuGraph::replay(const Stream& stream) {
  ESP_CHECK(exec_, "CUDA graph replay: nothing was captured before; call begin() and end() first");
  ESP_CUDA_CHECK(cudaGraphLaunch(static_cast<cudaGraphExec_t>(exec_), handle_of(stream)));
}

}  // namespace esp::device
