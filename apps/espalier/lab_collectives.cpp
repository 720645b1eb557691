// espalier lab collectives: runs every collective on four real ranks. Shows the buffers before and after, the bytes
// sent, and pipelined broadcasts compared with their formulas.
//
// A value has one bit per (rank, chunk), so a sum shows its terms. A term that is counted twice is visible.
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
constexpr size_t kMeasured = size_t{1} << 18;  // number of 4-byte elements in the full buffer of the measured calls

using Row = std::vector<int64_t>;  // one value per chunk; 0: the chunk is empty
using Picture = std::vector<Row>;  // one row per rank

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

// One collective with its initial and expected values. The root is rank 0.
struct Operation {
  const char *name, *algorithm, *sent, *description;
  comm::Op op;
  double max_sent_in_s;  // bytes sent by the rank that sends most, in units of the buffer size S
  bool (*has_input)(int rank, int chunk);
  int64_t (*expected_value)(int rank, int chunk);
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
    {"broadcast", "scatter_allgather", "2(N−1)/N·S", "rank 0 has the data, all ranks get it", comm::Op::broadcast,
     2 * kShare, root_alone, [](int, int chunk) { return bit(0, chunk); }},
    {"scatter", "direct", "(N−1)/N·S", "rank 0 has the data, each rank gets a part", comm::Op::scatter, kShare,
     root_alone, [](int rank, int chunk) { return rank == chunk ? bit(0, chunk) : 0; }},
    {"gather", "direct", "S/N", "each rank has a part, rank 0 gets all", comm::Op::gather, 1.0 / kRanks, own_chunk,
     [](int rank, int chunk) { return rank == 0 ? bit(chunk, chunk) : 0; }},
    {"reduce", "naive", "S", "rank 0 gets the sum over all ranks", comm::Op::reduce, 1, all,
     [](int rank, int chunk) { return rank == 0 ? column_sum(chunk) : 0; }},
    {"all-gather", "ring", "(N−1)/N·S", "each rank has a part, all ranks get all", comm::Op::all_gather, kShare,
     own_chunk, [](int, int chunk) { return bit(chunk, chunk); }},
    {"reduce-scatter", "ring", "(N−1)/N·S", "each rank gets a part of the sum", comm::Op::reduce_scatter, kShare, all,
     [](int rank, int chunk) { return rank == chunk ? column_sum(chunk) : 0; }},
    {"all-to-all", "pairwise", "(N−1)/N·S", "part i of rank j becomes part j of rank i", comm::Op::all_to_all, kShare,
     all, [](int rank, int chunk) { return bit(chunk, rank); }},
    {"all-reduce", "ring", "2(N−1)/N·S", "all ranks get the sum", comm::Op::all_reduce, 2 * kShare, all,
     [](int, int chunk) { return column_sum(chunk); }},
};

struct MeasuredOperation {
  const Operation* operation = nullptr;
  Picture before, after, expected;
  uint64_t most_sent = 0;  // bytes sent by the rank that sends most, for a buffer of kMeasured elements
};

// Runs the collective on the values of one rank (`row`). The call's buffers hold all chunks, or only the rank's own
// part, as the collective requires.
void call_small(comm::Communicator& comm, const Operation& operation, Row& row) {
  Row out(kRanks, 0);
  const auto rank = static_cast<size_t>(comm.rank());
  const auto i64 = DType::i64;
  const auto sum = comm::ReduceOp::sum;
  switch (operation.op) {
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
  const bool root_only = operation.op == comm::Op::gather || operation.op == comm::Op::reduce;
  row = root_only && comm.rank() != 0 ? Row(kRanks, 0) : out;
}

MeasuredOperation run(const Operation& operation) {
  MeasuredOperation measured{&operation, {}, {}, {}, 0};
  for (int rank = 0; rank < kRanks; ++rank) {
    measured.before.emplace_back();
    measured.expected.emplace_back();
    for (int chunk = 0; chunk < kRanks; ++chunk) {
      measured.before.back().push_back(operation.has_input(rank, chunk) ? bit(rank, chunk) : 0);
      measured.expected.back().push_back(operation.expected_value(rank, chunk));
    }
  }
  measured.after = measured.before;
  std::vector<uint64_t> sent(kRanks);
  net::run_threads(kRanks, [&](net::World& world) {
    const auto comm =
        comm::make_communicator(world, world.world_group(), comm::test_options("inproc", size_t{256} << 10));
    const auto rank = static_cast<size_t>(world.rank);
    call_small(*comm, operation, measured.after[rank]);
    std::vector<float> in(kMeasured, 1), out(kMeasured);
    comm::Call call;
    call.op = operation.op;
    call.in = in.data();
    call.out = operation.op == comm::Op::broadcast ? in.data() : out.data();
    call.count = kMeasured;
    call.algorithm = operation.algorithm;
    comm->run(call);
    for (const comm::CallStats& one : comm->stats())
      if (one.op == operation.op && one.algorithm == operation.algorithm)
        sent[rank] = std::max(sent[rank], one.bytes_sent);
  });
  measured.most_sent = *std::max_element(sent.begin(), sent.end());
  return measured;
}

std::string text_of(const MeasuredOperation& measured) {
  Cells head = {measured.operation->name};
  for (int chunk = 0; chunk < kRanks; ++chunk) head.push_back(fmt::format("before {}", chunk));
  for (int chunk = 0; chunk < kRanks; ++chunk) head.push_back(fmt::format("after {}", chunk));
  std::vector<Cells> rows;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    Cells row = {fmt::format("  rank {}", rank)};
    for (const int64_t value : measured.before[rank]) row.push_back(letters(value));
    for (const int64_t value : measured.after[rank]) row.push_back(letters(value));
    rows.push_back(row);
  }
  return text_table(head, rows) + "\n";
}

