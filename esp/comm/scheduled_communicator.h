// ScheduledCommunicator: runs schedules on a transport, and uses the fused path when one host holds all members.
//
// Calls run on the caller's thread, or in order on one worker thread after a `start`. The transport, plans and counters
// belong to the thread whose turn it is (Worker::idle hands them over). Collectives are numbered; sends and receives
// are numbered per peer, since the other ranks do not see them. Signals go through the store: they are small and
// one-sided and must not queue behind messages.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "esp/comm/call_positions.h"
#include "esp/comm/communicator.h"
#include "esp/comm/executor.h"
#include "esp/comm/fused/fused_collectives.h"
#include "esp/comm/plan_cache.h"
#include "esp/comm/preferences.h"
#include "esp/comm/selector.h"
#include "esp/comm/worker.h"
#include "esp/obs/flight_recorder.h"

namespace esp::comm {

class ScheduledCommunicator final : public Communicator {
 public:
  // Collective over the group. `tiers`: the link model, if already measured.
  ScheduledCommunicator(const net::World& world, const net::Group& group, const CommOptions& options,
                        const Tiers& tiers = {});
  ~ScheduledCommunicator() override;

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size(); }
  void run(const Call& call) override;
  Work start(const Call& call) override;
  Work start_group(std::span<const Call> calls) override;
  std::unique_ptr<Communicator> split(int colour, int key) override;
  std::shared_ptr<void> allocate(size_t bytes) override;
  std::unique_ptr<net::Transport> open_transport() override;
  void abort(const std::string& why) override;
  std::string explain(const Call& call) const override;
  std::vector<CallStats> stats() const override;

  const net::Group& group() const { return group_; }
  // Null when this rank is alone.
  const net::Transport* transport() const { return transport_.get(); }

 private:
  struct CallCounter {
    Op op;
    int algorithm;
    uint64_t calls = 0, bytes_sent = 0, bytes_received = 0, messages = 0, rounds = 0;
    int64_t ns = 0;
  };
  // A started call with copies of everything the caller may release.
  struct Started;
  // The last checked call and the outcome. Programs repeat calls, and a small call takes less than a microsecond.
  struct Checked {
    Call call;
    int algorithm = 0;
    bool fused = false;
    bool repeatable = false;
    net::Tag tag;  // fused: but for its number
    bool repeated_by(const Call& other) const {
      return repeatable && call.op == other.op && call.in == other.in && call.out == other.out &&
             call.count == other.count && call.dtype == other.dtype && call.reduce == other.reduce &&
             call.root == other.root && other.algorithm == "auto";
    }
  };

  // Runs one call: checks for failed peers, then runs `body`. Any failure ends this communicator.
  template <typename Body>
  void guarded(const Call& call, const Body& body) {
    if (dead_) throw *dead_;
    try {
      check_peers(call);
      began_ = Clock::now();
      deadline_ = Deadline::at(began_ + timeout_of(call));
      body();
      note_end(obs::FlightState::ended);
    } catch (const CommError& cause) {
      fail(cause);
    } catch (const UsageError&) {
      positions_.mine().leave();
      throw;
    } catch (const std::exception& error) {
      fail_locally(error);
      throw;
    }
  }
  void execute(const Call& call);
  void check_new_shape(const Call& call);
  void execute_group(std::span<const Call> calls);

  void run_alone(const Call& call);
  void run_fused(const Call& call);
  int64_t ns_since_begin() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - began_).count();
  }
  void run_plan(const Call& call, int algorithm);
  void run_irregular(const Call& call);
  void run_points(std::span<const Call> calls);
  void run_signal(const Call& call);
  void run_wait(const Call& call);

  void check_call(const Call& call) const;
  void check_applies(const Call& call) const;  // may allocate; only for a new call shape
  int algorithm_for(const Call& call) const;
  const ScheduleFile* file_for(int algorithm) const;  // null for the table's
  Schedule schedule_for(int algorithm, const CollectiveSpec& spec) const;
  bool goes_fused(const Call& call, int algorithm) const;
  CollectiveSpec spec_of(const Call& call) const;
  PlanEntry& entry_for(const Call& call, int algorithm);
  void learn_tiers(const Call& call);
  CallCounter& counter(Op op, int algorithm);
  void count_traffic(CallCounter& counter, const net::Traffic& before) const;
  void settle_worker() const;

  // Numbers and tags a collective, and publishes this rank's call position. `retag` after the algorithm is chosen.
  void enter(const Call& call, int algorithm);
  void retag(const Call& call, int algorithm);
  void publish_position(const Call& call, uint64_t number);
  void note(const Call& call, uint64_t number, int algorithm);  // for the flight recorder
  void note_end(obs::FlightState state) {
    positions_.mine().leave();
    event_.state = state;
    flight_->record(event_);
  }

  // scheduled_faults.cpp
  void check_positions();
  void check_peers(const Call& starting);
  void settle(Executor::RunStatus outcome, const Call& call);
  [[noreturn]] void expire(const Call& call, int waits_for);
  [[noreturn]] void fail(const CommError& cause);
  void fail_locally(const std::exception& error);
  void abort_all(const CommError& cause);
  Duration timeout_of(const Call& call) const;
  std::string signal_key(int from, int to, uint64_t number) const;

  const net::World& world_;
  const net::Group group_;
  const CommOptions options_;
  const Preferences preferences_;
  const RankGrid shape_;
  const Duration timeout_;
  std::vector<uint32_t> schedule_ids_;  // of options_.schedules
  std::shared_ptr<obs::FlightRecorder> flight_;
  obs::FlightEvent event_;  // of the call under way
  Tiers tiers_;

  uint64_t sequence_ = 0;                                       // collectives entered
  std::vector<uint64_t> sent_, received_, signalled_, waited_;  // by peer
  uint64_t num_splits_ = 0;
  uint32_t epoch_ = 0;  // of Fate, when last found well
  std::optional<CommError> dead_;
  Checked checked_;
  Clock::time_point began_;           // the call under way
  std::optional<Deadline> deadline_;  // of the call under way
  net::Tag tag_;                      // of the collective under way

  std::vector<CallCounter> counters_;
  std::array<int, kNumOps> fused_counter_;  // index, or -1

  PlanCache plans_;
  std::vector<Executor::PeerMessage> messages_;
  CallPositions positions_;
  std::unique_ptr<net::Transport> transport_;  // null when alone; destroyed before the memory it borrows
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<FusedCollectives> fused_;  // null unless one host holds all members
  mutable Worker worker_;                    // last: ends first
};

}  // namespace esp::comm
