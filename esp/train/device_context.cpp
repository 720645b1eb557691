#include "esp/train/device_context.h"

#include <filesystem>

#include "esp/base/error.h"
#include "esp/kernel/cuda/attention_settings.h"
#include "esp/kernel/cuda/gemm_settings.h"
#include "esp/obs/file.h"

namespace esp::train {
namespace {

constexpr size_t kMostChoiceBytes = size_t{1} << 20;

}  // namespace

DeviceContext::DeviceContext(const std::string& name, device::MemoryAccount& account, int number,
                             const GpuOptions& options)
    : choices_(options.choices) {
  device::Device device = device::parse_device(name);
  if (device.kind == device::DeviceKind::cpu) return;
  const auto num_gpus = static_cast<int>(device::survey_gpus().gpus.size());
  if (name.find(':') == std::string::npos && num_gpus > 0) device.index = number % num_gpus;
  queue_.emplace(device, &account);
  kernel::cuda::set_attention({.cudnn = true, .deterministic = options.deterministic}, queue_->stream());
  // Tuning by timing may choose other algorithms in another run, and these may round differently. So it is off for
  // deterministic runs.
  kernel::cuda::set_gemm({.tune = !options.deterministic, .tf32 = options.tf32, .fp8 = options.fp8}, queue_->stream());
  if (!choices_.empty() && std::filesystem::exists(choices_))
    kernel::cuda::read_gemm_choices(obs::read_whole_file(choices_, kMostChoiceBytes), queue_->stream());
  memory_ = device::gpu_memory(device);
  host_memory_ = device::pinned_memory(device);
}

// A write error is ignored, because the file of tuned algorithms only saves the next run about a second.
DeviceContext::~DeviceContext() {
  if (!queue_ || choices_.empty()) return;
  try {
    obs::write_whole_file(choices_, kernel::cuda::gemm_choices(queue_->stream()));
  } catch (const std::exception&) {
  }
}

device::Stream DeviceContext::stream(device::ThreadPool* threads) const {
  return queue_ ? queue_->stream(threads) : device::Stream{{}, threads, nullptr};
}

}  // namespace esp::train
