// The units whose values are whole on this rank right now. Stage 3's forward and backward walk through the units; each
// is gathered before its first use and dropped when the walk has moved on.
//
// The first pass of a kind (training, evaluation) gathers on demand and notes the order of uses; later passes gather
// the next `ahead` other units of that order while the present one computes, and keep what is among them; of the two
// after those the gather is told. A walk that leaves the noted order gathers on demand from there and notes anew. All
// ranks walk alike, so they gather alike.
//
// Forward's units are dropped when backward begins, so that each is gathered once for either; `keep` keeps them, and
// `stay` those that backward wants first, and at the end of a pass those that the next begins with (STRONGHOLD's
// window, Sun 2022): never more than ahead + 1. One thread, the one that computes.
#pragma once

#include <cstdint>
#include <vector>

#include "esp/nn/parameter.h"

namespace esp::sync {

// How a unit's values come together.
class UnitGather {
 public:
  virtual ~UnitGather() = default;
  virtual void start(size_t unit, const tensor::Tensor& whole) = 0;
  virtual void finish(size_t unit, const tensor::Tensor& whole) = 0;  // of one started; waits
  // It will be started soon: `distance` 1 is the next after those of the window, 2 the one after it.
  virtual void hint(size_t, int /*distance*/) {}
  virtual void values_changed() {}                     // by a step: copies of them are old
  virtual double exposed_ms() const = 0;               // waited, since it was made
  virtual double fetch_ms(size_t) const { return 0; }  // the last one took, waited for or not; 0 where not measured
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
  // Drops everything and tells the gather that copies are old.
  void values_changed();
  void set_ahead(int64_t ahead) { options_.ahead = ahead; }
  // A unit's memory while it is filled from outside; `drop` ends it.
  void open(size_t unit);
  void drop(size_t unit);

  int64_t num_gathers() const { return num_gathers_; }
  bool away(size_t unit) const { return at_[unit] == At::shards; }
  // By unit, what the last training pass computed with it until the next was used; waiting for values is not in it.
  struct Computed {
    double forward_ms = 0, backward_ms = 0;
  };
  const std::vector<Computed>& computed() const { return computed_; }

 private:
  enum class At : uint8_t { shards, coming, here };
  static constexpr size_t kNone = static_cast<size_t>(-1);
  void use(size_t unit);
  void note(size_t unit);
  void fetch(size_t unit);
  void look_ahead();
  bool wanted_soon(size_t unit) const;
  void drop_unless_wanted();
  void drop_all();
  void stop_clock();

  nn::ParameterList& parameters_;
  const tensor::Context context_;
  UnitGather& gather_;
  Options options_;
  std::vector<At> at_;
  std::vector<tensor::Tensor> whole_;
  std::vector<size_t> orders_[2], *order_ = nullptr;  // of evaluation, of training
  size_t turn_ = kNone;                               // place in training's order at which backward began
  size_t next_ = 0;                                   // place in the order
  size_t current_ = kNone;
  std::vector<size_t> soon_;  // units of the order from next_ on, other than current_, each once: ahead + 2 at most
  size_t num_to_fetch_ = 0;   // of soon_; the rest is of the next pass
  bool training_ = false, in_backward_ = false;
  std::vector<Computed> computed_;  // by unit
  int64_t began_ns_ = 0;            // the present unit's computing
  bool known_ = false;              // whether the order still holds
  int64_t num_gathers_ = 0;
};

}  // namespace esp::sync
