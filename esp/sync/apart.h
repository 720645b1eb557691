// Copies of a model that go their own ways between meetings: what the trainer must know of a strategy whose ranks may
// hold different values.
//
// Gradients are then of this copy's own tokens, or of its node's: the loss is scaled by their count, the norm clipped
// is that of the copy, and its optimizer steps over everything. The model such a run makes is the mean of its copies:
// it is what is evaluated (lend_mean) and what Strategy::held gives a checkpoint, which is why both are collective over
// the copies. One thread.
#pragma once

#include <string_view>
#include <vector>

#include "esp/comm/communicator.h"
#include "esp/optim/optimizer.h"
#include "esp/sync/remembered.h"

namespace esp::sync {

// Whose gradients add up in a step.
struct Together {
  bool all = true;                     // those of all copies
  comm::Communicator* some = nullptr;  // else of these, a node; null: this copy is alone
};

struct Measure {
  std::string_view name;
  double value = 0;
};

class Apart {
 public:
  virtual ~Apart() = default;
  // Once the optimizer is made: values that it keeps a longer copy of are averaged there.
  virtual void attach(optim::Optimizer& optimizer) = 0;
  virtual Together together() const = 0;    // in the step that comes next
  virtual void counted(double tokens) = 0;  // of this copy, in the step about to begin

  // The mean of the copies stands in the place of this one's values until `take_back`.
  virtual void lend_mean() = 0;
  virtual void take_back() = 0;

  virtual bool equal() const = 0;  // every copy has the same values now: they need not be remembered
  virtual std::vector<Remembered> remembered() = 0;
  virtual void begin_at(int64_t step) = 0;  // copies that were loaded alike, with nothing to remember
  // Copies as they were: what `remembered` then lists is about to be filled in.
  virtual void go_on_at(int64_t step, bool equal) = 0;

  // What was measured since it was asked last: `consensus`, (1/n) Σ ‖x_i − x̄‖², before the latest average.
  virtual std::vector<Measure> take_measures() = 0;
};

// The mean in place while this lives; nothing where copies are the same.
class MeanLent {
 public:
  explicit MeanLent(Apart* copies) : copies_(copies) {
    if (copies_) copies_->lend_mean();
  }
  ~MeanLent() {
    if (copies_) copies_->take_back();
  }
  MeanLent(const MeanLent&) = delete;
  MeanLent& operator=(const MeanLent&) = delete;

 private:
  Apart* copies_;
};

}  // namespace esp::sync
