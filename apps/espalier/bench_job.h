// Coordinator of a benchmark. Each library has one job. All jobs are started first; then they are measured one at a
// time.
//
// A RankListener is a socket in Linux's abstract namespace to which ranks connect. It rejects connections of other
// users. A BenchJob owns the connections to N ranks (protocol: bench/peers/serve.h). Idle ranks block in read(). One
// thread drives all jobs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/peers/serve.h"
#include "esp/base/clock.h"
#include "esp/launch/local.h"
#include "esp/net/socket.h"

namespace esp::app {

class RankListener {
 public:
  RankListener();
  const std::string& name() const { return name_; }

  struct RankConnection {
    net::Socket socket;
    std::unique_ptr<bench::LineChannel> channel;
    bench::Words registration;  // the first message of the rank
  };
  // Waits for the next rank that connects. Throws CommError at the deadline.
  RankConnection accept(Deadline deadline);

 private:
  std::string name_;
  net::Socket listener_;
};

struct BenchResult {
  bool ran = false;
  std::string refusal;              // reason why the library does not support the operation; set if `ran` is false
  std::vector<double> sample_us;    // per sample: time per call of the slowest rank
  uint64_t wrong = 0;               // wrong elements, summed over all ranks
  std::vector<bench::Words> words;  // last reply of each rank, indexed by rank
};

// The reply of a rank: "done", "no" or "failed".
struct Reply {
  std::string verb;
  bench::Words words;
};
// Merges the replies of all ranks, by rank. CommError: a rank failed.
BenchResult merge_replies(const std::string& label, const bench::Request& request, std::vector<Reply> replies);

// Interface: the ranks of one library, which execute benchmark requests.
class BenchRanks {
 public:
  virtual ~BenchRanks() = default;
  virtual int num_ranks() const = 0;
  // The rank's first message: its pid, and its host if a launcher started it.
  virtual const bench::Words& registration(int rank) const = 0;
  // Throws CommError when a rank failed, ended or did not answer before the deadline.
  virtual BenchResult execute(const bench::Request& request, Deadline deadline) = 0;
};

class BenchJob final : public BenchRanks {
 public:
  // Waits until all ranks of `label` have connected. `job` holds either the rank processes, or one mpirun process that
  // starts them.
  BenchJob(std::string label, int num_ranks, std::unique_ptr<launch::LocalJob> job, RankListener& listener,
           Deadline deadline);
  ~BenchJob() override;

  const std::string& label() const { return label_; }
  int num_ranks() const override { return static_cast<int>(ranks_.size()); }
  const bench::Words& registration(int rank) const override { return ranks_[static_cast<size_t>(rank)].registration; }
  launch::LocalJob& processes() { return *job_; }

  // Sends one line to every rank and reads one reply from each, by rank. Throws CommError when one ended or did not
  // answer before the deadline.
  std::vector<Reply> exchange(const std::string& line, Deadline deadline);
  BenchResult execute(const bench::Request& request, Deadline deadline) override;

 private:
  [[noreturn]] void fail_rank(int rank, const std::string& how);

  std::string label_;
  std::unique_ptr<launch::LocalJob> job_;
  std::vector<RankListener::RankConnection> ranks_;  // indexed by rank
};

// Parses "120,130".
std::vector<double> parse_times(const std::string& text);

// Path of this executable.
std::string executable_path();

}  // namespace esp::app
