// espalier bench train: steps of a whole model, held against what the machine multiplies and against other trainers.
//
// Every contender is a process of its own, with a model in memory, asleep until it is asked for steps. They are visited
// in turn, round after round, each time beginning with another, so that whatever the machine does meanwhile it does to
// all; square products are measured in the same rounds. Medians are over all steps; a ratio is the median of the
// rounds' own ratios.
#include "apps/espalier/bench_train.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/bench_comm.h"
#include "apps/espalier/command.h"
#include "apps/espalier/core_state.h"
#include "apps/espalier/cpu_load.h"
#include "apps/espalier/machine.h"
#include "apps/espalier/output_file.h"
#include "apps/espalier/temporary_folder.h"
#include "apps/espalier/terminal.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/base/table.h"
#include "esp/model/counts.h"
#include "esp/model/model.h"
#include "esp/obs/file.h"

namespace esp::app {
namespace {

constexpr std::string_view kWhatIsTimed =
    "A step reads a batch, goes forward and backward, clips and updates (AdamW). TFLOP/s count 6·parameters and, in\n"
    "attention, what is below the diagonal. `of sgemm` is against the quicker of our and OpenBLAS's square products "
    "of\n"
    "2048, `of peak` against multiply-adds in registers, both in this run. Peak memory is the highest resident size "
    "of\n"
    "the whole process.";

struct Contender {
  std::string name;
  std::unique_ptr<BenchJob> job;
  std::vector<double> step_s;                // of all rounds
  std::vector<double> round_s;               // the median of each
  std::map<std::string, std::string> words;  // of the last answer
};

// Asks one contender for steps; the samples are kept unless they warm up.
std::vector<double> ask_steps(Contender& contender, int steps) {
  // Ten minutes for what takes seconds: only something that hangs gets there.
  const Deadline deadline = Deadline::after(std::chrono::minutes(10));
  BenchJob::Reply reply = contender.job->exchange(fmt::format("run steps={}", steps), deadline).at(0);
  if (reply.verb != "done")
    throw CommError(CommError::Kind::aborted, 0, fmt::format("{}: {}", contender.name, reply.words["why"]));
  std::vector<double> seconds = parse_times(reply.words["ns"]);
  for (double& one : seconds) one *= 1e-9;
  contender.words = std::move(reply.words);
  return seconds;
}

struct Measured {
  TrainRow row;
  std::vector<double> round_s;
  std::string about;  // version and BLAS, of a rival
  uint64_t pool_bytes = 0;
  double loss = 0;
};

// What the machine gives at most, FLOP/s.
struct Ceilings {
  double ours = 0, openblas = 0, peak = 0;
  std::string openblas_core;
  double best() const { return std::max(ours, openblas); }
};

struct CaseResult {
  TrainCase it;
  Ceilings ceilings;
  std::vector<Measured> rows;  // ours first
  CpuLoad::Shares disturbed;
};

class CaseBench {
 public:
  CaseBench(const TrainBench& bench, const TrainCase& it) : bench_(bench), it_(it) {
    add("espalier", our_trainer(it, board_));
    for (const std::string& peer : bench.peers)
      if (peer != "llm.c") add(peer, find_row("peer", train_rivals(), peer).start(bench, it, board_));
    num_trainers_ = contenders_.size();
    add("sgemm", our_products(it.threads, "", board_));
    if (const std::string folder = openmp_blas_folder(); !folder.empty())
      add("openblas", our_products(it.threads, folder + "/libopenblas.so.0", board_));
  }

  CaseResult run() {
    for (size_t i = 0; i < num_trainers_; ++i) ask_steps(contenders_[i], bench_.warmup);
    for (int round = 0; round < bench_.rounds; ++round)
      for (size_t i = 0; i < contenders_.size(); ++i)
        visit(contenders_[(i + static_cast<size_t>(round)) % contenders_.size()]);
    CaseResult result;
    result.it = it_;
    result.ceilings = ceilings();
    for (size_t i = 0; i < num_trainers_; ++i) result.rows.push_back(measured(contenders_[i], result.ceilings));
    contenders_.clear();  // so that llm.c has the machine to itself
    add_llmc(result);
    result.disturbed = load_.so_far();
    return result;
  }

 private:
  void add(const std::string& name, const launch::LocalOptions& options) {
    contenders_.push_back({name,
                           std::make_unique<BenchJob>(name, 1, std::make_unique<launch::LocalJob>(options), board_,
                                                      Deadline::after(std::chrono::seconds(120))),
                           {},
                           {},
                           {}});
  }

  bool is_trainer(const Contender& contender) const {
    return &contender < contenders_.data() + static_cast<ptrdiff_t>(num_trainers_);
  }

  void visit(Contender& contender) {
    constexpr int kProducts = 5;
    const std::vector<double> seconds = ask_steps(contender, is_trainer(contender) ? bench_.steps : kProducts);
    contender.step_s.insert(contender.step_s.end(), seconds.begin(), seconds.end());
    contender.round_s.push_back(median(seconds));
    if (contender.words.count("peak")) peaks_.push_back(std::strtod(contender.words["peak"].c_str(), nullptr));
  }

