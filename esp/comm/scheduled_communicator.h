// ScheduledCommunicator: runs schedules on a transport, and uses the fused path when one host holds all members.
//
// Calls run on the caller's thread; after a `start` they run in order on one worker thread. The transport, plans and
// counters belong to the thread that runs the current call (ownership changes only while Worker::idle is true).
// Collectives have one sequence number per group. Sends and receives have one per peer, because the other ranks do not
// see them. Signals go through the store: they are small and one-sided, and must not queue behind messages.
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
  // Collective over the group. `tiers`: the link model, if it has been measured.
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
  // Null in a group of one.
  const net::Transport* transport() const { return transport_.get(); }

 private:
  struct CallCounter {
    Op op;
    int algorithm;
    uint64_t calls = 0, bytes_sent = 0, bytes_received = 0, messages = 0, rounds = 0;
    int64_t ns = 0;
  };
  // A started call, with copies of all spans and names that the caller may release.
  struct StartedCall;
  // The last call that passed the checks, and the results of the checks. Programs repeat calls, and a small call takes
  // less than a microsecond, so repeated calls skip the checks.
  struct CachedCall {
    Call call;
    int algorithm = 0;
    bool fused = false;
    bool repeatable = false;
    net::Tag tag;  // tag of a fused call without its sequence number
    bool matches(const Call& other) const {
      return repeatable && call.op == other.op && call.in == other.in && call.out == other.out &&
             call.count == other.count && call.dtype == other.dtype && call.reduce == other.reduce &&
             call.root == other.root && other.algorithm == "auto";
    }
  };

  // Runs one call: checks for failed peers, then runs `body`. Any failure makes this communicator unusable.
  template <typename Body>
  void run_guarded(const Call& call, const Body& body) {
    if (dead_) throw *dead_;
    try {
      check_peers(call);
      began_ = Clock::now();
      deadline_ = Deadline::at(began_ + timeout_of(call));
      body();
      record_end(obs::FlightState::ended);
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

  void run_single_rank(const Call& call);
  void run_fused(const Call& call);
  int64_t ns_since_begin() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - began_).count();
  }
  void run_plan(const Call& call, int algorithm);
  void run_all_to_all_v(const Call& call);
  void run_point_to_point(std::span<const Call> calls);
  void run_signal(const Call& call);
  void run_wait(const Call& call);

  void check_call(const Call& call) const;
  void check_applies(const Call& call) const;  // may allocate memory, so it runs only for a new call shape
  int algorithm_for(const Call& call) const;
  const ScheduleFile* file_for(int algorithm) const;  // null for a built-in algorithm
  Schedule schedule_for(int algorithm, const CollectiveSpec& spec) const;
  bool uses_fused(const Call& call, int algorithm) const;
  CollectiveSpec spec_of(const Call& call) const;
  PlanEntry& entry_for(const Call& call, int algorithm);
  void measure_link_tiers(const Call& call);
  CallCounter& counter(Op op, int algorithm);
  void count_traffic(CallCounter& counter, const net::Traffic& before) const;
  void wait_for_worker() const;

  // Assigns the sequence number of a collective, then calls `update_tag`. `update_tag` sets the tag and publishes this
  // rank's call position; it is called again if the algorithm is chosen later.
  void begin_collective(const Call& call, int algorithm);
  void update_tag(const Call& call, int algorithm);
  void publish_position(const Call& call, uint64_t number);
  void record_begin(const Call& call, uint64_t number, int algorithm);  // records the call in the flight recorder
  void record_end(obs::FlightState state) {
    positions_.mine().leave();
    event_.state = state;
    flight_->record(event_);
  }

  // Defined in scheduled_faults.cpp:
  void check_positions();
  void check_peers(const Call& starting);
  void check_run_status(Executor::RunStatus outcome, const Call& call);
  [[noreturn]] void throw_timeout(const Call& call, int missing_peer);
  [[noreturn]] void fail(const CommError& cause);
  void fail_locally(const std::exception& error);
  void abort_group(const CommError& cause);
  Duration timeout_of(const Call& call) const;
  std::string signal_key(int from, int to, uint64_t number) const;

  const net::World& world_;
  const net::Group group_;
  const CommOptions options_;
  const Preferences preferences_;
  const RankGrid shape_;
  const Duration timeout_;
  std::vector<uint32_t> schedule_ids_;  // ids of options_.schedules, in the same order
  std::shared_ptr<obs::FlightRecorder> flight_;
  obs::FlightEvent event_;  // flight-recorder event of the current call
  Tiers tiers_;

  uint64_t sequence_ = 0;                                       // number of collectives entered
  std::vector<uint64_t> sent_, received_, signalled_, waited_;  // message and signal counters, indexed by peer
  uint64_t num_splits_ = 0;
  uint32_t epoch_ = 0;  // PeerStatus epoch at the last successful check
  std::optional<CommError> dead_;
  CachedCall cached_call_;
  Clock::time_point began_;           // start of the current call
  std::optional<Deadline> deadline_;  // deadline of the current call
  net::Tag tag_;                      // tag of the current collective

  std::vector<CallCounter> counters_;
  // indexed by op: index into counters_ of the fused path's counter; -1: none yet
  std::array<int, kNumOps> fused_counter_;

  PlanCache plans_;
  std::vector<Executor::PeerMessage> messages_;
  CallPositions positions_;
  std::unique_ptr<net::Transport> transport_;  // null in a group of one; destroyed before the memory that it uses
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<FusedCollectives> fused_;  // null unless one host holds all members
  mutable Worker worker_;  // declared last, so that the thread ends before other members are destroyed
};

}  // namespace esp::comm
