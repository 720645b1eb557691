// Memory behaviour of the strategies (esp/sync) during a pass: gradient buckets that are allocated and freed, and units
// of weights that are gathered before use and freed after.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "esp/plan/ghost/tape.h"

namespace esp::plan::ghost {

// Elements of the parameters of a bucket, and of a unit.
struct Division {
  std::vector<int64_t> bucket_counts, unit_counts;
  std::vector<int> bucket_weights;  // number of parameters in each
  int64_t element = 4;
};

// A bucket exists from its first gradient until it has been scattered; a few are in flight at a time.
class ScatteredGradients : public Holder {
 public:
  ScatteredGradients(Account& account, const Division& division, size_t most_in_flight, bool local);
  void gradient(Weight& weight) override;
  void ready(Weight& weight) override;
  void begin_pass() override;
  void end_pass() override;
  void finish() override { in_flight_.clear(); }
  bool last_pass = true;  // of the step: locally accumulated micro-batches are sent with it

 protected:
  Account& account_;
  const Division& division_;
  static constexpr parallel::MeshAxis kAxis = parallel::MeshAxis::replicas;

 private:
  void launch(size_t bucket);
  struct Flight {
    size_t bucket;
    Tensor all;
  };
  const size_t most_in_flight_;
  const bool local_;
  std::vector<Tensor> attached_;
  std::vector<int> missing_;
  std::deque<Flight> in_flight_;
  size_t next_ = 0;
  bool armed_ = false;
};

// Gradients that are summed over the tensor axis (sequence parallel) are ready once all of their unit are.
class SummedParts final : public Holder {
 public:
  SummedParts(Account& account, std::unique_ptr<Holder> of, std::vector<int> parts_of_units, int64_t element)
      : account_(account),
        of_(std::move(of)),
        parts_(std::move(parts_of_units)),
        element_(element),
        arrived_(parts_.size()) {}
  void use(Weight& weight) override { of_->use(weight); }
  void gradient(Weight& weight) override { of_->gradient(weight); }
  void ready(Weight& weight) override;
  void begin_pass() override { of_->begin_pass(); }
  void begin_backward() override { of_->begin_backward(); }
  void end_pass() override { of_->end_pass(); }
  void finish() override { of_->finish(); }
  bool leaving = true;  // gradients of this pass are sent; otherwise they stay

 private:
  Account& account_;
  const std::unique_ptr<Holder> of_;
  const std::vector<int> parts_;  // by unit
  const int64_t element_;
  std::vector<std::vector<Weight*>> arrived_;
};

// Adds units of weights: the current one, and the next of the order recorded in the first pass.
class WindowedValues final : public ScatteredGradients {
 public:
  WindowedValues(Account& account, const Division& division, size_t most_in_flight, bool local, int64_t ahead,
                 bool keep);
  void use(Weight& weight) override;
  void begin_pass() override;
  void begin_backward() override;
  void end_pass() override;

 private:
  static constexpr size_t kNobody = static_cast<size_t>(-1);
  void note(size_t unit);
  void look_ahead();
  void fetch(size_t unit);
  bool wanted_soon(size_t unit) const;

  const int64_t ahead_;
  const bool keep_;
  std::vector<Tensor> whole_;
  std::vector<size_t> order_, soon_;
  size_t turn_ = kNobody, next_use_ = 0, current_ = kNobody;
  bool known_ = false, in_backward_ = false;
};

}  // namespace esp::plan::ghost
