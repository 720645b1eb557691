// MachinePeak: the peak FLOP/s that MFU is relative to. It is measured once per machine and kept in a cache folder.
//
// A cache file contains one measurement and its key: CPU, instruction set, threads, precision, version. Files are
// written atomically, so ranks and runs may share the folder. If a file is damaged or has another key, the peak is
// measured again. Without a usable folder every process measures the peak itself. One thread at a time.
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
  // With an empty `folder` there is no cache.
  explicit MachinePeak(std::string folder = {}, std::string version = {})
      : folder_(std::move(folder)), version_(std::move(version)) {}

  // Peak FLOP/s of `num_threads` CPU threads of this process. f64 is measured as f64; every other dtype computes in
  // fp32.
  double cpu_peak(DType dtype, int num_threads);
  // Measures again and keeps the larger of both rates, because other load on the machine can only lower a measurement.
  double refresh(DType dtype, int num_threads);
  std::string path(DType dtype, int num_threads) const;  // path of the cache file; empty: no cache

 private:
  std::string key(DType dtype, int num_threads) const;
  double read(DType dtype, int num_threads) const;  // 0 if the file is missing, damaged, or has another key
  void write(DType dtype, int num_threads, double rate) const;

  std::string folder_, version_;
  std::map<std::pair<bool, int>, double> known_;  // known rates, by (dtype is f64, number of threads)
};

// Peak FLOP/s of all ranks together. Collective. The ranks of one host share its cores. One of them measures with as
// many threads as they use together (at most one per core), while the others wait. Each rank with a GPU adds the peak
// of its GPU.
double job_peak_flops(const JobContext& job, DType dtype, const device::Stream& stream, MachinePeak& machine);

}  // namespace esp::train
