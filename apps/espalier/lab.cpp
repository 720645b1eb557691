// espalier lab: runs the experiments of the lectures. Without a name it lists them; --all runs all of them.
#include <fmt/format.h>

#include "apps/espalier/command.h"
#include "apps/espalier/lab_all.h"
#include "apps/espalier/lab_table.h"
#include "esp/base/error.h"

namespace esp::app {
namespace {

int list_experiments() {
  for (const Chapter& chapter : chapters()) {
    fmt::print("{}\n", chapter.title);
    for (const Experiment& one : chapter.experiments)
      if (!one.command.hidden) fmt::print("  {:<14}{}\n", one.command.name, one.command.help);
  }
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void define_lab(const Arguments& app, SelectedCommand& chosen) {
  std::vector<Command> rows;
  for (const Chapter& chapter : chapters())
    for (const Experiment& one : chapter.experiments) rows.push_back(one.command);
  define_commands(app, rows, chosen);
  app.require_subcommand(0, 1);
  auto o = std::make_shared<AllLabs>();
  app.add_flag("--all", o->run_all, "run all labs and write a report: --out DIR/index.html");
  app.add_option("--only", o->only, "with --all: only these labs").delimiter(',').type_name("NAME,NAME");
  app.add_option("--out", o->out, "with --all: folder of the report [lab]").type_name("DIR");
  app.callback([app, &chosen, o] {
    if (app.has_chosen_subcommand()) {
      if (o->run_all || !o->only.empty() || !o->out.empty())
        throw UsageError("lab: got --all, --only or --out before a lab's name. Remove the name, or put --out after it");
      return;
    }
    if (!o->run_all && (!o->only.empty() || !o->out.empty()))
      throw UsageError("lab: got --only or --out without --all. Add --all, or put a lab's name before --out");
    chosen.run = [o] { return o->run_all ? run_all_labs(*o) : list_experiments(); };
  });
}

}  // namespace esp::app
