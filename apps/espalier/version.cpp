#include "apps/espalier/version.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/espalier/machine.h"
#include "build_id.h"

namespace esp::app {

std::string version_number() {
  return ESP_VERSION;
}

std::string version_id() {
  return fmt::format("{} ({})", ESP_VERSION, ESP_GIT_ID);
}

std::string version_text() {
  auto seen = [](const std::optional<DetectedLibrary>& library) {
    return library ? library->version : std::string("not found");
  };
  std::optional<CudaDriver> cuda = detect_cuda();
  std::string text = fmt::format("espalier {} ({}, {}, {})\n", ESP_VERSION, ESP_GIT_ID, ESP_COMPILER, ESP_BUILD_TYPE);
  text += fmt::format("CPU: {}\n", fmt::join(cpu_features(), " "));
  text += fmt::format("Open MPI: {}\n", seen(detect_open_mpi()));
  text += fmt::format("MPICH: {}\n", seen(detect_mpich()));
  text += fmt::format("NCCL: {}\n", seen(detect_nccl()));
  text += cuda ? fmt::format("CUDA: driver {}, {} GPU{}", cuda->driver, cuda->gpus.size(),
                             cuda->gpus.size() == 1 ? "" : "s")
               : "CUDA: not found";
  return text;
}

}  // namespace esp::app
