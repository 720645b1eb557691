// Checks of CUDA calls: ESP_CUDA_CHECK(cudaMalloc(…)) throws DeviceError with the call, the source location and the
// driver's error. ESP_CUDA_LAUNCHED() after a launch checks for launch errors.
#pragma once

#include <cuda_runtime.h>

namespace esp::device {

[[noreturn]] void cuda_failed(cudaError_t error, const char* call, const char* file, int line);

}  // namespace esp::device

#define ESP_CUDA_CHECK(call)                                            \
  do {                                                                  \
    if (const cudaError_t esp_error = (call); esp_error != cudaSuccess) \
      ::esp::device::cuda_failed(esp_error, #call, __FILE__, __LINE__); \
  } while (0)
#define ESP_CUDA_LAUNCHED() ESP_CUDA_CHECK(cudaGetLastError())
