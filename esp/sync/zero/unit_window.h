// Unit window of ZeRO stage 3: the units whose weights are gathered on this rank. Forward and backward use one unit
// after another. A unit is gathered before its first use and freed when the next unit is used.
//
// The first pass of a kind (training, evaluation) gathers on demand and records the order of uses. Later passes
// prefetch the next `ahead` units of that order while the current unit computes, and keep those that are already
// gathered. The gather gets a hint for the two units after those. If a pass departs from the recorded order, it gathers
// on demand and records again. All ranks use units, and so gather them, in the same order.
//
// Forward's units are freed when backward begins, so each unit is gathered once for forward and once for backward.
// `keep_gathered` keeps all of them. `keep_window` keeps the units that backward needs first, and at the end of a pass
// those that the next pass needs first: at most ahead + 1 (STRONGHOLD's window, Sun 2022). Called only from the thread
// that computes.
#pragma once

#include <cstdint>
#include <vector>

#include "esp/nn/parameter.h"

namespace esp::sync {

// UnitGather: gathers the weights of a unit from the ranks' shards.
class UnitGather {
 public:
  virtual ~UnitGather() = default;
  virtual void start(size_t unit, const tensor::Tensor& whole) = 0;
  virtual void finish(size_t unit, const tensor::Tensor& whole) = 0;  // waits for the gather that `start` began
  // Hint that a unit will be started soon. distance = 1: the first unit after the window; 2: the second.
  virtual void hint(size_t, int /*distance*/) {}
  virtual void values_changed() {}        // call after a step: cached copies of the weights are stale
  virtual double exposed_ms() const = 0;  // total time spent waiting since construction
  // Duration of the last fetch of the unit, including the part that overlapped compute; 0 if not measured.
  virtual double fetch_ms(size_t) const { return 0; }
};

class UnitWindow {
 public:
  struct Options {
    DType storage = DType::f32;
    int64_t ahead = 1;
    bool keep_gathered = false;
    bool keep_window = false;
  };
  // Sets on_use of every parameter.
  UnitWindow(nn::ParameterList& parameters, const tensor::Context& context, UnitGather& gather, const Options& options);

  void begin_pass(bool training);
  void begin_backward();
  void end_pass();
  // Frees all units and marks cached copies of the weights as stale.
  void values_changed();
  void set_ahead(int64_t ahead) { options_.ahead = ahead; }
  // Allocates the memory of a whole unit without gathering; the caller fills it. `drop` frees it.
  void allocate(size_t unit);
  void drop(size_t unit);

  int64_t num_gathers() const { return num_gathers_; }
  bool is_sharded(size_t unit) const { return states_[unit] == UnitState::shards; }
  // Compute time of each unit in the last training pass: from its use to the use of the next unit, without waits for
  // weights.
  struct ComputeTimes {
    double forward_ms = 0, backward_ms = 0;
  };
  const std::vector<ComputeTimes>& computed() const { return computed_; }

 private:
  enum class UnitState : uint8_t { shards, gathering, gathered };
  static constexpr size_t kNone = static_cast<size_t>(-1);
  void use(size_t unit);
  void record_use(size_t unit);
  void fetch(size_t unit);
  void prefetch_next();
  bool needed_soon(size_t unit) const;
  void drop_unless_needed();
  void drop_all();
  void stop_clock();

  nn::ParameterList& parameters_;
  const tensor::Context context_;
  UnitGather& gather_;
  Options options_;
  std::vector<UnitState> states_;
  std::vector<tensor::Tensor> whole_;
  // recorded orders of unit uses: [0] in evaluation, [1] in training; order_: the order of this pass
  std::vector<size_t> orders_[2], *order_ = nullptr;
  size_t backward_begin_ = kNone;  // index into orders_[1] where backward begins
  size_t next_ = 0;                // index into *order_ of the next use
  size_t current_ = kNone;
  // the next distinct units of the order, from next_ on, without current_; at most ahead + 2
  std::vector<size_t> upcoming_;
  size_t num_to_fetch_ = 0;  // number of units in upcoming_ that are prefetched; the others belong to the next pass
  bool training_ = false, in_backward_ = false;
  std::vector<ComputeTimes> computed_;  // [unit]: its compute times
  int64_t began_ns_ = 0;                // time at which the current unit began to compute
  bool order_is_valid_ = false;         // true: this pass follows the recorded order so far
  int64_t num_gathers_ = 0;
};

}  // namespace esp::sync
