#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/net/inproc/inproc.h"
#include "esp/net/mixed/mixed.h"
#include "esp/net/mpi/mpi.h"
#include "esp/net/shm/shm.h"
#include "esp/net/tcp/tcp.h"
#include "esp/net/transport.h"
#include "esp/net/virtual/virtual.h"

namespace esp::net {
namespace {

// Virtual comes first: it reaches nobody unless the world was made with a virtual network, and then it is meant.
constexpr TransportRow kTransports[] = {
    {"virtual", "threads of one process under a virtual clock", virtual_reaches, open_virtual},
    {"inproc", "threads of one process, from buffer to buffer", inproc_reaches, open_inproc},
    {"shm", "processes of one host, through shared memory", shm_reaches, open_shm},
    {"mpi", "processes an mpirun started, over its MPI", mpi_reaches, open_mpi},
    {"tcp", "processes anywhere, over sockets", tcp_reaches, open_tcp},
};

// The first pair of the group that a row does not reach, as world ranks; {-1, -1} when it reaches all. A rank must
// reach itself: a group of one still needs a transport that exists here.
std::pair<int, int> out_of_reach(const TransportRow& row, const World& world, const Group& group) {
  for (int a : group.members)
    for (int b : group.members)
      if (a <= b && !row.reaches(world, a, b)) return {a, b};
  return {-1, -1};
}

std::vector<std::string_view> rows_reaching(const World& world, int a, int b) {
  std::vector<std::string_view> names;
  for (const TransportRow& row : kTransports)
    if (row.reaches(world, a, b)) names.push_back(row.name);
  return names;
}

const TransportRow& first_reaching(const World& world, int a, int b) {
  for (const TransportRow& row : kTransports)
    if (row.reaches(world, a, b)) return row;
  throw UsageError(fmt::format("no transport reaches from rank {} to rank {}", a, b));
}

// One row when it is the first choice of every pair; else the mix, even where a later row would reach everybody: two
// ranks of one host are better off with memory than with sockets.
std::unique_ptr<Transport> open_auto(const World& world, const Group& group) {
  if (group.size() == 1) return first_reaching(world, group.members[0], group.members[0]).open(world, group);
  const TransportRow& row = first_reaching(world, group.members[0], group.members[1]);
  for (int a : group.members)
    for (int b : group.members)
      if (a < b && &first_reaching(world, a, b) != &row) return open_mixed(kTransports, world, group);
  return row.open(world, group);
}

}  // namespace

std::span<const TransportRow> transports() {
  return kTransports;
}

std::unique_ptr<Transport> open_transport(std::string_view name, const World& world, const Group& group) {
  if (name == "auto") return open_auto(world, group);
  auto known = names_of(kTransports);
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    known.insert(known.begin(), "auto");
    unknown_name("transport", name, known);
  }
  const TransportRow& row = find_row("transport", kTransports, name);
  auto [a, b] = out_of_reach(row, world, group);
  if (a < 0) return row.open(world, group);
  const auto others = rows_reaching(world, a, b);
  const std::string instead = others.empty() ? "nothing does" : fmt::format("{} would", fmt::join(others, ", "));
  if (a == b)
    throw UsageError(fmt::format("transport \"{}\" is for {}, and rank {} is none; {}", name, row.help, a, instead));
  throw UsageError(fmt::format("transport \"{}\" does not reach from rank {} to rank {}; {}", name, a, b, instead));
}

}  // namespace esp::net
