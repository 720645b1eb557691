// MpiLibrary: the MPI that started this process, through its plug-in. One object per process; the World owns it (the
// transports borrow it), and destroying it finalizes MPI. Any thread may call.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "esp/base/log.h"
#include "esp/net/fate.h"
#include "esp/net/mpi/plugin/table.h"

namespace esp::net {

class MpiLibrary {
 public:
  // `flavour`: "openmpi" or "mpich". Looks beside the executable and beside the library this code is in, then where the
  // loader looks. UsageError says where it looked. Collective over all that mpirun started.
  MpiLibrary(std::string_view flavour, const Log& log);
  ~MpiLibrary();
  MpiLibrary(const MpiLibrary&) = delete;
  MpiLibrary& operator=(const MpiLibrary&) = delete;

  const EspMpiTable& table() const { return *table_; }
  // Throws CommError for a code that is not 0; `what` was being done with world rank `peer`.
  void check(int code, const char* what, int peer = -1) const;
  // After a loss MPI_Finalize would wait for the dead: it is then left out.
  void heed(std::shared_ptr<Fate> fate) { fate_ = std::move(fate); }

 private:
  const EspMpiTable* table_ = nullptr;
  Log log_;
  std::shared_ptr<Fate> fate_;
};

}  // namespace esp::net
