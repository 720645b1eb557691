// espalier lab context: attention over one sequence that is divided over several ranks. Compares ring attention with
// contiguous and with zig-zag pieces, and Ulysses. Shows the work at every step of the ring, the bytes compared with
// the formulas, the memory, and the difference from the result on one device.
//
// The ranks are threads of this process. Work is counted in (query, key) pairs, as ranks recorded it in their traces.
// The picture shows the steps as they would run on separate cores, where every step waits for the slowest rank.
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

struct ContextLabOptions {
  int nproc = 4, rounds = 3;
  int64_t batch = 1, seq = 2048, heads = 4, kv_heads = 0, head_dim = 32;
  bool bidirectional = false;
  std::string precision = "fp32", json, out;
};

ContextCase case_of(const ContextLabOptions& o) {
  const DType dtype = o.precision == "fp64"   ? DType::f64
                      : o.precision == "bf16" ? DType::bf16
                      : o.precision == "fp16" ? DType::f16
                                              : DType::f32;
  return {o.nproc, o.batch, o.seq, o.heads, o.kv_heads > 0 ? o.kv_heads : o.heads, o.head_dim, !o.bidirectional, dtype};
}

// --- work ---

// For each step: the number of pairs of the slowest rank. It determines the duration of the step on separate cores.
std::vector<int64_t> slowest(const ContextRun& run) {
  std::vector<int64_t> max;
  for (const ContextRank& rank : run.ranks) {
    max.resize(rank.pairs[0].size());
    for (size_t j = 0; j < max.size(); ++j) max[j] = std::max(max[j], rank.pairs[0][j]);
  }
  return max;
}

int64_t sum_of(const std::vector<int64_t>& values) {
  int64_t sum = 0;
  for (int64_t value : values) sum += value;
  return sum;
}

// Fraction of the time in which ranks compute, if each has a separate core and communication takes no time.
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

