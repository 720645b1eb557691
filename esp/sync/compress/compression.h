// The one place where a strategy asks for a compressed exchange: what sync.compress and sync.feedback name, made for
// the vectors that this strategy exchanges.
//
//   summed      a vector of every rank; the sum goes to all                    allreduce, local, diloco
//   scattered   a vector of every rank; each gets its chunk of the sum         zero1, zero2
//   one_way     a vector of this rank, to whoever decodes it (one_way.h)       ps, gossip
//
// "powersgd:R" is a matrix compressor with a feedback of its own: it takes the matrices of a vector by their shapes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "esp/sync/compress/feedback.h"
#include "esp/sync/compress/one_way.h"
#include "esp/sync/strategy.h"

namespace esp::sync {

// UsageError for options that do not go together, with the reason, and for a pair that diverges by theory.
void check_compression(const Options& options);

class Compression {
 public:
  explicit Compression(const Setup& setup);  // checks; what the setup lends outlives it

  // Elements [begin, end) over all units, the index-th vector of this strategy: vectors draw apart.
  struct Vector {
    int64_t begin = 0, end = 0;
    size_t index = 0;
    DType dtype = DType::f32;
    std::optional<double> factor = 1;  // of the sum; none: 1/N
  };
  // Over ranks and with memory and threads that may be others than the setup's.
  std::unique_ptr<Feedback> summed(const Vector& vector, comm::Communicator* ranks, const tensor::Context& context);
  std::unique_ptr<Feedback> scattered(const Vector& vector, comm::Communicator* ranks, const tensor::Context& context);
  // A side that does not tell remembers nothing.
  std::unique_ptr<OneWay> one_way(const Vector& vector, const tensor::Context& context, bool tells = true);

  const Compressor* compressor() const { return compressor_.get(); }  // null: PowerSGD
  // What was said of a pair that theory objects to, and is used all the same (sync.force).
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

// The state of exchanges by their names, "feedback.0.error".
std::vector<Remembered> remembered_of(std::span<const std::unique_ptr<Feedback>> exchanges);
void add_numbered(std::vector<Remembered>& all, std::string_view prefix, size_t index, std::vector<Remembered> of);

}  // namespace esp::sync
