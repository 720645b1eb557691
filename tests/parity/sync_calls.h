// A communicator that writes down what is asked of it, in order, and hands it on.
//
// Children of a split are listened to as well and write into the same log. A log belongs to one rank and is written by
// the thread that calls.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "esp/comm/communicator.h"

namespace esp::parity {

struct CallRecord {
  std::string group;  // "world", or "world/0": the first split of it
  comm::Op op;
  size_t count;
  DType dtype;
  int64_t at_ns;
};

struct CallLog {
  std::vector<CallRecord> records;
  // Hears of every start before it is handed on, with the work of those before it.
  std::function<void(const CallRecord&, const std::vector<Work>& earlier)> on_start;
  std::vector<Work> works;
};

// What one rank sent, by kind of call. A call of at most kScalars elements is no data: counts, norms, step words.
inline constexpr size_t kScalars = 24;
struct Sent {
  std::string group;
  comm::Op op;
  bool scalar;
  uint64_t calls, bytes;
};
class Traffic {
 public:
  void add(const Sent& sent) { all_.push_back(sent); }
  uint64_t bytes(comm::Op op, const std::string& group = "") const;  // of data; everywhere, or in one group
  uint64_t calls(comm::Op op, const std::string& group = "") const;
  uint64_t data_bytes() const;
  uint64_t scalar_bytes() const;
  Traffic since(const Traffic& before) const;

 private:
  std::vector<Sent> all_;
};

struct ListenOptions {
  bool apart = false;  // data goes by ring, scalars otherwise: the counters then tell them apart
};

class Listener final : public comm::Communicator {
 public:
  Listener(std::unique_ptr<comm::Communicator> inner, std::string name, CallLog& log, const ListenOptions& options);
  ~Listener() override;

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void run(const comm::Call& call) override;
  Work start(const comm::Call& call) override;
  Work start_group(std::span<const comm::Call> calls) override { return inner_->start_group(calls); }
  std::unique_ptr<comm::Communicator> split(int colour, int key) override;
  std::shared_ptr<void> allocate(size_t bytes) override { return inner_->allocate(bytes); }
  std::unique_ptr<net::Transport> open_transport() override { return inner_->open_transport(); }
  void abort(const std::string& why) override { inner_->abort(why); }
  std::string explain(const comm::Call& call) const override { return inner_->explain(call); }
  std::vector<comm::CallStats> stats() const override { return inner_->stats(); }

  Traffic traffic() const;  // of this one and of what was split off it and is still there

 private:
  comm::Call noted(const comm::Call& call);

  std::unique_ptr<comm::Communicator> inner_;
  const std::string name_;
  CallLog& log_;
  const ListenOptions options_;
  Listener* parent_ = nullptr;
  std::vector<Listener*> children_;
  int num_splits_ = 0;
};

}  // namespace esp::parity
