// espalier lab context: one sequence over several ranks. Ring attention with contiguous and with zig-zag pieces, and
// Ulysses: work at every step of the ring, bytes compared with the formulas, memory, and differences from one device.
//
// The ranks are threads of this process. Work is counted in (query, key) pairs, as ranks recorded it in their traces;
// the picture shows the steps as they would run on separate cores, where all wait for the slowest.
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/lab_context_run.h"
#include "apps/espalier/lab_output.h"
#include "apps/espalier/lab_svg.h"
#include "apps/espalier/machine.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/kernel/floating.h"
#include "esp/parallel/cp/ulysses.h"

namespace esp::app {
namespace {

using parallel::ContextLayout;

struct ContextLab {
  int nproc = 4, rounds = 3;
  int64_t batch = 1, seq = 2048, heads = 4, kv_heads = 0, head_dim = 32;
  bool bidirectional = false;
  std::string precision = "fp32", json, out;
};

ContextCase case_of(const ContextLab& o) {
  const DType dtype = o.precision == "fp64"   ? DType::f64
                      : o.precision == "bf16" ? DType::bf16
                      : o.precision == "fp16" ? DType::f16
                                              : DType::f32;
  return {o.nproc, o.batch, o.seq, o.heads, o.kv_heads > 0 ? o.kv_heads : o.heads, o.head_dim, !o.bidirectional, dtype};
}

// --- work ---

// The maximum over ranks at each step: the duration of a step on separate cores.
std::vector<int64_t> slowest(const ContextRun& run) {
  std::vector<int64_t> most;
  for (const ContextRank& rank : run.ranks) {
    most.resize(rank.pairs[0].size());
    for (size_t j = 0; j < most.size(); ++j) most[j] = std::max(most[j], rank.pairs[0][j]);
  }
  return most;
}

int64_t sum_of(const std::vector<int64_t>& values) {
  int64_t sum = 0;
  for (int64_t value : values) sum += value;
  return sum;
}

// The fraction of time in which ranks compute, on separate cores with free communication.
double busy(const ContextRun& run) {
  int64_t all = 0;
  for (const ContextRank& rank : run.ranks) all += sum_of(rank.pairs[0]);
  return static_cast<double>(all) / static_cast<double>(sum_of(slowest(run)) * static_cast<int64_t>(run.ranks.size()));
}

std::string tokens_text(const nn::TokenMap& tokens) {
  std::string text;
  for (const nn::TokenRun& run : tokens.runs)
    text += fmt::format("{}{}–{}", text.empty() ? "" : ", ", run.first, run.first + run.count - 1);
  return text;
}

std::string work_table(const ContextCase& it, const ContextRun& run) {
  // In squares of a piece: c pieces per rank, twice as many in total.
  const double piece = static_cast<double>(it.length) / (2 * it.num_ranks);
  auto squares = [&](int64_t pairs) { return fmt::format("{:.2f}", static_cast<double>(pairs) / (piece * piece)); };
  Cells head = {"", "tokens"};
  for (int j = 0; j < it.num_ranks; ++j) head.push_back(fmt::format("step {}", j));
  head.insert(head.end(), {"all steps", "ms"});
  std::vector<Cells> rows;
  for (size_t r = 0; r < run.ranks.size(); ++r) {
    const ContextRank& rank = run.ranks[r];
    Cells row = {fmt::format("rank {}", r), tokens_text(rank.tokens)};
    double ms = 0;
    for (size_t j = 0; j < rank.pairs[0].size(); ++j) {
      row.push_back(squares(rank.pairs[0][j]));
      ms += rank.step_ms[0][j] + rank.step_ms[1][j];
    }
    row.push_back(squares(sum_of(rank.pairs[0])));
    row.push_back(fmt::format("{:.1f}", ms));
    rows.push_back(row);
  }
  Cells last = {"slowest", ""};
  for (int64_t pairs : slowest(run)) last.push_back(squares(pairs));
  last.insert(last.end(), {squares(sum_of(slowest(run))), ""});
  rows.push_back(last);
  return fmt::format("{}: ranks compute {:.1f} % of the time\n{}", run.name, 100 * busy(run), text_table(head, rows));
}

// --- bytes ---

struct Formula {
  std::string text[2];
  uint64_t bytes[2] = {0, 0};
};

Formula formula_of(const ContextCase& it, ContextMethod method) {
  const auto c = static_cast<uint64_t>(it.num_ranks);
  const auto tokens = static_cast<uint64_t>(it.batch * it.length) / c;
  const auto q_width = static_cast<uint64_t>(it.heads * it.head_dim);
  const auto kv_width = static_cast<uint64_t>(it.kv_heads * it.head_dim);
  const uint64_t element = size_of(it.dtype);
  if (method == ContextMethod::ring) {
    const uint64_t q = 2 * tokens * kv_width * element;
    const uint64_t sums = q / element * size_of(kernel::accumulator_of(it.dtype));
    return {{"(c−1)·q", "(c−1)·q + c·q'"}, {(c - 1) * q, (c - 1) * q + c * sums}};
  }
  // Where ranks share a key/value head, each stores a copy of it.
  const uint64_t kv_sent = std::max(kv_width / c, static_cast<uint64_t>(it.head_dim));
  const uint64_t bytes = (c - 1) * tokens * (2 * q_width / c + 2 * kv_sent) * element;
  const char* text = it.kv_heads == it.heads ? "4(c−1)/c·bsh/c·e" : "(c−1)·b(s/c)·(2h + 2h_kv)/c·e";
  return {{text, text}, {bytes, bytes}};
}

std::string bytes_table(const std::vector<ContextRun>& runs, const std::vector<Formula>& formulas) {
  std::vector<Cells> rows;
  for (size_t i = 0; i < runs.size(); ++i)
    for (int way = 0; way < 2; ++way) {
      uint64_t least = UINT64_MAX, most = 0;
      for (const ContextRank& rank : runs[i].ranks)
        least = std::min(least, rank.sent[way]), most = std::max(most, rank.sent[way]);
      rows.push_back({runs[i].name, way == 0 ? "forward" : "backward", formulas[i].text[way],
                      std::to_string(formulas[i].bytes[way]),
                      least == most ? std::to_string(most) : fmt::format("{}–{}", least, most)});
    }
  return text_table({"bytes a rank sends", "", "formula", "by the formula", "counted"}, rows);
}

// --- memory, time, equality ---

std::string summary_table(const std::vector<ContextRun>& runs, const ContextRank& one) {
  std::vector<Cells> rows = {{"one device", human_bytes(one.peak_bytes), "1.00", fmt::format("{:.1f}", one.ms[0]),
                              fmt::format("{:.1f}", one.ms[1]), "", ""}};
  for (const ContextRun& run : runs) {
    ContextRank most;
    for (const ContextRank& rank : run.ranks) {
      most.peak_bytes = std::max(most.peak_bytes, rank.peak_bytes);
      for (int way = 0; way < 2; ++way) most.ms[way] = std::max(most.ms[way], rank.ms[way]);
      most.waited_ms = std::max(most.waited_ms, rank.waited_ms);
    }
    rows.push_back({run.name, human_bytes(most.peak_bytes),
                    fmt::format("{:.2f}", static_cast<double>(most.peak_bytes) / static_cast<double>(one.peak_bytes)),
                    fmt::format("{:.1f}", most.ms[0]), fmt::format("{:.1f}", most.ms[1]),
                    fmt::format("{:.1f}", most.waited_ms), fmt::format("{:.1e}", run.error)});
  }
  return text_table({"a rank, one thread", "peak memory", "of one", "forward ms", "backward ms", "waited ms",
                     "differs from one device"},
                    rows);
}

Json report_of(const ContextCase& it, const std::vector<ContextRun>& runs, const std::vector<Formula>& formulas,
               const ContextRank& one) {
  Json rows = Json::array();
  for (size_t i = 0; i < runs.size(); ++i) {
    Json ranks = Json::array();
    for (const ContextRank& rank : runs[i].ranks) {
      Json tokens = Json::array();
      for (const nn::TokenRun& run : rank.tokens.runs) tokens.push_back({run.first, run.count});
      ranks.push_back({{"tokens", tokens},
                       {"pairs", rank.pairs[0]},
                       {"bytes_forward", rank.sent[0]},
                       {"bytes_backward", rank.sent[1]},
                       {"forward_ms", rank.ms[0]},
                       {"backward_ms", rank.ms[1]},
                       {"waited_ms", rank.waited_ms},
                       {"peak_bytes", rank.peak_bytes}});
    }
    rows.push_back({{"method", runs[i].name},
                    {"error", runs[i].error},
                    {"formula_bytes_forward", formulas[i].bytes[0]},
                    {"formula_bytes_backward", formulas[i].bytes[1]},
                    {"ranks", std::move(ranks)}});
  }
  return {{"tokens", it.length},       {"ranks", it.num_ranks},          {"heads", it.heads},
          {"kv_heads", it.kv_heads},   {"head_dim", it.head_dim},        {"batch", it.batch},
          {"causal", it.causal},       {"precision", name_of(it.dtype)}, {"one_peak_bytes", one.peak_bytes},
          {"methods", std::move(rows)}};
}

// --- picture ---

// A row per rank, a box per step: its width is the work, its start the end of the slowest previous step.
std::string draw(const ContextCase& it, const std::vector<ContextRun>& rings) {
  constexpr double kWidth = 900, kLeft = 90, kRight = 40, kTop = 70, kPitch = 30, kThick = 22, kGap = 56;
  const double height = kTop + static_cast<double>(rings.size()) * (kPitch * it.num_ranks + kGap);
  int64_t longest = 1;
  for (const ContextRun& run : rings) longest = std::max(longest, sum_of(slowest(run)));
  const double scale = (kWidth - kLeft - kRight) / static_cast<double>(longest);
  std::string svg = svg_open(kWidth, height);
  svg += svg_text(20, 28, "start",
                  fmt::format("Ring attention over {} tokens on {} ranks: work at every step", it.length, it.num_ranks),
                  "font-weight=\"bold\"");
  double top = kTop;
  for (const ContextRun& run : rings) {
    svg += svg_text(20, top - 8, "start", fmt::format("{}: {:.0f} % busy", run.name, 100 * busy(run)));
    const std::vector<int64_t> widths = slowest(run);
    for (size_t r = 0; r < run.ranks.size(); ++r) {
      const double y = top + kPitch * static_cast<double>(r);
      svg += svg_text(kLeft - 10, y + kThick * 0.7, "end", fmt::format("rank {}", r));
      double x = kLeft;
      for (size_t j = 0; j < widths.size(); ++j) {
        const double width = static_cast<double>(run.ranks[r].pairs[0][j]) * scale;
        const size_t visitor = (r + widths.size() - j) % widths.size();
        if (width > 0) {
          svg += fmt::format(
              "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\" stroke=\"#fff8\"/>\n", x, y,
              width, kThick, svg_colour(visitor));
          svg +=
              svg_text(x + width / 2, y + kThick * 0.7, "middle", fmt::format("K{}", visitor), "style=\"fill:#fff\"");
        }
        x += static_cast<double>(widths[j]) * scale;
        svg += fmt::format("<path class=\"grid\" d=\"M{0:.1f} {1:.1f}V{2:.1f}\"/>\n", x, y - 4, y + kPitch - 4);
      }
    }
    top += kPitch * it.num_ranks + kGap;
  }
  svg += svg_text(20, height - 14, "start",
                  "K r: the keys of rank r are here; a line ends a step, when the slowest is done");
  return svg + "</svg>\n";
}

void check(const ContextLab& options, const ContextCase& it) {
  if (options.nproc < 2 || options.nproc > 16)
    throw UsageError(fmt::format("--nproc: got {}; expected 2 to 16 ranks", options.nproc));
  if (it.batch < 1 || it.heads < 1 || it.kv_heads < 1 || it.head_dim < 1 || options.rounds < 1)
    throw UsageError("expected --batch, --heads, --kv-heads, --head-dim and --rounds >= 1");
  if (it.heads % it.kv_heads != 0)
    throw UsageError(fmt::format("--heads: got {}; must be a multiple of --kv-heads = {}", it.heads, it.kv_heads));
  const int64_t pieces = 2 * options.nproc;
  if (it.length < pieces || it.length % pieces != 0)
    throw UsageError(fmt::format("--seq: got {}; must be a multiple of 2·ranks (equal pieces), for example {}",
                                 it.length, std::max(pieces, it.length / pieces * pieces)));
}

Findings findings_of(const ContextCase& it, const std::vector<ContextRun>& runs, const std::vector<Formula>& formulas) {
  Findings findings;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const int way : {0, 1}) {
      uint64_t most = 0;
      for (const ContextRank& rank : runs[i].ranks) most = std::max(most, rank.sent[way]);
      findings.exact(fmt::format("{}, {}: bytes a rank sends", runs[i].name, way == 0 ? "forward" : "backward"),
                     formulas[i].text[way], static_cast<double>(formulas[i].bytes[way]), static_cast<double>(most),
                     "B");
    }
    findings.holds(fmt::format("{}: results are one device's", runs[i].name), "", "≤ 1e-5 apart",
                   fmt::format("{:.1e} apart", runs[i].error), runs[i].error <= 1e-5 || it.dtype != DType::f32);
  }
  if (it.causal) {
    findings.within("ring, contiguous: ranks compute, of the time", "", (it.num_ranks * 1.0) / (2 * it.num_ranks - 1),
                    busy(runs[0]), 1e-2);
    findings.within("ring, zig-zag: ranks compute, of the time", "", 1, busy(runs[1]), 1e-2);
  }
  return findings;
}

