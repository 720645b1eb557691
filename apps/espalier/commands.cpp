#include "apps/espalier/command.h"

namespace esp::app {
namespace {

constexpr Command kCommands[] = {
    {"train", "train a model from a run file", define_train},
    {"launch", "start the ranks of a job on this host, and restart them after a failure", define_launch, false, true},
    {"generate", "sample text from a trained model", define_generate},
    {"eval", "compute loss and perplexity of a text", define_eval},
    {"convert", "convert between Espalier checkpoints and Hugging Face folders", define_convert},
    {"import", "convert configurations of other trainers to run files", define_import},
    {"bench", "benchmark collectives, kernels and training; compare with other libraries", define_bench},
    {"tokenizer", "train a tokenizer; convert text to ids and back", define_tokenizer},
    {"data", "tokenise text into files; describe data files", define_data},
    {"plan", "estimate the cost of a run; search for the best layout", define_plan},
    {"lab", "run an experiment from the lectures and plot it", define_lab},
    {"flight", "print the flight recorder: the last collectives of every rank, on one timeline", define_flight},
    {"dash", "serve a live web dashboard of run folders, on this machine only", define_dash},
    {"report", "write the dashboard page of a run as one HTML file", define_report},
    {"compare", "compare runs in one table: method, layout, loss, speed, bytes, memory, time", define_compare},
    {"metrics", "print the state of runs in Prometheus text format", define_metrics},
    {"doctor", "check this machine: hardware, libraries, problems", define_doctor},
    {"completion", "print the completion script of a shell", define_completion},
    {"man", "print manual pages and the command reference", define_man, false, true},
    {"bench-rank", "one rank of bench comm", define_bench_rank, true},
    {"bench-train-worker", "one process of bench train", define_bench_train_worker, true},
};

}  // namespace

std::span<const Command> commands() {
  return kCommands;
}

void define_commands(const Arguments& app, std::span<const Command> rows, SelectedCommand& chosen) {
  for (const Command& row : rows) {
    const Arguments sub = app.add_subcommand(std::string(row.name), std::string(row.help));
    sub.footer("");  // removes the footer that subcommands inherit from the root
    if (row.hidden) sub.hide();
    row.define(sub, chosen);
  }
}

}  // namespace esp::app
