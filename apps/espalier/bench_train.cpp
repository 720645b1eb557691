// espalier bench train: times training steps of a whole model, compared with the machine's GEMM rate and with other
// trainers.
//
// Every candidate is a separate process that holds a model in memory and blocks until it is asked for steps. Candidates
// are measured in turn, in rounds of changing order, so that disturbances of the machine affect all of them. The same
// rounds measure square GEMMs. A median is over all steps; a ratio is the median of the ratios of the rounds.
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

constexpr std::string_view kTimingNote =
    "A step reads a batch, runs forward and backward, clips the gradients and updates the weights (AdamW). FLOPs\n"
    "per token: 6·parameters, plus the attention scores below the diagonal. `of sgemm` is relative to the faster of\n"
    "Espalier's and OpenBLAS's square GEMMs of size 2048, `of peak` to multiply-adds in registers. Peak memory is the\n"
    "maximum resident size of the processes, summed over the ranks. Several ranks divide the batch; every --sync\n"
    "method, and one rank alone with its share of the batch, are measured in the same rounds. PyTorch then uses\n"
    "DistributedDataParallel over gloo.";

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
          comparable ? fmt::format("{:.2f}×", one.speed_vs_espalier) : "",
          comparable
              ? fmt::format("{:.2f}×", static_cast<double>(ours.row.peak_bytes) / static_cast<double>(row.peak_bytes))
              : ""};
}

const Cells kHead = {"library",  "ranks",   "tokens/s", "step ms",           "GFLOP/s",
                     "of sgemm", "of peak", "peak MiB", "speed vs espalier", "memory, espalier / library"};

std::string title_of(const TrainCase& spec) {
  return fmt::format("{}: {} parameters, {} × {} tokens, {}, {}{} thread{}", spec.name,
                     model::parameter_count(spec.model), spec.batch, spec.seq, spec.precision,
                     spec.ranks > 1 ? fmt::format("{} ranks × ", spec.ranks) : std::string(), spec.threads,
                     spec.threads == 1 ? "" : "s");
}

// Text about scaling and exposed communication, for a case with several ranks.
std::string rank_notes(const CaseResult& result) {
  std::string text;
  for (const Measured& one : result.rows) {
    if (one.row.ranks == result.spec.ranks) {
      if (one.row.library.starts_with("espalier"))
        text += fmt::format("{}: {:.1f} ms per step exposed communication\n", one.row.library, one.exposed_ms);
      continue;
    }
    text += fmt::format(
        "Scaling efficiency from 1 to {} ranks with {} sequences each: {:.1f} % ({:.2f} times the tokens/s of one "
        "rank)\n",
        result.spec.ranks, result.spec.batch / result.spec.ranks, 100 * one.speed_vs_espalier / result.spec.ranks,
        one.speed_vs_espalier);
  }
  return text;
}

std::string notes_of(const CaseResult& result) {
  const Ceilings& c = result.ceilings;
  std::string text =
      fmt::format("GFLOP/s: square GEMMs {:.1f} Espalier, {}; multiply-adds in registers {:.1f}\n", c.ours * 1e-9,
                  c.openblas > 0 ? fmt::format("{:.1f} OpenBLAS ({})", c.openblas * 1e-9, c.openblas_core)
                                 : std::string("OpenBLAS with OpenMP not found"),
                  c.peak * 1e-9);
  text +=
      fmt::format("CPU time lost during the measurement: {:.1f} % to other programs, {:.1f} % to the host (steal)\n",
                  100 * result.disturbed.others, 100 * result.disturbed.host);
  if (result.spec.ranks > 1) text += rank_notes(result);
  for (const Measured& one : result.rows) {
    text += fmt::format("{}{}: loss {:.3f} at the last step", one.row.library,
                        one.row.ranks < result.spec.ranks ? ", 1 rank" : "", one.loss);
    if (one.pool_bytes) text += fmt::format(", tensors {}", human_bytes(one.pool_bytes));
    if (!one.about.empty()) text += ", " + one.about;
    text += "\n";
  }
  return text;
}

