#include "esp/net/mpi/library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "esp/base/error.h"
#include "esp/base/table.h"

namespace esp::net {
namespace {

struct Flavour {
  std::string_view name;
};
constexpr Flavour kFlavours[] = {{"openmpi"}, {"mpich"}};

std::string folder_of(const std::string& path) {
  auto slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

std::vector<std::string> candidates(const std::string& file) {
  std::vector<std::string> paths;
  auto near = [&](const std::string& folder) {
    if (folder.empty()) return;
    for (const char* step : {"", "/../lib", "/../lib/x86_64-linux-gnu"}) paths.push_back(folder + step + "/" + file);
  };
  std::array<char, PATH_MAX> exe{};
  if (readlink("/proc/self/exe", exe.data(), exe.size() - 1) > 0) near(folder_of(exe.data()));
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&folder_of), &info) != 0 && info.dli_fname) near(folder_of(info.dli_fname));
  paths.push_back(file);
  return paths;
}

}  // namespace

MpiLibrary::MpiLibrary(std::string_view flavour, const Log& log) : log_(log) {
  find_row("MPI", kFlavours, flavour);
  std::string file = fmt::format("libespalier_mpi_{}.so", flavour);
  std::vector<std::string> tried;
  void* handle = nullptr;
  for (const std::string& path : candidates(file)) {
    // RTLD_GLOBAL: MPI loads components that use its symbols. RTLD_NODELETE: MPI must stay loaded until the process
    // ends.
    handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    if (handle) break;
    const char* why = dlerror();
    tried.push_back(why ? why : path);
  }
  if (!handle)
    throw UsageError(fmt::format(
        "mpirun of {} started this process, but the plug-in cannot be opened: {}. Build espalier with this MPI, or "
        "set MASTER_ADDR and MASTER_PORT and leave comm.transport at its default",
        flavour, fmt::join(tried, "; ")));
  table_ = static_cast<const EspMpiTable*>(dlsym(handle, ESP_MPI_TABLE_SYMBOL));
  if (!table_ || table_->version != ESP_MPI_TABLE_VERSION)
    throw UsageError(
        fmt::format("MPI plug-in {}: belongs to another version of Espalier. Build both from the same source", file));
  check(table_->init(), "MPI_Init");
}

MpiLibrary::~MpiLibrary() {
  bool whole = true;
  for (int rank = 0; peer_status_ && rank < table_->size(); ++rank) whole = whole && !peer_status_->is_lost(rank);
  if (!whole) {
    log_.warn("skipping MPI_Finalize, because it would wait for lost ranks");
  } else if (int code = table_->finalize()) {
    log_.warn("MPI_Finalize failed with code {}", code);
  }
}

void MpiLibrary::check(int code, const char* what, int peer) const {
  if (code == 0) return;
  std::array<char, 256> text{};
  table_->describe(code, text.data(), text.size());
  throw CommError(CommError::Kind::lost, peer,
                  peer < 0 ? fmt::format("{}: {} failed: {}", table_->library, what, text.data())
                           : fmt::format("{}: {} with rank {} failed: {}", table_->library, what, peer, text.data()));
}

}  // namespace esp::net
