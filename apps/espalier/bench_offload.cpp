// espalier bench offload: times the optimizer step with its state in a file, and compares it with the disk throughput
// of plain reads and writes.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/output_file.h"
#include "esp/base/clock.h"
#include "esp/base/error.h"
#include "esp/sync/tier/offload.h"
#include "esp/train/engine.h"

namespace esp::app {
namespace {

struct OffloadBenchOptions {
  std::string folder = ".", io = "auto", json;
  int64_t elements = int64_t{64} << 20, tile = 4 << 20;
  int rounds = 7, threads = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double seconds_of(const auto& call) {
  const int64_t begun = now_ns();
  call();
  return static_cast<double>(now_ns() - begun) * 1e-9;
}

// A baseline similar to dd: reads and then writes the whole file through one large buffer, one request at a time.
class Sequential {
 public:
  Sequential(device::MemoryAccount& account, const sync::FileOptions& options, uint64_t bytes)
      : file_(options, "sequential", bytes),
        memory_(account, kBufferBytes + sync::kBlockBytes, {.huge_pages = true, .zero = true}) {}

  // Reads and writes the file once; returns bytes per second, counting both directions.
  double pass() {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    std::byte* buffer = memory_.data() + (sync::kBlockBytes - address % sync::kBlockBytes) % sync::kBlockBytes;
    const double seconds = seconds_of([&] {
      for (const bool writes : {false, true})
        for (uint64_t at = 0; at < file_.bytes(); at += kBufferBytes) {
          const auto count = static_cast<size_t>(std::min<uint64_t>(kBufferBytes, file_.bytes() - at));
          const auto offset = static_cast<off_t>(at);
          const ssize_t moved = writes ? ::pwrite(file_.descriptor(), buffer, count, offset)
                                       : ::pread(file_.descriptor(), buffer, count, offset);
          if (moved != static_cast<ssize_t>(count))
            throw IoError(fmt::format("{}: a read or write transferred fewer bytes than requested", file_.path()));
        }
    });
    return 2 * static_cast<double>(file_.bytes()) / seconds;
  }

 private:
  static constexpr size_t kBufferBytes = size_t{16} << 20;
  sync::ReservedFile file_;
  device::HostBuffer memory_;
};

int run_bench_offload(const OffloadBenchOptions& bench) {
  if (bench.elements < 1 || bench.rounds < 1)
    throw UsageError(
        fmt::format("bench offload: got --elements {}, --rounds {}; expected --elements >= 1, --rounds >= 1",
                    bench.elements, bench.rounds));
  device::MemoryAccount account;
  device::ThreadPool threads(bench.threads > 0 ? bench.threads : train::available_cores());
  device::MemoryPool pool(account);
  const tensor::Context context{{device::parse_device("cpu"), &threads, nullptr}, &pool};
  nn::ParameterList list;
  list.begin_unit("all");
  list.add("weights", {bench.elements}, nn::Init::normal(0.02), true);
  list.materialize(context, DType::bf16, true);
  list.initialise(1, context.stream);

  sync::TierOptions tier;
  tier.placement = "file";
  tier.tile = bench.tile;
  tier.file.folder = bench.folder;
  tier.file.io = bench.io;
  sync::Offload offload(account);
  const auto optimizer = offload.make_optimizer({}, list, context.stream, optim::all_units(list), tier);
  for (const std::string& note : optimizer->notes()) fmt::print(stderr, "{}\n", note);
  const auto state_bytes = static_cast<uint64_t>(bench.elements) * 12;
  Sequential sequential(account, tier.file, state_bytes);

  std::vector<double> steps, disks, ratios;
  sequential.pass();
  optimizer->step(1e-4, 1);
  for (int round = 0; round < bench.rounds; ++round) {
    disks.push_back(sequential.pass());
    const double seconds = seconds_of([&] { optimizer->step(1e-4, 1); });
    steps.push_back(2 * static_cast<double>(state_bytes) / seconds);
    disks.push_back(sequential.pass());
    ratios.push_back(2 * steps.back() / (disks[disks.size() - 2] + disks.back()));
  }
  fmt::print("{} elements, {:.0f} MiB of state in {}; bytes read and written per second, medians of {} rounds\n",
             bench.elements, static_cast<double>(state_bytes) / (1 << 20), bench.folder, bench.rounds);
  fmt::print("  optimizer step     {:6.2f} GB/s\n  sequential, direct {:6.2f} GB/s\n  ratio              {:6.1f} %\n",
             median(steps) * 1e-9, median(disks) * 1e-9, median(ratios) * 100);
  if (!bench.json.empty())
    write_file(bench.json, Json::array({{{"step_gbs", median(steps) * 1e-9},
                                         {"disk_gbs", median(disks) * 1e-9},
                                         {"ratio", median(ratios)},
                                         {"elements", bench.elements},
                                         {"tile", bench.tile},
                                         {"threads", threads.num_threads()}}})
                                   .dump(2) +
                               "\n");
  return 0;
}

}  // namespace

void define_bench_offload(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<OffloadBenchOptions>(app, chosen, run_bench_offload);
  app.add_option("--folder", o->folder, "folder of the state file").show_default();
  app.add_option("--elements", o->elements, "number of parameters; the file holds their Adam state").show_default();
  app.add_option("--tile", o->tile, "elements per streamed tile").show_default();
  app.add_option("--io", o->io, "file I/O: auto, uring or threads").show_default();
  app.add_option("--rounds", o->rounds, "rounds; the results are medians over them").show_default();
  app.add_option("--threads", o->threads, "compute threads; 0: all cores").show_default();
  app.add_option("--json", o->json, "write the results as JSON").type_name("FILE");
}

}  // namespace esp::app
