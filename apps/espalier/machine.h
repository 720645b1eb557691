// Detects hardware and libraries of this machine, for `espalier doctor` and --version.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace esp::app {

// A library found on this machine, with the version it reports.
struct DetectedLibrary {
  std::string name, version;
};

std::vector<std::string> cpu_features();  // supported instruction sets for which Espalier has kernels
std::optional<DetectedLibrary> detect_open_mpi();
std::optional<DetectedLibrary> detect_mpich();
std::optional<DetectedLibrary> detect_nccl();
struct CudaDriver {
  std::string driver;             // CUDA version that the driver supports, such as "13.0"
  std::vector<std::string> gpus;  // model name of each GPU
};
std::optional<CudaDriver> detect_cuda();

// First line of a file; empty if it cannot be read.
std::string first_line(const std::string& path);
// Full path of a program in PATH; empty if there is none.
std::string find_program(const std::string& name);

int usable_cores();                       // number of cores that the CPU affinity and the cgroup quota allow
uint64_t available_memory();              // in bytes
std::string human_bytes(uint64_t bytes);  // formats bytes as "1.5 GiB"

}  // namespace esp::app
