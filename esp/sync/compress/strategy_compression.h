// Compression of a strategy: creates the exchanges that sync.compress and sync.feedback configure, for the vectors of
// the strategy.
//
//   summed      a vector of every rank; every rank receives the sum                   allreduce, local, diloco
//   scattered   a vector of every rank; each rank receives its chunk of the sum       zero1, zero2
//   one_way     a vector of this rank, sent to its receivers (one_directional.h)      ps, gossip
//
// "powersgd:R" compresses matrices and has its own error feedback: it takes the matrices of a vector by their shapes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "esp/sync/compress/feedback.h"
#include "esp/sync/compress/one_directional.h"
#include "esp/sync/strategy.h"

namespace esp::sync {

// UsageError for options that cannot be combined, with the reason, and for a pair that diverges by theory.
void check_compression(const Options& options);

class StrategyCompression {
 public:
  explicit StrategyCompression(const Setup& setup);  // checks; borrows everything in the setup

  // Elements [begin, end) over all units, the index-th vector of this strategy. The index separates the random streams.
  struct Vector {
    int64_t begin = 0, end = 0;
    size_t index = 0;
    DType dtype = DType::f32;
    std::optional<double> factor = 1;  // of the sum; none: 1/N
  };
  // Over another communicator, with another context than the setup's.
  std::unique_ptr<Feedback> summed(const Vector& vector, comm::Communicator* ranks, const tensor::Context& context);
  std::unique_ptr<Feedback> scattered(const Vector& vector, comm::Communicator* ranks, const tensor::Context& context);
  // A side that only decodes keeps no state.
  std::unique_ptr<OneDirectionalCompression> one_way(const Vector& vector, const tensor::Context& context,
                                                     bool sends = true);

  const Compressor* compressor() const { return compressor_.get(); }  // null: PowerSGD
  // The warning about a pair that diverges by theory and is used anyway (sync.force).
  std::vector<std::string> take_notes() { return std::exchange(notes_, {}); }

 private:
  uint64_t seed(size_t index) const;
  AggregationSetup sum_of(const Vector& vector, comm::Communicator* ranks, const tensor::Context& context);
  void check_pair(int64_t count);

  const Setup setup_;
  const std::unique_ptr<Compressor> compressor_;
  std::vector<std::string> notes_;
  bool warned_ = false;
};

// The state of exchanges by name, "feedback.0.error".
std::vector<ExtraState> extra_state_of(std::span<const std::unique_ptr<Feedback>> exchanges);
void add_numbered(std::vector<ExtraState>& all, std::string_view prefix, size_t index, std::vector<ExtraState> of);

}  // namespace esp::sync