TrainCase case_of(const TrainBenchOptions& bench, const std::string& name, int ranks, int threads) {
  TrainCase spec;
  spec.name = name;
  spec.model = model::preset(name).config;
  set_usual_shape(spec);
  if (bench.batch > 0) spec.batch = bench.batch;
  if (bench.seq > 0) spec.seq = bench.seq;
  spec.model.seq_len = spec.seq;
  spec.threads = threads;
  spec.ranks = ranks;
  spec.precision = bench.precision;
  spec.recompute = bench.recompute;
  if (spec.model.arch != "gpt" && spec.model.arch != "llama")
    throw UsageError(fmt::format("--model: got {}; expected a decoder (gpt, llama)", name));
  spec.power_rank = bench.power_rank;
  if (spec.power_rank > 0) spec.settings.push_back(fmt::format("sync.compress=powersgd:{}", spec.power_rank));
  if (spec.batch % ranks != 0)
    throw UsageError(fmt::format("--batch: got {}; must be a multiple of --nproc = {}", spec.batch, ranks));
  return spec;
}

std::vector<TrainCase> cases_of(const TrainBenchOptions& bench, const std::string& folder) {
  std::vector<TrainCase> cases;
  for (const std::string& name : bench.models)
    for (int ranks : bench.nproc) {
      const std::vector<int> share = {std::max(1, usable_cores() / ranks)};
      for (int threads : bench.threads.empty() ? share : bench.threads) {
        TrainCase spec = case_of(bench, name, ranks, threads);
        spec.tokens = write_tokens(folder, spec.model, spec.tokens_per_step());
        cases.push_back(std::move(spec));
      }
    }
  return cases;
}

void check(const TrainBenchOptions& bench) {
  for (const std::string& peer : bench.peers)
    if (peer != "llm.c") find_row("peer", train_baselines(), peer);
  if (bench.steps < 1 || bench.rounds < 1 || bench.warmup < 0)
    throw UsageError(
        fmt::format("got --steps {}, --rounds {}, --warmup {}; expected --steps >= 1, --rounds >= 1, "
                    "--warmup >= 0",
                    bench.steps, bench.rounds, bench.warmup));
  if (bench.batch < 0 || bench.seq < 0)
    throw UsageError(
        fmt::format("got --batch {}, --seq {}; expected --batch >= 1, --seq >= 1", bench.batch, bench.seq));
  for (const std::string& method : bench.sync) find_row("--sync", sync::strategies(), method);
  for (int ranks : bench.nproc)
    if (ranks < 1 || ranks > 64) throw UsageError(fmt::format("--nproc: got {}; expected 1 to 64 ranks", ranks));
  for (int threads : bench.threads)
    if (threads < 1 || threads > 1024) throw UsageError(fmt::format("--threads: got {}; expected 1 to 1024", threads));
}

int run_bench_train(const TrainBenchOptions& asked) {
  TrainBenchOptions bench = asked;
  for (std::string& method : bench.sync) method = sync::strategy_name(method);
  check(bench);
  const obs::TemporaryFolder folder;
  if (!bench.layouts.empty()) return run_bench_layouts(bench, folder.path());
  Json rows = Json::array();
  std::string markdown;
  if (std::find(bench.peers.begin(), bench.peers.end(), "llm.c") != bench.peers.end() && bench.llmc.empty())
    fmt::print(stderr,
               "--peers llm.c: skipped, because --llmc is not given. Set it to the path of llm.c's train_gpt2\n");
  for (const TrainCase& spec : cases_of(bench, folder.path())) {
    const CoreState state = probe_cores();
    fmt::print("\n{}; core-to-core latency {} ({:.0f} ns)\n", Style(stdout).bold(title_of(spec)), state.name(),
               state.ns);
    std::fflush(stdout);
    const CaseResult result = run_case(bench, spec);
    std::vector<Cells> cells;
    for (const Measured& one : result.rows) {
      cells.push_back(cells_of(result, one));
      rows.push_back(to_json(one.row));
    }
    fmt::print("{}{}", text_table(kHead, cells), notes_of(result));
    std::fflush(stdout);
    markdown += fmt::format("### {}\n\n{}\n{}\n", title_of(spec), markdown_table(kHead, cells), notes_of(result));
  }
  if (!bench.json.empty()) write_file(bench.json, rows.dump(1) + "\n");
  if (!bench.markdown.empty()) write_file(bench.markdown, markdown);
  return static_cast<int>(ExitCode::done);
}

}  // namespace

