// Who else used the cores while something was measured: other programs, and the host under a virtual machine.
#pragma once

namespace esp::app {

class CpuLoad {
 public:
  CpuLoad();  // from here on
  struct Shares {
    double others = 0, host = 0;  // of all cores' time since then: other programs, and what the host took away
  };
  // Our own part counts children that have ended and been waited for.
  Shares so_far() const;

 private:
  struct Times {
    double all = 0, busy = 0, stolen = 0, ours = 0;  // seconds, summed over cores
  };
  static Times read();
  Times begin_;
};

}  // namespace esp::app
