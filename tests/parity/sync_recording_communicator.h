// A communicator that records every call, then forwards it to another communicator.
//
// Communicators created by split write to the same log. A log belongs to one rank; the calling thread writes it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "esp/comm/communicator.h"

namespace esp::parity {

struct CallRecord {
  std::string group;  // "world", or for its first split "world/0"
  comm::Op op;
  size_t count;
  DType dtype;
  int64_t at_ns;
};

struct CallLog {
  std::vector<CallRecord> records;
  // Called before each start is forwarded. `earlier`: the Work handles of all earlier calls.
  std::function<void(const CallRecord&, const std::vector<Work>& earlier)> on_start;
  std::vector<Work> works;
};

// TrafficRow: traffic of one rank by kind of call. A call with at most kScalars elements (token counts, norms, step
// flags) counts as a scalar call; all others are data calls.
inline constexpr size_t kScalars = 24;
struct TrafficRow {
  std::string group;
  comm::Op op;
  bool scalar;
  uint64_t calls, bytes;
};
class Traffic {
 public:
  void add(const TrafficRow& sent) { all_.push_back(sent); }
  // Bytes of the data calls of an operation. `group`: name of a group; "": all groups.
  uint64_t bytes(comm::Op op, const std::string& group = "") const;
  uint64_t calls(comm::Op op, const std::string& group = "") const;
  uint64_t data_bytes() const;
  uint64_t scalar_bytes() const;
  Traffic since(const Traffic& before) const;

 private:
  std::vector<TrafficRow> all_;
};

struct RecordingOptions {
  // If true, data calls use ring algorithms and scalar calls use others, so that their bytes can be counted separately.
  bool separate_scalars = false;
};

class RecordingCommunicator final : public comm::Communicator {
 public:
  RecordingCommunicator(std::unique_ptr<comm::Communicator> inner, std::string name, CallLog& log,
                        const RecordingOptions& options);
  ~RecordingCommunicator() override;

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

  Traffic traffic() const;  // sum over this communicator and its existing splits

 private:
  comm::Call record_call(const comm::Call& call);

  std::unique_ptr<comm::Communicator> inner_;
  const std::string name_;
  CallLog& log_;
  const RecordingOptions options_;
  RecordingCommunicator* parent_ = nullptr;
  std::vector<RecordingCommunicator*> children_;
  int num_splits_ = 0;
};

}  // namespace esp::parity
