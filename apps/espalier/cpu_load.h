// CPU time that others used during a measurement: other programs, and the host of a virtual machine (steal).
#pragma once

namespace esp::app {

class CpuLoad {
 public:
  CpuLoad();  // begins to count now
  struct Shares {
    double others = 0, host = 0;  // fractions of the time of all cores; host: steal
  };
  // Fractions since construction. A child process counts as this program only after it has ended and been waited for.
  Shares so_far() const;

 private:
  struct Times {
    double all = 0, busy = 0, stolen = 0, ours = 0;  // seconds, summed over cores
  };
  static Times read();
  Times begin_;
};

}  // namespace esp::app
