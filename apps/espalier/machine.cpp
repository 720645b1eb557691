#include "apps/espalier/machine.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>

#include <fmt/format.h>

#include "esp/device/cpu/topology.h"

namespace esp::app {
namespace {

using Library = std::unique_ptr<void, int (*)(void*)>;

Library open_library(const char* name) {
  return Library(::dlopen(name, RTLD_LAZY | RTLD_LOCAL), ::dlclose);
}

template <typename Function>
Function symbol(const Library& library, const char* name) {
  return reinterpret_cast<Function>(::dlsym(library.get(), name));
}

// Reads the version with MPI_Get_library_version, a call that MPI allows before MPI_Init.
std::optional<DetectedLibrary> detect_mpi(const char* name, const char* file) {
  Library library = open_library(file);
  if (!library) return std::nullopt;
  auto version = symbol<int (*)(char*, int*)>(library, "MPI_Get_library_version");
  std::string text(8192, '\0');
  int length = 0;
  if (!version || version(text.data(), &length) != 0) return DetectedLibrary{name, file};
  text.resize(static_cast<size_t>(length));
  // never unloaded: the destructors of both MPI libraries require that they stay loaded
  library.release();
  return DetectedLibrary{name, text.substr(0, text.find_first_of(",\n"))};
}

}  // namespace

std::vector<std::string> cpu_features() {
  device::CpuTopology topology = device::read_topology();
  std::vector<std::string> features;
  if (topology.avx2) features.push_back("avx2");
  if (topology.f16c) features.push_back("f16c");
  if (topology.avx512) features.push_back("avx512");
  if (topology.avx512_bf16) features.push_back("avx512_bf16");
  if (features.empty()) features.push_back("baseline");
  return features;
}

std::optional<DetectedLibrary> detect_open_mpi() {
  return detect_mpi("Open MPI", "libmpi.so.40");
}
std::optional<DetectedLibrary> detect_mpich() {
  auto seen = detect_mpi("MPICH", "libmpich.so.12");
  if (seen)
    if (size_t at = seen->version.find("MPICH Version"); at != std::string::npos) {
      std::istringstream words(seen->version.substr(at + 14));
      std::string number;
      words >> number;
      seen->version = "MPICH " + number;
    }
  return seen;
}

std::optional<DetectedLibrary> detect_nccl() {
  Library library = open_library("libnccl.so.2");
  if (!library) return std::nullopt;
  auto get = symbol<int (*)(int*)>(library, "ncclGetVersion");
  int version = 0;
  if (!get || get(&version) != 0) return DetectedLibrary{"NCCL", "libnccl.so.2"};
  return DetectedLibrary{"NCCL", fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100)};
}

std::optional<CudaDriver> detect_cuda() {
  Library library = open_library("libcuda.so.1");
  if (!library) return std::nullopt;
  auto init = symbol<int (*)(unsigned)>(library, "cuInit");
  auto driver = symbol<int (*)(int*)>(library, "cuDriverGetVersion");
  auto count = symbol<int (*)(int*)>(library, "cuDeviceGetCount");
  auto name = symbol<int (*)(char*, int, int)>(library, "cuDeviceGetName");
  CudaDriver cuda;
  int version = 0, devices = 0;
  if (driver && driver(&version) == 0) cuda.driver = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  if (init && count && name && init(0) == 0 && count(&devices) == 0)
    for (int i = 0; i < devices; ++i) {
      char text[128] = {};
      if (name(text, sizeof text, i) == 0) cuda.gpus.emplace_back(text);
    }
  library.release();  // never unloaded: threads of the driver still run its code
  return cuda;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string find_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string file = folder + "/" + name;
    if (::access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

int usable_cores() {
  return device::read_topology().usable_cores;
}

uint64_t available_memory() {
  return device::available_memory_bytes();
}

std::string human_bytes(uint64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) value /= 1024, ++unit;
  return value == static_cast<double>(static_cast<uint64_t>(value)) ? fmt::format("{:.0f} {}", value, units[unit])
                                                                    : fmt::format("{:.1f} {}", value, units[unit]);
}

}  // namespace esp::app
