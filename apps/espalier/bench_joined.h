// This process as one rank of `bench comm` in a world that a launcher started (espalier launch, torchrun, mpirun,
// srun): every rank has the same command line and makes the same calls in the same order, and all receive all replies.
#pragma once

#include <memory>
#include <vector>

#include "apps/espalier/bench_comm.h"
#include "apps/espalier/bench_library.h"
#include "esp/launch/environment.h"

namespace esp::app {

class JoinedRanks final : public BenchRanks {
 public:
  // Joins the world. UsageError, CommError.
  JoinedRanks(const launch::Environment& environment, const CommBench& bench);

  int rank() const { return comm_->rank(); }
  int num_ranks() const override { return comm_->size(); }
  const bench::Words& hello(int rank) const override { return hellos_[static_cast<size_t>(rank)]; }
  Answer ask(const bench::Request& request, Deadline deadline) override;

 private:
  std::vector<Reply> all(const std::string& mine);

  std::unique_ptr<net::World> world_;  // outlives the communicator
  std::unique_ptr<comm::Communicator> comm_;
  std::unique_ptr<OurLibrary> library_;
  std::vector<bench::Words> hellos_;
};

}  // namespace esp::app
