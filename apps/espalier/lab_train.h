// A real run of `espalier train` for a lab: its ranks, a run folder, and the results written there.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "esp/obs/temporary_folder.h"

namespace esp::app {

// Bytes of one category in a tier, of one rank.
struct MemoryBytes {
  uint64_t current = 0, peak = 0;
};

struct TrainedRank {
  std::map<std::string, MemoryBytes> memory;  // "device.parameter" and so on
  struct Calls {
    std::string group, op;
    uint64_t calls = 0, bytes_sent = 0, bytes_received = 0;
  };
  std::vector<Calls> comm;
  uint64_t link_down = 0, link_up = 0;                                             // between device and host
  uint64_t sent(const std::string& op = "", const std::string& group = "") const;  // empty: all
};

struct Trained {
  std::string command;                // as typed in a shell
  std::vector<double> loss, step_ms;  // by step
  std::vector<TrainedRank> ranks;
  int64_t parameters = 0;
  double tokens_per_s = 0, mfu = 0;
  struct Way {
    double gb_per_s = 0, alone_gb_per_s = 0;
  };
  Way down, up;                                  // of the first rank's link to the host: in use, and of a plain copy
  double median_step_ms(size_t skip = 1) const;  // without the first steps
};

// The destructor removes the folder.
class LabTrainer {
 public:
  // Every run uses the same random tokens with a vocabulary of 256.
  LabTrainer();
  // Settings are section.key=value; run.seed and data are set. IoError with the run's last output.
  Trained run(const std::string& name, int nproc, const std::vector<std::string>& settings);

 private:
  obs::TemporaryFolder folder_;
  std::string tokens_;
};

}  // namespace esp::app
