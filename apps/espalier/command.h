// What a subcommand is: a row in the table of commands.cpp, and a function that defines its options.
//
// `define` adds options to the CLI11 app it is given and arranges that parsing it sets `Chosen::run`. Nothing runs
// while arguments are parsed, so a wrong argument never starts anything. `run` returns the exit code.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

namespace esp::app {

struct Chosen {
  std::function<int()> run;
  CLI::App* root = nullptr;
  std::vector<std::string> behind;  // the words behind the options of a command that runs another
};

struct Command {
  std::string_view name, help;
  void (*define)(CLI::App& app, Chosen& chosen);
  bool hidden = false;      // a role that only our own processes start
  bool runs_other = false;  // words behind its options are another program's, not ours to read
};

std::span<const Command> commands();
void define_commands(CLI::App& app, std::span<const Command> rows, Chosen& chosen);

// Options live as long as the app: each command makes one struct of its own and lends it to CLI11.
template <typename Options>
std::shared_ptr<Options> keep(CLI::App& app, Chosen& chosen, int (*run)(const Options&)) {
  auto options = std::make_shared<Options>();
  app.callback([&chosen, options, run] { chosen.run = [options, run] { return run(*options); }; });
  return options;
}

// One per file.
void define_bench(CLI::App& app, Chosen& chosen);
void define_bench_comm(CLI::App& app, Chosen& chosen);
void define_bench_kernel(CLI::App& app, Chosen& chosen);
void define_bench_train(CLI::App& app, Chosen& chosen);
void define_bench_train_worker(CLI::App& app, Chosen& chosen);
void define_bench_offload(CLI::App& app, Chosen& chosen);
void define_bench_rank(CLI::App& app, Chosen& chosen);
void define_completion(CLI::App& app, Chosen& chosen);
void define_convert(CLI::App& app, Chosen& chosen);
void define_dash(CLI::App& app, Chosen& chosen);
void define_data(CLI::App& app, Chosen& chosen);
void define_doctor(CLI::App& app, Chosen& chosen);
void define_eval(CLI::App& app, Chosen& chosen);
void define_flight(CLI::App& app, Chosen& chosen);
void define_generate(CLI::App& app, Chosen& chosen);
void define_import(CLI::App& app, Chosen& chosen);
void define_lab(CLI::App& app, Chosen& chosen);
void define_lab_allreduce(CLI::App& app, Chosen& chosen);
void define_lab_compression(CLI::App& app, Chosen& chosen);
void define_lab_context(CLI::App& app, Chosen& chosen);
void define_lab_ddp(CLI::App& app, Chosen& chosen);
void define_lab_gossip(CLI::App& app, Chosen& chosen);
void define_lab_local(CLI::App& app, Chosen& chosen);
void define_lab_moe(CLI::App& app, Chosen& chosen);
void define_lab_pipeline(CLI::App& app, Chosen& chosen);
void define_lab_ps(CLI::App& app, Chosen& chosen);
void define_lab_tensor(CLI::App& app, Chosen& chosen);
void define_lab_speedup(CLI::App& app, Chosen& chosen);
void define_lab_numbers(CLI::App& app, Chosen& chosen);
void define_lab_zero(CLI::App& app, Chosen& chosen);
void define_metrics(CLI::App& app, Chosen& chosen);
void define_plan(CLI::App& app, Chosen& chosen);
void define_report(CLI::App& app, Chosen& chosen);
void define_tokenizer(CLI::App& app, Chosen& chosen);
void define_man(CLI::App& app, Chosen& chosen);
void define_launch(CLI::App& app, Chosen& chosen);
void define_train(CLI::App& app, Chosen& chosen);

}  // namespace esp::app
