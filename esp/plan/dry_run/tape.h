// Dry run of a training pass. It repeats the allocations, stored tensors and frees of esp/autograd, node by node in
// tape order. It counts bytes instead of allocating memory. DryRunRecorder keeps the peak and the communicator calls.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "esp/comm/call.h"
#include "esp/device/memory.h"
#include "esp/parallel/mesh.h"

namespace esp::plan::dry_run {

using device::MemoryCategory;

// One communicator call. `count`: number of elements of the whole buffer (for a send: of the message).
struct CommCall {
  parallel::MeshAxis axis = parallel::MeshAxis::replicas;
  comm::Op op = comm::Op::all_reduce;
  int64_t count = 0, element_bytes = 4;
};

class DryRunRecorder {
 public:
  void allocate(MemoryCategory category, int64_t bytes);
  void free(MemoryCategory category, int64_t bytes);
  int64_t current() const { return current_; }
  int64_t peak() const { return peak_; }
  int64_t at_peak(MemoryCategory category) const { return at_peak_[static_cast<size_t>(category)]; }
  void reset_peak();
  void record_call(const CommCall& call) { calls_.push_back(call); }
  std::vector<CommCall>& calls() { return calls_; }

 private:
  std::vector<CommCall> calls_;
  std::array<int64_t, device::kNumCategories> by_category_{}, at_peak_{};
  int64_t current_ = 0, peak_ = 0;
};

// A simulated buffer: its bytes are counted from construction to destruction. Shared through BufferHandle, as tensors
// share storage.
class CountedBuffer {
 public:
  CountedBuffer(DryRunRecorder& recorder, MemoryCategory category, int64_t bytes)
      : recorder_(recorder), category_(category), bytes_(bytes) {
    recorder_.allocate(category_, bytes_);
  }
  ~CountedBuffer() { recorder_.free(category_, bytes_); }
  CountedBuffer(const CountedBuffer&) = delete;
  CountedBuffer& operator=(const CountedBuffer&) = delete;
  int64_t bytes() const { return bytes_; }

 private:
  DryRunRecorder& recorder_;
  const MemoryCategory category_;
  const int64_t bytes_;
};
using BufferHandle = std::shared_ptr<CountedBuffer>;

// A parameter, with the fields that a strategy needs.
struct DryRunWeight {
  size_t unit = 0, bucket = 0;
  int64_t count = 0;
  int pending = 0;  // number of recorded uses without their gradient yet, plus explicit deferrals
  // the gradient is a partial sum: it is all-reduced over the tensor group before it is ready (sequence parallel)
  bool partial = false;
};

// Calls that a strategy receives when weights are used and gradients become ready. The base class allocates nothing, as
// ReplicatedStrategy. The subclasses for ZeRO 2 and 3 allocate and free.
class StrategyHooks {
 public:
  virtual ~StrategyHooks() = default;
  virtual void use(DryRunWeight&) {}
  virtual void gradient(DryRunWeight&) {}
  virtual void ready(DryRunWeight&) {}
  virtual void begin_pass() {}
  virtual void begin_backward() {}
  virtual void end_pass() {}
  virtual void finish() {}
};

struct DryRunVariable {
  BufferHandle value;
  int slot = -1;
};

class DryRunTape;
class DryRunNode {
 public:
  virtual ~DryRunNode() = default;
  virtual void backward_input(DryRunTape&) {}
  virtual void backward_weight(DryRunTape&) {}
  virtual void prepare(DryRunTape&) {}
  std::vector<DryRunWeight*> weights;
  int first_slot = 0, num_slots = 1;
};

class DryRunTape {
 public:
  DryRunTape(DryRunRecorder& recorder, StrategyHooks& hooks) : recorder_(recorder), hooks_(hooks) {}

  DryRunRecorder& recorder() { return recorder_; }
  // Records a communicator call; the default axis is the tensor axis.
  void record_call(comm::Op op, int64_t count, int64_t element_bytes,
                   parallel::MeshAxis axis = parallel::MeshAxis::tensor) {
    recorder_.record_call({axis, op, count, element_bytes});
  }
  StrategyHooks& hooks() { return hooks_; }
  BufferHandle activation(int64_t bytes) {
    return std::make_shared<CountedBuffer>(recorder_, MemoryCategory::activation, bytes);
  }
  BufferHandle scratch(int64_t bytes) {
    return std::make_shared<CountedBuffer>(recorder_, MemoryCategory::buffer, bytes);
  }
  bool recording() const { return recording_; }
  void set_recording(bool on) { recording_ = on; }

  DryRunVariable output(BufferHandle value, int64_t bytes = -1);
  DryRunVariable leaf(BufferHandle value) { return output(std::move(value)); }
  void record(std::unique_ptr<DryRunNode> node, int num_slots = 1);
  // if not null, receives every weight that a recomputed function uses
  std::vector<DryRunWeight*>* recomputed_weights = nullptr;
  bool needs_gradient(std::initializer_list<const DryRunVariable*> inputs, const std::vector<DryRunWeight*>& weights);

  BufferHandle gradient_buffer(int slot);
  void add_gradient(int slot, BufferHandle gradient);
  BufferHandle take_gradient(int slot) { return std::exchange(slots_[static_cast<size_t>(slot)].gradient, {}); }
  const BufferHandle& gradient_of(int slot) const { return slots_[static_cast<size_t>(slot)].gradient; }
  void gradient(DryRunWeight* weight);

  void backward();
  void backward_inputs();
  void backward_weights();
  void clear();

 private:
  struct OutputSlot {
    int64_t bytes = 0;
    BufferHandle gradient;
  };
  bool any_gradient(const DryRunNode& node) const;
  void finish(std::unique_ptr<DryRunNode> node);

  DryRunRecorder& recorder_;
  StrategyHooks& hooks_;
  bool recording_ = true;
  std::vector<OutputSlot> slots_;
  std::vector<std::unique_ptr<DryRunNode>> nodes_, deferred_;
};

}  // namespace esp::plan::dry_run
