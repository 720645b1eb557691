#include "esp/train/place.h"

#include "esp/kernel/cuda/attention_settings.h"

namespace esp::train {

Place::Place(const std::string& name, device::MemoryAccount& account, int number, bool deterministic) {
  device::Device device = device::parse_device(name);
  if (device.kind == device::DeviceKind::cpu) return;
  const auto num_gpus = static_cast<int>(device::survey_gpus().gpus.size());
  if (name.find(':') == std::string::npos && num_gpus > 0) device.index = number % num_gpus;
  queue_.emplace(device, &account);
  kernel::cuda::set_attention({.cudnn = true, .deterministic = deterministic}, queue_->stream());
  memory_ = device::gpu_memory(device);
  host_memory_ = device::pinned_memory(device);
}

device::Stream Place::stream(device::ThreadPool* threads) const {
  return queue_ ? queue_->stream(threads) : device::Stream{{}, threads, nullptr};
}

}  // namespace esp::train
