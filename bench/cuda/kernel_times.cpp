// Records the GPU time of each kernel of a program: an injection library that the CUDA driver loads into any CUDA
// program.
//
//   g++ -O2 -shared -fPIC -I$CUDA/include bench/cuda/kernel_times.cpp -L$CUPTI -lcupti -o kernel_times.so
//   CUDA_INJECTION64_PATH=./kernel_times.so KERNEL_TIMES=kernels.txt espalier train …
//
// Each output line has the start and the end of a kernel in nanoseconds, and its name. bench/cuda/kernel_times.py sums
// them. Kernels are neither replayed nor serialised, so clocks and overlap are those of a normal run.
#include <cupti.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace {

constexpr size_t kBufferBytes = size_t{8} << 20;
std::mutex file_mutex;
std::FILE* file = nullptr;

void CUPTIAPI request_buffer(uint8_t** buffer, size_t* bytes, size_t* most) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *bytes = *buffer ? kBufferBytes : 0;
  *most = 0;
}

void CUPTIAPI write_records(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  const std::lock_guard lock(file_mutex);
  CUpti_Activity* record = nullptr;
  while (valid > 0 && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    // Later versions of this record type begin with the same fields.
    const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
    std::fprintf(file, "%llu %llu %s\n", static_cast<unsigned long long>(kernel->start),
                 static_cast<unsigned long long>(kernel->end), kernel->name ? kernel->name : "?");
  }
  std::fflush(file);
  std::free(buffer);
}

}  // namespace

extern "C" int InitializeInjection() {
  const char* path = std::getenv("KERNEL_TIMES");
  file = std::fopen(path ? path : "kernel_times.txt", "w");
  if (!file) return 0;
  if (cuptiActivityRegisterCallbacks(request_buffer, write_records) != CUPTI_SUCCESS ||
      cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS)
    return 0;
  // Writes records as they arrive, because a signal may kill the program at any time.
  std::thread([] {
    for (;;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      cuptiActivityFlushAll(1);
    }
  }).detach();
  return 1;
}
