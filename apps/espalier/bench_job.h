// Coordinator of a benchmark: jobs of one library each, started together, driven one at a time.
//
// A Switchboard is a socket in Linux's abstract namespace to which ranks connect; connections of other users are
// rejected. A BenchJob is N ranks behind it (protocol: bench/peers/serve.h). Idle ranks sleep in read(). One thread
// drives everything.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/peers/serve.h"
#include "esp/base/clock.h"
#include "esp/launch/local.h"
#include "esp/net/socket.h"

namespace esp::app {

class Switchboard {
 public:
  Switchboard();
  const std::string& name() const { return name_; }

  struct Caller {
    net::Socket socket;
    std::unique_ptr<bench::LineChannel> channel;
    bench::Words hello;
  };
  // The next rank that connects. Throws CommError at the deadline.
  Caller accept(Deadline deadline);

 private:
  std::string name_;
  net::Socket listener_;
};

struct Answer {
  bool ran = false;
  std::string why;                  // set when it did not run: this library does not support the operation
  std::vector<double> sample_us;    // per call, the slowest rank of each sample
  uint64_t wrong = 0;               // over all ranks
  std::vector<bench::Words> words;  // by rank
};

// The reply of a rank: "done", "no" or "failed".
struct Reply {
  std::string verb;
  bench::Words words;
};
// The replies of all ranks, by rank, merged. CommError: one failed.
Answer answer_of(const std::string& label, const bench::Request& request, std::vector<Reply> replies);

// Ranks of one library that execute requests.
class BenchRanks {
 public:
  virtual ~BenchRanks() = default;
  virtual int num_ranks() const = 0;
  virtual const bench::Words& hello(int rank) const = 0;  // pid, and host if it is another one
  // Throws CommError when a rank failed, ended or did not answer before the deadline.
  virtual Answer ask(const bench::Request& request, Deadline deadline) = 0;
};

class BenchJob final : public BenchRanks {
 public:
  // Waits until all ranks of `label` have connected. `job` is one process that represents all (mpirun), or the ranks.
  BenchJob(std::string label, int num_ranks, std::unique_ptr<launch::LocalJob> job, Switchboard& board,
           Deadline deadline);
  ~BenchJob() override;

  const std::string& label() const { return label_; }
  int num_ranks() const override { return static_cast<int>(callers_.size()); }
  const bench::Words& hello(int rank) const override { return callers_[static_cast<size_t>(rank)].hello; }
  launch::LocalJob& processes() { return *job_; }

  // Sends one line to every rank and reads one reply from each, by rank. Throws CommError when one ended or did not
  // answer before the deadline.
  std::vector<Reply> exchange(const std::string& line, Deadline deadline);
  Answer ask(const bench::Request& request, Deadline deadline) override;

 private:
  [[noreturn]] void lost(int rank, const std::string& how);

  std::string label_;
  std::unique_ptr<launch::LocalJob> job_;
  std::vector<Switchboard::Caller> callers_;  // by rank
};

// Parses "120,130".
std::vector<double> parse_times(const std::string& text);

// Path of this executable.
std::string own_path();

}  // namespace esp::app
