// espalier lab tensor: draws a tensor-parallel layer. Compares the bytes sent and the activations kept by real ranks
// with the formulas, and shows every partition of y = W₃W₂W₁x with its cost.
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

struct TensorLabOptions {
  int nproc = 2;
  int64_t batch = 2, seq = 64, dim = 96, heads = 12, ffn = 0, vocab = 500, columns = 32;
  std::vector<int64_t> widths = {96, 384, 192, 96};
  std::string json, out;

  int64_t ffn_or_default() const { return ffn > 0 ? ffn : 4 * dim; }
};

// --- a layer ---

struct Method {
  std::string name, formula;
  int64_t times = 0;  // bytes by the formula, in units of (t−1)/t·bsh·e
  TensorCase spec;
};

std::vector<Method> methods_of(const TensorLabOptions& o) {
  TensorCase spec{o.nproc, o.batch, o.seq, model::default_config("gpt"), false, false};
  spec.model.heads = o.heads;
  spec.model.dim = o.dim;
  spec.model.ffn = o.ffn_or_default();
  spec.model.vocab = o.vocab;
  spec.model.seq_len = o.seq;
  spec.model.dropout = 0.1;
  TensorCase one = spec, kept_bytes = spec, again = spec;
  one.num_ranks = 1;
  kept_bytes.sequence = kept_bytes.keep_gathered = again.sequence = true;
  return {{"one rank", "0", 0, one},
          {"tensor", "8(t−1)/t·bsh·e", 8, spec},
          {"tensor, sequence, gathers kept", "8(t−1)/t·bsh·e", 8, kept_bytes},
          {"tensor, sequence", "10(t−1)/t·bsh·e", 10, again}};
}

double formula_bytes(const TensorLabOptions& o, const Method& method) {
  const double stream = static_cast<double>(o.batch * o.seq * o.dim * 4);
  return static_cast<double>(method.times) * (o.nproc - 1) / o.nproc * stream;
}

