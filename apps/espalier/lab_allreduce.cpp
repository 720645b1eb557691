// espalier lab allreduce: the lecture's comparison of all-reduce algorithms, with its errors corrected. Costs are given
// as formulas, simulated, and measured.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/bench_comm.h"
#include "apps/espalier/command.h"
#include "apps/espalier/core_state.h"
#include "apps/espalier/lab_frames.h"
#include "apps/espalier/lab_output.h"
#include "apps/espalier/lab_picture.h"
#include "apps/espalier/machine.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/comm/algo/table.h"
#include "esp/comm/simulate.h"
#include "esp/comm/tiers.h"

namespace esp::app {
namespace {

// α is seconds per message, β seconds per byte, N the number of ranks, S the bytes of the buffer. `printed` is the
// wrong text of the slide; it is empty if the slide is correct.
struct Textbook {
  std::string_view name, rounds, traffic, cost, best_for, printed;
};
constexpr Textbook kTextbook[] = {
    {"ring", "2(N−1)", "2(N−1)/N·S", "2(N−1)α + 2(N−1)/N·Sβ", "large S, small N",
     "traffic 2S(N−1)/S, cost 2(N−1)(α + S/B), all-gather in one round"},
    {"halving_doubling", "2·log₂N", "2(N−1)/N·S", "2·log₂N·α + 2(N−1)/N·Sβ", "middle S, N a power of two",
     "S in every round, 2S·log₂N in all; and 2S(N−1)/S in the table. Round j moves S/2^j"},
    {"recursive_doubling", "log₂N", "S·log₂N", "log₂N·(α + Sβ)", "small S", ""},
    {"double_tree", "2·log₂N + k", "≤ 2S", "≈ 2·log₂N·α + 2Sβ", "large N", ""},
    {"tree", "2⌈log₂N⌉", "≤ ⌈log₂N⌉·S", "2⌈log₂N⌉(α + Sβ)", "tiny S", ""},
    {"naive", "2(N−1)", "root (N−1)·S", "2(N−1)(α + Sβ)", "reference only", ""},
};
constexpr std::string_view kModelNote =
    "Model: a message of S bytes takes α + Sβ. The slide printed α + β·S/B, which counts the bandwidth twice.";

struct AllReduceLabOptions {
  int nproc = 4;
  std::string min_bytes = "1K", max_bytes = "16M", transport = "auto", json, out;
  double factor = 4;
  int rounds = 3;
};

// Times and traffic of one algorithm.
struct AlgorithmTimes {
  std::string name;
  std::vector<double> measured_us, modelled_us;  // indexed by size; modelled_us is empty for the algorithm "auto"
  int rounds = 0;
  double traffic = 0;  // bytes sent by the rank that sends most, divided by S
};

struct Crossover {
  std::string first, second;  // `first` is the faster one below the size `bytes`
  double bytes = 0;
};

std::vector<comm::Schedule> schedules_of(const comm::AlgorithmRow& row, int size, size_t count) {
  std::vector<comm::Schedule> schedules;
  for (int rank = 0; rank < size; ++rank) {
    comm::CollectiveSpec problem;
    problem.rank = rank, problem.size = size, problem.count = count;
    schedules.push_back(row.build(problem));
  }
  return schedules;
}

bool applies(const comm::AlgorithmRow& row, int size) {
  comm::CollectiveSpec problem;
  problem.size = size, problem.count = 1 << 20;
  return !row.applies || row.applies(problem).empty();
}

double ask_us(BenchJob& job, const std::string& op, const std::string& algorithm, size_t bytes,
              const CommBenchOptions& bench) {
  bench::Request request{op, "f32", "sum", algorithm, bytes, 0, 8, batch_for(bench, bytes), 2};
  BenchResult answer = job.execute(request, Deadline::after(std::chrono::seconds(60)));
  return median(answer.sample_us);
}

// Fits α and β of one message while all ranks exchange at once. It times a pairwise all-to-all: N−1 rounds, each with
// one message per direction, without reduction.
comm::AlphaBeta fit(BenchJob& job, const std::vector<size_t>& sizes, const CommBenchOptions& bench) {
  constexpr size_t kLargest = size_t{4} << 20;
  std::vector<double> bytes, seconds;
  auto n = static_cast<size_t>(job.num_ranks());
  for (size_t size : sizes) {
    if (size > kLargest && bytes.size() >= 2) break;
    bytes.push_back(static_cast<double>(size));
    seconds.push_back(ask_us(job, "all_to_all", "pairwise", size * n, bench) * 1e-6 / static_cast<double>(n - 1));
  }
  return comm::fit_alpha_beta(bytes, seconds);
}

std::vector<AlgorithmTimes> measure(BenchJob& job, const AllReduceLabOptions& options, const std::vector<size_t>& sizes,
                                    const comm::AlphaBeta& link, const CommBenchOptions& bench) {
  std::vector<AlgorithmTimes> lines;
  net::LinkCost cost{static_cast<int64_t>(std::llround(link.alpha * 1e12)),
                     static_cast<int64_t>(std::llround(link.beta * 1e12))};
  for (const Textbook& book : kTextbook) {
    const comm::AlgorithmRow& row = comm::find_algorithm(comm::Op::all_reduce, book.name);
    if (!applies(row, options.nproc)) continue;
    AlgorithmTimes line{std::string(book.name), {}, {}};
    for (size_t size : sizes) {
      comm::SimulationResult model = comm::simulate(schedules_of(row, options.nproc, size / 4), 4, cost);
      line.modelled_us.push_back(static_cast<double>(model.time_ps) * 1e-6);
      line.rounds = model.num_rounds;
      uint64_t most = 0;
      for (const comm::SimulatedRank& rank : model.ranks) most = std::max(most, rank.bytes_sent);
      line.traffic = static_cast<double>(most) / static_cast<double>(size / 4 * 4);
    }
    lines.push_back(line);
  }
  lines.push_back({"auto", {}, {}});
  // Algorithms are measured in turn, so that disturbances of the machine affect all of them.
  std::map<std::pair<size_t, size_t>, std::vector<double>> times;
  for (int round = 0; round < options.rounds; ++round)
    for (size_t s = 0; s < sizes.size(); ++s)
      for (size_t i = 0; i < lines.size(); ++i)
        times[{i, s}].push_back(ask_us(job, "all_reduce", lines[i].name, sizes[s], bench));
  for (size_t i = 0; i < lines.size(); ++i)
    for (size_t s = 0; s < sizes.size(); ++s) lines[i].measured_us.push_back(median(times[{i, s}]));
  return lines;
}

// Sizes at which the curves of two algorithms cross, by linear interpolation on logarithmic axes.
std::vector<Crossover> crossovers(const std::vector<AlgorithmTimes>& lines, const std::vector<size_t>& sizes,
                                  bool modelled) {
  const std::string_view contested[] = {"ring", "halving_doubling", "recursive_doubling"};
  std::vector<const AlgorithmTimes*> chosen;
  for (std::string_view name : contested)
    for (const AlgorithmTimes& line : lines)
      if (line.name == name) chosen.push_back(&line);
  std::vector<Crossover> found;
  for (size_t a = 0; a < chosen.size(); ++a)
    for (size_t b = a + 1; b < chosen.size(); ++b) {
      const auto& first = modelled ? chosen[a]->modelled_us : chosen[a]->measured_us;
      const auto& second = modelled ? chosen[b]->modelled_us : chosen[b]->measured_us;
      for (size_t s = 0; s + 1 < sizes.size(); ++s) {
        double before = std::log(first[s] / second[s]), after = std::log(first[s + 1] / second[s + 1]);
        if (before * after >= 0) continue;
        double from = std::log(static_cast<double>(sizes[s])), to = std::log(static_cast<double>(sizes[s + 1]));
        double bytes = std::exp(from + (to - from) * before / (before - after));
        bool first_below = before < 0;
        found.push_back(
            {first_below ? chosen[a]->name : chosen[b]->name, first_below ? chosen[b]->name : chosen[a]->name, bytes});
      }
    }
  return found;
}

std::string crossovers_text(const std::vector<Crossover>& found) {
  if (found.empty()) return "  none in this range\n";
  std::string text;
  for (const Crossover& c : found)
    text += fmt::format("  {} is faster below {}, {} above\n", c.first,
                        human_bytes(static_cast<uint64_t>(c.bytes / 16) * 16), c.second);
  return text;
}

std::string comparison_text(const std::vector<AlgorithmTimes>& lines, int nproc) {
  std::vector<Cells> rows;
  std::string notes;
  for (const Textbook& book : kTextbook) {
    Cells row = {std::string(book.name), std::string(book.rounds), std::string(book.traffic), std::string(book.cost),
                 std::string(book.best_for)};
    auto line = std::find_if(lines.begin(), lines.end(), [&](const AlgorithmTimes& l) { return l.name == book.name; });
    row.push_back(line == lines.end() ? "–" : std::to_string(line->rounds));
    row.push_back(line == lines.end() ? "–" : fmt::format("{:.2f}·S", line->traffic));
    rows.push_back(row);
    if (!book.printed.empty()) notes += fmt::format("  {}: the slide printed: {}\n", book.name, book.printed);
  }
  return text_table({"all-reduce", "rounds", "bytes per rank", "cost", "best for", fmt::format("rounds, N={}", nproc),
                     "sent by busiest rank"},
                    rows) +
         "\nCorrected:\n" + notes + "  " + std::string(kModelNote) + "\n";
}

std::string times_text(const std::vector<AlgorithmTimes>& lines, const std::vector<size_t>& sizes) {
  Cells head = {"size"};
  for (const AlgorithmTimes& line : lines)
    head.push_back(line.modelled_us.empty() ? line.name : line.name + " (model)");
  std::vector<Cells> rows;
  auto digits = [](double us) { return us >= 100 ? fmt::format("{:.0f}", us) : fmt::format("{:.1f}", us); };
  for (size_t s = 0; s < sizes.size(); ++s) {
    Cells row = {human_bytes(sizes[s])};
    for (const AlgorithmTimes& line : lines)
      row.push_back(line.modelled_us.empty()
                        ? digits(line.measured_us[s])
                        : fmt::format("{} ({})", digits(line.measured_us[s]), digits(line.modelled_us[s])));
    rows.push_back(row);
  }
  return text_table(head, rows);
}

Json to_json(const std::vector<AlgorithmTimes>& lines, const std::vector<size_t>& sizes) {
  Json times = Json::array();
  for (const AlgorithmTimes& line : lines)
    for (size_t s = 0; s < sizes.size(); ++s)
      times.push_back({{"algorithm", line.name},
                       {"bytes", sizes[s]},
                       {"measured_us", line.measured_us[s]},
                       {"modelled_us", line.modelled_us.empty() ? Json() : Json(line.modelled_us[s])}});
  return times;
}

Json to_json(const std::vector<Crossover>& found) {
  Json list = Json::array();
  for (const Crossover& c : found) list.push_back({{"below", c.first}, {"above", c.second}, {"bytes", c.bytes}});
  return list;
}

std::string picture(const std::vector<AlgorithmTimes>& lines, const std::vector<size_t>& sizes, int nproc) {
  std::vector<PictureSeries> series;
  for (const AlgorithmTimes& line : lines) {
    PictureSeries measured{line.name, {}, line.name == "auto"};
    for (size_t s = 0; s < sizes.size(); ++s)
      measured.points.emplace_back(static_cast<double>(sizes[s]), line.measured_us[s]);
    series.push_back(measured);
  }
  return draw_svg(fmt::format("All-reduce on {} ranks of this machine, measured", nproc), "size of the buffer",
                  "time per call", series);
}

// Asserts the rounds and bytes of the algorithms for which a formula gives the exact value at this N.
Findings findings_of(const std::vector<AlgorithmTimes>& lines, int nproc, const std::string& wrong,
                     const std::vector<Crossover>& measured, const std::vector<Crossover>& modelled) {
  Findings findings;
  const bool power = (nproc & (nproc - 1)) == 0;
  const double log2 = std::log2(nproc), share = 2.0 * (nproc - 1) / nproc;
  for (const AlgorithmTimes& line : lines) {
    const auto both = [&](const char* rounds, const char* bytes, double r, double of_s) {
      findings.exact(fmt::format("{}: rounds, N = {}", line.name, nproc), rounds, r, line.rounds);
      findings.exact(fmt::format("{}: bytes sent by the busiest rank, in S", line.name), bytes, of_s, line.traffic);
    };
    if (line.name == "ring") both("2(N−1)", "2S(N−1)/S", 2.0 * (nproc - 1), share);
    if (line.name == "halving_doubling" && power) both("2·log₂N", "2S·log₂N", 2 * log2, share);
    if (line.name == "recursive_doubling" && power) both("log₂N", "S·log₂N", log2, log2);
  }
  findings.holds("ring on four workers, nine frames", "figure", "by the algorithm",
                 wrong.empty() ? "every frame" : wrong, wrong.empty());
  const auto first = [](const std::vector<Crossover>& found) {
    return found.empty() ? std::string("none in this range")
                         : fmt::format("{} below {}, {} above", found[0].first,
                                       human_bytes(static_cast<uint64_t>(found[0].bytes / 16) * 16), found[0].second);
  };
  findings.show("first crossover", "", first(modelled), first(measured));
  return findings;
}

int run_lab_allreduce(const AllReduceLabOptions& options) {
  if (options.nproc < 2 || options.nproc > 64)
    throw UsageError(fmt::format("--nproc: got {}; expected 2 to 64 ranks", options.nproc));
  CommBenchOptions bench;
  bench.min_bytes = options.min_bytes, bench.max_bytes = options.max_bytes, bench.step_factor = options.factor;
  bench.transport = options.transport;
  std::vector<size_t> sizes = sweep(bench);
  std::vector<AlgorithmTimes> lines;
  comm::AlphaBeta link;
  CoreState state = probe_cores();
  {
    RankListener listener;
    EspalierJob job = start_espalier(bench, options.nproc, listener, Deadline::after(std::chrono::seconds(60)));
    link = fit(*job.ranks, sizes, bench);
    lines = measure(*job.ranks, options, sizes, link, bench);
  }
  std::vector<Crossover> measured = crossovers(lines, sizes, false), modelled = crossovers(lines, sizes, true);
  std::vector<comm::RingFrame> frames = run_ring_frames(4);
  std::string wrong = difference(frames, comm::ring_frames(4));

  std::string text = comparison_text(lines, options.nproc);
  text += fmt::format(
      "\n{} ranks on {} cores (core-to-core latency {}); a pairwise exchange fits α = {:.2f} µs, 1/β = {:.2f} GB/s\n"
      "Measured µs per call (modelled with that α and β):\n{}",
      options.nproc, usable_cores(), state.name(), link.alpha * 1e6, link.beta > 0 ? 1e-9 / link.beta : 0,
      times_text(lines, sizes));
  text += "\nCrossovers measured:\n" + crossovers_text(measured) + "Crossovers modelled:\n" + crossovers_text(modelled);
  text += "\nThe ring on four workers, from a real run:\n";
  for (size_t i = 0; i < frames.size(); ++i) text += "\n" + to_text(frames[i], static_cast<int>(i) + 1);
  text += wrong.empty() ? "\nEvery frame is as the algorithm says.\n" : fmt::format("\nWRONG: {}\n", wrong);

  Json out = {{"ranks", options.nproc},
              {"cores", usable_cores()},
              {"core_state", state.name()},
              {"alpha_s", link.alpha},
              {"beta_s_per_byte", link.beta},
              {"table", Json::array()},
              {"times", to_json(lines, sizes)},
              {"crossovers_measured", to_json(measured)},
              {"crossovers_modelled", to_json(modelled)},
              {"frames", Json::array()},
              {"frames_correct", wrong.empty()}};
  for (const Textbook& book : kTextbook)
    out["table"].push_back({{"algorithm", book.name},
                            {"rounds", book.rounds},
                            {"bytes_per_rank", book.traffic},
                            {"cost", book.cost},
                            {"best_for", book.best_for},
                            {"slide_printed", book.printed}});
  for (const comm::RingFrame& frame : frames)
    out["frames"].push_back({{"title", frame.title}, {"cells", frame.cells}, {"moving", frame.moving}});
  return finish_lab({options.json, options.out}, "allreduce", text, out, picture(lines, sizes, options.nproc),
                    findings_of(lines, options.nproc, wrong, measured, modelled));
}

}  // namespace

void define_lab_allreduce(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<AllReduceLabOptions>(app, chosen, run_lab_allreduce);
  app.add_option("--nproc", o->nproc, "ranks on this machine [4]").type_name("N");
  app.add_option("-b,--minbytes", o->min_bytes, "first size [1K]").type_name("BYTES");
  app.add_option("-e,--maxbytes", o->max_bytes, "last size [16M]").type_name("BYTES");
  app.add_option("-f,--stepfactor", o->factor, "factor between sizes [4]").type_name("X");
  app.add_option("--rounds", o->rounds, "rounds per algorithm [3]").type_name("N");
  app.add_option("--transport", o->transport, "transport [auto]").type_name("auto|shm|tcp");
  app.add_option("--json", o->json, "write everything as JSON").type_name("FILE");
  app.add_option("--out", o->out, "write text, JSON and an SVG picture into this folder").type_name("DIR");
}

}  // namespace esp::app
