// LocalJob: the ranks of a job that run on this machine. They start and end together. In a job with several hosts, each
// host has one LocalJob.
//
// Each rank gets its identity in RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT, and the job
// secret through a pipe. Its stdin is /dev/null. When the thread that constructed the job ends, for any reason, a
// parent-death signal kills the rank. The first rank failure is reported together with the end of the rank's stderr.
// Then the other ranks are ended. With keep_survivors they keep running instead, and the owner may start a replacement.
//
// A thread of the job forwards the ranks' output and reaps them. All functions are thread-safe except `respawn`: only
// the constructing thread may call it, and that thread must outlive the job.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "esp/base/clock.h"
#include "esp/launch/environment.h"
#include "esp/launch/rank_processes.h"
#include "esp/net/world.h"

namespace esp::launch {

struct LocalOptions {
  int num_ranks = 1;  // number of ranks on this machine
  // The first rank here has the number `first_rank` in a job of `world` ranks. world = 0: the job has only the ranks
  // here.
  int first_rank = 0, world = 0;
  std::vector<std::string> command;  // program path and arguments
  Environment environment;           // added to the inherited environment
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  net::Secret secret;
  // after a rank failure: time between SIGTERM and SIGKILL for the other ranks
  Duration grace = std::chrono::seconds(2);
  // After a rank ended because it lost a peer: how long to wait for a better root cause. Often the launcher sees only
  // later that the peer itself has ended.
  Duration cause_window = std::chrono::milliseconds(200);
  // forward: stdout and stderr of all ranks go to the launcher's stdout and stderr, line by line with the rank number.
  // stderr_tail: neither is forwarded. In both cases the end of stderr is kept for error messages.
  enum class Output { forward, stderr_tail } output = Output::forward;
  // The rank with plain output: its stderr is forwarded as it arrives, without prefix and line buffering. -1: none.
  int plain_rank = -1;
  // The stdout of plain_rank is forwarded in the same way: it has the step lines or the live progress line.
  bool plain_stdout = false;
  bool keep_survivors = false;  // ranks get a control channel (control.h) and keep running when one of them fails
};

struct Failure {
  int rank = 0;
  int exit_code = 1;             // exit code of the rank; 128 + n if signal n killed it
  std::string reason;            // for example «killed (SIGKILL)» or «exited with code 3»
  std::string stderr_tail;       // the end of its stderr
  bool already_printed = false;  // stderr_tail was already forwarded to the launcher's stderr
};
// «rank 3 killed (SIGKILL); its stderr ends with: …». Without the stderr part if it has already been printed.
std::string describe(const Failure& failure);

class LocalJob final : public RankProcesses {
 public:
  explicit LocalJob(const LocalOptions& options);
  ~LocalJob() override;  // kills ranks that are still running
  LocalJob(const LocalJob&) = delete;
  LocalJob& operator=(const LocalJob&) = delete;

  int num_ranks() const;
  int pid(int rank) const;
  // Waits until all ranks have ended and are reaped. Returns false if the deadline passes first.
  bool wait(Deadline deadline);
  std::optional<Failure> failure() const;
  bool wants_requeue() const;  // true if a rank stopped early with a checkpoint (exit code 75)
  void signal(int number);     // sends the signal to all running ranks; the ranks handle it
  // Sends SIGTERM to all ranks, and SIGKILL after `grace` to those still running.
  void terminate();
  void kill();  // sends SIGKILL to all ranks

  // The next functions are for keep_survivors; their `rank` counts from 0 on this host. wait_event returns true when
  // there are messages or failures or all ranks have ended, and false when the deadline passes first.
  bool wait_event(Deadline deadline);
  bool ended() const;
  bool any_finished() const override;
  std::vector<Failure> take_failures();                      // failures since the last call
  std::vector<std::pair<int, std::string>> take_messages();  // messages since the last call, as pairs of rank and text
  void send(int rank, const std::string& text) override;
  void kill(int rank) override;
  bool respawn(int rank, const Environment& changed) override;
  void clear_failures() override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Name of a signal number, for example "SIGKILL" for 9.
std::string signal_name(int signal);

}  // namespace esp::launch
