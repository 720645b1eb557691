// Runs `espalier train` for a lab in a temporary run folder, and reads the results that it writes there.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "esp/obs/temporary_folder.h"

namespace esp::app {

// Bytes of one memory category in one tier, on one rank.
struct MemoryBytes {
  uint64_t current = 0, peak = 0;
};

struct TrainedRank {
  std::map<std::string, MemoryBytes> memory;  // keyed by tier and category: "device.parameter"
  struct Calls {
    std::string group, op;
    uint64_t calls = 0, bytes_sent = 0, bytes_received = 0;
  };
  std::vector<Calls> comm;
  uint64_t link_down = 0, link_up = 0;  // bytes from device to host (down) and from host to device (up)
  // bytes sent; an empty op or group counts all of them
  uint64_t sent(const std::string& op = "", const std::string& group = "") const;
};

struct TrainedRun {
  std::string command;                // command line as a user would type it
  std::vector<double> loss, step_ms;  // one entry per step
  std::vector<TrainedRank> ranks;
  int64_t parameters = 0;
  double tokens_per_s = 0, mfu = 0;
  struct LinkRate {
    double gb_per_s = 0, plain_copy_gb_per_s = 0;
  };
  LinkRate down, up;  // host link of the first rank: its rate while it is used, and the rate of a plain copy
  double median_step_ms(size_t skip = 1) const;  // median over the steps after the first `skip`
};

// Runs training jobs in a temporary folder, which the destructor removes.
class LabTrainer {
 public:
  // All runs train on the same random tokens, from a vocabulary of 256.
  LabTrainer();
  // `settings` are section.key=value; run.seed and the data are already set. IoError: the run failed. The message
  // contains its last output.
  TrainedRun run(const std::string& name, int nproc, const std::vector<std::string>& settings);

 private:
  obs::TemporaryFolder folder_;
  std::string tokens_;
};

}  // namespace esp::app
