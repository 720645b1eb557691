#include "apps/espalier/command.h"

namespace esp::app {
namespace {

constexpr Command kCommands[] = {
    {"train", "train a model as a run file says", define_train},
    {"launch", "start this host's ranks of a job, and start them again when one fails", define_launch, false, true},
    {"generate", "sample text from a trained model", define_generate},
    {"eval", "loss and perplexity of a text", define_eval},
    {"convert", "between Espalier checkpoints and Hugging Face folders", define_convert},
    {"import", "configurations of other trainers as run files", define_import},
    {"bench", "measure: collectives and kernels, against the machine and against other libraries", define_bench},
    {"tokenizer", "text to ids and back, and vocabularies of one's own", define_tokenizer},
    {"data", "tokenise text into files; what a file of data holds", define_data},
    {"plan", "what a run will cost, and which layout is best", define_plan},
    {"lab", "run a lecture experiment for real and draw it", define_lab},
    {"flight", "where every rank of a run stood, on one timeline", define_flight},
    {"dash", "a web page over run folders, live, on this machine alone", define_dash},
    {"report", "a run's page as one HTML file", define_report},
    {"compare", "one table over runs: method, layout, loss, speed, bytes, memory, time", define_compare},
    {"metrics", "how runs stand now, as Prometheus reads it", define_metrics},
    {"doctor", "what this machine has, and what is wrong with it", define_doctor},
    {"completion", "print the completion script of a shell", define_completion},
    {"man", "manual pages, and the reference of commands", define_man, false, true},
    {"bench-rank", "one rank of bench comm", define_bench_rank, true},
    {"bench-train-worker", "one process of bench train", define_bench_train_worker, true},
};

}  // namespace

std::span<const Command> commands() {
  return kCommands;
}

void define_commands(const Arguments& app, std::span<const Command> rows, Chosen& chosen) {
  for (const Command& row : rows) {
    const Arguments sub = app.add_subcommand(std::string(row.name), std::string(row.help));
    sub.footer("");  // the root's own is not inherited
    if (row.hidden) sub.hide();
    row.define(sub, chosen);
  }
}

}  // namespace esp::app
