// Times the fused collectives between forked ranks: batches of calls back to back, the median over the batches, on the
// slowest rank.
//
//   fused_bench RANKS [key=value…] op bytes [op bytes…]
//
// Keys: registered=1, copy=staged|streamed, block=, small=, stream=, lag=. Prints «op bytes ranks µs ns». The last
// number is the core-to-core latency: the time to transfer a cache line between ranks 0 and 1.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "esp/base/error.h"
#include "esp/comm/fused/fused_collectives.h"
#include "esp/net/store/file_store.h"

namespace {

using namespace esp;
using namespace esp::comm;

struct Options {
  FusedTuning tuning;
  bool registered = false;
  std::vector<std::pair<std::string, size_t>> cases;
};

Op op_of(const std::string& name) {
  static const std::pair<const char*, Op> kOps[] = {
      {"broadcast", Op::broadcast},   {"reduce", Op::reduce},         {"all_reduce", Op::all_reduce},
      {"all_gather", Op::all_gather}, {"all_to_all", Op::all_to_all}, {"reduce_scatter", Op::reduce_scatter},
      {"gather", Op::gather},         {"scatter", Op::scatter},       {"barrier", Op::barrier}};
  for (auto& [text, op] : kOps)
    if (name == text) return op;
  throw UsageError("unknown collective " + name);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 2; i < argc; ++i) {
    std::string word = argv[i];
    auto equals = word.find('=');
    if (equals == std::string::npos) {
      if (i + 1 == argc) throw UsageError(word + ": got no number of bytes; expected OP BYTES");
      options.cases.emplace_back(word, std::strtoull(argv[++i], nullptr, 10));
      continue;
    }
    std::string key = word.substr(0, equals), value = word.substr(equals + 1);
    size_t number = std::strtoull(value.c_str(), nullptr, 10);
    if (key == "registered")
      options.registered = number != 0;
    else if (key == "block")
      options.tuning.block_bytes = number;
    else if (key == "small")
      options.tuning.small_bytes = number;
    else if (key == "stream")
      options.tuning.stream_from = number;
    else if (key == "lag")
      options.tuning.lag = static_cast<uint32_t>(number);
    else if (key == "copy")
      options.tuning.copy_policy = value == "staged" ? CopyPolicy::staged : CopyPolicy::streamed;
    else
      throw UsageError("unknown key " + key);
  }
  return options;
}

class Rank {
 public:
  Rank(net::World& world, const Options& options)
      : options_(options),
        world_(world),
        group_(group_of(world)),
        fused_(FusedCollectives::open(world_, group_, far(), options.tuning)) {}

  void time_all() {
    for (auto& [name, bytes] : options_.cases) time_one(name, bytes);
  }

 private:
  static net::Group group_of(const net::World& world) {
    net::Group group;
    group.id = 1;
    group.rank = world.rank;
    for (int k = 0; k < world.size; ++k) group.members.push_back(k);
    return group;
  }
  static Deadline far() { return Deadline::after_ms(60'000); }

  void run(const Call& call) {
    net::Tag tag;
    tag.sequence = ++sequence_;
    tag.what = static_cast<uint64_t>(call.op);
    tag.count = call.count;
    fused_->run(call, tag, far_);
  }
  // The value of rank 0, or the largest value of all ranks.
  double combine(double mine, bool worst) {
    std::vector<double> all(static_cast<size_t>(world_.size));
    Call call{.op = Op::all_gather, .in = &mine, .out = all.data(), .count = all.size(), .dtype = DType::f64};
    run(call);
    return worst ? *std::max_element(all.begin(), all.end()) : all[0];
  }
  std::shared_ptr<void> buffer(size_t bytes) {
    if (options_.registered) return fused_->allocate(bytes + 4096, far());
    void* data = std::aligned_alloc(4096, (bytes + 8191) / 4096 * 4096);
    return {data, std::free};
  }

  void time_one(const std::string& name, size_t bytes) {
    far_ = far();
    auto in = buffer(bytes), out = buffer(bytes);
    std::memset(in.get(), 0, bytes);
    std::memset(out.get(), 0, bytes);
    Call call{.op = op_of(name), .in = in.get(), .out = out.get(), .count = bytes / 4, .dtype = DType::f32};
    if (call.op == Op::broadcast) call.out = in.get();
    for (int k = 0; k < 3; ++k) run(call);
    auto seconds = [&](int calls) {
      auto start = Clock::now();
      for (int k = 0; k < calls; ++k) run(call);
      return std::chrono::duration<double>(Clock::now() - start).count() / calls;
    };
    double guess = combine(seconds(2), false);
    int batch = std::clamp(static_cast<int>(1e-3 / guess), 1, 2000);
    int batches = std::clamp(static_cast<int>(0.4 / (guess * batch)), 5, 101);
    run({.op = Op::barrier});
    double near = fused_->cache_line_ns(far());
    std::vector<double> times;
    for (int b = 0; b < batches; ++b) {
      run({.op = Op::barrier});
      times.push_back(seconds(batch));
    }
    std::sort(times.begin(), times.end());
    double worst = combine(times[times.size() / 2], true);
    if (world_.rank == 0) std::printf("%s %zu %d %.2f %.0f\n", name.c_str(), bytes, world_.size, worst * 1e6, near);
    std::fflush(stdout);
  }

  const Options& options_;
  net::World& world_;
  net::Group group_;
  std::unique_ptr<FusedCollectives> fused_;
  Deadline far_ = far();
  uint64_t sequence_ = 0;
};

int run_rank(int rank, int size, const std::shared_ptr<net::Store>& store, const Options& options) {
  net::World world;
  world.rank = rank;
  world.size = size;
  world.store = store;
  world.peer_status = std::make_shared<net::PeerStatus>();
  for (int k = 0; k < size; ++k) world.peers.push_back({.host = "here", .process = static_cast<uint64_t>(k)});
  try {
    Rank(world, options).time_all();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  int size = std::atoi(argv[1]);
  Options options = parse(argc, argv);
  char directory[] = "/tmp/fused_bench.XXXXXX";
  if (!mkdtemp(directory)) return 1;
  auto store = std::make_shared<net::FileStore>(directory);
  for (int rank = 0; rank < size; ++rank)
    if (fork() == 0) _exit(run_rank(rank, size, store, options));
  int failed = 0, status = 0;
  while (wait(&status) > 0) failed |= status;
  std::filesystem::remove_all(directory);
  return failed ? 1 : 0;
}