// Writes random tokens: the speed of a step does not depend on the values.
std::string write_tokens(const std::string& folder, const model::ModelConfig& model, int64_t least) {
  if (model.vocab > 65536)
    throw UsageError(
        fmt::format("model.vocab: got {}; expected at most 65536, because tokens are written as u16", model.vocab));
  std::vector<uint16_t> tokens(static_cast<size_t>(std::max<int64_t>(1 << 20, 4 * least)));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<uint16_t>(random_bits(1, 0, i) % static_cast<uint64_t>(model.vocab));
  const std::string path = fmt::format("{}/tokens-{}.bin", folder, model.vocab);
  obs::write_whole_file(path, std::string_view(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size()));
  return path;
}

void set_usual_shape(TrainCase& spec) {
  spec.batch = spec.name.starts_with("gpt2-") ? 2 : 8;
  spec.seq = spec.name.starts_with("gpt2-") ? 512 : spec.model.seq_len;
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

void define_bench_train(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<TrainBenchOptions>(app, chosen, run_bench_train);
  std::string peers = "llm.c";
  for (const TrainBaseline& spec : train_baselines()) peers += "|" + std::string(spec.name);
  std::string methods;
  for (const sync::StrategyRow& row : sync::strategies())
    methods += (methods.empty() ? "" : "|") + std::string(row.name);
  app.add_option("--model", o->models, "model presets, for example gpt2-124m,gpt-6x384 [gpt-6x384]")
      .delimiter(',')
      .type_name("NAME");
  app.add_option("--batch", o->batch, "sequences per step, summed over all ranks [gpt2: 2, others: 8]").type_name("B");
  app.add_option("--seq", o->seq, "tokens per sequence [gpt2: 512, others: the model's]").type_name("T");
  app.add_option("--precision", o->precision, "storage type [fp32]").type_name("fp32|bf16|fp16");
  app.add_option("--recompute", o->recompute, "activation recomputation [none]").type_name("none|selective|full");
  app.add_option("--threads", o->threads, "compute threads per rank, for example 1,2 [usable cores / ranks]")
      .delimiter(',')
      .type_name("N");
  app.add_option("--nproc", o->nproc, "ranks, for example 1,2 [1]").delimiter(',').type_name("N");
  app.add_option("--sync", o->sync, "sync methods with several ranks, for example allreduce,zero1 [allreduce]")
      .delimiter(',')
      .type_name(methods);
  app.add_option("--powersgd", o->power_rank,
                 "compress gradients with PowerSGD of this rank; PyTorch uses its PowerSGD hook")
      .type_name("R")
      .within(1, 4096);
  app.add_option("--layout", o->layouts, "parallel layout to compare with one process, for example tp=2; repeatable")
      .type_name("KEYS")
      .one_word_each();
  app.add_option("--steps", o->steps, "steps per round [5]").type_name("N");
  app.add_option("--rounds", o->rounds, "rounds; each measures every candidate once [3]").type_name("N");
  app.add_option("--warmup", o->warmup, "steps before the first round [2]").type_name("N");
  app.add_option("--peers", o->peers, "libraries to compare with, separated by commas").delimiter(',').type_name(peers);
  app.add_option("--llmc", o->llmc, "llm.c's train_gpt2, built for the same batch size and sequence length")
      .type_name("PATH");
  app.add_option("--python", o->python, "Python interpreter with torch [the first found]").type_name("PATH");
  app.add_option("--json", o->json, "write the rows as JSON").type_name("FILE");
  app.add_option("--markdown", o->markdown, "write the tables as Markdown; - is stdout").type_name("FILE");
  app.footer(std::string(kTimingNote));
}

}  // namespace esp::app
