// Unit window of ZeRO stage 3: the units whose weights are gathered on this rank. Forward and backward walk over the
// units; each is gathered before its first use and freed when the walk has moved on.
//
// The first pass of a kind (training, evaluation) gathers on demand and records the order of uses; later passes
// prefetch the next `ahead` other units of that order while the current one computes, and keep those that are already
// gathered; the gather gets a hint for the two units after those. A walk that departs from the recorded order gathers
// on demand and records again. All ranks walk, and so gather, in the same order.
//
// Forward's units are freed when backward begins, so each is gathered once for either; `keep` keeps them, and `stay`
// keeps those that backward needs first, and at the end of a pass those that the next begins with (STRONGHOLD's window,
// Sun 2022): never more than ahead + 1. One thread, the one that computes.
#pragma once

#include <cstdint>
#include <vector>

#include "esp/nn/parameter.h"

namespace esp::sync {

// Gathers the weights of a unit.
class UnitGather {
 public:
  virtual ~UnitGather() = default;
  virtual void start(size_t unit, const tensor::Tensor& whole) = 0;
  virtual void finish(size_t unit, const tensor::Tensor& whole) = 0;  // of one started; waits
  // Hint that a unit is started soon: `distance` 1 is the next after the window, 2 the one after it.
  virtual void hint(size_t, int /*distance*/) {}
  virtual void values_changed() {}        // after a step: cached copies are stale
  virtual double exposed_ms() const = 0;  // time spent waiting since construction
  // duration of the last fetch, waited for or not; 0 where not measured
  virtual double fetch_ms(size_t) const { return 0; }
};

class UnitWindow {
 public:
  struct Options {
    DType storage = DType::f32;
    int64_t ahead = 1;
    bool keep = false;
    bool stay = false;
  };
  // Sets on_use of every parameter.
  UnitWindow(nn::ParameterList& parameters, const tensor::Context& context, UnitGather& gather, const Options& options);

  void begin_pass(bool training);
  void begin_backward();
  void end_pass();
  // Frees all units and marks cached copies stale.
  void values_changed();
  void set_ahead(int64_t ahead) { options_.ahead = ahead; }
  // Allocates a unit's memory to be filled by the caller; `drop` frees it.
  void open(size_t unit);
  void drop(size_t unit);

  int64_t num_gathers() const { return num_gathers_; }
  bool away(size_t unit) const { return at_[unit] == UnitState::shards; }
  // By unit, the compute time of the last training pass until the next unit was used; excludes waits for weights.
  struct Computed {
    double forward_ms = 0, backward_ms = 0;
  };
  const std::vector<Computed>& computed() const { return computed_; }

 private:
  enum class UnitState : uint8_t { shards, gathering, gathered };
  static constexpr size_t kNone = static_cast<size_t>(-1);
  void use(size_t unit);
  void note(size_t unit);
  void fetch(size_t unit);
  void look_ahead();
  bool needed_soon(size_t unit) const;
  void drop_unless_needed();
  void drop_all();
  void stop_clock();

  nn::ParameterList& parameters_;
  const tensor::Context context_;
  UnitGather& gather_;
  Options options_;
  std::vector<UnitState> at_;
  std::vector<tensor::Tensor> whole_;
  std::vector<size_t> orders_[2], *order_ = nullptr;  // of evaluation, of training
  size_t turn_ = kNone;                               // index in training's order at which backward began
  size_t next_ = 0;                                   // index in the order
  size_t current_ = kNone;
  std::vector<size_t> soon_;  // distinct units of the order from next_ on, without current_: at most ahead + 2
  size_t num_to_fetch_ = 0;   // of soon_; the rest belongs to the next pass
  bool training_ = false, in_backward_ = false;
  std::vector<Computed> computed_;  // by unit
  int64_t began_ns_ = 0;            // start of the current unit's compute
  bool known_ = false;              // whether the recorded order still holds
  int64_t num_gathers_ = 0;
};

}  // namespace esp::sync
