// espalier lab: experiments from the lectures, run for real. Without a name it lists them.
#include <fmt/format.h>

#include "apps/espalier/command.h"

namespace esp::app {
namespace {

constexpr Command kExperiments[] = {
    {"allreduce", "all-reduce algorithms: costs, times, crossovers, the ring frame by frame", define_lab_allreduce},
    {"compression", "compressors measured; descent with and without feedback", define_lab_compression},
    {"context", "one sequence over several ranks: ring steps, work, bytes and memory", define_lab_context},
    {"ddp", "more ranks on one model: tokens/s, efficiency, exposed communication, stragglers", define_lab_ddp},
    {"gossip", "decentralised SGD by graph: bytes, gaps, consensus, bias of unlike nodes", define_lab_gossip},
    {"local", "local steps, FedAvg, DiLoCo beside parallel SGD: bytes saved, loss paid", define_lab_local},
    {"moe", "loads of experts, what a capacity drops, bytes against the formula", define_lab_moe},
    {"numbers", "figures of the lectures, ours beside them, and the corrections", define_lab_numbers},
    {"pipeline", "the schedules of a pipeline, executed and in virtual time, with their bubbles", define_lab_pipeline},
    {"ps", "parameter servers with a straggler; priority against fifo", define_lab_ps},
    {"tensor", "a layer divided over ranks: what it sends and keeps", define_lab_tensor},
    {"speedup", "parallel SGD on n ranks: an n-th of the noise, an n-th of the steps", define_lab_speedup},
    {"zero", "memory of a rank in the stages of ZeRO, measured against the formulas", define_lab_zero},
};

}  // namespace

void define_lab(CLI::App& app, Chosen& chosen) {
  define_commands(app, kExperiments, chosen);
  app.require_subcommand(0, 1);
  app.callback([&app, &chosen] {
    if (!app.get_subcommands().empty()) return;
    chosen.run = [] {
      for (const Command& row : kExperiments) fmt::print("{:<14}{}\n", row.name, row.help);
      return 0;
    };
  });
}

}  // namespace esp::app
