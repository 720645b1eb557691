// espalier lab collectives: every collective on four real ranks, drawn before and after; bytes sent; and pipelined
// broadcasts compared with their formulas.
//
// A value is one bit per (rank, chunk), so a sum shows its terms and double counting is visible.
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/lab_output.h"
#include "apps/espalier/lab_svg.h"
#include "apps/espalier/lab_table.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/comm/algo/table.h"
#include "esp/comm/simulate.h"
#include "esp/comm/test_options.h"
#include "esp/net/inproc/threads.h"

namespace esp::app {
namespace {

constexpr int kRanks = 4;
constexpr size_t kMeasured = size_t{1} << 18;  // elements of 4 bytes, of the whole buffer

using Row = std::vector<int64_t>;  // by chunk; 0: empty
using Picture = std::vector<Row>;  // by rank

int64_t bit(int rank, int chunk) {
  return int64_t{1} << (rank * kRanks + chunk);
}

std::string letters(int64_t value) {
  std::string text;
  for (int rank = 0; rank < kRanks; ++rank)
    for (int chunk = 0; chunk < kRanks; ++chunk)
      if (value & bit(rank, chunk))
        text += fmt::format("{}{}{}", text.empty() ? "" : "+", static_cast<char>('a' + rank), chunk);
  return text.empty() ? "·" : text;
}

int64_t column_sum(int chunk) {
  int64_t sum = 0;
  for (int rank = 0; rank < kRanks; ++rank) sum |= bit(rank, chunk);
  return sum;
}

// One operation: initial values, expected values, and its name. Root is rank 0.
struct Operation {
  const char *name, *algorithm, *sent, *words;
  comm::Op op;
  double of_s;  // most bytes sent by one rank, in S
  bool (*begins)(int rank, int chunk);
  int64_t (*ends)(int rank, int chunk);
};

constexpr double kShare = (kRanks - 1.0) / kRanks;
bool all(int, int) {
  return true;
}
bool root_alone(int rank, int) {
  return rank == 0;
}
bool own_chunk(int rank, int chunk) {
  return rank == chunk;
}

const Operation kOperations[] = {
    {"broadcast", "scatter_allgather", "2(N−1)/N·S", "one has it, all get it", comm::Op::broadcast, 2 * kShare,
     root_alone, [](int, int chunk) { return bit(0, chunk); }},
    {"scatter", "direct", "(N−1)/N·S", "one has it, each gets a part", comm::Op::scatter, kShare, root_alone,
     [](int rank, int chunk) { return rank == chunk ? bit(0, chunk) : 0; }},
    {"gather", "direct", "S/N", "each rank has a part, one gets all", comm::Op::gather, 1.0 / kRanks, own_chunk,
     [](int rank, int chunk) { return rank == 0 ? bit(chunk, chunk) : 0; }},
    {"reduce", "naive", "S", "all have it, one gets the sum", comm::Op::reduce, 1, all,
     [](int rank, int chunk) { return rank == 0 ? column_sum(chunk) : 0; }},
    {"all-gather", "ring", "(N−1)/N·S", "each rank has a part, all get all", comm::Op::all_gather, kShare, own_chunk,
     [](int, int chunk) { return bit(chunk, chunk); }},
    {"reduce-scatter", "ring", "(N−1)/N·S", "all have it, each gets a part of the sum", comm::Op::reduce_scatter,
     kShare, all, [](int rank, int chunk) { return rank == chunk ? column_sum(chunk) : 0; }},
    {"all-to-all", "pairwise", "(N−1)/N·S", "part i of j becomes part j of i", comm::Op::all_to_all, kShare, all,
     [](int rank, int chunk) { return bit(chunk, rank); }},
    {"all-reduce", "ring", "2(N−1)/N·S", "all have it, all get the sum", comm::Op::all_reduce, 2 * kShare, all,
     [](int, int chunk) { return column_sum(chunk); }},
};

struct SeenOperation {
  const Operation* it = nullptr;
  Picture before, after, expected;
  uint64_t most_sent = 0;  // of a buffer of kMeasured
};

// Location of a rank's values in the call's buffers: the whole, or its part.
void call_small(comm::Communicator& comm, const Operation& it, Row& row) {
  Row out(kRanks, 0);
  const auto rank = static_cast<size_t>(comm.rank());
  const auto i64 = DType::i64;
  const auto sum = comm::ReduceOp::sum;
  switch (it.op) {
    case comm::Op::broadcast:
      comm.broadcast(row.data(), kRanks, i64, 0), out = row;
      break;
    case comm::Op::scatter:
      comm.scatter(row.data(), &out[rank], 1, i64, 0);
      break;
    case comm::Op::gather:
      comm.gather(&row[rank], out.data(), 1, i64, 0);
      break;
    case comm::Op::reduce:
      comm.reduce(row.data(), out.data(), kRanks, i64, sum, 0);
      break;
    case comm::Op::all_gather:
      comm.all_gather(&row[rank], out.data(), 1, i64);
      break;
    case comm::Op::reduce_scatter:
      comm.reduce_scatter(row.data(), &out[rank], 1, i64, sum);
      break;
    case comm::Op::all_to_all:
      comm.all_to_all(row.data(), out.data(), 1, i64);
      break;
    default:
      comm.all_reduce(row.data(), out.data(), kRanks, i64, sum);
      break;
  }
  const bool root_only = it.op == comm::Op::gather || it.op == comm::Op::reduce;
  row = root_only && comm.rank() != 0 ? Row(kRanks, 0) : out;
}

SeenOperation run(const Operation& it) {
  SeenOperation seen{&it, {}, {}, {}, 0};
  for (int rank = 0; rank < kRanks; ++rank) {
    seen.before.emplace_back();
    seen.expected.emplace_back();
    for (int chunk = 0; chunk < kRanks; ++chunk) {
      seen.before.back().push_back(it.begins(rank, chunk) ? bit(rank, chunk) : 0);
      seen.expected.back().push_back(it.ends(rank, chunk));
    }
  }
  seen.after = seen.before;
  std::vector<uint64_t> sent(kRanks);
  net::run_threads(kRanks, [&](net::World& world) {
    const auto comm = comm::make_communicator(world, world.everyone(), comm::test_options("inproc", size_t{256} << 10));
    const auto rank = static_cast<size_t>(world.rank);
    call_small(*comm, it, seen.after[rank]);
    std::vector<float> in(kMeasured, 1), out(kMeasured);
    comm::Call call;
    call.op = it.op;
    call.in = in.data();
    call.out = it.op == comm::Op::broadcast ? in.data() : out.data();
    call.count = kMeasured;
    call.algorithm = it.algorithm;
    comm->run(call);
    for (const comm::CallStats& one : comm->stats())
      if (one.op == it.op && one.algorithm == it.algorithm) sent[rank] = std::max(sent[rank], one.bytes_sent);
  });
  seen.most_sent = *std::max_element(sent.begin(), sent.end());
  return seen;
}

std::string text_of(const SeenOperation& seen) {
  Cells head = {seen.it->name};
  for (int chunk = 0; chunk < kRanks; ++chunk) head.push_back(fmt::format("before {}", chunk));
  for (int chunk = 0; chunk < kRanks; ++chunk) head.push_back(fmt::format("after {}", chunk));
  std::vector<Cells> rows;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    Cells row = {fmt::format("  rank {}", rank)};
    for (const int64_t value : seen.before[rank]) row.push_back(letters(value));
    for (const int64_t value : seen.after[rank]) row.push_back(letters(value));
    rows.push_back(row);
  }
  return text_table(head, rows) + "\n";
}

// A cell has one stripe per rank in its value.
std::string cell(double x, double y, int64_t value) {
  constexpr double kSide = 30;
  std::vector<int> from;
  for (int rank = 0; rank < kRanks; ++rank)
    if (value >> (rank * kRanks) & ((1 << kRanks) - 1)) from.push_back(rank);
  std::string svg;
  for (size_t i = 0; i < from.size(); ++i)
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"/>\n",
                       x + kSide * static_cast<double>(i) / static_cast<double>(from.size()), y,
                       kSide / static_cast<double>(from.size()), kSide, svg_colour(static_cast<size_t>(from[i])));
  svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" class=\"grid\"/>\n", x, y, kSide,
                     kSide);
  if (from.size() == 1) svg += svg_text(x + kSide / 2, y + 20, "middle", letters(value), "style=\"fill:#fff\"");
  if (from.size() > 1) svg += svg_text(x + kSide / 2, y + 20, "middle", "Σ", "style=\"fill:#fff;font-weight:bold\"");
  return svg;
}

