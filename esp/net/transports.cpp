#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/net/inproc/inproc.h"
#include "esp/net/shm/shm.h"
#include "esp/net/transport.h"

namespace esp::net {
namespace {

constexpr TransportRow kTransports[] = {
    {"inproc", "threads of one process, from buffer to buffer", inproc_reaches, open_inproc},
    {"shm", "processes of one host, through shared memory", shm_reaches, open_shm},
};

// The first pair of the group that a row does not reach, as world ranks; {-1, -1} when it reaches all.
std::pair<int, int> out_of_reach(const TransportRow& row, const World& world, const Group& group) {
  for (int a : group.members)
    for (int b : group.members)
      if (a <= b && !row.reaches(world, a, b)) return {a, b};
  return {-1, -1};
}

bool reaches_all(const TransportRow& row, const World& world, const Group& group) {
  return out_of_reach(row, world, group).first < 0;
}

}  // namespace

std::span<const TransportRow> transports() {
  return kTransports;
}

std::unique_ptr<Transport> open_transport(std::string_view name, const World& world, const Group& group) {
  if (name == "auto") {
    for (const TransportRow& row : kTransports)
      if (reaches_all(row, world, group)) return row.open(world, group);
  } else {
    const TransportRow& row = find_row("transport", kTransports, name);
    if (reaches_all(row, world, group)) return row.open(world, group);
  }
  throw UsageError(fmt::format("transport \"{}\" does not reach every member of the group", name));
}

}  // namespace esp::net
