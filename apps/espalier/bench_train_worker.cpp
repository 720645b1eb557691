// espalier bench-train-worker: one process of `bench train`, which starts it. It trains, or it runs square GEMMs with
// Espalier's or OpenBLAS's sgemm to measure the peak. Each candidate runs in separate processes, so that its memory can
// be measured.
//
// The protocol is that of bench/peers/serve.h: `run steps=N` is answered with `done ns=t1,… [more]`. Trainers with
// several ranks join the world that their environment describes. They also report the time spent waiting
// for communication, the slowest rank of each step, and memory by category.
#include <dlfcn.h>

#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/espalier/bench_blas.h"
#include "apps/espalier/bench_train.h"
#include "apps/espalier/command.h"
#include "esp/base/error.h"
#include "esp/comm/communicator.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/gemm.h"
#include "esp/kernel/peak.h"
#include "esp/launch/world.h"
#include "esp/train/engine.h"

namespace esp::app {
namespace {

struct WorkerOptions {
  std::string socket, label, role = "train", model, precision = "fp32", recompute = "none", tokens, blas;
  std::vector<std::string> settings;
  int64_t batch = 1, seq = 1;
  int threads = 1, rank = 0, ranks = 1;
};

using Step = std::function<void()>;

// Serves requests until `quit`. After the steps of a request, `more` adds further fields to the reply.
int serve_steps(const WorkerOptions& o, const std::string& about, const Step& step,
                const std::function<std::string()>& more) {
  const net::Socket socket(bench::connect_coordinator(o.socket));
  bench::LineChannel channel(socket.fd());
  channel.write_line(fmt::format("hello label={} rank={} size={} {}", o.label, o.rank, o.ranks, about));
  std::string line, verb;
  while (channel.read_line(line)) {
    bench::Words words = bench::split_words(line, verb);
    if (verb == "quit") break;
    std::vector<int64_t> times;
    try {
      for (int i = std::atoi(words["steps"].c_str()); i > 0; --i) {
        const int64_t begin = now_ns();
        step();
        times.push_back(now_ns() - begin);
      }
    } catch (const std::exception& error) {
      channel.write_line(fmt::format("failed why={}", error.what()));
      continue;
    }
    channel.write_line(fmt::format("done ns={} {}", fmt::join(times, ","), more()));
  }
  return static_cast<int>(ExitCode::done);
}

train::RunConfig run_config(const WorkerOptions& o) {
  std::vector<std::string> settings = {"model.preset=" + o.model,
                                       fmt::format("model.seq_len={}", o.seq),
                                       fmt::format("train.global_batch={}", o.batch),
                                       "train.precision=" + o.precision,
                                       "train.recompute=" + o.recompute,
                                       fmt::format("run.threads={}", o.threads),
                                       "train.schedule=constant",
                                       "data.bin_type=u16"};
  settings.insert(settings.end(), o.settings.begin(), o.settings.end());
  train::RunConfig config = train::parse_run_config("", "bench train", settings);
  config.data.objective = config.model.arch == "t5" ? "span_corruption" : "next_token";
  config.data.train = {o.tokens};
  config.data.cache = o.tokens + ".cache";  // this file is never created: the token file is used directly
  return config;
}

// Collects the fields of a reply other than step times. Memory has the form tier.category:current:peak,…
struct StepNotes {
  double loss = 0, exposed_ms = 0, waited_ms = 0;
  std::vector<int> slowest;