std::string draw(const std::vector<SeenOperation>& all_seen) {
  constexpr double kPitch = 32, kWide = 440, kTall = 196, kLeft = 30;
  std::string svg = svg_open(2 * kWide, 60 + kTall * 4);
  svg += svg_text(kLeft, 28, "start", "Eight collectives on four ranks: before and after", "font-weight=\"bold\"");
  for (size_t i = 0; i < all_seen.size(); ++i) {
    const double x = kLeft + kWide * static_cast<double>(i % 2), y = 66 + kTall * static_cast<double>(i / 2);
    svg += svg_text(x, y, "start", fmt::format("{}: {}", all_seen[i].it->name, all_seen[i].it->words));
    for (size_t rank = 0; rank < kRanks; ++rank)
      for (size_t chunk = 0; chunk < kRanks; ++chunk) {
        const double row = y + 12 + kPitch * static_cast<double>(rank), column = kPitch * static_cast<double>(chunk);
        svg += cell(x + 16 + column, row, all_seen[i].before[rank][chunk]);
        svg += cell(x + 216 + column, row, all_seen[i].after[rank][chunk]);
        if (chunk == 0) svg += svg_text(x + 8, row + 20, "end", std::to_string(rank));
      }
    svg += svg_text(x + 180, y + 12 + 2 * kPitch + 4, "middle", "→", "style=\"font-size:26px\"");
  }
  return svg + "</svg>\n";
}