std::string calls_text(const TensorLayer& layer) {
  std::string text;
  for (const auto& [op, calls] : layer.calls)
    if (calls > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", calls, name_of(op));
  return text.empty() ? "none" : text;
}

std::string layer_table(const TensorLabOptions& o, const std::vector<Method>& methods,
                        const std::vector<TensorLayer>& measured) {
  std::vector<Cells> rows;
  for (size_t i = 0; i < methods.size(); ++i)
    rows.push_back({methods[i].name, calls_text(measured[i]), methods[i].formula,
                    fmt::format("{:.0f}", formula_bytes(o, methods[i])),
                    fmt::format("{:.0f}", measured[i].bytes_per_rank),
                    human_bytes(static_cast<uint64_t>(measured[i].kept_bytes)),
                    fmt::format("{:.3f}", measured[i].kept_bytes / measured[0].kept_bytes),
                    fmt::format("{:.6f}", measured[i].loss)});
  return text_table({"", "collectives", "formula", "formula bytes", "sent bytes", "kept", "vs one rank", "loss"}, rows);
}

// A weight matrix and how it is divided over ranks.
struct PartitionedMatrix {
  std::string name;
  int64_t rows, cols;
  bool column_parallel;
  std::string before, after;  // operators before and after the matrix: f, g
};

std::vector<PartitionedMatrix> matrices_of(const TensorLabOptions& o) {
  return {{"Wqkv", o.dim, 3 * o.dim, true, "f", ""},
          {"Wout", o.dim, o.dim, false, "", "g"},
          {"W1", o.dim, o.ffn_or_default(), true, "f", ""},
          {"W2", o.ffn_or_default(), o.dim, false, "", "g"}};
}

std::string layer_text(const TensorLabOptions& o) {
  std::string text = fmt::format("A layer over t = {} ranks; b·s = {}, h = {}, ffn = {}, {} heads\n\n", o.nproc,
                                 o.batch * o.seq, o.dim, o.ffn_or_default(), o.heads);
  for (const PartitionedMatrix& m : matrices_of(o)) {
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
         "\n  f: identity in forward, all-reduce of the gradient in backward. g: all-reduce in forward, identity in "
         "backward.\n  With sequence parallelism, f is an all-gather (backward: reduce-scatter) and g a reduce-scatter "
         "(backward: all-gather).\n";
}

// --- the chain ---

struct ChainChoice {
  parallel::ChainPlan plan;
  ChainRun run;
};

std::vector<ChainChoice> run_choices(const TensorLabOptions& o) {
  std::vector<ChainChoice> choices;
  for (parallel::ChainPlan& plan : parallel::all_chains(o.widths, o.columns, o.nproc)) {
    const ChainRun run = measure_chain(plan);
    choices.push_back({std::move(plan), run});
  }
  return choices;
}

// Marks the two partitions of the lecture, and the cheapest partition without a replicated matrix.
std::string remark_of(const ChainChoice& choice, const ChainChoice& best) {
  const std::string text = choice.plan.text();
  std::string remark = text == "out in in" ? "partition 1" : text == "out out in" ? "partition 2" : "";
  if (&choice == &best)
    remark += remark.empty() ? "cheapest with every matrix divided" : ", cheapest with every matrix divided";
  return remark;
}

const ChainChoice& best_of(const std::vector<ChainChoice>& choices) {
  return *std::find_if(choices.begin(), choices.end(), [](const ChainChoice& c) { return c.plan.shards_all(); });
}

std::string chain_table(const TensorLabOptions& o, const std::vector<ChainChoice>& choices) {
  std::vector<Cells> rows;
  for (const ChainChoice& c : choices)
    rows.push_back({c.plan.text(), c.plan.cost_text(), std::to_string(c.plan.elements_sent() * 8),
                    std::to_string(c.run.bytes), human_bytes(static_cast<uint64_t>(c.plan.weights_held()) * 8),
                    fmt::format("{:.1e}", c.run.error), remark_of(c, best_of(choices))});
  return fmt::format(
      "y = W₃W₂W₁x, widths d₀…d₃ = {}, b = {}: each matrix is divided by outputs, by inputs, or whole on every "
      "rank\n{}",
      fmt::join(o.widths, ", "), o.columns,
      text_table(
          {"W₁ W₂ W₃", "sent per rank, formula", "bytes, all ranks", "measured", "weights per rank", "error", ""},
          rows));
}

// --- the picture ---

std::string picture(const TensorLabOptions& o, const std::vector<Method>& methods,
                    const std::vector<TensorLayer>& measured) {
  constexpr double kScale = 150, kLeft = 20, kTop = 60;
  const double unit = kScale / static_cast<double>(std::max({3 * o.dim, o.ffn_or_default()}));
  std::string svg = svg_open(900, 420) +
                    svg_text(kLeft, 28, "start", fmt::format("A layer over {} ranks: one colour per rank", o.nproc));
  double x = kLeft;
  for (const PartitionedMatrix& m : matrices_of(o)) {
    const double width = static_cast<double>(m.cols) * unit, height = static_cast<double>(m.rows) * unit;
    if (!m.before.empty()) svg += svg_text(x + 8, kTop + 40, "middle", m.before), x += 24;
    for (int r = 0; r < o.nproc; ++r) {
      const double part = static_cast<double>(r) / o.nproc, share = 1.0 / o.nproc;
      // Wqkv holds q, k and v side by side; each of them is divided separately.
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
  for (const TensorLayer& layer : measured) most = std::max(most, layer.kept_bytes);
  double y = kTop + kScale + 50;
  svg += svg_text(kLeft, y, "start", "activation bytes kept from forward to backward, per layer and rank; bytes sent");
  for (size_t i = 0; i < measured.size(); ++i) {
    y += 32;
    svg += svg_text(kLeft, y + 14, "start", methods[i].name) +
           fmt::format("<rect x=\"250\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"18\" fill=\"{}\"/>\n", y,
                       measured[i].kept_bytes / most * 300, svg_colour(0)) +
           svg_text(260 + measured[i].kept_bytes / most * 300, y + 14, "start",
                    fmt::format("{}, {} sent", human_bytes(static_cast<uint64_t>(measured[i].kept_bytes)),
                                human_bytes(static_cast<uint64_t>(measured[i].bytes_per_rank))));
  }
  return svg + "</svg>\n";
}

Json report_of(const TensorLabOptions& o, const std::vector<Method>& methods, const std::vector<TensorLayer>& measured,
               const std::vector<ChainChoice>& choices) {
  Json layers = Json::array(), chains = Json::array();
  for (size_t i = 0; i < measured.size(); ++i) {
    Json calls = Json::object();
    for (const auto& [op, count] : measured[i].calls)
      if (count > 0) calls[std::string(name_of(op))] = count;
    layers.push_back({{"method", methods[i].name},
                      {"calls", std::move(calls)},
                      {"formula_bytes", formula_bytes(o, methods[i])},
                      {"sent_bytes", measured[i].bytes_per_rank},
                      {"kept_bytes", measured[i].kept_bytes},
                      {"loss", measured[i].loss}});
  }
  for (const ChainChoice& c : choices)
    chains.push_back({{"cuts", c.plan.text()},
                      {"cost", c.plan.cost_text()},
                      {"formula_bytes", c.plan.elements_sent() * 8},
                      {"sent_bytes", c.run.bytes},
                      {"held_bytes", c.plan.weights_held() * 8},
                      {"error", c.run.error},
                      {"best", &c == &best_of(choices)}});
  return {{"ranks", o.nproc}, {"layers", std::move(layers)}, {"chains", std::move(chains)}};
}

void check(const TensorLabOptions& o) {
  if (o.nproc < 2 || o.nproc > 16) throw UsageError(fmt::format("--nproc: got {}; expected 2 to 16 ranks", o.nproc));
  if (o.heads < 1 || o.heads % o.nproc != 0)
    throw UsageError(fmt::format("--heads: got {}; must be a multiple of --nproc = {}. Try {}", o.heads, o.nproc,
                                 (o.heads / o.nproc + 1) * o.nproc));
  if (o.dim < 1 || o.dim % o.heads != 0)
    throw UsageError(fmt::format("--dim: got {}; must be a multiple of --heads = {}", o.dim, o.heads));
  if (o.batch < 1 || o.seq < 1 || o.batch * o.seq % o.nproc != 0)
    throw UsageError(
        fmt::format("--batch × --seq: got {} × {} rows; must be a multiple of --nproc = {}", o.batch, o.seq, o.nproc));
  if (o.columns < 1 || o.vocab < 1 || o.ffn < 0)
    throw UsageError(
        fmt::format("got --columns {}, --vocab {}, --ffn {}; expected --columns >= 1, --vocab >= 1, --ffn >= 0",
                    o.columns, o.vocab, o.ffn));
  if (o.widths.size() != 4) throw UsageError(fmt::format("--widths: got {} numbers; expected 4", o.widths.size()));
  for (int64_t width : o.widths)
    if (width < 1 || width % o.nproc != 0)
      throw UsageError(fmt::format("--widths: got {}; each must be a multiple of --nproc = {}", width, o.nproc));
}

Findings findings_of(const TensorLabOptions& o, const std::vector<Method>& methods,
                     const std::vector<TensorLayer>& measured, const std::vector<ChainChoice>& choices) {
  Findings findings;
  for (size_t i = 0; i < measured.size(); ++i)
    findings.exact(fmt::format("{}: bytes sent per rank and layer", methods[i].name), i == 1 ? "8(t−1)/t·bsh·e" : "",
                   formula_bytes(o, methods[i]), measured[i].bytes_per_rank, "B");
  const auto reduces = measured[1].calls.find(comm::Op::all_reduce);
  findings.exact("tensor: all-reduces per layer", "4", 4,
                 reduces == measured[1].calls.end() ? 0 : static_cast<double>(reduces->second));
  size_t right = 0;
  for (const ChainChoice& c : choices) {
    const std::string text = c.plan.text();
    const bool first = text == "out in in", second = text == "out out in";
    if (first || second)
      findings.exact(fmt::format("y = W₃W₂W₁x, partition {}: bytes, all ranks", first ? 1 : 2),
                     first ? "(t−1)/t·b(d₂ + 2d₃)" : "(t−1)/t·b(d₁ + 2d₃)",
                     static_cast<double>(c.plan.elements_sent() * 8), static_cast<double>(c.run.bytes), "B");
    right += static_cast<uint64_t>(c.plan.elements_sent() * 8) == c.run.bytes && c.run.error < 1e-12 ? 1 : 0;
  }
  findings.exact("partitions with correct bytes and result, of all", "", static_cast<double>(choices.size()),
                 static_cast<double>(right));
  return findings;
}

int run_lab_tensor(const TensorLabOptions& options) {
  check(options);
  const std::vector<Method> methods = methods_of(options);
  std::vector<TensorLayer> measured;
  for (const Method& method : methods) measured.push_back(measure_layer(method.spec));
  const std::vector<ChainChoice> choices = run_choices(options);
  const std::string text = fmt::format(
      "{}\n"
      "{}\n"
      "Per layer and micro-batch, forward and backward, fp32, counted by the transports of real "
      "ranks. Kept: the activation\n"
      "bytes of a layer from forward to backward.\n"
      "\n"
      "{}",
      layer_text(options), layer_table(options, methods, measured), chain_table(options, choices));
  return finish_lab({options.json, options.out}, "tensor", text, report_of(options, methods, measured, choices),
                    picture(options, methods, measured), findings_of(options, methods, measured, choices));
}

}  // namespace

void define_lab_tensor(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<TensorLabOptions>(app, chosen, run_lab_tensor);
  app.add_option("--nproc", o->nproc, "ranks, as threads of this process [2]").type_name("T");
  app.add_option("--batch", o->batch, "sequences [2]").type_name("B");
  app.add_option("--seq", o->seq, "tokens per sequence [64]").type_name("S");
  app.add_option("--dim", o->dim, "model width [96]").type_name("H");
  app.add_option("--heads", o->heads, "attention heads [12]").type_name("N");
  app.add_option("--ffn", o->ffn, "hidden width of the MLP [4·dim]").type_name("N");
  app.add_option("--vocab", o->vocab, "vocabulary size [500]").type_name("V");
  app.add_option("--widths", o->widths, "widths of the chain y = W₃W₂W₁x: d₀,d₁,d₂,d₃ [96,384,192,96]")
      .type_name("D,D,D,D")
      .delimiter(',');
  app.add_option("--columns", o->columns, "columns of x in the chain [32]").type_name("B");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
