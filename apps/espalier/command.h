// Table of subcommands. A subcommand is a row in commands.cpp and a function that defines its options.
//
// `define` adds options to the arguments it gets. It also sets `SelectedCommand::run` if its subcommand was parsed.
// Parsing runs nothing, so a wrong argument cannot start anything. `run` returns the exit code.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/espalier/arguments.h"

namespace esp::app {

struct SelectedCommand {
  std::function<int()> run;
  Arguments root;
  // for a command that wraps another program: the words of the command's own options, as typed
  std::vector<std::string> leading_words;
  std::vector<std::string> trailing_words;  // the words after those options: the wrapped program and its arguments
};

struct Command {
  std::string_view name, help;
  void (*define)(const Arguments& app, SelectedCommand& chosen);
  bool hidden = false;         // not for users: only this program starts it
  bool wraps_program = false;  // the words after the command's options belong to another program and are not parsed
};

std::span<const Command> commands();
void define_commands(const Arguments& app, std::span<const Command> rows, SelectedCommand& chosen);

// Creates the command's options and runs the command with them. The options live as long as the parser.
template <typename Options>
std::shared_ptr<Options> bind_options(const Arguments& app, SelectedCommand& chosen, int (*run)(const Options&)) {
  auto options = std::make_shared<Options>();
  app.callback([&chosen, options, run] { chosen.run = [options, run] { return run(*options); }; });
  return options;
}

// Each function is defined in the file of its subcommand.
void define_bench(const Arguments& app, SelectedCommand& chosen);
void define_bench_comm(const Arguments& app, SelectedCommand& chosen);
void define_bench_kernel(const Arguments& app, SelectedCommand& chosen);
void define_bench_train(const Arguments& app, SelectedCommand& chosen);
void define_bench_train_worker(const Arguments& app, SelectedCommand& chosen);
void define_bench_offload(const Arguments& app, SelectedCommand& chosen);
void define_bench_rank(const Arguments& app, SelectedCommand& chosen);
void define_compare(const Arguments& app, SelectedCommand& chosen);
void define_completion(const Arguments& app, SelectedCommand& chosen);
void define_convert(const Arguments& app, SelectedCommand& chosen);
void define_dash(const Arguments& app, SelectedCommand& chosen);
void define_data(const Arguments& app, SelectedCommand& chosen);
void define_doctor(const Arguments& app, SelectedCommand& chosen);
void define_eval(const Arguments& app, SelectedCommand& chosen);
void define_flight(const Arguments& app, SelectedCommand& chosen);
void define_generate(const Arguments& app, SelectedCommand& chosen);
void define_import(const Arguments& app, SelectedCommand& chosen);
void define_lab(const Arguments& app, SelectedCommand& chosen);
void define_lab_allreduce(const Arguments& app, SelectedCommand& chosen);
void define_lab_compression(const Arguments& app, SelectedCommand& chosen);
void define_lab_context(const Arguments& app, SelectedCommand& chosen);
void define_lab_ddp(const Arguments& app, SelectedCommand& chosen);
void define_lab_gossip(const Arguments& app, SelectedCommand& chosen);
void define_lab_local(const Arguments& app, SelectedCommand& chosen);
void define_lab_moe(const Arguments& app, SelectedCommand& chosen);
void define_lab_pipeline(const Arguments& app, SelectedCommand& chosen);
void define_lab_ps(const Arguments& app, SelectedCommand& chosen);
void define_lab_tensor(const Arguments& app, SelectedCommand& chosen);
void define_lab_speedup(const Arguments& app, SelectedCommand& chosen);
void define_lab_numbers(const Arguments& app, SelectedCommand& chosen);
void define_lab_zero(const Arguments& app, SelectedCommand& chosen);
void define_metrics(const Arguments& app, SelectedCommand& chosen);
void define_plan(const Arguments& app, SelectedCommand& chosen);
void define_report(const Arguments& app, SelectedCommand& chosen);
void define_tokenizer(const Arguments& app, SelectedCommand& chosen);
void define_man(const Arguments& app, SelectedCommand& chosen);
void define_launch(const Arguments& app, SelectedCommand& chosen);
void define_train(const Arguments& app, SelectedCommand& chosen);

}  // namespace esp::app
