// The arithmetic peak that a run's rate is held against (mfu), measured once per machine and kept in a cache folder.
//
// A cache file holds one measurement with its key: processor, instruction set, threads, precision, version. It is
// written whole or not at all, so ranks and runs may share the folder; a file that is damaged or has another key is
// measured again. Where the folder cannot be used every process measures for itself. One thread at a time.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"
#include "esp/train/engine.h"

namespace esp::train {

class MachinePeak {
 public:
  // `folder` empty: no cache.
  explicit MachinePeak(std::string folder = {}, std::string version = {})
      : folder_(std::move(folder)), version_(std::move(version)) {}

  // FLOP/s of that many threads of this process on the CPU; types other than f64 compute in fp32.
  double of_cpu(DType dtype, int num_threads);
  // Measures again and keeps the larger rate: other load only lowers one.
  double refresh(DType dtype, int num_threads);
  std::string path(DType dtype, int num_threads) const;  // of the cache file; empty: no cache

 private:
  std::string key(DType dtype, int num_threads) const;
  double read(DType dtype, int num_threads) const;  // 0: not there, damaged, or of another key
  void write(DType dtype, int num_threads, double rate) const;

  std::string folder_, version_;
  std::map<std::pair<bool, int>, double> known_;  // by f64, threads
};

// Collective: the peak of all ranks together. Ranks of one host share its cores, so one of them measures as many
// threads as the host's ranks use at once, at most one per core, while the others wait. Each GPU counts for its rank.
double job_peak(const Standing& standing, DType dtype, const device::Stream& stream, MachinePeak& machine);

}  // namespace esp::train
