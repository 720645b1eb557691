// Batches made ahead of their use, by a thread of its own.
//
// The k-th batch of rank r of N holds samples first + k·N·B + r·B + [0, B): all ranks together take the samples in
// order, so that any split of a global batch over ranks and micro-steps sees the same ones. The loader is
// deterministic, keeps a small ring of batches and nothing else; seek() costs nothing.
//
// One thread calls next() and seek(). The objective is lent and is read from the loader's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>

#include "esp/base/clock.h"
#include "esp/data/batch.h"
#include "esp/data/objective.h"

namespace esp::data {

struct LoaderOptions {
  int64_t B = 1;  // rows of a batch
  int world = 1, rank = 0;
  uint64_t first_sample = 0;
  // No sample at or beyond: the last batch may have fewer rows, and next() then gives nothing.
  uint64_t end_sample = std::numeric_limits<uint64_t>::max();
  int depth = 2;                               // batches made ahead
  Duration timeout = std::chrono::minutes(5);  // of one next()
};

class Loader {
 public:
  Loader(const Objective& objective, const LoaderOptions& options);
  ~Loader();  // stops and joins the thread
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next batch, valid until the next call; null when this rank has no sample left. Throws what the thread met, and
  // IoError when nothing came in time.
  const Batch* next();
  // The next batch begins at global sample `first_sample` (of rank 0). Batches made ahead are dropped.
  void seek(uint64_t first_sample);
  // The global sample at which the next step begins: what a checkpoint keeps.
  uint64_t position() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace esp::data
