// espalier import: configurations of other trainers as run files.
#include <fmt/format.h>

#include "apps/espalier/command.h"
#include "apps/espalier/output_file.h"
#include "esp/obs/file.h"
#include "esp/train/deepspeed.h"
#include "esp/train/run_config.h"

namespace esp::app {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;

struct ImportOptions {
  std::string source, base, out = "-";
  int64_t ranks = 0;
};

int run_import_deepspeed(const ImportOptions& options) {
  const train::Imported imported =
      train::import_deepspeed(obs::read_whole_file(options.source, kMaxBytes), options.source, options.ranks);
  const std::string base = options.base.empty() ? "" : obs::read_whole_file(options.base, kMaxBytes);
  if (!base.empty()) (void)train::parse_run_config(base, options.base, {});  // its errors name the file
  write_file(options.out, train::to_run_file(imported, options.source, base));

  size_t num_defaults = 0;
  for (const auto& one : imported.carried) num_defaults += one.from.empty();
  fmt::print(stderr, "{}: {} keys carried over, {} of them DeepSpeed's defaults; {} not\n", options.source,
             imported.carried.size(), num_defaults, imported.left.size());
  for (const auto& one : imported.left) fmt::print(stderr, "  not carried over: {}: {}\n", one.from, one.why);
  if (options.base.empty())
    for (const std::string& one : imported.missing) fmt::print(stderr, "  still to be given: {}\n", one);
  return 0;
}

void define_import_deepspeed(const Arguments& app, Chosen& chosen) {
  auto o = keep<ImportOptions>(app, chosen, run_import_deepspeed);
  app.add_option("source", o->source, "the JSON file given to deepspeed --deepspeed_config")
      .required()
      .type_name("FILE");
  app.add_option("--ranks", o->ranks, "how many the batch sizes are for [not known]")
      .within(int64_t{1}, int64_t{1} << 20)
      .type_name("N");
  app.add_option("--base", o->base, "a run file to lay the keys over: its model, data and steps").type_name("RUN.toml");
  app.add_option("--out", o->out, "the run file; - is stdout").show_default().type_name("RUN.toml");
  app.footer("What is not carried over is listed on stderr and, as comments, in the run file.");
}

constexpr Command kImports[] = {
    {"deepspeed", "a DeepSpeed JSON configuration", define_import_deepspeed},
};

}  // namespace

void define_import(const Arguments& app, Chosen& chosen) {
  define_commands(app, kImports, chosen);
  app.require_subcommand(0, 1);
}

}  // namespace esp::app