std::string work_table(const ContextCase& spec, const ContextRun& run) {
  // The unit of work is the square of a piece's length. The sequence has 2·ranks pieces, 2 per rank.
  const double piece = static_cast<double>(spec.length) / (2 * spec.num_ranks);
  auto squares = [&](int64_t pairs) { return fmt::format("{:.2f}", static_cast<double>(pairs) / (piece * piece)); };
  Cells head = {"", "tokens"};
  for (int j = 0; j < spec.num_ranks; ++j) head.push_back(fmt::format("step {}", j));
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

Formula formula_of(const ContextCase& spec, ContextMethod method) {
  const auto c = static_cast<uint64_t>(spec.num_ranks);
  const auto tokens = static_cast<uint64_t>(spec.batch * spec.length) / c;
  const auto q_width = static_cast<uint64_t>(spec.heads * spec.head_dim);
  const auto kv_width = static_cast<uint64_t>(spec.kv_heads * spec.head_dim);
  const uint64_t element = size_of(spec.dtype);
  if (method == ContextMethod::ring) {
    const uint64_t q = 2 * tokens * kv_width * element;
    const uint64_t sums = q / element * size_of(kernel::accumulator_of(spec.dtype));
    return {{"(c−1)·q", "(c−1)·q + c·q'"}, {(c - 1) * q, (c - 1) * q + c * sums}};
  }
  // If several ranks need the same key/value head, each of them stores a copy of it.
  const uint64_t kv_sent = std::max(kv_width / c, static_cast<uint64_t>(spec.head_dim));
  const uint64_t bytes = (c - 1) * tokens * (2 * q_width / c + 2 * kv_sent) * element;
  const char* text = spec.kv_heads == spec.heads ? "4(c−1)/c·bsh/c·e" : "(c−1)·b(s/c)·(2h + 2h_kv)/c·e";
  return {{text, text}, {bytes, bytes}};
}

std::string bytes_table(const std::vector<ContextRun>& runs, const std::vector<Formula>& formulas) {
  std::vector<Cells> rows;
  for (size_t i = 0; i < runs.size(); ++i)
    for (int direction = 0; direction < 2; ++direction) {
      uint64_t min = UINT64_MAX, max = 0;
      for (const ContextRank& rank : runs[i].ranks)
        min = std::min(min, rank.sent[direction]), max = std::max(max, rank.sent[direction]);
      rows.push_back({runs[i].name, direction == 0 ? "forward" : "backward", formulas[i].text[direction],
                      std::to_string(formulas[i].bytes[direction]),
                      min == max ? std::to_string(max) : fmt::format("{}–{}", min, max)});
    }
  return text_table({"bytes sent per rank", "", "formula", "formula bytes", "measured bytes"}, rows);
}

// --- memory, time, equality ---

std::string summary_table(const std::vector<ContextRun>& runs, const ContextRank& one) {
  std::vector<Cells> rows = {{"one device", human_bytes(one.peak_bytes), "1.00", fmt::format("{:.1f}", one.ms[0]),
                              fmt::format("{:.1f}", one.ms[1]), "", ""}};
  for (const ContextRun& run : runs) {
    ContextRank max;
    for (const ContextRank& rank : run.ranks) {
      max.peak_bytes = std::max(max.peak_bytes, rank.peak_bytes);
      for (int direction = 0; direction < 2; ++direction)
        max.ms[direction] = std::max(max.ms[direction], rank.ms[direction]);
      max.waited_ms = std::max(max.waited_ms, rank.waited_ms);
    }
    rows.push_back({run.name, human_bytes(max.peak_bytes),
                    fmt::format("{:.2f}", static_cast<double>(max.peak_bytes) / static_cast<double>(one.peak_bytes)),
                    fmt::format("{:.1f}", max.ms[0]), fmt::format("{:.1f}", max.ms[1]),
                    fmt::format("{:.1f}", max.waited_ms), fmt::format("{:.1e}", run.error)});
  }
  return text_table({"per rank, one thread", "peak memory", "vs one device", "forward ms", "backward ms", "waited ms",
                     "error vs one device"},
                    rows);
}

Json report_of(const ContextCase& spec, const std::vector<ContextRun>& runs, const std::vector<Formula>& formulas,
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
  return {{"tokens", spec.length},     {"ranks", spec.num_ranks},          {"heads", spec.heads},
          {"kv_heads", spec.kv_heads}, {"head_dim", spec.head_dim},        {"batch", spec.batch},
          {"causal", spec.causal},     {"precision", name_of(spec.dtype)}, {"one_peak_bytes", one.peak_bytes},
          {"methods", std::move(rows)}};
}

// --- picture ---

// Draws a row per rank and a box per step. A box's width is the rank's work. All boxes of a step begin when the slowest
// rank has finished the previous step.
std::string draw(const ContextCase& spec, const std::vector<ContextRun>& rings) {
  constexpr double kWidth = 900, kLeft = 90, kRight = 40, kTop = 70, kPitch = 30, kThick = 22, kGap = 56;
  const double height = kTop + static_cast<double>(rings.size()) * (kPitch * spec.num_ranks + kGap);
  int64_t longest = 1;
  for (const ContextRun& run : rings) longest = std::max(longest, sum_of(slowest(run)));
  const double scale = (kWidth - kLeft - kRight) / static_cast<double>(longest);
  std::string svg = svg_open(kWidth, height);
  svg += svg_text(
      20, 28, "start",
      fmt::format("Ring attention over {} tokens on {} ranks: work at every step", spec.length, spec.num_ranks),
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
    top += kPitch * spec.num_ranks + kGap;
  }
  svg += svg_text(
      20, height - 14, "start",
      "K r: computes with the keys of rank r. A vertical line marks the end of a step, set by the slowest rank.");
  return svg + "</svg>\n";
}

void check(const ContextLabOptions& options, const ContextCase& spec) {
  if (options.nproc < 2 || options.nproc > 16)
    throw UsageError(fmt::format("--nproc: got {}; expected 2 to 16 ranks", options.nproc));
  if (spec.batch < 1 || spec.heads < 1 || spec.kv_heads < 1 || spec.head_dim < 1 || options.rounds < 1)
    throw UsageError(
        fmt::format("got --batch {}, --heads {}, --kv-heads {}, --head-dim {}, --rounds {}; expected each >= 1",
                    spec.batch, spec.heads, spec.kv_heads, spec.head_dim, options.rounds));
  if (spec.heads % spec.kv_heads != 0)
    throw UsageError(fmt::format("--heads: got {}; must be a multiple of --kv-heads = {}", spec.heads, spec.kv_heads));
  const int64_t pieces = 2 * options.nproc;
  if (spec.length < pieces || spec.length % pieces != 0)
    throw UsageError(fmt::format("--seq: got {}; must be a multiple of 2·ranks (equal pieces), for example {}",
                                 spec.length, std::max(pieces, spec.length / pieces * pieces)));
}

Findings findings_of(const ContextCase& spec, const std::vector<ContextRun>& runs,
                     const std::vector<Formula>& formulas) {
  Findings findings;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const int direction : {0, 1}) {
      uint64_t max = 0;
      for (const ContextRank& rank : runs[i].ranks) max = std::max(max, rank.sent[direction]);
      findings.exact(fmt::format("{}, {}: bytes sent per rank", runs[i].name, direction == 0 ? "forward" : "backward"),
                     formulas[i].text[direction], static_cast<double>(formulas[i].bytes[direction]),
                     static_cast<double>(max), "B");
    }
    findings.holds(fmt::format("{}: results equal those of one device", runs[i].name), "", "error ≤ 1e-5",
                   fmt::format("error {:.1e}", runs[i].error), runs[i].error <= 1e-5 || spec.dtype != DType::f32);
  }
  if (spec.causal) {
    findings.within("ring, contiguous: fraction of time spent computing", "",
                    (spec.num_ranks * 1.0) / (2 * spec.num_ranks - 1), busy(runs[0]), 1e-2);
    findings.within("ring, zig-zag: fraction of time spent computing", "", 1, busy(runs[1]), 1e-2);
  }
  return findings;
}

