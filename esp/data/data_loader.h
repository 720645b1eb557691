// Data loader with prefetch: a background thread fills batches before they are needed.
//
// Batch k of rank r (of N ranks) contains samples first + k·N·B + r·B + [0, B). All ranks together consume the samples
// in order, so every split of a global batch over ranks and micro-steps sees the same samples. The loader is
// deterministic. It keeps only a small ring of batches, and seek() costs nothing.
//
// One thread calls next() and seek(). The caller keeps the objective alive; the loader's thread reads it.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>

#include "esp/base/clock.h"
#include "esp/data/batch.h"
#include "esp/data/objective.h"

namespace esp::data {

struct DataLoaderOptions {
  int64_t B = 1;  // rows per batch
  int world = 1, rank = 0;
  uint64_t first_sample = 0;
  // Samples from this index on are not read. The last batch may have fewer rows; after it, next() returns null.
  uint64_t end_sample = std::numeric_limits<uint64_t>::max();
  int depth = 2;                               // number of batches prefetched
  Duration timeout = std::chrono::minutes(5);  // limit for one call of next()
};

class DataLoader {
 public:
  DataLoader(const Objective& objective, const DataLoaderOptions& options);
  ~DataLoader();  // stops and joins the thread
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // Returns the next batch, valid until the next call, or null if this rank has no samples left. Rethrows an exception
  // of the background thread. Throws IoError at the timeout.
  const Batch* next();
  // The next batch of rank 0 starts at global sample `first_sample`; the next batches of the other ranks follow it.
  // Prefetched batches are dropped.
  void seek(uint64_t first_sample);
  // Global sample at which the next step starts. A checkpoint stores this number.
  uint64_t position() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace esp::data
