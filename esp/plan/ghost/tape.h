// Dry run of a training pass: the allocations, stored tensors and frees of esp/autograd, node by node in the order of
// its tape. Buffers are byte counts with owners; the account records the peak.
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

namespace esp::plan::ghost {

using device::MemoryCategory;

// A communicator call: axis, and elements of the whole buffer (of a send: of the message).
struct Call {
  parallel::MeshAxis axis = parallel::MeshAxis::replicas;
  comm::Op op = comm::Op::all_reduce;
  int64_t count = 0, element = 4;
};

class Account {
 public:
  void add(MemoryCategory category, int64_t bytes);
  void remove(MemoryCategory category, int64_t bytes);
  int64_t now() const { return now_; }
  int64_t peak() const { return peak_; }
  int64_t at_peak(MemoryCategory category) const { return at_peak_[static_cast<size_t>(category)]; }
  void reset_peak();
  void note(const Call& call) { calls_.push_back(call); }
  std::vector<Call>& calls() { return calls_; }

 private:
  std::vector<Call> calls_;
  std::array<int64_t, device::kNumCategories> of_{}, at_peak_{};
  int64_t now_ = 0, peak_ = 0;
};

// Shared by the copies of the handle, like a tensor's storage.
class Piece {
 public:
  Piece(Account& account, MemoryCategory category, int64_t bytes)
      : account_(account), category_(category), bytes_(bytes) {
    account_.add(category_, bytes_);
  }
  ~Piece() { account_.remove(category_, bytes_); }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;
  int64_t bytes() const { return bytes_; }

 private:
  Account& account_;
  const MemoryCategory category_;
  const int64_t bytes_;
};
using Tensor = std::shared_ptr<Piece>;

// A trained parameter, as the strategy sees it.
struct Weight {
  size_t unit = 0, bucket = 0;
  int64_t count = 0;
  int pending = 0;       // uses on tapes, and deferrals
  bool partial = false;  // must be summed over the tensor axis before it is ready (sequence parallel)
};

// Hooks for weights and gradients: ReplicatedStrategy does nothing, the stages of ZeRO allocate and free.
class Holder {
 public:
  virtual ~Holder() = default;
  virtual void use(Weight&) {}
  virtual void gradient(Weight&) {}
  virtual void ready(Weight&) {}
  virtual void begin_pass() {}
  virtual void begin_backward() {}
  virtual void end_pass() {}
  virtual void finish() {}
};

struct Variable {
  Tensor value;
  int slot = -1;
};

class Tape;
class Node {
 public:
  virtual ~Node() = default;
  virtual void backward_input(Tape&) {}
  virtual void backward_weight(Tape&) {}
  virtual void prepare(Tape&) {}
  std::vector<Weight*> weights;
  int first_slot = 0, num_slots = 1;
};

class Tape {
 public:
  Tape(Account& account, Holder& holder) : account_(account), holder_(holder) {}

  Account& account() { return account_; }
  // A call over the tensor axis, by default.
  void note(comm::Op op, int64_t count, int64_t element, parallel::MeshAxis axis = parallel::MeshAxis::tensor) {
    account_.note({axis, op, count, element});
  }
  Holder& holder() { return holder_; }
  Tensor activation(int64_t bytes) { return std::make_shared<Piece>(account_, MemoryCategory::activation, bytes); }
  Tensor scratch(int64_t bytes) { return std::make_shared<Piece>(account_, MemoryCategory::buffer, bytes); }
  bool recording() const { return recording_; }
  void set_recording(bool on) { recording_ = on; }

  Variable output(Tensor value, int64_t bytes = -1);
  Variable leaf(Tensor value) { return output(std::move(value)); }
  void record(std::unique_ptr<Node> node, int num_slots = 1);
  // Records the weights of a function that will be recomputed.
  std::vector<Weight*>* noting = nullptr;
  bool wants(std::initializer_list<const Variable*> inputs, const std::vector<Weight*>& weights);

  Tensor gradient_into(int slot);
  void give_gradient(int slot, Tensor gradient);
  Tensor take_gradient(int slot) { return std::exchange(slots_[static_cast<size_t>(slot)].gradient, {}); }
  const Tensor& gradient_of(int slot) const { return slots_[static_cast<size_t>(slot)].gradient; }
  void gradient(Weight* weight);

  void backward();
  void backward_inputs();
  void backward_weights();
  void clear();

 private:
  struct Slot {
    int64_t bytes = 0;
    Tensor gradient;
  };
  bool any_gradient(const Node& node) const;
  void finish(std::unique_ptr<Node> node);

  Account& account_;
  Holder& holder_;
  bool recording_ = true;
  std::vector<Slot> slots_;
  std::vector<std::unique_ptr<Node>> entries_, held_;
};

}  // namespace esp::plan::ghost