// A message of N bytes along a chain of K ranks in S segments, α = 0: picoseconds of virtual time.
int64_t chain_ps(int ranks, size_t bytes, int segments, int64_t beta_ps) {
  std::vector<comm::Schedule> schedules;
  for (int rank = 0; rank < ranks; ++rank) {
    comm::CollectiveSpec problem;
    problem.op = comm::Op::broadcast;
    problem.rank = rank, problem.size = ranks, problem.count = bytes, problem.segments = segments;
    schedules.push_back(comm::find_algorithm(comm::Op::broadcast, "ring_pipelined").build(problem));
  }
  return comm::simulate(schedules, 1, net::LinkCost{0, beta_ps}).time_ps;
}

void add_chains(Findings& findings, Json& rows) {
  constexpr size_t kBytes = size_t{1} << 20;
  constexpr int64_t kBeta = 80;  // ps per byte: 12.5 GB/s
  for (const int ranks : {4, 8})
    for (const int segments : {1, 4, 64}) {
      const auto formula = static_cast<double>((ranks - 2 + segments) * (kBytes / static_cast<size_t>(segments))) *
                           static_cast<double>(kBeta) * 1e-6;
      const double virtual_us = static_cast<double>(chain_ps(ranks, kBytes, segments, kBeta)) * 1e-6;
      const std::string printed = segments == 1 ? "(K−1)·N/B" : "(K−2+S)·N/(SB)";
      findings.exact(fmt::format("broadcast of 1 MiB down a chain, K = {}, S = {}", ranks, segments), printed, formula,
                     virtual_us, "µs");
      rows.push_back({{"ranks", ranks}, {"segments", segments}, {"formula_us", formula}, {"virtual_us", virtual_us}});
    }
}

struct CollectivesLab {
  std::string json, out;
};

int run_lab_collectives(const CollectivesLab& o) {
  std::vector<SeenOperation> all_seen;
  Findings findings;
  Json operations = Json::array(), chains = Json::array();
  std::string text = "Four ranks, four chunks: a letter is the rank a value came from, a digit its chunk\n\n";
  for (const Operation& it : kOperations) {
    const SeenOperation& seen = all_seen.emplace_back(run(it));
    text += text_of(seen);
    findings.holds(fmt::format("{}: {}", it.name, it.words), "figure", "by definition", "4 ranks, all chunks",
                   seen.after == seen.expected);
    const double formula = it.of_s * 4.0 * static_cast<double>(kMeasured);
    findings.exact(fmt::format("{} ({}), most that a rank sends of S = 1 MiB", it.name, it.algorithm), it.sent, formula,
                   static_cast<double>(seen.most_sent), "B");
    operations.push_back({{"op", it.name},
                          {"algorithm", it.algorithm},
                          {"correct", seen.after == seen.expected},
                          {"formula_bytes", formula},
                          {"bytes_sent", seen.most_sent}});
  }
  add_chains(findings, chains);
  const Json report = {{"ranks", kRanks}, {"operations", operations}, {"chains", chains}};
  return finish_lab({o.json, o.out}, "collectives", text, report, draw(all_seen), findings);
}

}  // namespace

void define_lab_collectives(const Arguments& app, Chosen& chosen) {
  auto o = keep<CollectivesLab>(app, chosen, run_lab_collectives);
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
