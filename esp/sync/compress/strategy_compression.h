// Compression of a strategy: creates the exchanges that sync.compress and sync.feedback configure, one for each vector
// of the strategy.
//
//   summed           a vector of every rank; every rank receives the sum               allreduce, local, diloco
//   scattered        a vector of every rank; each rank receives its chunk of the sum   zero1, zero2
//   one_directional  a vector of this rank, sent to its receivers (one_directional.h)  ps, gossip
//
// "powersgd:R" compresses matrices and keeps its own residual. The shapes of the parameters define which ranges of a
// vector are matrices.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "esp/sync/compress/error_feedback.h"
#include "esp/sync/compress/one_directional.h"
#include "esp/sync/strategy.h"

namespace esp::sync {

// Throws UsageError, with the reason, for options that cannot be combined and for a compressor that diverges in theory
// with its feedback.
void check_compression(const Options& options);

class StrategyCompression {
 public:
  // checks the options; the objects in the setup are not owned
  explicit StrategyCompression(const Setup& setup);

  // A vector that the strategy compresses as one: elements [begin, end) of the concatenation of all units. Each vector
  // has its own index, which selects its random numbers.
  struct Vector {
    int64_t begin = 0, end = 0;
    size_t index = 0;
    DType dtype = DType::f32;
    std::optional<double> factor = 1;  // factor of the sum; nullopt: 1/N, so the result is the mean
  };
  // The exchanges of the table above. The communicator and the context may differ from those of the setup.
  std::unique_ptr<Feedback> summed(const Vector& vector, comm::Communicator* ranks, const tensor::Context& context);
  std::unique_ptr<Feedback> scattered(const Vector& vector, comm::Communicator* ranks, const tensor::Context& context);
  // `sends` = false: this rank is a receiver; it only decodes and keeps no state.
  std::unique_ptr<OneDirectionalCompression> one_directional(const Vector& vector, const tensor::Context& context,
                                                             bool sends = true);

  const Compressor* compressor() const { return compressor_.get(); }  // null for powersgd
  // A warning if the compressor diverges in theory with its feedback and sync.force allows it.
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

// The state of all exchanges, with names such as "feedback.0.error".
std::vector<ExtraState> extra_state_of(std::span<const std::unique_ptr<Feedback>> exchanges);
void add_numbered(std::vector<ExtraState>& all, std::string_view prefix, size_t index, std::vector<ExtraState> of);

}  // namespace esp::sync
