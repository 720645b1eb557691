// The launcher of a job on the virtual network. It does what launch/agent.cpp and launch/local.cpp do with real
// processes, and owns the hubs. Product code makes all decisions: InPlaceRestart and the functions for round results.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "esp/launch/agent.h"
#include "esp/launch/in_place_restart.h"
#include "tests/faults/simulation/virtual_hub.h"
#include "tests/faults/simulation/virtual_rank.h"

namespace esp::sim {

class VirtualLauncher final : public launch::RankProcesses {
 public:
  VirtualLauncher(SimulatedJob& shared, int max_restarts);
  ~VirtualLauncher() override;

  const ProcessPtr& process() const { return process_; }
  VirtualRank* rank(int index) const { return ranks_[static_cast<size_t>(index)].rank; }
  bool running(int index) const { return ranks_[static_cast<size_t>(index)].running; }
  // How the job ended; empty while it runs.
  const std::optional<launch::NextAction>& end() const { return end_; }
  bool may_give_up() const { return num_restarts_ >= max_restarts_ || not_restartable_; }
  int num_restarts() const { return num_restarts_; }
  int num_in_place_restarts() const { return num_in_place_restarts_; }
  uint64_t num_starts() const { return start_; }  // number of times that all ranks were started

  bool any_finished() const override { return done_; }
  void send(int rank, const std::string& text) override;
  void kill(int rank) override;
  bool respawn(int rank, const launch::Environment& changed) override;
  void clear_failures() override { failure_.reset(); }

 private:
  struct RankSlot {
    VirtualRank* rank = nullptr;
    bool running = false;
    // time of the last message in each direction of the control channel, so that messages stay in order
    Time outbound_until = 0, inbound_until = 0;
  };
  struct OpenHub {
    std::unique_ptr<VirtualHub> hub;
    int port = 0;
  };

  void start_round();
  OpenHub open(int round);
  void close(OpenHub& opened);
  void spawn(int rank, int round, const std::string& job, int port);
  void on_message(int rank, const VirtualRank* instance, const std::string& text);
  void ended(int rank, const VirtualRank* instance, int code);
  void check_failures();
  void schedule_check();
  void handle_failures();
  void end_all(bool at_once);
  void after_all();

  SimulatedJob& shared_;
  Simulation& simulation_;
  const int max_restarts_;
  const ProcessPtr process_;
  std::vector<std::unique_ptr<VirtualRank>> all_ranks_;  // also keeps ranks that have ended
  std::vector<RankSlot> ranks_;
  OpenHub hub_, next_;
  std::unique_ptr<launch::InPlaceRestart> restart_;
  std::vector<std::pair<int, std::string>> messages_;
  std::vector<launch::Failure> failures_;
  std::optional<launch::Failure> failure_;
  std::optional<launch::NextAction> end_;
  bool done_ = false, given_up_ = false, stopping_ = false, not_restartable_ = false;
  int round_ = 0, num_restarts_ = 0, num_in_place_restarts_ = 0, num_hubs_ = 0;
  uint64_t start_ = 0;  // number of the current start; events of earlier starts are ignored
};

}  // namespace esp::sim
