// espalier bench comm: measures collectives and prints them in the format of nccl-tests.
#include "apps/espalier/bench_comm.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/bench_launched.h"
#include "apps/espalier/command.h"
#include "apps/espalier/core_state.h"
#include "apps/espalier/link.h"
#include "apps/espalier/machine.h"
#include "apps/espalier/output_file.h"
#include "apps/espalier/terminal.h"
#include "esp/base/dtype.h"
#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/comm/algo/table.h"
#include "esp/comm/call.h"
#include "esp/kernel/reduce.h"
#include "esp/net/transport.h"

namespace esp::app {
namespace {

constexpr std::string_view kTimingNote =
    "A sample is -m calls back to back after a barrier, divided by -m; the barrier is not timed. The slowest\n"
    "rank sets the time of a sample. `time` is the median of the -n samples, `p99` their 99th percentile.\n"
    "%link: busbw in percent of the link bandwidth, which is measured in the same process (shared memory: all\n"
    "ranks copy that size with memcpy at once; tcp: a raw TCP ring). Exit code 1 when any element is wrong.\n"
    "Under a launcher (espalier launch, torchrun, mpirun, srun) the ranks of the launcher are measured.";

template <typename Value>
constexpr bool type_is_number = !std::is_same_v<Value, std::string>;

struct TableState {
  std::vector<CommRow> rows;
  uint64_t wrong = 0;
  double busbw_sum = 0;
  int busbw_count = 0;
};

bool has_in_place(const std::string& op) {
  return op == "all_reduce" || op == "all_gather" || op == "reduce_scatter" || op == "broadcast";
}

void print_header(const CommBenchOptions& bench, const BenchRanks& job) {
  int ranks = job.num_ranks();
  CoreState state = probe_cores();
  fmt::print(
      "# ranks {} transport {} algo {} minBytes {} maxBytes {} step: {} warmup iters: {} iters: {} agg iters: {} "
      "validation: {} registered: {}\n",
      ranks, bench.transport, bench.algorithm, parse_size(bench.min_bytes), sweep(bench).back(),
      bench.step_factor > 1 ? fmt::format("{}(factor)", bench.step_factor)
                            : fmt::format("{}(bytes)", parse_size(bench.step_bytes)),
      bench.warmup, bench.iterations, bench.batch ? std::to_string(bench.batch) : "by size", bench.check,
      bench.registered ? 1 : 0);
  fmt::print("#\n# Using {} cores, core-to-core latency {} ({:.0f} ns)\n", usable_cores(), state.name(), state.ns);
  for (int rank = 0; rank < ranks; ++rank) {
    const bench::Words& words = job.registration(rank);
    const auto host = words.find("host");
    fmt::print("#  Rank {:2} Pid {:>7}{}\n", rank, words.at("pid"), host == words.end() ? "" : " on " + host->second);
  }
  std::fflush(stdout);  // a reader of a pipe sees the header before the first size, which may take long
}

void print_columns(const std::string& op) {
  fmt::print("#\n# {}\n", op);
  fmt::print("#{:>60}{:>34}\n", "out-of-place", "in-place");
  fmt::print("#{:>11}{:>14}{:>10}{:>8}{:>8}{:>9}{:>8}{:>8}{:>7}{:>9}{:>8}{:>8}{:>7}{:>9}{:>7}\n", "size", "count",
             "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong", "p99",
             "%link");
  fmt::print("#{:>11}{:>14}{:>10}{:>8}{:>8}{:>9}{:>8}{:>8}{:>7}{:>9}{:>8}{:>8}{:>7}{:>9}{:>7}\n", "(B)", "(elements)",
             "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "");
}

// Data type names in nccl-tests' type column.
std::string nccl_type(const std::string& dtype) {
  const std::map<std::string, std::string> names = {{"f64", "double"}, {"f32", "float"}, {"bf16", "bfloat16"},
                                                    {"f16", "half"},   {"i64", "int64"}, {"i32", "int32"},
                                                    {"i8", "int8"},    {"u8", "uint8"}};
  auto it = names.find(dtype);
  return it == names.end() ? dtype : it->second;
}

std::string three_digits(double value) {
  return value >= 1000  ? fmt::format("{:.0f}", value)
         : value >= 100 ? fmt::format("{:.1f}", value)
                        : fmt::format("{:.2f}", value);
}

class LinkCeiling {
 public:
  explicit LinkCeiling(int ranks) : ranks_(ranks) {}
  double gbs(const std::string& transport, size_t bytes) {
    double& known = transport == "tcp" ? tcp_ : copy_[bytes];
    if (known == 0) known = transport == "tcp" ? measure_loopback_gbs(ranks_) : measure_copy_gbs(ranks_, bytes);
    return known;
  }

 private:
  int ranks_;
  double tcp_ = 0;
  std::map<size_t, double> copy_;
};

CommRow row_of(const bench::Request& request, int ranks, const BenchResult& answer) {
  CommRow row = make_row("espalier", request, ranks, answer.sample_us);
  row.correct = answer.wrong == 0;
  add_report(row, answer.words);
  return row;
}

// `link` is null when the ranks run on several machines: the link's reference bandwidth is measured on one machine
// only.
void run_size(const CommBenchOptions& bench, bench::Request request, BenchRanks& job, LinkCeiling* link,
              TableState& printed) {
  int ranks = job.num_ranks();
  request.batch = batch_for(bench, request.bytes);
  bench::Layout layout = bench::layout_of(request, ranks);
  bool reduces = request.op == "all_reduce" || request.op == "reduce" || request.op == "reduce_scatter";
  bool rooted =
      request.op == "broadcast" || request.op == "reduce" || request.op == "gather" || request.op == "scatter";
  std::string line = fmt::format("{:>12}{:>14}{:>10}{:>8}{:>8}", layout.count * layout.element,
                                 std::max(layout.in_count, layout.out_count), nccl_type(request.dtype),
                                 reduces ? request.reduce : "none", rooted ? request.root : -1);
  CommRow out_of_place;
  for (bool in_place : {false, true}) {
    if (in_place && !has_in_place(request.op)) {
      line += fmt::format("{:>9}{:>8}{:>8}{:>7}", "N/A", "N/A", "N/A", "N/A");
      continue;
    }
    request.inplace = in_place;
    BenchResult answer = job.execute(request, Deadline::after(std::chrono::seconds(300)));
    CommRow row = row_of(request, ranks, answer);
    line += fmt::format("{:>9}{:>8.2f}{:>8.2f}{:>7}", three_digits(row.median_us), row.algbw_gbs, row.busbw_gbs,
                        bench.check ? std::to_string(answer.wrong) : "N/A");
    printed.wrong += answer.wrong;
    printed.busbw_sum += row.busbw_gbs;
    ++printed.busbw_count;
    if (!in_place) out_of_place = row;
  }
  std::string of_link = "N/A";
  if (link) {
    const double able = link->gbs(out_of_place.transport, std::max<size_t>(1, layout.count * layout.element));
    of_link = fmt::format("{:.0f}%", 100 * out_of_place.busbw_gbs / able);
  }
  fmt::print("{}{:>9}{:>7}\n", line, three_digits(out_of_place.p99_us), of_link);
  std::fflush(stdout);
  printed.rows.push_back(out_of_place);
}

void run_table(const CommBenchOptions& bench, BenchRanks& job, LinkCeiling* link, TableState& printed) {
  print_header(bench, job);
  for (const std::string& op : bench.ops) {
    print_columns(op);
    for (const std::string& dtype : bench.dtypes)
      for (const std::string& reduce : bench.reduce_ops)
        for (size_t bytes : sweep(bench)) {
          bench::Request request{op, dtype,       reduce, bench.algorithm, bytes, bench.root, bench.iterations,
                                 1,  bench.warmup};
          request.registered = bench.registered;
          request.check = bench.check != 0;
          run_size(bench, request, job, link, printed);
        }
  }
}

void run_world(const CommBenchOptions& bench, int ranks, TableState& printed) {
  RankListener listener;
  const EspalierJob job = start_espalier(bench, ranks, listener, Deadline::after(std::chrono::seconds(60)));
  LinkCeiling link(ranks);
  run_table(bench, *job.ranks, &link, printed);
}

int print_startup(const CommBenchOptions& bench) {
  for (int ranks : bench.nproc) {
    RankListener listener;
    EspalierJob job = start_espalier(bench, ranks, listener, Deadline::after(std::chrono::seconds(60)));
    auto slowest_ms = [&](const char* phase) {
      int64_t latest = 0;
      for (int rank = 0; rank < ranks; ++rank)
        latest = std::max<int64_t>(latest, std::atoll(job.ranks->registration(rank).at(phase).c_str()));
      return static_cast<double>(latest - job.begun_ns) * 1e-6;
    };
    fmt::print(
        "{} ranks, slowest rank, ms since the start: main entered {:.1f}, rendezvous done {:.1f}, communicator ready "
        "{:.1f}, first barrier passed {:.1f}\n",
        ranks, slowest_ms("at_main"), slowest_ms("at_world"), slowest_ms("at_comm"), slowest_ms("at_ready"));
  }
  return 0;
}

void check_names(CommBenchOptions& bench) {
  if (bench.ops == std::vector<std::string>{"all"}) bench.ops = kBenchOps;
  std::vector<std::string_view> known(kBenchOps.begin(), kBenchOps.end());
  known.push_back("all");
  for (const std::string& op : bench.ops)
    if (std::find(kBenchOps.begin(), kBenchOps.end(), op) == kBenchOps.end()) unknown_name("operation", op, known);
  auto expand = [](std::vector<std::string>& names, const auto& all, auto parse) {
    if (names == std::vector<std::string>{"all"}) {
      names.clear();
      for (auto value : all) names.emplace_back(name_of(value));
    }
    for (std::string& name : names) name = std::string(name_of(parse(name)));
  };
  expand(bench.dtypes, kAllDTypes, parse_dtype);
  expand(bench.reduce_ops, kernel::kAllReduceOps, kernel::parse_reduce_op);
  if (bench.algorithm != "auto" && bench.algorithm != "fused")
    for (const std::string& op : bench.ops)
      if (op != "sendrecv") comm::find_algorithm(comm::parse_op(op), bench.algorithm);
  if (bench.transport != "auto") find_row("transport", net::transports(), bench.transport);
  if (bench.check != 0 && bench.check != 1)
    throw UsageError(fmt::format("--check: got {}; expected 0 or 1", bench.check));
  if (bench.nproc.empty())
    bench.nproc = {bench.threads * bench.devices > 1 ? bench.threads * bench.devices : std::max(2, usable_cores())};
  for (int ranks : bench.nproc) {
    if (ranks < 1 || ranks > 1024) throw UsageError(fmt::format("--nproc: got {}; expected 1 to 1024 ranks", ranks));
    if (bench.root < 0 || bench.root >= ranks)
      throw UsageError(fmt::format("--root: got {}; expected 0 to {}", bench.root, ranks - 1));
    int64_t places = 1;
    for (const int extent : bench.shape) places = std::min<int64_t>(places * std::clamp(extent, 0, 1 << 20), 1 << 20);
    if (!bench.shape.empty() && places != ranks)
      throw UsageError(fmt::format("--shape: got {}; expected extents whose product is --nproc {}",
                                   fmt::join(bench.shape, "x"), ranks));
  }
  if (bench.iterations < 1 || bench.warmup < 0 || bench.batch < 0 || bench.rounds < 1)
    throw UsageError(
        fmt::format("got -n {}, --rounds {}, -w {}, -m {}; expected -n >= 1, --rounds >= 1, -w >= 0, -m >= 0",
                    bench.iterations, bench.rounds, bench.warmup, bench.batch));
}

// Parses a list in one word, "2,4,8" or "2x4". A list of several words would also consume the words after the option.
template <typename Value>
void add_list(const Arguments& app, const std::string& name, std::vector<Value>& list, const std::string& help,
              const std::string& type) {
  app.add_option_function(
         name,
         [&list, name](const std::string& text) {
           list.clear();
           for (const std::string& part :
                split(text, text.find('x') != text.npos && type_is_number<Value> ? 'x' : ',')) {
             Value value{};
             if (part.empty() || !read_value(part, value))
               throw UsageError(
                   fmt::format("{}: got \"{}\" in {}; expected values separated by commas", name, part, text));
             list.push_back(value);
           }
         },
         help)
      .type_name(type);
}

int finish(const CommBenchOptions& bench, const TableState& printed) {
  Style style(stdout);
  fmt::print("# Out of bounds values : {} {}\n", printed.wrong, printed.wrong ? style.red("FAILED") : "OK");
  fmt::print("# Avg bus bandwidth    : {:g}\n#\n", printed.busbw_count ? printed.busbw_sum / printed.busbw_count : 0);
  if (!bench.json.empty()) {
    Json out = Json::array();
    for (const CommRow& row : printed.rows) out.push_back(to_json(row));
    write_file(bench.json, out.dump(1) + "\n");
  }
  if (!bench.csv.empty()) {
    std::string out = csv_header();
    for (const CommRow& row : printed.rows) out += to_csv(row);
    write_file(bench.csv, out);
  }
  return static_cast<int>(printed.wrong ? ExitCode::internal : ExitCode::done);
}

// Runs as one rank of a job that a launcher started. Only rank 0 prints and writes files.
int run_launched(CommBenchOptions bench, const launch::Environment& environment, const launch::Placement& place) {
  if (!bench.nproc.empty() && bench.nproc != std::vector<int>{place.size})
    throw UsageError(fmt::format("--nproc: a launcher has already started {} ranks. Leave it out", place.size));
  if (bench.startup || !bench.peers.empty())
    throw UsageError(
        "--startup, --peers: got ranks that a launcher started; these options start ranks themselves. Run them without "
        "a launcher");
  bench.nproc = {place.size};
  check_names(bench);
  sweep(bench);
  LaunchedRanks ranks(environment, bench);
  const bool is_root = ranks.rank() == 0;
  if (!is_root && !std::freopen("/dev/null", "w", stdout))
    throw IoError("cannot redirect stdout to /dev/null: " + errno_text(errno));
  TableState printed;
  run_table(bench, ranks, nullptr, printed);
  if (!is_root) bench.json = bench.csv = "";
  return finish(bench, printed);
}

int run_bench_comm(const CommBenchOptions& options) {
  const launch::Environment environment = launch::process_environment();
  const launch::Placement place = launch::read_environment(environment);
  if (place.launcher != "none" && place.size > 1) return run_launched(options, environment, place);
  CommBenchOptions bench = options;
  // Transports between ranks that this process starts. Not mpi: it requires mpirun.
  static constexpr struct { std::string_view name; } kTransports[] = {{"auto"}, {"shm"}, {"tcp"}};
  find_row("transport", kTransports, bench.transport);
  check_names(bench);
  sweep(bench);  // validates sizes before ranks are started
  if (bench.startup) return print_startup(bench);
  if (!bench.peers.empty()) return run_comparison(bench);
  TableState printed;
  for (int ranks : bench.nproc) run_world(bench, ranks, printed);
  return finish(bench, printed);
}

}  // namespace

void define_bench(const Arguments& app, SelectedCommand& chosen) {
  static constexpr Command kBenches[] = {
      {"comm", "measure collectives, print them like nccl-tests; --peers compares libraries", define_bench_comm},
      {"kernel", "measure the kernels of a training step, relative to the machine's peak", define_bench_kernel},
      {"train", "measure training steps of a model, relative to peak FLOP/s and to other libraries",
       define_bench_train},
      {"offload", "measure the optimizer step with its state in a file, relative to the disk throughput",
       define_bench_offload}};
  define_commands(app, kBenches, chosen);
  app.require_subcommand(0, 1);
}

void define_bench_comm(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<CommBenchOptions>(app, chosen, run_bench_comm);
  std::string ops = "all";
  for (const std::string& op : kBenchOps) ops += "|" + op;
  app.add_option("op", o->ops, "operations to measure [all_reduce]").type_name(ops);
  add_list(app, "--nproc", o->nproc, "ranks on this machine; 2,4,8 measures three jobs, one after another", "N");
  app.add_option("-b,--minbytes", o->min_bytes, "first size [32M]").type_name("BYTES");
  app.add_option("-e,--maxbytes", o->max_bytes, "last size [the first]").type_name("BYTES");
  app.add_option("-i,--stepbytes", o->step_bytes, "increment between sizes [1M]").type_name("BYTES");
  app.add_option("-f,--stepfactor", o->step_factor, "factor between sizes, instead of an increment")
      .type_name("X")
      .positive();
  app.add_option("-n,--iters", o->iterations, "samples per size [20]").type_name("N");
  app.add_option("-w,--warmup_iters", o->warmup, "calls before the first sample [5]").type_name("N");
  app.add_option("-m,--agg_iters", o->batch, "calls per sample [depends on the size]").type_name("N");
  app.add_option("-c,--check", o->check, "verify every element [1]").type_name("0|1");
  add_list(app, "-o,--op", o->reduce_ops, "reduction operation, or all [sum]", "sum|prod|min|max|avg|all");
  add_list(app, "-d,--datatype", o->dtypes, "element type, or all [float]",
           "double|float|bfloat16|half|int64|int32|int8|uint8|all");
  app.add_option("-r,--root", o->root, "root of broadcast, reduce, gather, scatter [0]").type_name("RANK");
  app.add_option("-t,--nthreads", o->threads, "without --nproc: threads per process; ranks = -t × -g [1]")
      .type_name("N");
  app.add_option("-g,--ngpus", o->devices, "without --nproc: devices; ranks = -t × -g [1]").type_name("N");
  app.add_option("--transport", o->transport, "transport [auto]").type_name("auto|shm|tcp|mpi");
  app.add_option("--algo", o->algorithm, "algorithm, or fused [auto]").type_name("NAME");
  add_list(app, "--shape", o->shape, "grid of torus and hierarchical algorithms, fastest axis first: 2x4", "AxB");
  app.add_flag("--registered", o->registered, "use buffers registered with the communicator");
  add_list(app, "--peers", o->peers, "libraries to compare with, or all",
           "all|openmpi|openmpi-tuned|openmpi-tcp|mpich|gloo");
  app.add_option("--rounds", o->rounds, "with --peers: rounds; each measures every library at every size [5]")
      .type_name("N");
  app.add_flag("--startup", o->startup, "only start the ranks, and print the time of each phase");
  app.add_option("--json", o->json, "write the rows as JSON").type_name("FILE");
  app.add_option("--csv", o->csv, "write the rows as CSV").type_name("FILE");
  app.add_option("--markdown", o->markdown, "with --peers: write the table as Markdown").type_name("FILE");
  app.footer(std::string(kTimingNote));
}

}  // namespace esp::app
