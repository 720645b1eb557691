// One rank of `bench comm` in a world that a launcher started (espalier launch, torchrun, mpirun, srun). All ranks get
// the same command line and make the same calls in the same order. Every rank receives the replies of all ranks.
#pragma once

#include <memory>
#include <vector>

#include "apps/espalier/bench_comm.h"
#include "apps/espalier/bench_library.h"
#include "esp/launch/environment.h"

namespace esp::app {

class LaunchedRanks final : public BenchRanks {
 public:
  // Connects to the other ranks. Throws UsageError or CommError.
  LaunchedRanks(const launch::Environment& environment, const CommBenchOptions& bench);

  int rank() const { return comm_->rank(); }
  int num_ranks() const override { return comm_->size(); }
  const bench::Words& registration(int rank) const override { return registrations_[static_cast<size_t>(rank)]; }
  BenchResult execute(const bench::Request& request, Deadline deadline) override;

 private:
  std::vector<Reply> gather_replies(const std::string& reply_text);

  std::unique_ptr<net::World> world_;  // outlives the communicator
  std::unique_ptr<comm::Communicator> comm_;
  std::unique_ptr<EspalierLibrary> library_;
  std::vector<bench::Words> registrations_;  // indexed by rank
};

}  // namespace esp::app
