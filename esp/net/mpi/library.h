// MpiLibrary: the MPI library of the mpirun that started this process, loaded as a plug-in. One object per process,
// owned by the World and borrowed by the transports. Its destructor finalizes MPI. Any thread may call.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "esp/base/log.h"
#include "esp/net/mpi/plugin/table.h"
#include "esp/net/peer_status.h"

namespace esp::net {

class MpiLibrary {
 public:
  // `flavour`: "openmpi" or "mpich". Searches next to the executable, next to the library that contains this code, then
  // the loader's path. UsageError lists the searched places. Collective over all ranks that mpirun started.
  MpiLibrary(std::string_view flavour, const Log& log);
  ~MpiLibrary();
  MpiLibrary(const MpiLibrary&) = delete;
  MpiLibrary& operator=(const MpiLibrary&) = delete;

  const EspMpiTable& table() const { return *table_; }
  // Throws CommError if `code` is not 0. `what` names the call, `peer` the world rank involved.
  void check(int code, const char* what, int peer = -1) const;
  // After a rank failure MPI_Finalize would wait for the lost rank. The destructor therefore skips MPI_Finalize if
  // `peer_status` has a failure.
  void set_peer_status(std::shared_ptr<PeerStatus> peer_status) { peer_status_ = std::move(peer_status); }

 private:
  const EspMpiTable* table_ = nullptr;
  Log log_;
  std::shared_ptr<PeerStatus> peer_status_;
};

}  // namespace esp::net
