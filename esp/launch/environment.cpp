#include "esp/launch/environment.h"

#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <optional>

#include <fmt/format.h>

#include "esp/base/error.h"

extern char** environ;

namespace esp::launch {
namespace {

using Names = std::vector<std::string_view>;

// The environment variables of one launcher. The row applies if at least one variable of `signs` is set. Then every
// variable of `required` must be set.
struct Row {
  std::string_view name;
  Names signs, required, optional;
  Placement (*read)(const Environment& environment);
};

const std::string* find(const Environment& environment, std::string_view name) {
  auto it = environment.find(std::string(name));
  return it == environment.end() || it->second.empty() ? nullptr : &it->second;
}

int number(const Environment& environment, std::string_view name, int least) {
  const std::string& text = *find(environment, name);
  int value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least)
    throw UsageError(fmt::format("{}: got \"{}\"; expected an integer >= {}", name, text, least));
  return value;
}

int number_or(const Environment& environment, std::string_view name, int least, int otherwise) {
  return find(environment, name) ? number(environment, name, least) : otherwise;
}

// Reads MASTER_ADDR and MASTER_PORT. UsageError if only one of them is set.
void read_master(const Environment& environment, Placement& place) {
  const std::string* address = find(environment, "MASTER_ADDR");
  const std::string* port = find(environment, "MASTER_PORT");
  if (!address && !port) return;
  if (!address || !port)
    throw UsageError(fmt::format("{} is set but {} is not; set both or neither",
                                 address ? "MASTER_ADDR" : "MASTER_PORT", address ? "MASTER_PORT" : "MASTER_ADDR"));
  place.master_address = *address;
  place.master_port = number(environment, "MASTER_PORT", 1);
  if (place.master_port > 65535) throw UsageError(fmt::format("MASTER_PORT: got {}; expected at most 65535", *port));
}

void read_local(const Environment& environment, std::string_view rank, std::string_view size, Placement& place) {
  bool has_rank = find(environment, rank), has_size = find(environment, size);
  if (has_rank != has_size)
    throw UsageError(fmt::format("{} is set but {} is not; {} sets both", has_rank ? rank : size,
                                 has_rank ? size : rank, place.launcher));
  if (!has_rank) return;
  place.local_rank = number(environment, rank, 0);
  place.local_size = number(environment, size, 1);
}

Placement read_torchrun(const Environment& environment) {
  Placement place{"torchrun", number(environment, "RANK", 0), number(environment, "WORLD_SIZE", 1)};
  read_local(environment, "LOCAL_RANK", "LOCAL_WORLD_SIZE", place);
  read_master(environment, place);
  return place;
}

// Number of tasks on a node, from a list in Slurm's form: "2(x3),1" means 2, 2, 2, 1 tasks on nodes 0 to 3.
int tasks_on_node(std::string_view list, int node) {
  const std::string_view given = list;
  int64_t seen = 0;
  while (!list.empty()) {
    size_t comma = std::min(list.find(','), list.size());
    std::string_view part = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    int tasks = 0, times = 1;
    auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), tasks);
    if (error != std::errc() || tasks < 1) break;
    if (size_t x = part.find("(x"); x != part.npos)
      std::from_chars(part.data() + x + 2, part.data() + part.size(), times);
    if (times < 1) break;
    seen += times;
    if (node < seen) return tasks;
  }
  throw UsageError(
      fmt::format("SLURM_TASKS_PER_NODE: got \"{}\", which has no task count for node {}; expected one count per node",
                  given, node));
}

// A port derived from the job and step id. Every task computes the same port, so the tasks need not exchange it.
int slurm_port(const Environment& environment) {
  uint32_t hash = 2166136261u;
  for (std::string_view name : {"SLURM_JOB_ID", "SLURM_STEP_ID"}) {
    for (char c : *find(environment, name)) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
    hash = (hash ^ '.') * 16777619u;
  }
  return 20000 + static_cast<int>(hash % 10000);  // stays below Linux's ephemeral ports (32768 and up)
}

Placement read_slurm(const Environment& environment) {
  Placement place{"slurm", number(environment, "SLURM_PROCID", 0), number(environment, "SLURM_NTASKS", 1)};
  place.local_rank = number(environment, "SLURM_LOCALID", 0);
  place.local_size =
      tasks_on_node(*find(environment, "SLURM_TASKS_PER_NODE"), number_or(environment, "SLURM_NODEID", 0, 0));
  read_master(environment, place);
  if (place.master_address.empty()) {
    std::vector<std::string> hosts = expand_hosts(*find(environment, "SLURM_STEP_NODELIST"));
    if (hosts.empty()) throw UsageError("SLURM_STEP_NODELIST: got no host; expected at least one");
    place.master_address = hosts.front();
    place.master_port = slurm_port(environment);
  }
  return place;
}

