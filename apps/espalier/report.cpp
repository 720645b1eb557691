// espalier report: a run's page as one file, for keeping and for sending.
#include <unistd.h>

#include <cerrno>

#include <fmt/format.h>

#include "apps/espalier/command.h"
#include "apps/espalier/dash_knowledge.h"
#include "apps/espalier/output_file.h"
#include "esp/base/error.h"
#include "esp/dash/page.h"

namespace esp::app {
namespace {

struct Report {
  std::vector<std::string> folders;
  std::string out;
};

// What people call the run: the folder's name.
std::string name_of_folder(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

int run_report(const Report& o) {
  std::vector<std::unique_ptr<dash::RunFolder>> runs;
  std::vector<dash::RunFolder*> lent;
  for (const std::string& folder : o.folders) {
    if (::access(folder.c_str(), R_OK | X_OK) != 0) throw IoError(fmt::format("{}: {}", folder, errno_text(errno)));
    if (!dash::is_run_folder(folder))
      throw IoError(fmt::format("{}: no run folder: neither run.toml nor metrics.jsonl is in it", folder));
    runs.push_back(std::make_unique<dash::RunFolder>(folder, name_of_folder(folder)));
    lent.push_back(runs.back().get());
  }
  const char* name = o.folders.size() == 1 ? "report.html" : "comparison.html";  // beside the first one's own
  const std::string out = o.out.empty() ? fmt::format("{}/{}", o.folders.front(), name) : o.out;
  write_file(out, dash::report_page(lent, dash_knowledge()));
  if (out != "-") fmt::print("{}\n", out);
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void define_report(const Arguments& app, Chosen& chosen) {
  auto o = keep<Report>(app, chosen, run_report);
  app.add_option("folders", o->folders, "one run folder, or several to compare").type_name("RUN_DIR").required();
  app.add_option("--out", o->out,
                 "the page [RUN_DIR/report.html, of several comparison.html in the first]; - is stdout")
      .type_name("FILE");
}

}  // namespace esp::app