  Ceilings ceilings() {
    Ceilings out;
    const double flops = 2.0 * kProductSize * kProductSize * kProductSize;
    for (const Contender& contender : contenders_) {
      if (contender.name == "sgemm") out.ours = flops / median(contender.step_s);
      if (contender.name != "openblas") continue;
      out.openblas = flops / median(contender.step_s);
      out.openblas_core = contender.job->hello(0).at("core");
    }
    out.peak = median(peaks_);
    return out;
  }

  TrainRow row_of(const std::string& library, double step_s, const Ceilings& ceilings) const {
    TrainRow row;
    row.library = library;
    row.model = it_.name;
    row.precision = it_.precision;
    row.threads = it_.threads;
    row.step_ms = step_s * 1e3;
    row.tokens_per_s = static_cast<double>(it_.tokens_per_step()) / step_s;
    row.tflops = model::flops_per_token(it_.model, it_.seq) * row.tokens_per_s * 1e-12;
    row.mfu = row.tflops * 1e12 / ceilings.peak;
    return row;
  }

  Measured measured(Contender& contender, const Ceilings& ceilings) const {
    bench::Words hello = contender.job->hello(0);
    Measured out;
    out.row = row_of(contender.name, median(contender.step_s), ceilings);
    out.row.parameters = std::atoll(hello["parameters"].c_str());
    out.row.peak_bytes = peak_resident_bytes(contender.job->processes().pid(0));
    out.round_s = contender.round_s;
    out.pool_bytes = std::strtoull(contender.words["pool"].c_str(), nullptr, 10);
    out.loss = std::strtod(contender.words["loss"].c_str(), nullptr);
    if (hello.count("blas")) out.about = fmt::format("{}, BLAS {}", hello["version"], hello["blas"]);
    if (out.row.parameters != model::parameter_count(it_.model))
      throw Error(ExitCode::internal, fmt::format("{} built {} parameters, not {}: it is not the same model",
                                                  contender.name, out.row.parameters, parameter_count(it_.model)));
    return out;
  }

  void add_llmc(CaseResult& result) const {
    if (bench_.llmc.empty()) return;
    if (it_.name != "gpt2-124m") return;
    const int steps = 1 + bench_.steps * bench_.rounds;
    const LlmcResult run = run_llmc(bench_.llmc, it_.threads, steps, Deadline::after(std::chrono::minutes(10)));
    Measured out;
    out.row = row_of("llm.c", median(run.step_s), result.ceilings);
    out.row.parameters = model::parameter_count(it_.model);
    out.row.peak_bytes = run.peak_bytes;
    out.about = bench_.llmc + ", built for the same batch and length";
    result.rows.push_back(std::move(out));
  }

  const TrainBench& bench_;
  const TrainCase& it_;
  CpuLoad load_;
  Switchboard board_;
  std::vector<Contender> contenders_;
  size_t num_trainers_ = 0;
  std::vector<double> peaks_;
};

// How many times quicker we are, round by round; without common rounds by the medians.
double speed_ratio(const Measured& ours, const Measured& theirs) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(ours.round_s.size(), theirs.round_s.size()); ++i)
    ratios.push_back(theirs.round_s[i] / ours.round_s[i]);
  return ratios.empty() ? theirs.row.step_ms / ours.row.step_ms : median(ratios);
}

Cells cells_of(const CaseResult& result, const Measured& one) {
  const Measured& ours = result.rows[0];
  const double flops = one.row.tflops * 1e12;
  const bool rival = &one != &ours;
  const auto mib = [](uint64_t bytes) { return fmt::format("{:.0f}", static_cast<double>(bytes) / (1 << 20)); };
  return {
      one.row.library,
      fmt::format("{:.0f}", one.row.tokens_per_s),
      fmt::format("{:.1f}", one.row.step_ms),
      fmt::format("{:.1f}", flops * 1e-9),
      fmt::format("{:.1f} %", 100 * flops / result.ceilings.best()),
      fmt::format("{:.1f} %", 100 * one.row.mfu),
      mib(one.row.peak_bytes),
      rival ? fmt::format("{:.2f}×", speed_ratio(ours, one)) : "",
      rival ? fmt::format("{:.2f}×", static_cast<double>(ours.row.peak_bytes) / static_cast<double>(one.row.peak_bytes))
            : ""};
}

const Cells kHead = {"library", "tokens/s", "step ms",           "GFLOP/s",           "of sgemm",
                     "of peak", "peak MiB", "our speed / their", "our memory / their"};

std::string title_of(const TrainCase& it) {
  return fmt::format("{}: {} parameters, {} × {} tokens, {}, {} thread{}", it.name, model::parameter_count(it.model),
                     it.batch, it.seq, it.precision, it.threads, it.threads == 1 ? "" : "s");
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
  for (const Measured& one : result.rows) {
    text += fmt::format("{}: loss {:.3f} at the last step", one.row.library, one.loss);
    if (one.pool_bytes) text += fmt::format(", tensors {}", human_bytes(one.pool_bytes));
    if (!one.about.empty()) text += ", " + one.about;
    text += "\n";
  }
  return text;
}

