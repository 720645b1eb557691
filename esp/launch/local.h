// LocalJob: N ranks of one program on this machine, started together and ended together; all of a job, or one host's.
//
// Each rank is told who it is through RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT, gets the job
// secret through a pipe, reads nothing from our stdin, and dies when the thread that made the job dies, however that
// happens (parent-death signal). The first rank to fail is reported with its last words; the rest are then ended, or,
// when they are to outlast it, left to the owner, who hears of it and may start another in its place. A thread owned by
// the job forwards the ranks' output and reaps them. Any thread may call, but for `respawn`, which is for the one that
// constructs the job and must live as long as it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "esp/base/clock.h"
#include "esp/launch/environment.h"
#include "esp/launch/ranks.h"
#include "esp/net/world.h"

namespace esp::launch {

struct LocalOptions {
  int num_ranks = 1;                 // on this machine
  int first_rank = 0, world = 0;     // number of the first of them in a job of `world`; 0: they are all
  std::vector<std::string> command;  // program path and arguments
  Environment environment;           // on top of what is inherited
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  net::Secret secret;
  Duration grace = std::chrono::seconds(2);  // between SIGTERM and SIGKILL once one rank has failed
  // A rank that saw its peer vanish often ends before we see the peer's own end: wait this long for a better cause.
  Duration cause_window = std::chrono::milliseconds(200);
  // Whether ranks get the terminal's stdout and stderr through us, line by line with their rank, or their stdout is
  // dropped (stderr is kept for last words either way).
  enum class Output { forward, last_words } output = Output::forward;
  // This rank's stderr is forwarded as it comes, without prefix and without waiting for line ends. -1: none.
  int plain_rank = -1;
  bool plain_stdout = false;  // its stdout too: it writes the step lines, or draws the live line on the terminal
  bool outlast = false;       // ranks get a line to us (control.h), and one's end is not that of the others
};

struct Failure {
  int rank = 0;
  int exit_code = 1;       // 128+n for signal n
  std::string how;         // «killed (SIGKILL)», «exited with code 3»
  std::string last_words;  // the end of its stderr
  bool shown = false;      // that came to our own screen as it was said
};
// «rank 3 killed (SIGKILL); its last words: …», which are left out where they were shown.
std::string describe(const Failure& failure);

class LocalJob final : public Ranks {
 public:
  explicit LocalJob(const LocalOptions& options);
  ~LocalJob() override;  // ends what still lives
  LocalJob(const LocalJob&) = delete;
  LocalJob& operator=(const LocalJob&) = delete;

  int num_ranks() const;
  int pid(int rank) const;
  // True once every rank has ended and been reaped, false at the deadline.
  bool wait(Deadline deadline);
  std::optional<Failure> failure() const;
  bool wants_requeue() const;  // a rank stopped in good order before its work was done (exit code 75)
  void signal(int number);     // to every rank that still lives; what they make of it is theirs
  // SIGTERM to all, SIGKILL after the grace.
  void terminate();
  void kill();  // SIGKILL to all, at once

  // Where ranks outlast each other; `rank` counts from 0 on this host.
  // True when there is news or all have ended, false at the deadline.
  bool wait_news(Deadline deadline);
  bool ended() const;
  bool any_done() const override;
  std::vector<Failure> take_failures();                   // since asked last
  std::vector<std::pair<int, std::string>> take_words();  // what ranks said: rank, text
  void say(int rank, const std::string& text) override;
  void kill(int rank) override;
  bool respawn(int rank, const Environment& changed) override;
  void forgive() override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// "SIGKILL" for 9.
std::string signal_name(int signal);

}  // namespace esp::launch
