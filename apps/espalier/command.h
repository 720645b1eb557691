// What a subcommand is: a row in the table of commands.cpp, and a function that defines its options.
//
// `define` adds options to the arguments it is given and arranges that parsing them sets `Chosen::run`. Nothing runs
// while arguments are parsed, so a wrong argument never starts anything. `run` returns the exit code.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/espalier/arguments.h"

namespace esp::app {

struct Chosen {
  std::function<int()> run;
  Arguments root;
  std::vector<std::string> ahead;   // of a command that runs another: its options, as typed
  std::vector<std::string> behind;  // the words behind them
};

struct Command {
  std::string_view name, help;
  void (*define)(const Arguments& app, Chosen& chosen);
  bool hidden = false;      // a role that only our own processes start
  bool runs_other = false;  // words behind its options are another program's, not ours to read
};

std::span<const Command> commands();
void define_commands(const Arguments& app, std::span<const Command> rows, Chosen& chosen);

// Options live as long as the parser: each command makes one struct of its own and lends it.
template <typename Options>
std::shared_ptr<Options> keep(const Arguments& app, Chosen& chosen, int (*run)(const Options&)) {
  auto options = std::make_shared<Options>();
  app.callback([&chosen, options, run] { chosen.run = [options, run] { return run(*options); }; });
  return options;
}

// One per file.
void define_bench(const Arguments& app, Chosen& chosen);
void define_bench_comm(const Arguments& app, Chosen& chosen);
void define_bench_kernel(const Arguments& app, Chosen& chosen);
void define_bench_train(const Arguments& app, Chosen& chosen);
void define_bench_train_worker(const Arguments& app, Chosen& chosen);
void define_bench_offload(const Arguments& app, Chosen& chosen);
void define_bench_rank(const Arguments& app, Chosen& chosen);
void define_compare(const Arguments& app, Chosen& chosen);
void define_completion(const Arguments& app, Chosen& chosen);
void define_convert(const Arguments& app, Chosen& chosen);
void define_dash(const Arguments& app, Chosen& chosen);
void define_data(const Arguments& app, Chosen& chosen);
void define_doctor(const Arguments& app, Chosen& chosen);
void define_eval(const Arguments& app, Chosen& chosen);
void define_flight(const Arguments& app, Chosen& chosen);
void define_generate(const Arguments& app, Chosen& chosen);
void define_import(const Arguments& app, Chosen& chosen);
void define_lab(const Arguments& app, Chosen& chosen);
void define_lab_allreduce(const Arguments& app, Chosen& chosen);
void define_lab_compression(const Arguments& app, Chosen& chosen);
void define_lab_context(const Arguments& app, Chosen& chosen);
void define_lab_ddp(const Arguments& app, Chosen& chosen);
void define_lab_gossip(const Arguments& app, Chosen& chosen);
void define_lab_local(const Arguments& app, Chosen& chosen);
void define_lab_moe(const Arguments& app, Chosen& chosen);
void define_lab_pipeline(const Arguments& app, Chosen& chosen);
void define_lab_ps(const Arguments& app, Chosen& chosen);
void define_lab_tensor(const Arguments& app, Chosen& chosen);
void define_lab_speedup(const Arguments& app, Chosen& chosen);
void define_lab_numbers(const Arguments& app, Chosen& chosen);
void define_lab_zero(const Arguments& app, Chosen& chosen);
void define_metrics(const Arguments& app, Chosen& chosen);
void define_plan(const Arguments& app, Chosen& chosen);
void define_report(const Arguments& app, Chosen& chosen);
void define_tokenizer(const Arguments& app, Chosen& chosen);
void define_man(const Arguments& app, Chosen& chosen);
void define_launch(const Arguments& app, Chosen& chosen);
void define_train(const Arguments& app, Chosen& chosen);

}  // namespace esp::app
