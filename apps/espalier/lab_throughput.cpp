// espalier lab throughput: the throughput of parallel SGD on n ranks relative to n times one rank, for several ratios
// of communication to compute.
//
// In virtual time it compares a ring all-reduce with the exchange with one peer, on up to 64 ranks. Then it runs real
// ranks on this machine. They communicate, but a pause of the required length replaces compute, because more ranks
// than cores cannot compute at the same time.
#include <algorithm>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/lab_output.h"
#include "apps/espalier/lab_picture.h"
#include "apps/espalier/lab_table.h"
#include "apps/espalier/text_table.h"
#include "esp/base/clock.h"
#include "esp/base/error.h"
#include "esp/comm/algo/table.h"
#include "esp/comm/simulate.h"
#include "esp/comm/test_options.h"
#include "esp/net/inproc/threads.h"

namespace esp::app {
namespace {

struct ThroughputLabOptions {
  std::vector<double> ratios = {0.1, 1};
  std::string json, out;
};

// About the number of gradient values of ResNet-50, for links of 10 Gbit/s. 64 ranks divide it evenly.
constexpr size_t kValues = 25'600'000, kValueBytes = 4;
constexpr net::LinkCost kLink{10'000'000, 800};
constexpr int kModelled[] = {1, 2, 4, 8, 16, 32, 64}, kReal[] = {1, 2, 4};
constexpr size_t kRealValues = size_t{1} << 20;
constexpr int kWarm = 2, kSteps = 6;

enum class Exchange : uint8_t { ring, one_peer };
constexpr std::pair<Exchange, const char*> kExchanges[] = {{Exchange::ring, "ring all-reduce"},
                                                           {Exchange::one_peer, "one peer"}};

double alpha_s() {
  return static_cast<double>(kLink.alpha_ps) * 1e-12;
}
double transfer_s() {  // time to send all weights over one link
  return static_cast<double>(kValues * kValueBytes) * static_cast<double>(kLink.beta_ps_per_byte) * 1e-12;
}

double formula_s(Exchange exchange, int ranks) {
  if (ranks == 1) return 0;
  if (exchange == Exchange::one_peer) return alpha_s() + transfer_s();
  return 2 * (ranks - 1) * alpha_s() + 2.0 * (ranks - 1) / ranks * transfer_s();
}

double ring_s(int ranks) {
  std::vector<comm::Schedule> schedules;
  for (int rank = 0; rank < ranks; ++rank) {
    comm::CollectiveSpec problem;
    problem.rank = rank, problem.size = ranks, problem.count = kValues;
    schedules.push_back(comm::find_algorithm(comm::Op::all_reduce, "ring").build(problem));
  }
  return static_cast<double>(comm::simulate(schedules, kValueBytes, kLink).time_ps) * 1e-12;
}

// Throughput in multiples of one rank's throughput.
double throughput(int ranks, double compute_s, double exchange_s) {
  return ranks * compute_s / (compute_s + exchange_s);
}

void run_exchange(comm::Communicator& ranks, Exchange exchange, int step, std::vector<float>& own,
                  std::vector<float>& other) {
  if (ranks.size() == 1) return;
  comm::Call call;
  call.count = own.size();
  if (exchange == Exchange::ring) {
    call.op = comm::Op::all_reduce;
    call.in = call.out = own.data();
    call.algorithm = "ring";
    return ranks.run(call);
  }
  const int distance = 1 << (step % (ranks.size() > 2 ? 2 : 1));  // peers of the one-peer exponential graph
  comm::Call both[2] = {call, call};
  both[0].op = comm::Op::send, both[0].in = own.data(), both[0].root = (ranks.rank() + distance) % ranks.size();
  both[1].op = comm::Op::recv, both[1].out = other.data();
  both[1].root = (ranks.rank() + ranks.size() - distance) % ranks.size();
  ranks.start_group(both).wait(Deadline::after(std::chrono::seconds(60)));
  for (size_t i = 0; i < own.size(); ++i) own[i] = 0.5f * (own[i] + other[i]);
}

// Seconds per step of the slowest rank.
double step_s(int size, Exchange exchange, double compute_s) {
  std::vector<double> took(static_cast<size_t>(size));
  net::run_threads(size, [&](net::World& world) {
    const auto ranks =
        comm::make_communicator(world, world.world_group(), comm::test_options("inproc", size_t{256} << 10));
    std::vector<float> own(kRealValues, 1), other(kRealValues);
    int64_t begun = 0;
    for (int step = 0; step < kWarm + kSteps; ++step) {
      if (step == kWarm) {
        ranks->barrier();
        begun = now_ns();
      }
      if (compute_s > 0) std::this_thread::sleep_for(std::chrono::duration<double>(compute_s));
      run_exchange(*ranks, exchange, step, own, other);
    }
    took[static_cast<size_t>(world.rank)] = static_cast<double>(now_ns() - begun) * 1e-9 / kSteps;
  });
  return *std::max_element(took.begin(), took.end());
}

struct ScalingPoint {
  Exchange exchange;
  double ratio = 0;
  int ranks = 1;
  double modelled = 0, measured = 0;  // throughput relative to one rank; measured is 0 if there was no run
};

// Points of real ranks. The model adds the compute time to the exchange time, which is measured without compute.
std::vector<ScalingPoint> real_points(const std::vector<double>& ratios) {
  std::vector<ScalingPoint> points;
  const double ring_of_two = step_s(2, Exchange::ring, 0);
  for (const auto& [exchange, name] : kExchanges)
    for (const int ranks : kReal) {
      const double alone_s = ranks == 1 ? 0 : step_s(ranks, exchange, 0);
      for (const double ratio : ratios) {
        // a ring of two ranks sends half as many bytes as a large ring
        const double compute_s = 2 * ring_of_two / ratio;
        points.push_back({exchange, ratio, ranks, throughput(ranks, compute_s, alone_s),
                          ranks * compute_s / step_s(ranks, exchange, compute_s)});
      }
    }
  return points;
}

std::string table_of(const std::vector<ScalingPoint>& points, bool measured) {
  std::vector<Cells> rows;
  for (const ScalingPoint& p : points) {
    Cells row = {kExchanges[static_cast<size_t>(p.exchange)].second, fmt::format("{:g}", p.ratio),
                 std::to_string(p.ranks), fmt::format("{:.2f}", p.modelled),
                 fmt::format("{:.0f} %", 100 * p.modelled / p.ranks)};
    if (measured) row.push_back(fmt::format("{:.2f}", p.measured));
    rows.push_back(row);
  }
  Cells head = {"exchange", "comm/compute", "ranks", "throughput, modelled", "of ideal"};
  if (measured) head.push_back("measured");
  return text_table(head, rows);
}

Json rows_of(const std::vector<ScalingPoint>& points) {
  Json rows = Json::array();
  for (const ScalingPoint& p : points)
    rows.push_back({{"exchange", kExchanges[static_cast<size_t>(p.exchange)].second},
                    {"ratio", p.ratio},
                    {"ranks", p.ranks},
                    {"modelled", p.modelled},
                    {"measured", p.measured > 0 ? Json(p.measured) : Json()}});
  return rows;
}

int run_lab_throughput(const ThroughputLabOptions& asked) {
  ThroughputLabOptions o = asked;
  for (const double ratio : o.ratios)
    if (!(ratio >= 0.01 && ratio <= 100))
      throw UsageError(fmt::format("--ratios: got {}; expected ratios from 0.01 to 100", ratio));
  std::sort(o.ratios.begin(), o.ratios.end());
  Findings findings;
  std::vector<ScalingPoint> modelled;
  std::vector<PictureSeries> lines = {{"n times one rank", {{1, 1}, {64, 64}}, true}};
  for (const int ranks : {4, 64})
    findings.within(fmt::format("ring all-reduce of 102.4 MB, {} ranks", ranks), "2(n−1)α + 2(n−1)/n·Sβ",
                    formula_s(Exchange::ring, ranks) * 1e3, ring_s(ranks) * 1e3, 1e-9, "ms");
  for (const auto& [exchange, name] : kExchanges)
    for (const double ratio : o.ratios) {
      const double compute_s = 2 * transfer_s() / ratio;
      PictureSeries line{fmt::format("{}, {:g}", name, ratio), {}, exchange == Exchange::one_peer};
      for (const int ranks : kModelled) {
        const double s = exchange == Exchange::ring && ranks > 1 ? ring_s(ranks) : formula_s(exchange, ranks);
        const ScalingPoint& p =
            modelled.emplace_back(ScalingPoint{exchange, ratio, ranks, throughput(ranks, compute_s, s), 0});
        line.points.emplace_back(ranks, p.modelled);
      }
      findings.show(fmt::format("64 ranks, {}, communication/compute {:g}", name, ratio), "falls as the ratio grows",
                    fmt::format("{:.1f} of 64", modelled.back().modelled), "");
      lines.push_back(std::move(line));
    }
  findings
      .show("ring all-reduce time / one-peer exchange time, 256 ranks", "1.85 (278 ms / 150 ms)",
            fmt::format("{:.2f}", formula_s(Exchange::ring, 256) / formula_s(Exchange::one_peer, 256)), "")
      .note = "modelled with links of 10 Gbit/s and 10 µs; the lecture measured a cluster of 256 GPUs";
  const std::vector<ScalingPoint> real = real_points(o.ratios);
  for (const ScalingPoint& p : real)
    if (p.ranks == 4)
      findings.show(fmt::format("4 ranks here, {}, communication/compute {:g}",
                                kExchanges[static_cast<size_t>(p.exchange)].second, p.ratio),
                    "", fmt::format("{:.2f} of 4", p.modelled), fmt::format("{:.2f} of 4", p.measured));
  const std::string text = fmt::format(
      "Throughput of n ranks relative to one rank: n·c / (c + t), where c is the compute time of a "
      "step and t the time of the exchange\n"
      "after it. The ratio is 2Sβ/c: transfer time of a large ring divided by compute time.\n"
      "\n"
      "Simulated: 25.6 M fp32 values, links of 10 Gbit/s and 10 µs\n"
      "\n"
      "{}\n"
      "Real ranks on this machine: 4 MiB; a pause replaces compute; the model uses the measured "
      "exchange time\n"
      "\n"
      "{}",
      table_of(modelled, false), table_of(real, true));
  const Json report = {{"alpha_ps", kLink.alpha_ps},
                       {"beta_ps_per_byte", kLink.beta_ps_per_byte},
                       {"bytes", kValues * kValueBytes},
                       {"modelled", rows_of(modelled)},
                       {"real", rows_of(real)}};
  return finish_lab({o.json, o.out}, "throughput", text, report,
                    draw_svg("Throughput of parallel SGD by ratio of communication to compute", "ranks",
                             "throughput / one rank", lines, Axes::plain),
                    findings);
}

}  // namespace

void define_lab_throughput(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<ThroughputLabOptions>(app, chosen, run_lab_throughput);
  app.add_option("--ratios", o->ratios, "ratios of communication to compute [0.1,1]").delimiter(',').type_name("R,R");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
