// espalier import: converts configurations of other trainers to run files.
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
  const train::DeepSpeedImport imported =
      train::import_deepspeed(obs::read_whole_file(options.source, kMaxBytes), options.source, options.ranks);
  const std::string base = options.base.empty() ? "" : obs::read_whole_file(options.base, kMaxBytes);
  // Parsed separately first, so that an error in the base file is reported with the name of that file.
  if (!base.empty()) (void)train::parse_run_config(base, options.base, {});
  write_file(options.out, train::to_run_file(imported, options.source, base));

  size_t num_defaults = 0;
  for (const auto& one : imported.keys) num_defaults += one.from.empty();
  fmt::print(stderr, "{}: {} keys imported, {} of them DeepSpeed's defaults; {} not imported\n", options.source,
             imported.keys.size(), num_defaults, imported.ignored.size());
  for (const auto& one : imported.ignored) fmt::print(stderr, "  not imported: {}: {}\n", one.from, one.why);
  if (options.base.empty())
    for (const std::string& one : imported.missing) fmt::print(stderr, "  missing: {}\n", one);
  return 0;
}

void define_import_deepspeed(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<ImportOptions>(app, chosen, run_import_deepspeed);
  app.add_option("source", o->source, "the JSON file given to deepspeed --deepspeed_config")
      .required()
      .type_name("FILE");
  app.add_option("--ranks", o->ranks, "number of ranks that the batch sizes are for [unknown]")
      .within(int64_t{1}, int64_t{1} << 20)
      .type_name("N");
  app.add_option("--base", o->base, "base run file with model, data and steps; imported keys override it")
      .type_name("RUN.toml");
  app.add_option("--out", o->out, "run file to write; - is stdout").show_default().type_name("RUN.toml");
  app.footer("Keys that are not imported are listed on stderr and as comments in the run file.");
}

constexpr Command kImports[] = {
    {"deepspeed", "convert a DeepSpeed JSON configuration", define_import_deepspeed},
};

}  // namespace

void define_import(const Arguments& app, SelectedCommand& chosen) {
  define_commands(app, kImports, chosen);
  app.require_subcommand(0, 1);
}

}  // namespace esp::app