int run_lab_context(const ContextLabOptions& options) {
  const ContextCase spec = case_of(options);
  check(options, spec);
  std::vector<ContextRun> runs;
  std::vector<Formula> formulas;
  for (ContextLayout layout : {ContextLayout::contiguous, ContextLayout::zigzag}) {
    runs.push_back(run_context(spec, ContextMethod::ring, layout, options.rounds));
    formulas.push_back(formula_of(spec, ContextMethod::ring));
  }
  const std::vector<ContextRun> rings = runs;
  const std::string obstacle = parallel::ulysses_violation(spec.heads, spec.kv_heads, spec.num_ranks);
  if (obstacle.empty()) {
    runs.push_back(run_context(spec, ContextMethod::ulysses, ContextLayout::contiguous, options.rounds));
    formulas.push_back(formula_of(spec, ContextMethod::ulysses));
  }
  const ContextRank one = run_on_one(spec, options.rounds);

  std::string text = fmt::format(
      "{} × {} tokens over c = {} ranks, {} heads and {} key/value heads of {}, {}, {}\n\nWork at each step of the "
      "ring, in units of p², where p = {} tokens is the length of a piece:\n",
      spec.batch, spec.length, spec.num_ranks, spec.heads, spec.kv_heads, spec.head_dim,
      spec.causal ? "causal" : "bidirectional", name_of(spec.dtype), spec.length / (2 * spec.num_ranks));
  for (const ContextRun& run : rings) text += "\n" + work_table(spec, run);
  text += fmt::format("\n{}q = 2·b·(s/c)·h_kv·e bytes, q' the same number of elements in the accumulation type.\n",
                      bytes_table(runs, formulas));
  if (!obstacle.empty()) text += fmt::format("Ulysses is not possible: {}.\n", obstacle);
  text += "\n" + summary_table(runs, one);
  if (spec.num_ranks > usable_cores())
    text += fmt::format("{} ranks share {} cores, so their times show the machine, not the method.\n", spec.num_ranks,
                        usable_cores());
  return finish_lab({options.json, options.out}, "context", text, report_of(spec, runs, formulas, one),
                    draw(spec, rings), findings_of(spec, runs, formulas));
}

}  // namespace

void define_lab_context(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<ContextLabOptions>(app, chosen, run_lab_context);
  app.add_option("--nproc", o->nproc, "ranks that share the sequence [4]").type_name("N");
  app.add_option("--seq", o->seq, "tokens per sequence [2048]").type_name("T");
  app.add_option("--batch", o->batch, "sequences [1]").type_name("B");
  app.add_option("--heads", o->heads, "query heads [4]").type_name("H");
  app.add_option("--kv-heads", o->kv_heads, "key/value heads [as --heads]").type_name("H");
  app.add_option("--head-dim", o->head_dim, "head dimension [32]").type_name("D");
  app.add_flag("--bidirectional", o->bidirectional, "bidirectional attention, as in BERT");
  app.add_option("--precision", o->precision, "storage type [fp32]")
      .type_name("fp64|fp32|bf16|fp16")
      .one_of({"fp64", "fp32", "bf16", "fp16"});
  app.add_option("--rounds", o->rounds, "runs of each method [3]").type_name("N");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