int run_lab_context(const ContextLab& options) {
  const ContextCase it = case_of(options);
  check(options, it);
  std::vector<ContextRun> runs;
  std::vector<Formula> formulas;
  for (ContextLayout layout : {ContextLayout::contiguous, ContextLayout::zigzag}) {
    runs.push_back(run_context(it, ContextMethod::ring, layout, options.rounds));
    formulas.push_back(formula_of(it, ContextMethod::ring));
  }
  const std::vector<ContextRun> rings = runs;
  const std::string obstacle = parallel::ulysses_obstacle(it.heads, it.kv_heads, it.num_ranks);
  if (obstacle.empty()) {
    runs.push_back(run_context(it, ContextMethod::ulysses, ContextLayout::contiguous, options.rounds));
    formulas.push_back(formula_of(it, ContextMethod::ulysses));
  }
  const ContextRank one = run_on_one(it, options.rounds);

  std::string text = fmt::format(
      "{} × {} tokens over c = {} ranks, {} heads and {} key/value heads of {}, {}, {}\n\nWork at each step of the "
      "ring, in squares of a piece ({} tokens):\n",
      it.batch, it.length, it.num_ranks, it.heads, it.kv_heads, it.head_dim, it.causal ? "causal" : "bidirectional",
      name_of(it.dtype), it.length / (2 * it.num_ranks));
  for (const ContextRun& run : rings) text += "\n" + work_table(it, run);
  text +=
      fmt::format("\n{}q = 2·b·(s/c)·h_kv·e bytes, q' the same in the type of sums.\n", bytes_table(runs, formulas));
  if (!obstacle.empty()) text += fmt::format("No ulysses: {}.\n", obstacle);
  text += "\n" + summary_table(runs, one);
  if (it.num_ranks > usable_cores())
    text += fmt::format("{} ranks take turns on {} cores: their times are of the machine, not of the method.\n",
                        it.num_ranks, usable_cores());
  return finish_lab({options.json, options.out}, "context", text, report_of(it, runs, formulas, one), draw(it, rings),
                    findings_of(it, runs, formulas));
}

}  // namespace

void define_lab_context(const Arguments& app, Chosen& chosen) {
  auto o = keep<ContextLab>(app, chosen, run_lab_context);
  app.add_option("--nproc", o->nproc, "ranks that share the sequence [4]").type_name("N");
  app.add_option("--seq", o->seq, "tokens of the sequence [2048]").type_name("T");
  app.add_option("--batch", o->batch, "sequences [1]").type_name("B");
  app.add_option("--heads", o->heads, "query heads [4]").type_name("H");
  app.add_option("--kv-heads", o->kv_heads, "key/value heads [as many]").type_name("H");
  app.add_option("--head-dim", o->head_dim, "size of a head [32]").type_name("D");
  app.add_flag("--bidirectional", o->bidirectional, "every token sees every token, as in BERT");
  app.add_option("--precision", o->precision, "storage type [fp32]")
      .type_name("fp64|fp32|bf16|fp16")
      .one_of({"fp64", "fp32", "bf16", "fp16"});
  app.add_option("--rounds", o->rounds, "times each is run [3]").type_name("N");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