// Draws one value as a cell with a stripe for each rank that the value contains.
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

std::string draw(const std::vector<MeasuredOperation>& results) {
  constexpr double kPitch = 32, kWide = 440, kTall = 196, kLeft = 30;
  std::string svg = svg_open(2 * kWide, 60 + kTall * 4);
  svg += svg_text(kLeft, 28, "start", "Eight collectives on four ranks: before and after", "font-weight=\"bold\"");
  for (size_t i = 0; i < results.size(); ++i) {
    const double x = kLeft + kWide * static_cast<double>(i % 2), y = 66 + kTall * static_cast<double>(i / 2);
    svg +=
        svg_text(x, y, "start", fmt::format("{}: {}", results[i].operation->name, results[i].operation->description));
    for (size_t rank = 0; rank < kRanks; ++rank)
      for (size_t chunk = 0; chunk < kRanks; ++chunk) {
        const double row = y + 12 + kPitch * static_cast<double>(rank), column = kPitch * static_cast<double>(chunk);
        svg += cell(x + 16 + column, row, results[i].before[rank][chunk]);
        svg += cell(x + 216 + column, row, results[i].after[rank][chunk]);
        if (chunk == 0) svg += svg_text(x + 8, row + 20, "end", std::to_string(rank));
      }
    svg += svg_text(x + 180, y + 12 + 2 * kPitch + 4, "middle", "→", "style=\"font-size:26px\"");
  }
  return svg + "</svg>\n";
}

// Virtual time in picoseconds of a broadcast of `bytes` bytes along a chain of ranks, in segments, with α = 0.
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
  constexpr int64_t kBeta = 80;  // picoseconds per byte, that is 12.5 GB/s
  for (const int ranks : {4, 8})
    for (const int segments : {1, 4, 64}) {
      const auto formula = static_cast<double>((ranks - 2 + segments) * (kBytes / static_cast<size_t>(segments))) *
                           static_cast<double>(kBeta) * 1e-6;
      const double virtual_us = static_cast<double>(chain_ps(ranks, kBytes, segments, kBeta)) * 1e-6;
      const std::string printed = segments == 1 ? "(K−1)·N/B" : "(K−2+S)·N/(SB)";
      findings.exact(fmt::format("broadcast of 1 MiB along a chain, K = {}, S = {}", ranks, segments), printed, formula,
                     virtual_us, "µs");
      rows.push_back({{"ranks", ranks}, {"segments", segments}, {"formula_us", formula}, {"virtual_us", virtual_us}});
    }
}

struct CollectivesLabOptions {
  std::string json, out;
};

int run_lab_collectives(const CollectivesLabOptions& o) {
  std::vector<MeasuredOperation> results;
  Findings findings;
  Json operations = Json::array(), chains = Json::array();
  std::string text = "Four ranks, four chunks. A letter names the rank that a value comes from, a digit its chunk.\n\n";
  for (const Operation& operation : kOperations) {
    const MeasuredOperation& measured = results.emplace_back(run(operation));
    text += text_of(measured);
    findings.holds(fmt::format("{}: {}", operation.name, operation.description), "figure", "by definition",
                   "4 ranks, all chunks", measured.after == measured.expected);
    const double formula = operation.max_sent_in_s * 4.0 * static_cast<double>(kMeasured);
    findings.exact(
        fmt::format("{} ({}): bytes sent by the busiest rank, S = 1 MiB", operation.name, operation.algorithm),
        operation.sent, formula, static_cast<double>(measured.most_sent), "B");
    operations.push_back({{"op", operation.name},
                          {"algorithm", operation.algorithm},
                          {"correct", measured.after == measured.expected},
                          {"formula_bytes", formula},
                          {"bytes_sent", measured.most_sent}});
  }
  add_chains(findings, chains);
  const Json report = {{"ranks", kRanks}, {"operations", operations}, {"chains", chains}};
  return finish_lab({o.json, o.out}, "collectives", text, report, draw(results), findings);
}

}  // namespace

void define_lab_collectives(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<CollectivesLabOptions>(app, chosen, run_lab_collectives);
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
