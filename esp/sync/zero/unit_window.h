// The units whose values are whole on this rank right now. Stage 3's forward and backward walk through the units; each
// is gathered before its first use and dropped when the walk has moved on.
//
// The first pass of a kind (training, evaluation) gathers on demand and notes the order of uses; later passes gather
// `ahead` units of that order while the present one computes, and keep what is wanted again within them. A walk that
// leaves the noted order gathers on demand from there and notes anew. All ranks walk alike, so they gather alike.
//
// Forward's units are dropped when backward begins, so that each is gathered once for either; `keep` keeps them. One
// thread, the one that computes.
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
  virtual void values_changed() {}                                    // by a step: copies of them are old
  virtual double exposed_ms() const = 0;                              // waited, since it was made
};

class UnitWindow {
 public:
  struct Options {
    DType storage = DType::f32;
    int64_t ahead = 1;
    bool keep = false;
  };
  // Sets on_use of every parameter.
  UnitWindow(nn::ParameterList& parameters, const tensor::Context& context, UnitGather& gather, const Options& options);

  void begin_pass(bool training);
  void begin_backward();
  void end_pass();  // drops everything
  // A unit's memory while it is filled from outside; `drop` ends it.
  void open(size_t unit);
  void drop(size_t unit);

  int64_t num_gathers() const { return num_gathers_; }

 private:
  enum class At : uint8_t { shards, coming, here };
  static constexpr size_t kNone = static_cast<size_t>(-1);
  void use(size_t unit);
  void note(size_t unit);
  void fetch(size_t unit);
  void drop_unless_wanted();
  bool wanted_soon(size_t unit) const;
  void drop_all();

  nn::ParameterList& parameters_;
  const tensor::Context context_;
  UnitGather& gather_;
  const Options options_;
  std::vector<At> at_;
  std::vector<tensor::Tensor> whole_;
  std::vector<size_t> orders_[2], *order_ = nullptr;  // of evaluation, of training
  size_t next_ = 0;                                   // place in the order
  size_t current_ = kNone;
  bool known_ = false;  // whether the order still holds
  int64_t num_gathers_ = 0;
};

}  // namespace esp::sync
