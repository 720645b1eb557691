// espalier lab hosts: all-reduce between hosts with a slow link between them. The hosts are network namespaces of this
// machine, so measuring needs root. Without root, the lab prints this and shows only schedules and formulas.
//
// With M hosts of G ranks each (N = MG), an all-reduce of S bytes makes each host send at least 2(M−1)/M·S
// (hierarchical, torus). A ring through the ranks in order sends 2(N−1)/N·S per host. A ring through ranks that are
// placed round-robin sends G times that.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/bench_job.h"
#include "apps/espalier/lab_bars.h"
#include "apps/espalier/lab_namespaces.h"
#include "apps/espalier/lab_output.h"
#include "apps/espalier/lab_table.h"
#include "apps/espalier/output_file.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/comm/algo/table.h"
#include "esp/comm/simulate.h"
#include "esp/obs/temporary_folder.h"

namespace esp::app {
namespace {

struct HostsLabOptions {
  int hosts = 2, ranks = 2, mbit = 200, repeats = 3;
  size_t bytes = size_t{3} << 20;
  std::string json, out;
};

constexpr const char* kAlgorithms[] = {"ring_scattered", "ring", "hierarchical", "torus2d"};

struct HostTraffic {
  std::string algorithm;
  double formula_bytes = 0;            // bytes leaving each host per call, by the formula
  double model_ms = 0;                 // time for formula_bytes at the link's rate
  double counted_bytes = -1, ms = -1;  // measured; negative: not measured
};

double bytes_leaving_host(const HostsLabOptions& o, const std::string& algorithm) {
  const double hosts = o.hosts, size = o.hosts * o.ranks, bytes = static_cast<double>(o.bytes);
  if (algorithm == "hierarchical" || algorithm == "torus2d") return 2 * (hosts - 1) / hosts * bytes;
  return 2 * (size - 1) / size * bytes * (algorithm == "ring_scattered" ? o.ranks : 1);
}

std::vector<HostTraffic> modelled(const HostsLabOptions& o) {
  std::vector<HostTraffic> rows;
  for (const char* algorithm : kAlgorithms) {
    HostTraffic row{algorithm, bytes_leaving_host(o, algorithm), 0};
    row.model_ms = row.formula_bytes * 8 / (o.mbit * 1e6) * 1e3;
    rows.push_back(row);
  }
  return rows;
}

// A random secret of 32 bytes.
std::string random_hex() {
  std::ifstream source("/dev/urandom", std::ios::binary);
  unsigned char bytes[32];
  if (!source.read(reinterpret_cast<char*>(bytes), sizeof bytes)) throw IoError("cannot read /dev/urandom");
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

void measure(const HostsLabOptions& o, const ShapedHosts& hosts, std::vector<HostTraffic>& rows) {
  const obs::TemporaryFolder folder;
  const std::string secret = folder.path() + "/secret";
  write_file(secret, random_hex());
  std::filesystem::permissions(secret, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  for (HostTraffic& row : rows) {
    const std::vector<ChildResult> ended =
        hosts.run({"env", "ESPALIER_SECRET_FILE=" + secret, executable_path(), "lab", "host-rank", "--algorithm",
                   row.algorithm, "--count", std::to_string(o.bytes / 4), "--repeats", std::to_string(o.repeats)},
                  o.ranks, std::chrono::minutes(2));
    std::vector<double> slowest(static_cast<size_t>(o.repeats));
    std::vector<double> by_host(static_cast<size_t>(o.hosts));
    for (size_t rank = 0; rank < ended.size(); ++rank) {
      if (ended[rank].code != 0)
        throw CommError(CommError::Kind::lost, static_cast<int>(rank),
                        fmt::format("{}: rank {} ended with exit code {}: {}", row.algorithm, rank, ended[rank].code,
                                    ended[rank].err));
      const Json said = parse_json(ended[rank].out, "lab host-rank");
      for (size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], said.at("ms")[i].get<double>());
      const size_t host = rank / static_cast<size_t>(o.ranks);
      for (size_t peer = 0; peer < ended.size(); ++peer)
        if (peer / static_cast<size_t>(o.ranks) != host)
          by_host[host] += said.at("sent")[peer].get<double>() / static_cast<double>(o.repeats);
    }
    std::sort(slowest.begin(), slowest.end());
    row.ms = slowest[slowest.size() / 2];
    row.counted_bytes = *std::max_element(by_host.begin(), by_host.end());
  }
}

// All-reduce on a grid in virtual time: the bytes of the rank that sends most and the rounds, compared with the
// formulas.
struct Grid {
  const char *algorithm, *words, *formula;
  std::vector<int> dims;
  double of_s;
  int rounds;
};

const Grid kGrids[] = {
    {"torus2d", "2D torus, 4 × 4", "2(N−1)/N·S", {4, 4}, 2.0 * 15 / 16, 12},
    {"mesh2d", "2D mesh, 4 × 4", "2S[(C−1)/C + (R−1)/R]", {4, 4}, 2 * (3.0 / 4 + 3.0 / 4), 12},
    {"torus3d", "3D torus, the 3-ary 3-cube", "2(N−1)/N·S", {3, 3, 3}, 2.0 * 26 / 27, 12},
};

comm::SimulationResult simulate(const Grid& grid, size_t count) {
  int size = 1;
  for (const int dim : grid.dims) size *= dim;
  std::vector<comm::Schedule> schedules;
  for (int rank = 0; rank < size; ++rank) {
    comm::CollectiveSpec problem;
    problem.rank = rank, problem.size = size, problem.count = count, problem.shape.dims = grid.dims;
    schedules.push_back(comm::find_algorithm(comm::Op::all_reduce, grid.algorithm).build(problem));
  }
  return comm::simulate(schedules, 4, net::LinkCost{1'000'000, 80});
}

void add_grids(Findings& findings, Json& json) {
  constexpr size_t kCount = 16 * 27 * 64;  // number of elements; every grid's number of ranks divides it
  for (const Grid& grid : kGrids) {
    const comm::SimulationResult seen = simulate(grid, kCount);
    uint64_t most = 0;
    for (const comm::SimulatedRank& rank : seen.ranks) most = std::max(most, rank.bytes_sent);
    findings.exact(fmt::format("{}: bytes sent per rank, S = {} B", grid.words, 4 * kCount), grid.formula,
                   std::round(grid.of_s * 4 * kCount), static_cast<double>(most), "B");
    findings.exact(fmt::format("{}: rounds", grid.words), "", grid.rounds, seen.num_rounds);
    json.push_back({{"algorithm", grid.algorithm}, {"dims", grid.dims}, {"sent", most}, {"rounds", seen.num_rounds}});
  }
}

BarChart chart_of(const HostsLabOptions& o, const std::vector<HostTraffic>& rows) {
  const bool here = rows.front().ms >= 0;
  BarChart chart{fmt::format("All-reduce of {:.1f} MB between {} hosts of {} ranks at {} Mbit/s, ms{}",
                             static_cast<double>(o.bytes) / 1e6, o.hosts, o.ranks, o.mbit, here ? "" : " (by formula)"),
                 {here ? "measured" : "by formula"},
                 here ? "bytes that leave a host / link rate" : "",
                 {}};
  for (const HostTraffic& row : rows)
    chart.bars.push_back({row.algorithm,
                          {here ? row.ms : row.model_ms},
                          here ? row.model_ms : 0,
                          fmt::format("{:.2f} S leave each host", row.formula_bytes / static_cast<double>(o.bytes))});
  return chart;
}

void check(const HostsLabOptions& o) {
  if (o.hosts < 2 || o.hosts > 8 || o.ranks < 1 || o.ranks > 8)
    throw UsageError(
        fmt::format("got --hosts {}, --ranks {}; expected --hosts from 2 to 8, --ranks from 1 to 8", o.hosts, o.ranks));
  if (o.mbit < 1 || o.mbit > 100000 || o.repeats < 1)
    throw UsageError(fmt::format("got --mbit {}, --repeats {}; expected --mbit from 1 to 100000, --repeats >= 1",
                                 o.mbit, o.repeats));
  if (o.bytes == 0 || o.bytes % (4 * static_cast<size_t>(o.hosts * o.ranks)) != 0)
    throw UsageError(fmt::format("--bytes: got {}; must be a multiple of {} (4 bytes for each rank)", o.bytes,
                                 4 * o.hosts * o.ranks));
}

int run_lab_hosts(const HostsLabOptions& o) {
  check(o);
  std::vector<HostTraffic> rows = modelled(o);
  std::string unavailable_reason = ShapedHosts::unavailable_reason();
  std::unique_ptr<ShapedHosts> hosts;
  if (unavailable_reason.empty()) try {
      hosts = std::make_unique<ShapedHosts>(o.hosts, fmt::format("{}mbit", o.mbit));
    } catch (const IoError& error) {  // root in a container may lack network privileges
      unavailable_reason = error.what();
    }
  if (hosts) measure(o, *hosts, rows);
  Findings findings;
  std::vector<Cells> cells;
  Json json = Json::array(), grids = Json::array();
  for (const HostTraffic& row : rows) {
    const bool here = row.ms >= 0;
    cells.push_back({row.algorithm, fmt::format("{:.0f}", row.formula_bytes),
                     here ? fmt::format("{:.0f}", row.counted_bytes) : "not measured",
                     fmt::format("{:.0f}", row.model_ms), here ? fmt::format("{:.0f}", row.ms) : "not measured"});
    const std::string what = fmt::format("{}: bytes that leave a host", row.algorithm);
    if (here)
      findings.exact(what, "", row.formula_bytes, row.counted_bytes, "B");
    else
      findings.show(what, "", fmt::format("{:.0f} B", row.formula_bytes), "not measured here");
    findings.show(fmt::format("{}: time", row.algorithm), "", fmt::format("{:.0f} ms", row.model_ms),
                  here ? fmt::format("{:.0f} ms", row.ms) : "not measured here");
    json.push_back({{"algorithm", row.algorithm},
                    {"formula_bytes", row.formula_bytes},
                    {"counted_bytes", here ? Json(row.counted_bytes) : Json()},
                    {"model_ms", row.model_ms},
                    {"measured_ms", here ? Json(row.ms) : Json()}});
  }
  add_grids(findings, grids);
  const BarChart chart = chart_of(o, rows);
  std::string text = fmt::format(
      "{} hosts of {} ranks, {} Mbit/s each way, all-reduce of {} bytes, median of {}\n\n{}\n", o.hosts, o.ranks,
      o.mbit, o.bytes, o.repeats,
      text_table({"algorithm", "bytes leaving a host, formula", "counted", "ms at link rate", "ms"}, cells));
  if (!unavailable_reason.empty())
    text += fmt::format(
        "NOT MEASURED: {}. The measurement needs root and network namespaces; only formulas and schedules are "
        "shown.\n\n",
        unavailable_reason);
  text += bars_text(chart, 50);
  const Json report = {{"hosts", o.hosts},
                       {"ranks_per_host", o.ranks},
                       {"mbit", o.mbit},
                       {"bytes", o.bytes},
                       {"measured", unavailable_reason.empty()},
                       {"unavailable_reason", unavailable_reason},
                       {"algorithms", json},
                       {"grids", grids}};
  return finish_lab({o.json, o.out}, "hosts", text, report, bars_svg(chart), findings);
}

}  // namespace

void define_lab_hosts(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<HostsLabOptions>(app, chosen, run_lab_hosts);
  app.add_option("--hosts", o->hosts, "hosts (network namespaces) [2]").type_name("M");
  app.add_option("--ranks", o->ranks, "ranks per host [2]").type_name("G");
  app.add_option("--mbit", o->mbit, "Mbit/s of each link [200]").type_name("R");
  app.add_option("--bytes", o->bytes, "bytes of the buffer [3145728]").type_name("S");
  app.add_option("--repeats", o->repeats, "calls; their median is printed [3]").type_name("N");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
