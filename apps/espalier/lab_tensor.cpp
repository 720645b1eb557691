// espalier lab tensor: a tensor-parallel layer, drawn; its bytes and activations, counted on real ranks, compared with
// the formulas; and every partition of y = W₃W₂W₁x with its cost.
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/lab_output.h"
#include "apps/espalier/lab_svg.h"
#include "apps/espalier/lab_tensor_run.h"
#include "apps/espalier/machine.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/model/model.h"
#include "esp/nn/shard.h"

namespace esp::app {
namespace {

struct TensorLab {
  int nproc = 2;
  int64_t batch = 2, seq = 64, dim = 96, heads = 12, ffn = 0, vocab = 500, columns = 32;
  std::vector<int64_t> widths = {96, 384, 192, 96};
  std::string json, out;

  int64_t ffn_or_default() const { return ffn > 0 ? ffn : 4 * dim; }
};

// --- a layer ---

struct Method {
  std::string name, formula;
  int64_t times = 0;  // multiples of (t−1)/t·bsh·e
  TensorCase it;
};

std::vector<Method> methods_of(const TensorLab& o) {
  TensorCase it{o.nproc, o.batch, o.seq, model::default_config("gpt"), false, false};
  it.model.heads = o.heads;
  it.model.dim = o.dim;
  it.model.ffn = o.ffn_or_default();
  it.model.vocab = o.vocab;
  it.model.seq_len = o.seq;
  it.model.dropout = 0.1;
  TensorCase one = it, kept = it, again = it;
  one.num_ranks = 1;
  kept.sequence = kept.keep_gathered = again.sequence = true;
  return {{"one rank", "0", 0, one},
          {"tensor", "8(t−1)/t·bsh·e", 8, it},
          {"tensor, sequence, gathers kept", "8(t−1)/t·bsh·e", 8, kept},
          {"tensor, sequence", "10(t−1)/t·bsh·e", 10, again}};
}

double formula_bytes(const TensorLab& o, const Method& method) {
  const double stream = static_cast<double>(o.batch * o.seq * o.dim * 4);
  return static_cast<double>(method.times) * (o.nproc - 1) / o.nproc * stream;
}

std::string calls_text(const TensorLayer& layer) {
  std::string text;
  for (const auto& [op, calls] : layer.calls)
    if (calls > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", calls, name_of(op));
  return text.empty() ? "none" : text;
}

std::string layer_table(const TensorLab& o, const std::vector<Method>& methods, const std::vector<TensorLayer>& seen) {
  std::vector<Cells> rows;
  for (size_t i = 0; i < methods.size(); ++i)
    rows.push_back(
        {methods[i].name, calls_text(seen[i]), methods[i].formula, fmt::format("{:.0f}", formula_bytes(o, methods[i])),
         fmt::format("{:.0f}", seen[i].bytes_per_rank), human_bytes(static_cast<uint64_t>(seen[i].kept_bytes)),
         fmt::format("{:.3f}", seen[i].kept_bytes / seen[0].kept_bytes), fmt::format("{:.6f}", seen[i].loss)});
  return text_table({"", "collectives", "formula", "formula bytes", "sent bytes", "kept", "of one's", "loss"}, rows);
}

// A matrix and its partition: the part on each rank.
struct Drawn {
  std::string name;
  int64_t rows, cols;
  bool column_parallel;
  std::string before, after;  // the operators around it
};

std::vector<Drawn> matrices_of(const TensorLab& o) {
  return {{"Wqkv", o.dim, 3 * o.dim, true, "f", ""},
          {"Wout", o.dim, o.dim, false, "", "g"},
          {"W1", o.dim, o.ffn_or_default(), true, "f", ""},
          {"W2", o.ffn_or_default(), o.dim, false, "", "g"}};
}

std::string layer_text(const TensorLab& o) {
  std::string text = fmt::format("A layer over t = {} ranks; b·s = {}, h = {}, ffn = {}, {} heads\n\n", o.nproc,
                                 o.batch * o.seq, o.dim, o.ffn_or_default(), o.heads);
  for (const Drawn& m : matrices_of(o)) {
    text += fmt::format("  {:<2} {:<5} [{} × {}] by {}:", m.before, m.name, m.rows, m.cols,
                        m.column_parallel ? "columns" : "rows");
    for (int r = 0; r < o.nproc; ++r) {
      const nn::Shard share{r, o.nproc};
      const nn::IndexRange held = m.name == "Wqkv" ? share.of(o.heads) : share.of(m.column_parallel ? m.cols : m.rows);
      text += fmt::format("  rank {}: {}{}–{}", r, m.name == "Wqkv" ? "heads " : "", held.begin, held.end - 1);
    }
    text += m.after.empty() ? "\n" : fmt::format("  {}\n", m.after);
  }
  return text +
         "\n  f: forward the stream as it is, backward its gradient summed; g: forward the sum, backward as it is.\n"
         "  With rows of the stream divided f gathers them (backward: sum and scatter) and g sums and scatters.\n";
}

// --- the chain ---

struct Choice {
  parallel::ChainPlan plan;
  ChainRun run;
};

std::vector<Choice> run_choices(const TensorLab& o) {
  std::vector<Choice> choices;
  for (parallel::ChainPlan& plan : parallel::all_chains(o.widths, o.columns, o.nproc)) {
    const ChainRun run = measure_chain(plan);
    choices.push_back({std::move(plan), run});
  }
  return choices;
}

// The lecture's two partitions; and the cheapest without a replicated matrix.
std::string remark_of(const Choice& choice, const Choice& best) {
  const std::string text = choice.plan.text();
  std::string remark = text == "out in in" ? "partition 1" : text == "out out in" ? "partition 2" : "";
  if (&choice == &best)
    remark += remark.empty() ? "best with every matrix divided" : ", best with every matrix divided";
  return remark;
}

const Choice& best_of(const std::vector<Choice>& choices) {
  return *std::find_if(choices.begin(), choices.end(), [](const Choice& c) { return c.plan.divides_all(); });
}

std::string chain_table(const TensorLab& o, const std::vector<Choice>& choices) {
  std::vector<Cells> rows;
  for (const Choice& c : choices)
    rows.push_back({c.plan.text(), c.plan.cost_text(), std::to_string(c.plan.elements_sent() * 8),
                    std::to_string(c.run.bytes), human_bytes(static_cast<uint64_t>(c.plan.weights_held()) * 8),
                    fmt::format("{:.1e}", c.run.error), remark_of(c, best_of(choices))});
  return fmt::format(
      "y = W₃W₂W₁x, widths d₀…d₃ = {}, b = {}: each matrix cut by outputs, by inputs, or whole on every rank\n{}",
      fmt::join(o.widths, ", "), o.columns,
      text_table({"W₁ W₂ W₃", "a rank sends", "bytes, all ranks", "sent", "matrices held", "error", ""}, rows));
}

// --- the picture ---

std::string picture(const TensorLab& o, const std::vector<Method>& methods, const std::vector<TensorLayer>& seen) {
  constexpr double kScale = 150, kLeft = 20, kTop = 60;
  const double unit = kScale / static_cast<double>(std::max({3 * o.dim, o.ffn_or_default()}));
  std::string svg = svg_open(900, 420) +
                    svg_text(kLeft, 28, "start", fmt::format("A layer over {} ranks: whose part is whose", o.nproc));
  double x = kLeft;
  for (const Drawn& m : matrices_of(o)) {
    const double width = static_cast<double>(m.cols) * unit, height = static_cast<double>(m.rows) * unit;
    if (!m.before.empty()) svg += svg_text(x + 8, kTop + 40, "middle", m.before), x += 24;
    for (int r = 0; r < o.nproc; ++r) {
      const double part = static_cast<double>(r) / o.nproc, share = 1.0 / o.nproc;
      // Packed q, k, v: a part of each.
      const int sections = m.name == "Wqkv" ? 3 : 1;
      for (int s = 0; s < sections; ++s)
        svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n",
                           x + (m.column_parallel ? width * (s + part) / sections : 0),
                           kTop + (m.column_parallel ? 0 : height * part),
                           m.column_parallel ? width * share / sections : width,
                           m.column_parallel ? height : height * share, svg_colour(static_cast<size_t>(r)));
    }
    svg += svg_text(x + width / 2, kTop - 8, "middle", m.name);
    x += width + 14;
    if (!m.after.empty()) svg += svg_text(x, kTop + 40, "middle", m.after), x += 24;
  }
  double most = 1;
  for (const TensorLayer& layer : seen) most = std::max(most, layer.kept_bytes);
  double y = kTop + kScale + 50;
  svg += svg_text(kLeft, y, "start", "kept from forward to backward, per layer and rank; bytes sent");
  for (size_t i = 0; i < seen.size(); ++i) {
    y += 32;
    svg += svg_text(kLeft, y + 14, "start", methods[i].name) +
           fmt::format("<rect x=\"250\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"18\" fill=\"{}\"/>\n", y,
                       seen[i].kept_bytes / most * 300, svg_colour(0)) +
           svg_text(260 + seen[i].kept_bytes / most * 300, y + 14, "start",
                    fmt::format("{}, {} sent", human_bytes(static_cast<uint64_t>(seen[i].kept_bytes)),
                                human_bytes(static_cast<uint64_t>(seen[i].bytes_per_rank))));
  }
  return svg + "</svg>\n";
}

Json report_of(const TensorLab& o, const std::vector<Method>& methods, const std::vector<TensorLayer>& seen,
               const std::vector<Choice>& choices) {
  Json layers = Json::array(), chains = Json::array();
  for (size_t i = 0; i < seen.size(); ++i) {
    Json calls = Json::object();
    for (const auto& [op, count] : seen[i].calls)
      if (count > 0) calls[std::string(name_of(op))] = count;
    layers.push_back({{"method", methods[i].name},
                      {"calls", std::move(calls)},
                      {"formula_bytes", formula_bytes(o, methods[i])},
                      {"sent_bytes", seen[i].bytes_per_rank},
                      {"kept_bytes", seen[i].kept_bytes},
                      {"loss", seen[i].loss}});
  }
  for (const Choice& c : choices)
    chains.push_back({{"cuts", c.plan.text()},
                      {"cost", c.plan.cost_text()},
                      {"formula_bytes", c.plan.elements_sent() * 8},
                      {"sent_bytes", c.run.bytes},
                      {"held_bytes", c.plan.weights_held() * 8},
                      {"error", c.run.error},
                      {"best", &c == &best_of(choices)}});
  return {{"ranks", o.nproc}, {"layers", std::move(layers)}, {"chains", std::move(chains)}};
}

void check(const TensorLab& o) {
  if (o.nproc < 2 || o.nproc > 16) throw UsageError(fmt::format("--nproc: got {}; expected 2 to 16 ranks", o.nproc));
  if (o.heads < 1 || o.heads % o.nproc != 0)
    throw UsageError(fmt::format("--heads: got {}; must be a multiple of --nproc = {}. Try {}", o.heads, o.nproc,
                                 (o.heads / o.nproc + 1) * o.nproc));
  if (o.dim < 1 || o.dim % o.heads != 0)
    throw UsageError(fmt::format("--dim: got {}; must be a multiple of --heads = {}", o.dim, o.heads));
  if (o.batch < 1 || o.seq < 1 || o.batch * o.seq % o.nproc != 0)
    throw UsageError(
        fmt::format("--batch {} × --seq {}: their rows must divide over --nproc {} ranks", o.batch, o.seq, o.nproc));
  if (o.columns < 1 || o.vocab < 1 || o.ffn < 0) throw UsageError("expected --columns and --vocab >= 1, --ffn >= 0");
  if (o.widths.size() != 4) throw UsageError(fmt::format("--widths: got {} numbers; expected 4", o.widths.size()));
  for (int64_t width : o.widths)
    if (width < 1 || width % o.nproc != 0)
      throw UsageError(fmt::format("--widths: got {}; each must be a multiple of --nproc = {}", width, o.nproc));
}

Findings findings_of(const TensorLab& o, const std::vector<Method>& methods, const std::vector<TensorLayer>& seen,
                     const std::vector<Choice>& choices) {
  Findings findings;
  for (size_t i = 0; i < seen.size(); ++i)
    findings.exact(fmt::format("{}: bytes a rank sends, a layer", methods[i].name), i == 1 ? "8(t−1)/t·bsh·e" : "",
                   formula_bytes(o, methods[i]), seen[i].bytes_per_rank, "B");
  const auto reduces = seen[1].calls.find(comm::Op::all_reduce);
  findings.exact("tensor: all-reduces of a layer", "4", 4,
                 reduces == seen[1].calls.end() ? 0 : static_cast<double>(reduces->second));
  size_t right = 0;
  for (const Choice& c : choices) {
    const std::string text = c.plan.text();
    const bool first = text == "out in in", second = text == "out out in";
    if (first || second)
      findings.exact(fmt::format("y = W₃W₂W₁x, partition {}: bytes, all ranks", first ? 1 : 2),
                     first ? "(t−1)/t·b(d₂ + 2d₃)" : "(t−1)/t·b(d₁ + 2d₃)",
                     static_cast<double>(c.plan.elements_sent() * 8), static_cast<double>(c.run.bytes), "B");
    right += static_cast<uint64_t>(c.plan.elements_sent() * 8) == c.run.bytes && c.run.error < 1e-12 ? 1 : 0;
  }
  findings.exact("partitions whose bytes and product are right, of all", "", static_cast<double>(choices.size()),
                 static_cast<double>(right));
  return findings;
}

int run_lab_tensor(const TensorLab& options) {
  check(options);
  const std::vector<Method> methods = methods_of(options);
  std::vector<TensorLayer> seen;
  for (const Method& method : methods) seen.push_back(measure_layer(method.it));
  const std::vector<Choice> choices = run_choices(options);
  const std::string text = fmt::format(
      "{}\n{}\nPer layer and micro-batch, forward and backward, fp32, counted by the transports of ranks that ran it; "
      "kept is what a\nlayer's activations take from forward to backward.\n\n{}",
      layer_text(options), layer_table(options, methods, seen), chain_table(options, choices));
  return finish_lab({options.json, options.out}, "tensor", text, report_of(options, methods, seen, choices),
                    picture(options, methods, seen), findings_of(options, methods, seen, choices));
}

}  // namespace

void define_lab_tensor(const Arguments& app, Chosen& chosen) {
  auto o = keep<TensorLab>(app, chosen, run_lab_tensor);
  app.add_option("--nproc", o->nproc, "ranks, as threads of this process [2]").type_name("T");
  app.add_option("--batch", o->batch, "sequences [2]").type_name("B");
  app.add_option("--seq", o->seq, "tokens of each [64]").type_name("S");
  app.add_option("--dim", o->dim, "width of the stream [96]").type_name("H");
  app.add_option("--heads", o->heads, "attention heads [12]").type_name("N");
  app.add_option("--ffn", o->ffn, "inner width of the perceptron [4·dim]").type_name("N");
  app.add_option("--vocab", o->vocab, "classes [500]").type_name("V");
  app.add_option("--widths", o->widths, "of the chain y = W₃W₂W₁x: d₀,d₁,d₂,d₃ [96,384,192,96]")
      .type_name("D,D,D,D")
      .delimiter(',');
  app.add_option("--columns", o->columns, "of its x [32]").type_name("B");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
