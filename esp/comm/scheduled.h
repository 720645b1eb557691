// The communicator that runs schedules over a transport, and the fused path where one host holds all members.
//
// Calls run on the caller's thread, or in order on one worker thread once something was started; the transport, the
// plans and the counters belong to whichever of the two has its turn (Worker::idle hands over). Collectives are
// numbered; sends and receives are numbered per peer, since the others do not see them. Signals travel through the
// store: they are small, one-sided, and must not stand in line with messages.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "esp/comm/communicator.h"
#include "esp/comm/executor.h"
#include "esp/comm/fused/fused.h"
#include "esp/comm/plan_cache.h"
#include "esp/comm/preferences.h"
#include "esp/comm/selector.h"
#include "esp/comm/standings.h"
#include "esp/comm/worker.h"
#include "esp/obs/flight_recorder.h"

namespace esp::comm {

class Scheduled final : public Communicator {
 public:
  // Collective over the group. `tiers`: what is known of the links already.
  Scheduled(const net::World& world, const net::Group& group, const CommOptions& options, const Tiers& tiers = {});
  ~Scheduled() override;

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
  struct Counter {
    Op op;
    int algorithm;
    uint64_t calls = 0, bytes_sent = 0, bytes_received = 0, messages = 0, rounds = 0;
    int64_t ns = 0;
  };
  // A started call with its own copy of what the caller may let go.
  struct Started;
  // The call last checked, and what came of it: programs repeat themselves, and a small call takes less than a
  // microsecond.
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

  // One call on the thread whose turn it is: finds out whether we are alive, then runs `body`, turning what goes wrong
  // into this communicator's end.
  template <typename Body>
  void guarded(const Call& call, const Body& body) {
    if (dead_) throw *dead_;
    try {
      check_fate(call);
      began_ = Clock::now();
      deadline_ = Deadline::at(began_ + timeout_of(call));
      body();
      note_end(obs::FlightState::ended);
    } catch (const CommError& cause) {
      die(cause);
    } catch (const UsageError&) {
      standings_.mine().leave();
      throw;
    } catch (const std::exception& error) {
      fail_here(error);
      throw;
    }
  }
  void execute(const Call& call);
  void check_anew(const Call& call);
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
  void check_applies(const Call& call) const;  // may allocate: asked when a shape is new
  int algorithm_for(const Call& call) const;
  const ScheduleFile* file_for(int algorithm) const;  // null for the table's
  Schedule schedule_for(int algorithm, const Problem& problem) const;
  bool goes_fused(const Call& call, int algorithm) const;
  Problem problem_of(const Call& call) const;
  PlanEntry& entry_for(const Call& call, int algorithm);
  void learn_tiers(const Call& call);
  Counter& counter(Op op, int algorithm);
  void count_traffic(Counter& counter, const net::Traffic& before) const;
  void settle_worker() const;

  // A collective gets its number and tag, and this rank says where it stands; `retag` once more is known.
  void enter(const Call& call, int algorithm);
  void retag(const Call& call, int algorithm);
  void stand_at(const Call& call, uint64_t number);
  void note(const Call& call, uint64_t number, int algorithm);  // for the flight recorder
  void note_end(obs::FlightState state) {
    standings_.mine().leave();
    event_.state = state;
    flight_->record(event_);
  }

  // scheduled_faults.cpp
  void look_around();
  void check_fate(const Call& starting);
  void settle(Executor::Outcome outcome, const Call& call);
  [[noreturn]] void expire(const Call& call, int waits_for);
  [[noreturn]] void die(const CommError& cause);
  void fail_here(const std::exception& error);
  void tell_everyone(const CommError& cause);
  Duration timeout_of(const Call& call) const;
  std::string signal_key(int from, int to, uint64_t number) const;

  const net::World& world_;
  const net::Group group_;
  const CommOptions options_;
  const Preferences preferences_;
  const Shape shape_;
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

  std::vector<Counter> counters_;
  std::array<int, kNumOps> fused_counter_;  // index, or -1

  PlanCache plans_;
  std::vector<Executor::Message> messages_;
  Standings standings_;
  std::unique_ptr<net::Transport> transport_;  // null when alone; destroyed before the memory it was lent
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Fused> fused_;  // null unless one host holds all members
  mutable Worker worker_;         // last: ends first
};

}  // namespace esp::comm
