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

// `virtual` comes first. It reaches only worlds that were created with a virtual network, and these worlds always use
// it.
constexpr TransportRow kTransports[] = {
    {"virtual", "threads of one process under a virtual clock", virtual_reaches, open_virtual},
    {"inproc", "threads of one process, by direct copies between their buffers", inproc_reaches, open_inproc},
    {"shm", "processes of one host, through shared memory", shm_reaches, open_shm},
    {"mpi", "processes started by one mpirun, through its MPI library", mpi_reaches, open_mpi},
    {"tcp", "processes on any hosts, through TCP sockets", tcp_reaches, open_tcp},
};

// The first pair of group members that a row does not reach, as world ranks; {-1, -1} if it reaches all pairs. A rank
// must also reach itself, so that a group of one rank gets an available transport.
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
  throw UsageError(fmt::format("no transport connects rank {} with rank {}", a, b));
}

// Opens one row if it is the first choice of every pair. Otherwise opens the mix, even if a later row reaches all
// pairs: two ranks of one host communicate faster over shared memory than over sockets.
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
  const std::string instead = others.empty() ? "No transport does" : fmt::format("Use {}", fmt::join(others, " or "));
  if (a == b)
    throw UsageError(
        fmt::format("transport \"{}\": connects only {}; rank {} is not one of them. {}", name, row.help, a, instead));
  throw UsageError(fmt::format("transport \"{}\": does not connect rank {} with rank {}. {}", name, a, b, instead));
}

}  // namespace esp::net