  void add(const train::StepResult& result) {
    loss = result.loss;
    exposed_ms += result.exposed_ms;
    waited_ms += result.waited_ms;
    slowest.push_back(result.slowest_rank);
  }
  std::string take(train::Engine& engine) {
    const double steps = std::max<double>(1, static_cast<double>(slowest.size()));
    std::vector<std::string> memory;
    for (device::MemoryTier tier : device::kAllTiers)
      for (device::MemoryCategory category : device::kAllCategories) {
        const device::MemoryUse use = engine.account().use(category, tier);
        memory.push_back(fmt::format("{}.{}:{}:{}", name_of(tier), name_of(category), use.current, use.peak));
      }
    std::string text = fmt::format("loss={:.6f} pool={} exposed={:.4f} waited={:.4f} slowest={} memory={}", loss,
                                   engine.account().use(device::MemoryTier::device).peak, exposed_ms / steps,
                                   waited_ms / steps, fmt::join(slowest, ","), fmt::join(memory, ","));
    *this = {};
    return text;
  }
};

int serve_engine(const WorkerOptions& o, const train::JobContext& context) {
  train::RunConfig config = run_config(o);
  train::Engine engine(config, Log(), context);
  StepNotes notes;
  return serve_steps(
      o, fmt::format("parameters={}", engine.num_parameters()), [&] { notes.add(engine.step()); },
      [&] { return notes.take(engine); });
}

int serve_training(WorkerOptions o) {
  if (o.ranks == 1) return serve_engine(o, {});
  const net::RendezvousOptions rendezvous_options = launch::join_options(launch::process_environment());
  const auto world = net::rendezvous(rendezvous_options, Deadline::after(std::chrono::seconds(60)));
  const auto ranks = comm::make_communicator(*world, world->world_group(), {});
  o.rank = ranks->rank();
  return serve_engine(o, {ranks.get(), ranks->size()});
}

// The CPU type that a loaded OpenBLAS detected; other libraries do not report one.
std::string blas_core() {
  using CoreName = char* (*)();
  const auto name = reinterpret_cast<CoreName>(::dlsym(RTLD_DEFAULT, "openblas_get_corename"));
  return name ? name() : "unknown";
}

int serve_gemms(const WorkerOptions& o) {
  const int64_t n = kGemmSize;
  std::vector<float> a(static_cast<size_t>(n * n)), b(a.size()), c(a.size());
  kernel::fill_uniform(a.data(), -1, 1, 1, 0, 0, n * n, DType::f32, {});
  kernel::fill_uniform(b.data(), -1, 1, 2, 0, 0, n * n, DType::f32, {});
  if (!o.blas.empty()) {
    const Blas blas(o.blas);  // OMP_NUM_THREADS sets the number of threads
    return serve_steps(
        o, "core=" + blas_core(), [&] { blas.sgemm(c.data(), a.data(), b.data(), n, n, n, {}); },
        [] { return std::string(); });
  }
  device::ThreadPool pool(o.threads);
  device::Stream stream;
  stream.pool = &pool;
  return serve_steps(
      o, "core=own", [&] { kernel::gemm(c.data(), a.data(), b.data(), n, n, n, {}, DType::f32, stream); },
      [&] { return fmt::format("peak={:.0f}", kernel::fma_peak(DType::f32, stream)); });
}

int run_worker(const WorkerOptions& options) {
  return options.role == "train" ? serve_training(options) : serve_gemms(options);
}

launch::LocalOptions self_exec_options(const std::string& label, std::vector<std::string> arguments,
                                       const RankListener& listener) {
  launch::LocalOptions options;
  options.output = launch::LocalOptions::Output::stderr_tail;
  options.command = {executable_path(), "bench-train-worker", "--socket", listener.name(), "--label", label};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  return options;
}

}  // namespace

launch::LocalOptions espalier_trainer(const TrainCase& spec, const RankListener& listener) {
  launch::LocalOptions options = self_exec_options("espalier", {"--role",      "train",
                                                                "--model",     spec.name,
                                                                "--batch",     std::to_string(spec.batch),
                                                                "--seq",       std::to_string(spec.seq),
                                                                "--threads",   std::to_string(spec.threads),
                                                                "--ranks",     std::to_string(spec.ranks),
                                                                "--precision", spec.precision,
                                                                "--recompute", spec.recompute,
                                                                "--tokens",    spec.tokens,
                                                                "--set",       "sync.method=" + spec.sync},
                                                   listener);
  for (const std::string& one : spec.settings) options.command.insert(options.command.end(), {"--set", one});
  options.num_ranks = spec.ranks;
  return options;
}

launch::LocalOptions espalier_gemm(int threads, const std::string& blas, const RankListener& listener) {
  std::vector<std::string> arguments = {"--role", "gemm", "--threads", std::to_string(threads)};
  if (!blas.empty()) arguments.insert(arguments.end(), {"--blas", blas});
  launch::LocalOptions options = self_exec_options(blas.empty() ? "sgemm" : "openblas", arguments, listener);
  options.environment["OMP_NUM_THREADS"] = std::to_string(threads);
  if (const std::string core = blas.empty() ? "" : openblas_core_override(blas); !core.empty())
    options.environment["OPENBLAS_CORETYPE"] = core;
  return options;
}

void define_bench_train_worker(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<WorkerOptions>(app, chosen, run_worker);
  app.add_option("--socket", o->socket, "the coordinator's socket").required();
  app.add_option("--label", o->label, "label in the benchmark's protocol").required();
  app.add_option("--role", o->role, "train or gemm").one_of({"train", "gemm"});
  app.add_option("--model", o->model, "preset");
  app.add_option("--batch", o->batch, "sequences per step");
  app.add_option("--seq", o->seq, "tokens per sequence");
  app.add_option("--threads", o->threads, "compute threads");
  app.add_option("--ranks", o->ranks, "ranks of this job");
  app.add_option("--set", o->settings, "section.key=value").one_word_each();
  app.add_option("--precision", o->precision, "storage type");
  app.add_option("--recompute", o->recompute, "activation recomputation");
  app.add_option("--tokens", o->tokens, "file of u16 tokens");
  app.add_option("--blas", o->blas, "path of an OpenBLAS library");
}

}  // namespace esp::app
