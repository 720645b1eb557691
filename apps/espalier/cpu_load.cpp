#include "apps/espalier/cpu_load.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace esp::app {
namespace {

double seconds_used(int process) {
  rusage use{};
  ::getrusage(process, &use);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

}  // namespace

CpuLoad::CpuLoad() : begin_(read()) {}

// Reads the first line of /proc/stat: cpu user nice system idle iowait irq softirq steal, in clock ticks.
CpuLoad::Times CpuLoad::read() {
  std::ifstream file("/proc/stat");
  std::string field;
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
  file >> field >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal;
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  Times times;
  times.busy = (user + nice + system + irq + softirq) / ticks;
  times.stolen = steal / ticks;
  times.all = times.busy + times.stolen + (idle + iowait) / ticks;
  times.ours = seconds_used(RUSAGE_SELF) + seconds_used(RUSAGE_CHILDREN);
  return times;
}

CpuLoad::Shares CpuLoad::so_far() const {
  const Times now = read();
  const double all = now.all - begin_.all;
  if (all <= 0) return {};
  const double others = (now.busy - begin_.busy) - (now.ours - begin_.ours);
  return {std::clamp(others / all, 0.0, 1.0), std::clamp((now.stolen - begin_.stolen) / all, 0.0, 1.0)};
}

}  // namespace esp::app
