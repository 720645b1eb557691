// Communicator: collectives among the members of a group. Implementations: ScheduledCommunicator (any algorithm on any
// transport, and the fused shared-memory path when one host holds all members), NCCL (CUDA builds), and a fake that
// moves no data and counts traffic.
//
// Every member makes the same calls in the same order. `run` blocks and works on the caller's thread. `start` returns
// at once; the communicator's worker thread runs started calls in order, so several calls may be in flight. Buffers
// must stay valid until the call is done. Only one thread at a time may use a communicator; different communicators are
// independent. Errors: UsageError for an invalid call (no data was sent), CommError for a failure of a peer. After a
// CommError the communicator is unusable and every later call throws the same error.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/work.h"
#include "esp/comm/call.h"
#include "esp/net/transport.h"

namespace esp::obs {
class FlightRecorder;  // obs/flight_recorder.h
}

namespace esp::comm {

struct ScheduleFile;  // comm/schedule_file.h

struct CommOptions {
  std::string transport = "auto";
  std::string algorithms;  // "all_reduce=ring,broadcast=tree"; empty: `auto` for every op
  // user schedules, selected by name like the built-in algorithms
  std::vector<std::shared_ptr<const ScheduleFile>> schedules;
  std::vector<int> shape;  // grid for torus and hierarchical, fastest axis first; empty: ranks per host × hosts
  Duration timeout = Duration::zero();  // zero: use the timeout of the world
  // Longer messages are cut into slices of this many bytes, so that transfer and reduction overlap. 0: messages are not
  // cut.
  size_t slice_bytes = size_t{256} << 10;
  std::shared_ptr<obs::FlightRecorder> flight;  // records every call; null: a private in-memory recorder
};

// Counters per op and algorithm since the communicator was created.
struct CallStats {
  Op op;
  std::string algorithm, transport;
  uint64_t calls = 0, bytes_sent = 0, bytes_received = 0, messages = 0, rounds = 0;
  double ms = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual void run(const Call& call) = 0;
  virtual Work start(const Call& call) = 0;
  // Starts a set of calls that run together: sends and receives of the set cannot block each other.
  virtual Work start_group(std::span<const Call> calls) = 0;
  // Collective. Members with the same colour form a group, ordered by key, then rank; colour < 0 returns null.
  virtual std::unique_ptr<Communicator> split(int colour, int key) = 0;
  // Collective. Allocates memory. If all members are on one host, every member maps it, so collectives on it need no
  // staging copy.
  virtual std::shared_ptr<void> allocate(size_t bytes) = 0;
  // Collective. Opens a separate transport among the same members, for point-to-point protocols. Null for one member
  // and for the fake communicator.
  virtual std::unique_ptr<net::Transport> open_transport() = 0;
  virtual void abort(const std::string& why) = 0;
  // Returns the algorithm that `auto` would choose for this call, and the reason, as text.
  virtual std::string explain(const Call& call) const = 0;
  virtual std::vector<CallStats> stats() const = 0;

  // Blocking calls by name. Counts of reduce_scatter, all_gather, gather, scatter and all_to_all are per rank, as in
  // NCCL. Call uses total counts, which need not be divisible by the number of ranks.
  void broadcast(void* data, size_t count, DType dtype, int root);
  void reduce(const void* in, void* out, size_t count, DType dtype, ReduceOp op, int root);
  void all_reduce(const void* in, void* out, size_t count, DType dtype, ReduceOp op);
  void reduce_scatter(const void* in, void* out, size_t recv_count, DType dtype, ReduceOp op);
  void all_gather(const void* in, void* out, size_t send_count, DType dtype);
  void all_to_all(const void* in, void* out, size_t count_per_peer, DType dtype);
  void gather(const void* in, void* out, size_t send_count, DType dtype, int root);
  void scatter(const void* in, void* out, size_t recv_count, DType dtype, int root);
  void send(const void* data, size_t count, DType dtype, int peer);
  void recv(void* data, size_t count, DType dtype, int peer);
  void barrier();
  void signal(int peer);  // increments the peer's counter; never blocks
  void wait(int peer);    // blocks until one more signal from the peer arrived
};

std::unique_ptr<Communicator> make_communicator(const net::World& world, const net::Group& group,
                                                const CommOptions& options);

}  // namespace esp::comm