Placement read_openmpi(const Environment& environment) {
  Placement place{"openmpi", number(environment, "OMPI_COMM_WORLD_RANK", 0),
                  number(environment, "OMPI_COMM_WORLD_SIZE", 1)};
  read_local(environment, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", place);
  read_master(environment, place);
  return place;
}

Placement read_mpich(const Environment& environment) {
  Placement place{"mpich", number(environment, "PMI_RANK", 0), number(environment, "PMI_SIZE", 1)};
  read_local(environment, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", place);
  read_master(environment, place);
  return place;
}

const Row kRows[] = {
    {"torchrun",
     {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
     {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"},
     {"GROUP_RANK"},
     read_torchrun},
    {"slurm",
     {"SLURM_PROCID"},
     {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE", "SLURM_STEP_NODELIST", "SLURM_JOB_ID",
      "SLURM_STEP_ID"},
     {"SLURM_NODEID"},
     read_slurm},
    {"openmpi",
     {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
     {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
     {},
     read_openmpi},
    {"mpich", {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}, {"PMI_RANK", "PMI_SIZE"}, {}, read_mpich},
};

std::optional<Placement> read_row(const Row& row, const Environment& environment) {
  std::string_view sign;
  for (std::string_view name : row.signs)
    if (sign.empty() && find(environment, name)) sign = name;
  if (sign.empty()) return std::nullopt;
  for (std::string_view name : row.required)
    if (!find(environment, name))
      throw UsageError(
          fmt::format("{} is set, so {} seems to have started this process, but {} is not set. Start with {}, or unset "
                      "{}",
                      sign, row.name, name, row.name, sign));
  Placement place = row.read(environment);
  if (place.rank >= place.size)
    throw UsageError(
        fmt::format("{}: got rank {} of {} ranks; expected 0 to {}", row.name, place.rank, place.size, place.size - 1));
  if (place.local_rank >= place.local_size || place.local_size > place.size)
    throw UsageError(
        fmt::format("{}: got local rank {} of {} local ranks in a job of {}; expected a local rank below the number of "
                    "local ranks, and no more local ranks than ranks",
                    row.name, place.local_rank, place.local_size, place.size));
  return place;
}

// True if Slurm started torchrun once per node: torchrun's group rank is then Slurm's task id. This is not a
// contradiction.
bool is_nested(const Environment& environment, const Placement& inner, const Placement& outer) {
  return inner.launcher == "torchrun" && outer.launcher == "slurm" && find(environment, "GROUP_RANK") &&
         number(environment, "GROUP_RANK", 0) == outer.rank && inner.size % outer.size == 0;
}

}  // namespace

Placement read_environment(const Environment& environment) {
  std::optional<Placement> chosen;
  for (const Row& row : kRows) {
    std::optional<Placement> place = read_row(row, environment);
    if (!place) continue;
    if (!chosen) {
      chosen = place;
    } else if ((chosen->rank != place->rank || chosen->size != place->size) &&
               !is_nested(environment, *chosen, *place)) {
      throw UsageError(
          fmt::format("the environment contradicts itself: {} says rank {} of {}, {} says rank {} of {}; "
                      "clear the variables of the launcher that did not start this process",
                      chosen->launcher, chosen->rank, chosen->size, place->launcher, place->rank, place->size));
    }
  }
  if (chosen) return *chosen;
  Placement alone;
  alone.launcher = "none";
  return alone;
}

std::vector<std::string_view> placement_variables() {
  std::vector<std::string_view> names;
  for (const Row& row : kRows)
    for (const Names* list : {&row.signs, &row.required, &row.optional})
      names.insert(names.end(), list->begin(), list->end());
  return names;
}

std::vector<std::string> expand_hosts(std::string_view list) {
  constexpr int kMaxHosts = 1 << 17;
  constexpr size_t kMaxNameBytes = 253;
  std::vector<std::string> hosts;
  auto bad = [&](std::string_view part) {
    return UsageError(fmt::format("cannot read the host list \"{}\" at \"{}\"", list, part));
  };
  auto add_range = [&](std::string_view prefix, std::string_view range) {
    size_t dash = range.find('-');
    std::string_view first = range.substr(0, dash), last = dash == range.npos ? first : range.substr(dash + 1);
    int from = 0, to = 0;
    auto parse = [](std::string_view text, int& value) {
      auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      return error == std::errc() && end == text.data() + text.size() && !text.empty();
    };
    if (!parse(first, from) || !parse(last, to) || to < from || first.size() > 10) throw bad(range);
    if (prefix.size() > kMaxNameBytes) throw bad(prefix);
    if (to - from >= kMaxHosts - static_cast<int>(hosts.size())) throw bad(range);
    for (int i = from; i <= to; ++i) hosts.push_back(fmt::format("{}{:0{}}", prefix, i, first.size()));
  };
  for (size_t at = 0; at < list.size();) {
    size_t end = list.find_first_of(",[", at);
    std::string_view prefix = list.substr(at, end == list.npos ? list.npos : end - at);
    if (end == list.npos || list[end] == ',') {
      if (!prefix.empty()) hosts.emplace_back(prefix);
      at = end == list.npos ? list.size() : end + 1;
      continue;
    }
    size_t close = list.find(']', end);
    if (close == list.npos) throw bad(list.substr(end));
    std::string_view ranges = list.substr(end + 1, close - end - 1);
    while (!ranges.empty()) {
      size_t comma = std::min(ranges.find(','), ranges.size());
      add_range(prefix, ranges.substr(0, comma));
      ranges.remove_prefix(std::min(comma + 1, ranges.size()));
    }
    if (close + 1 < list.size() && list[close + 1] != ',') throw bad(list.substr(close));
    at = close + 2;
  }
  return hosts;
}

Environment process_environment() {
  Environment environment;
  for (char** entry = environ; *entry; ++entry) {
    std::string_view text = *entry;
    size_t equals = text.find('=');
    if (equals != text.npos) environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

}  // namespace esp::launch
