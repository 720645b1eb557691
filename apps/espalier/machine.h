// What this machine has, read from the kernel and from the libraries that can be opened: shared by doctor and
// --version.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace esp::app {

// A library that may be there; `version` is what it says of itself.
struct SeenLibrary {
  std::string name, version;
};

std::vector<std::string> cpu_features();  // of those we have kernels for
std::optional<SeenLibrary> see_open_mpi();
std::optional<SeenLibrary> see_mpich();
std::optional<SeenLibrary> see_nccl();
struct Cuda {
  std::string driver;             // "13.0"
  std::vector<std::string> gpus;  // names
};
std::optional<Cuda> see_cuda();

// First line of a file, empty when it cannot be read.
std::string first_line(const std::string& path);
// Full path of a program in PATH, empty when there is none.
std::string find_program(const std::string& name);

int usable_cores();                       // worth starting a rank on: affinity, cut to the quota
uint64_t available_memory();              // bytes
std::string human_bytes(uint64_t bytes);  // "1.5 GiB"

}  // namespace esp::app
