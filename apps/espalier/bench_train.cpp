// espalier bench train: training steps of a whole model, relative to the machine's GEMM rate and to other trainers.
//
// Every candidate is a separate process with a model in memory, asleep until it is asked for steps. Candidates are
// measured in turn, round after round, each round starting with another, so that disturbances of the machine affect all
// of them; square GEMMs are measured in the same rounds. Medians are over all steps; a ratio is the median of the
// rounds' ratios.
#include "apps/espalier/bench_train.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/bench_train_case.h"
#include "apps/espalier/bench_train_layouts.h"
#include "apps/espalier/command.h"
#include "apps/espalier/core_state.h"
#include "apps/espalier/machine.h"
#include "apps/espalier/output_file.h"
#include "apps/espalier/terminal.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/base/table.h"
#include "esp/model/counts.h"
#include "esp/model/model.h"
#include "esp/obs/file.h"
#include "esp/obs/temporary_folder.h"
#include "esp/sync/strategy.h"
#include "esp/sync/strategy_names.h"

namespace esp::app {
namespace {

constexpr std::string_view kWhatIsTimed =
    "A step reads a batch, goes forward and backward, clips and updates (AdamW). TFLOP/s count 6·parameters and, in\n"
    "attention, what is below the diagonal. `of sgemm` is against the quicker of our and OpenBLAS's square products "
    "of\n"
    "2048, `of peak` against multiply-adds in registers, both in this run. Peak memory is the highest resident size "
    "of\n"
    "the whole process, summed over the ranks. With several ranks the batch is shared out among them, every --sync "
    "method\n"
    "and one rank alone with its share are measured in the same rounds, and PyTorch is DistributedDataParallel over "
    "gloo.";

Cells cells_of(const CaseResult& result, const Measured& one) {
  const Measured& ours = result.rows[0];
  const TrainRow& row = one.row;
  const bool comparable = &one != &ours && row.ranks == ours.row.ranks;
  const auto mib = [](uint64_t bytes) { return fmt::format("{:.0f}", static_cast<double>(bytes) / (1 << 20)); };
  return {row.library,
          std::to_string(row.ranks),
          fmt::format("{:.0f}", row.tokens_per_s),
          fmt::format("{:.1f}", row.step_ms),
          fmt::format("{:.1f}", row.tflops * 1e3),
          fmt::format("{:.1f} %", 100 * one.of_sgemm),
          fmt::format("{:.1f} %", 100 * row.mfu),
          mib(row.peak_bytes),
          comparable ? fmt::format("{:.2f}×", one.our_speed) : "",
          comparable
              ? fmt::format("{:.2f}×", static_cast<double>(ours.row.peak_bytes) / static_cast<double>(row.peak_bytes))
              : ""};
}

const Cells kHead = {"library",  "ranks",   "tokens/s", "step ms",           "GFLOP/s",
                     "of sgemm", "of peak", "peak MiB", "our speed / their", "our memory / their"};

std::string title_of(const TrainCase& it) {
  return fmt::format("{}: {} parameters, {} × {} tokens, {}, {}{} thread{}", it.name, model::parameter_count(it.model),
                     it.batch, it.seq, it.precision,
                     it.ranks > 1 ? fmt::format("{} ranks × ", it.ranks) : std::string(), it.threads,
                     it.threads == 1 ? "" : "s");
}

// Fields of several ranks only: scaling and waiting.
std::string rank_notes(const CaseResult& result) {
  std::string text;
  for (const Measured& one : result.rows) {
    if (one.row.ranks == result.it.ranks) {
      if (one.row.library.starts_with("espalier"))
        text += fmt::format("{}: waited {:.1f} ms per step for communication\n", one.row.library, one.exposed_ms);
      continue;
    }
    text += fmt::format(
        "Scaling from 1 to {} ranks with {} sequences each: {:.1f} % ({:.2f} times the tokens/s of one, round by "
        "round)\n",
        result.it.ranks, result.it.batch / result.it.ranks, 100 * one.our_speed / result.it.ranks, one.our_speed);
  }
  return text;
}

std::string notes_of(const CaseResult& result) {
  const Ceilings& c = result.ceilings;
  std::string text =
      fmt::format("GFLOP/s: square products {:.1f} ours, {}; multiply-adds in registers {:.1f}\n", c.ours * 1e-9,
                  c.openblas > 0 ? fmt::format("{:.1f} OpenBLAS ({})", c.openblas * 1e-9, c.openblas_core)
                                 : std::string("no OpenBLAS with OpenMP here"),
                  c.peak * 1e-9);
  text += fmt::format("Meanwhile other programs took {:.1f} % of the cores' time, the host {:.1f} %\n",
                      100 * result.disturbed.others, 100 * result.disturbed.host);
  if (result.it.ranks > 1) text += rank_notes(result);
  for (const Measured& one : result.rows) {
    text += fmt::format("{}{}: loss {:.3f} at the last step", one.row.library,
                        one.row.ranks < result.it.ranks ? ", 1 rank" : "", one.loss);
    if (one.pool_bytes) text += fmt::format(", tensors {}", human_bytes(one.pool_bytes));
    if (!one.about.empty()) text += ", " + one.about;
    text += "\n";
  }
  return text;
}

TrainCase case_of(const TrainBench& bench, const std::string& name, int ranks, int threads) {
  TrainCase it;
  it.name = name;
  it.model = model::preset(name).config;
  set_usual_shape(it);
  if (bench.batch > 0) it.batch = bench.batch;
  if (bench.seq > 0) it.seq = bench.seq;
  it.model.seq_len = it.seq;
  it.threads = threads;
  it.ranks = ranks;
  it.precision = bench.precision;
  it.recompute = bench.recompute;
  if (it.model.arch != "gpt" && it.model.arch != "llama")
    throw UsageError(fmt::format("--model: got {}; expected a decoder (gpt, llama)", name));
  it.power_rank = bench.power_rank;
  if (it.power_rank > 0) it.settings.push_back(fmt::format("sync.compress=powersgd:{}", it.power_rank));
  if (it.batch % ranks != 0)
    throw UsageError(
        fmt::format("--nproc {}: {} sequences do not divide among them; --batch sets how many", ranks, it.batch));
  return it;
}

std::vector<TrainCase> cases_of(const TrainBench& bench, const std::string& folder) {
  std::vector<TrainCase> cases;
  for (const std::string& name : bench.models)
    for (int ranks : bench.nproc) {
      const std::vector<int> share = {std::max(1, usable_cores() / ranks)};
      for (int threads : bench.threads.empty() ? share : bench.threads) {
        TrainCase it = case_of(bench, name, ranks, threads);
        it.tokens = write_tokens(folder, it.model, it.tokens_per_step());
        cases.push_back(std::move(it));
      }
    }
  return cases;
}

void check(const TrainBench& bench) {
  for (const std::string& peer : bench.peers)
    if (peer != "llm.c") find_row("peer", train_baselines(), peer);
  if (bench.steps < 1 || bench.rounds < 1 || bench.warmup < 0) throw UsageError("expected --steps and --rounds >= 1");
  if (bench.batch < 0 || bench.seq < 0) throw UsageError("expected --batch and --seq >= 1");
  for (const std::string& method : bench.sync) find_row("--sync", sync::strategies(), method);
  for (int ranks : bench.nproc)
    if (ranks < 1 || ranks > 64) throw UsageError(fmt::format("--nproc {}: between 1 and 64 ranks", ranks));
  for (int threads : bench.threads)
    if (threads < 1 || threads > 1024) throw UsageError(fmt::format("--threads {}: between 1 and 1024", threads));
}

int run_bench_train(const TrainBench& asked) {
  TrainBench bench = asked;
  for (std::string& method : bench.sync) method = sync::strategy_name(method);
  check(bench);
  const obs::TemporaryFolder folder;
  if (!bench.layouts.empty()) return run_bench_layouts(bench, folder.path());
  Json rows = Json::array();
  std::string markdown;
  if (std::find(bench.peers.begin(), bench.peers.end(), "llm.c") != bench.peers.end() && bench.llmc.empty())
    fmt::print(stderr, "llm.c: not given (--llmc PATH names its built train_gpt2)\n");
  for (const TrainCase& it : cases_of(bench, folder.path())) {
    const CoreState state = probe_cores();
    fmt::print("\n{}; hand-over now {} ({:.0f} ns)\n", Style(stdout).bold(title_of(it)), state.name(), state.ns);
    std::fflush(stdout);
    const CaseResult result = run_case(bench, it);
    std::vector<Cells> cells;
    for (const Measured& one : result.rows) {
      cells.push_back(cells_of(result, one));
      rows.push_back(to_json(one.row));
    }
    fmt::print("{}{}", text_table(kHead, cells), notes_of(result));
    std::fflush(stdout);
    markdown += fmt::format("### {}\n\n{}\n{}\n", title_of(it), markdown_table(kHead, cells), notes_of(result));
  }
  if (!bench.json.empty()) write_file(bench.json, rows.dump(1) + "\n");
  if (!bench.markdown.empty()) write_file(bench.markdown, markdown);
  return static_cast<int>(ExitCode::done);
}

}  // namespace

// Random tokens: the speed of a step does not depend on them.
std::string write_tokens(const std::string& folder, const model::ModelConfig& model, int64_t least) {
  if (model.vocab > 65536) throw UsageError(fmt::format("vocabulary: got {}; expected at most 65536", model.vocab));
  std::vector<uint16_t> tokens(static_cast<size_t>(std::max<int64_t>(1 << 20, 4 * least)));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<uint16_t>(random_bits(1, 0, i) % static_cast<uint64_t>(model.vocab));
  const std::string path = fmt::format("{}/tokens-{}.bin", folder, model.vocab);
  obs::write_whole_file(path, std::string_view(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size()));
  return path;
}

void set_usual_shape(TrainCase& it) {
  it.batch = it.name.starts_with("gpt2-") ? 2 : 8;
  it.seq = it.name.starts_with("gpt2-") ? 512 : it.model.seq_len;
}

Json to_json(const TrainRow& row) {
  return {{"library", row.library},
          {"model", row.model},
          {"device", "cpu"},
          {"precision", row.precision},
          {"tokens_per_s", row.tokens_per_s},
          {"step_ms_median", row.step_ms},
          {"tflops", row.tflops},
          {"mfu", row.mfu},
          {"peak_bytes", row.peak_bytes},
          {"parameters", row.parameters},
          {"threads", row.threads},
          {"ranks", row.ranks}};
}

void define_bench_train(const Arguments& app, Chosen& chosen) {
  auto o = keep<TrainBench>(app, chosen, run_bench_train);
  std::string peers = "llm.c";
  for (const TrainBaseline& it : train_baselines()) peers += "|" + std::string(it.name);
  std::string methods;
  for (const sync::StrategyRow& row : sync::strategies())
    methods += (methods.empty() ? "" : "|") + std::string(row.name);
  app.add_option("--model", o->models, "presets, as gpt2-124m,gpt-6x384 [gpt-6x384]").delimiter(',').type_name("NAME");
  app.add_option("--batch", o->batch, "sequences per step, of all ranks [gpt2: 2, others: 8]").type_name("B");
  app.add_option("--seq", o->seq, "tokens per sequence [gpt2: 512, others: the model's]").type_name("T");
  app.add_option("--precision", o->precision, "storage type [fp32]").type_name("fp32|bf16|fp16");
  app.add_option("--recompute", o->recompute, "what backward computes again [none]").type_name("none|selective|full");
  app.add_option("--threads", o->threads, "compute threads of a rank, as 1,2 [the usable cores, shared out]")
      .delimiter(',')
      .type_name("N");
  app.add_option("--nproc", o->nproc, "ranks, as 1,2 [1]").delimiter(',').type_name("N");
  app.add_option("--sync", o->sync, "how several ranks agree, as allreduce,zero1 [allreduce]")
      .delimiter(',')
      .type_name(methods);
  app.add_option("--powersgd", o->power_rank, "gradients travel by PowerSGD of this rank, PyTorch's by its hook")
      .type_name("R")
      .within(1, 4096);
  app.add_option("--layout", o->layouts,
                 "divide the model among the ranks, as tp=2, against one process; may be given again")
      .type_name("KEYS")
      .one_word_each();
  app.add_option("--steps", o->steps, "steps per round [5]").type_name("N");
  app.add_option("--rounds", o->rounds, "visits to each candidate [3]").type_name("N");
  app.add_option("--warmup", o->warmup, "steps before the first round [2]").type_name("N");
  app.add_option("--peers", o->peers, "compare with these, separated by commas").delimiter(',').type_name(peers);
  app.add_option("--llmc", o->llmc, "llm.c's train_gpt2, built for the same batch and length").type_name("PATH");
  app.add_option("--python", o->python, "interpreter with torch [the first found]").type_name("PATH");
  app.add_option("--json", o->json, "write the rows as JSON").type_name("FILE");
  app.add_option("--markdown", o->markdown, "write the tables as Markdown; - is stdout").type_name("FILE");
  app.footer(std::string(kWhatIsTimed));
}

}  // namespace esp::app