// Random tokens: nothing in a step is quicker or slower for what they are.
std::string write_tokens(const std::string& folder, const model::ModelConfig& model, int64_t least) {
  if (model.vocab > 65536) throw UsageError(fmt::format("a vocabulary of {}: up to 65536 here", model.vocab));
  std::vector<uint16_t> tokens(static_cast<size_t>(std::max<int64_t>(1 << 20, 4 * least)));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<uint16_t>(random_bits(1, 0, i) % static_cast<uint64_t>(model.vocab));
  const std::string path = fmt::format("{}/tokens-{}.bin", folder, model.vocab);
  obs::write_whole_file(path, std::string_view(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size()));
  return path;
}

std::vector<TrainCase> cases_of(const TrainBench& bench, const std::string& folder) {
  std::vector<TrainCase> cases;
  for (const std::string& name : bench.models)
    for (int threads : bench.threads.empty() ? std::vector<int>{usable_cores()} : bench.threads) {
      TrainCase it;
      it.name = name;
      it.model = model::preset(name).config;
      set_usual_shape(it);
      if (bench.batch > 0) it.batch = bench.batch;
      if (bench.seq > 0) it.seq = bench.seq;
      it.model.seq_len = it.seq;
      it.threads = threads;
      it.precision = bench.precision;
      it.recompute = bench.recompute;
      if (it.model.arch != "gpt" && it.model.arch != "llama")
        throw UsageError(fmt::format("--model {}: decoders only here (gpt, llama)", name));
      it.tokens = write_tokens(folder, it.model, it.tokens_per_step());
      cases.push_back(std::move(it));
    }
  return cases;
}

void check(const TrainBench& bench) {
  for (const std::string& peer : bench.peers)
    if (peer != "llm.c") find_row("peer", train_rivals(), peer);
  if (bench.steps < 1 || bench.rounds < 1 || bench.warmup < 0) throw UsageError("--steps and --rounds: at least 1");
  if (bench.batch < 0 || bench.seq < 0) throw UsageError("--batch and --seq: at least 1");
  for (int threads : bench.threads)
    if (threads < 1 || threads > 1024) throw UsageError(fmt::format("--threads {}: between 1 and 1024", threads));
}

int run_bench_train(const TrainBench& bench) {
  check(bench);
  const TemporaryFolder folder;
  Json rows = Json::array();
  std::string markdown;
  if (std::find(bench.peers.begin(), bench.peers.end(), "llm.c") != bench.peers.end() && bench.llmc.empty())
    fmt::print(stderr, "llm.c: not given (--llmc PATH names its built train_gpt2)\n");
  for (const TrainCase& it : cases_of(bench, folder.path())) {
    const CoreState state = probe_cores();
    fmt::print("\n{}; hand-over now {} ({:.0f} ns)\n", Style(stdout).bold(title_of(it)), state.name(), state.ns);
    std::fflush(stdout);
    const CaseResult result = CaseBench(bench, it).run();
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
          {"ranks", 1}};
}

void define_bench_train(CLI::App& app, Chosen& chosen) {
  auto o = keep<TrainBench>(app, chosen, run_bench_train);
  std::string peers = "llm.c";
  for (const TrainRival& it : train_rivals()) peers += "|" + std::string(it.name);
  app.add_option("--model", o->models, "presets, as gpt2-124m,gpt-6x384 [gpt-6x384]")
      ->delimiter(',')
      ->type_name("NAME");
  app.add_option("--batch", o->batch, "sequences per step [gpt2: 2, others: 8]")->type_name("B");
  app.add_option("--seq", o->seq, "tokens per sequence [gpt2: 512, others: the model's]")->type_name("T");
  app.add_option("--precision", o->precision, "storage type [fp32]")->type_name("fp32|bf16|fp16");
  app.add_option("--recompute", o->recompute, "what backward computes again [none]")->type_name("none|selective|full");
  app.add_option("--threads", o->threads, "compute threads, as 1,2 [the usable cores]")->delimiter(',')->type_name("N");
  app.add_option("--steps", o->steps, "steps per round [5]")->type_name("N");
  app.add_option("--rounds", o->rounds, "visits to each contender [3]")->type_name("N");
  app.add_option("--warmup", o->warmup, "steps before the first round [2]")->type_name("N");
  app.add_option("--peers", o->peers, "compare with these, separated by commas")->delimiter(',')->type_name(peers);
  app.add_option("--llmc", o->llmc, "llm.c's train_gpt2, built for the same batch and length")->type_name("PATH");
  app.add_option("--python", o->python, "interpreter with torch [the first found]")->type_name("PATH");
  app.add_option("--json", o->json, "write the rows as JSON")->type_name("FILE");
  app.add_option("--markdown", o->markdown, "write the tables as Markdown; - is stdout")->type_name("FILE");
  app.footer(std::string(kWhatIsTimed));
}

}  // namespace esp::app
