// The launcher of a job on the virtual network: what launch/agent.cpp and launch/local.cpp do with processes, with the
// product's Reform and its verdicts on rounds deciding. It keeps the hubs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "esp/launch/agent.h"
#include "esp/launch/reform.h"
#include "tests/faults/simulation/virtual_hub.h"
#include "tests/faults/simulation/virtual_rank.h"

namespace esp::sim {

class VirtualLauncher final : public launch::Ranks {
 public:
  VirtualLauncher(Place& place, int max_restarts);
  ~VirtualLauncher() override;

  const ProcessPtr& process() const { return process_; }
  VirtualRank* rank(int index) const { return ranks_[static_cast<size_t>(index)].rank; }
  bool running(int index) const { return ranks_[static_cast<size_t>(index)].running; }
  // How the job ended, once it has.
  const std::optional<launch::Then>& end() const { return end_; }
  bool may_give_up() const { return num_restarts_ >= max_restarts_ || unworthy_; }
  int num_restarts() const { return num_restarts_; }
  int num_reforms() const { return num_reforms_; }
  uint64_t num_starts() const { return start_; }  // of all ranks

  bool any_done() const override { return done_; }
  void say(int rank, const std::string& text) override;
  void kill(int rank) override;
  bool respawn(int rank, const launch::Environment& changed) override;
  void forgive() override { failure_.reset(); }

 private:
  struct Held {
    VirtualRank* rank = nullptr;
    bool running = false;
    Time said_until = 0, told_until = 0;  // the line keeps its order, both ways
  };
  struct Opened {
    std::unique_ptr<VirtualHub> hub;
    int port = 0;
  };

  void start_round();
  Opened open(int round);
  void close(Opened& opened);
  void spawn(int rank, int round, const std::string& job, int port);
  void heard(int rank, const VirtualRank* who, const std::string& text);
  void ended(int rank, const VirtualRank* who, int code);
  void look();
  void look_soon();
  void mend();
  void end_all(bool at_once);
  void after_all();

  Place& place_;
  Simulation& simulation_;
  const int max_restarts_;
  const ProcessPtr process_;
  std::vector<std::unique_ptr<VirtualRank>> made_;  // all there ever were
  std::vector<Held> ranks_;
  Opened hub_, next_;
  std::unique_ptr<launch::Reform> reform_;
  std::vector<std::pair<int, std::string>> words_;
  std::vector<launch::Failure> failures_;
  std::optional<launch::Failure> failure_;
  std::optional<launch::Then> end_;
  bool done_ = false, given_up_ = false, stopping_ = false, unworthy_ = false;
  int round_ = 0, num_restarts_ = 0, num_reforms_ = 0, num_hubs_ = 0;
  uint64_t start_ = 0;  // of all ranks: what belongs to an earlier one is void
};

}  // namespace esp::sim
