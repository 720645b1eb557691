// espalier bench-train-worker: one process of `bench train`, started by it. It trains, or runs square GEMMs (this
// program's or OpenBLAS's) to measure the peak; separate processes keep memory figures separate.
//
// Protocol of bench/peers/serve.h: `run steps=N` is answered with `done ns=t1,… [more]`. Trainers with several ranks
// join the world of their environment; they also report communication wait, the slowest rank of each step, and memory
// by category.
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

// Serves requests until quit. `more` is called after the steps of a request.
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
  config.data.cache = o.tokens + ".cache";  // never created: the tokens are given
  return config;
}

// Fields of a reply beside step times: memory as tier.category:present:peak,…
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

int serve_engine(const WorkerOptions& o, const train::Standing& standing) {
  train::RunConfig config = run_config(o);
  train::Engine engine(config, Log(), standing);
  StepNotes notes;
  return serve_steps(
      o, fmt::format("parameters={}", engine.num_parameters()), [&] { notes.add(engine.step()); },
      [&] { return notes.take(engine); });
}

int serve_training(WorkerOptions o) {
  if (o.ranks == 1) return serve_engine(o, {});
  const net::RendezvousOptions joining = launch::join_options(launch::process_environment());
  const auto world = net::rendezvous(joining, Deadline::after(std::chrono::seconds(60)));
  const auto ranks = comm::make_communicator(*world, world->everyone(), {});
  o.rank = ranks->rank();
  return serve_engine(o, {ranks.get(), ranks->size()});
}

// The processor type that a loaded OpenBLAS detected; other libraries do not report it.
std::string blas_core() {
  using CoreName = char* (*)();
  const auto name = reinterpret_cast<CoreName>(::dlsym(RTLD_DEFAULT, "openblas_get_corename"));
  return name ? name() : "unknown";
}

int serve_products(const WorkerOptions& o) {
  const int64_t n = kProductSize;
  std::vector<float> a(static_cast<size_t>(n * n)), b(a.size()), c(a.size());
  kernel::fill_uniform(a.data(), -1, 1, 1, 0, 0, n * n, DType::f32, {});
  kernel::fill_uniform(b.data(), -1, 1, 2, 0, 0, n * n, DType::f32, {});
  if (!o.blas.empty()) {
    const Blas blas(o.blas);  // OMP_NUM_THREADS sets its threads
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
  return options.role == "train" ? serve_training(options) : serve_products(options);
}

launch::LocalOptions ourselves(const std::string& label, std::vector<std::string> arguments, const Switchboard& board) {
  launch::LocalOptions options;
  options.output = launch::LocalOptions::Output::last_words;
  options.command = {own_path(), "bench-train-worker", "--socket", board.name(), "--label", label};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  return options;
}

}  // namespace

launch::LocalOptions our_trainer(const TrainCase& it, const Switchboard& board) {
  launch::LocalOptions options = ourselves("espalier", {"--role",      "train",
                                                        "--model",     it.name,
                                                        "--batch",     std::to_string(it.batch),
                                                        "--seq",       std::to_string(it.seq),
                                                        "--threads",   std::to_string(it.threads),
                                                        "--ranks",     std::to_string(it.ranks),
                                                        "--precision", it.precision,
                                                        "--recompute", it.recompute,
                                                        "--tokens",    it.tokens,
                                                        "--set",       "sync.method=" + it.sync},
                                           board);
  for (const std::string& one : it.settings) options.command.insert(options.command.end(), {"--set", one});
  options.num_ranks = it.ranks;
  return options;
}

launch::LocalOptions our_products(int threads, const std::string& blas, const Switchboard& board) {
  std::vector<std::string> arguments = {"--role", "products", "--threads", std::to_string(threads)};
  if (!blas.empty()) arguments.insert(arguments.end(), {"--blas", blas});
  launch::LocalOptions options = ourselves(blas.empty() ? "sgemm" : "openblas", arguments, board);
  options.environment["OMP_NUM_THREADS"] = std::to_string(threads);
  if (const std::string core = blas.empty() ? "" : better_blas_core(blas); !core.empty())
    options.environment["OPENBLAS_CORETYPE"] = core;
  return options;
}

void define_bench_train_worker(const Arguments& app, Chosen& chosen) {
  auto o = keep<WorkerOptions>(app, chosen, run_worker);
  app.add_option("--socket", o->socket, "the coordinator's switchboard").required();
  app.add_option("--label", o->label, "how to call ourselves").required();
  app.add_option("--role", o->role, "train or products").one_of({"train", "products"});
  app.add_option("--model", o->model, "preset");
  app.add_option("--batch", o->batch, "sequences per step");
  app.add_option("--seq", o->seq, "tokens per sequence");
  app.add_option("--threads", o->threads, "compute threads");
  app.add_option("--ranks", o->ranks, "of this job");
  app.add_option("--set", o->settings, "section.key=value").one_word_each();
  app.add_option("--precision", o->precision, "storage type");
  app.add_option("--recompute", o->recompute, "what backward computes again");
  app.add_option("--tokens", o->tokens, "file of u16 tokens");
  app.add_option("--blas", o->blas, "path of an OpenBLAS");
}

}  // namespace esp::app
