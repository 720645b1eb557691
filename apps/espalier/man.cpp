// espalier man: manual pages and the command reference, generated from the option table and the table of run-file keys,
// so they always match the program.
#include <filesystem>
#include <map>

#include <fmt/format.h>

#include "apps/espalier/command.h"
#include "apps/espalier/option_table.h"
#include "apps/espalier/output_file.h"
#include "apps/espalier/version.h"
#include "esp/base/error.h"
#include "esp/train/run_config.h"

namespace esp::app {
namespace {

struct ManOptions {
  std::string out;
  bool markdown = false;
};

constexpr std::pair<const char*, const char*> kExitCodes[] = {
    {"0", "done"},
    {"1", "internal error: a bug in espalier"},
    {"2", "usage or configuration"},
    {"3", "communication error or lost peer; a restart may help"},
    {"4", "files or data"},
    {"5", "training failed: the loss is not finite, or most steps were skipped"},
    {"75", "stopped by a signal after a checkpoint; queue the run again"},
    {"128+n", "killed by signal n"},
};

// Escapes text for roff: backslashes, a dot or apostrophe at the start of a line, and the hyphens of options. An
// unescaped hyphen would be copied as another character.
std::string roff(std::string_view text) {
  std::string out;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
    line_begins = c == '\n';
  }
  return out;
}

std::string head(const std::string& name, int section) {
  return fmt::format(".TH {} {} \"\" \"Espalier {}\" \"Espalier\"\n", roff(name), section, version_number());
}

std::string synopsis(const CommandText& command) {
  std::string text = fmt::format("\\fB{}\\fR", roff(command.joined(" ")));
  if (!command.subs.empty()) text += " \\fICOMMAND\\fR";
  text += " [\\fIOPTIONS\\fR]";
  for (const OptionText& option : command.options)
    if (option.positional)
      text +=
          fmt::format(" {}\\fI{}\\fR{}", option.required ? "" : "[", roff(option.names[0]), option.required ? "" : "]");
  return text;
}

std::string option_entry(const OptionText& option) {
  std::string names;
  for (const std::string& name : option.names)
    names += fmt::format("{}\\fB{}\\fR", names.empty() ? "" : ", ", roff(name));
  if (!option.value().empty()) names += fmt::format(" \\fI{}\\fR", roff(option.value()));
  return fmt::format(".TP\n{}\n{}\n", names, roff(option.help.empty() ? "see the option's name" : option.help));
}

std::string page_of(const CommandText& command) {
  std::string page = head(command.joined("-"), 1);
  page += fmt::format(".SH NAME\n{} \\- {}\n.SH SYNOPSIS\n{}\n", roff(command.joined("-")), roff(command.help),
                      synopsis(command));
  page += ".SH OPTIONS\n";
  for (const OptionText& option : command.options) page += option_entry(option);
  if (!command.subs.empty()) {
    page += ".SH COMMANDS\n";
    for (const auto& [name, help] : command.subs)
      page += fmt::format(".TP\n\\fB{}\\fR(1)\n{}\n", roff(command.joined("-") + "-" + name), roff(help));
  }
  if (!command.footer.empty() && !command.path.empty()) page += fmt::format(".SH NOTES\n{}\n", roff(command.footer));
  page += ".SH EXIT STATUS\n";
  for (const auto& [code, meaning] : kExitCodes) page += fmt::format(".TP\n\\fB{}\\fR\n{}\n", code, roff(meaning));
  page += ".SH SEE ALSO\n";
  if (!command.path.empty()) page += "\\fBespalier\\fR(1), ";
  return page + "\\fBespalier\\-run\\fR(5)\n";
}

// The manual page of the run file's keys, by section.
std::string run_page() {
  train::RunConfig config;
  std::string page = head("espalier-run", 5), section;
  page +=
      ".SH NAME\nespalier\\-run \\- the run file of espalier train\n.SH DESCRIPTION\nTOML. Every key is "
      "optional and can be overridden on the command line with \\fB\\-\\-set\\fR \\fIsection.key=value\\fR. An unknown "
      "key is an error, which names the nearest known key. The resolved file is written into the run folder.\n";
  for (const train::Field& field : train::fields(config)) {
    if (field.section != section) page += fmt::format(".SH [{}]\n", roff(section = std::string(field.section)));
    const std::string read_with = field.read_by.empty() ? "" : fmt::format("; read with {}", field.read_by);
    page += fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(field.key), roff(std::string(field.help) + read_with));
  }
  return page + ".SH SEE ALSO\n\\fBespalier\\-train\\fR(1)\n";
}

std::map<std::string, std::string> all_pages(const Arguments& root) {
  std::map<std::string, std::string> pages = {{"espalier-run.5", run_page()}};
  for (const CommandText& command : command_texts(root)) pages[command.joined("-") + ".1"] = page_of(command);
  return pages;
}

std::string markdown(const Arguments& root) {
  std::string text =
      "# Which commands and options are there?\n\nThis page is the output of `espalier man --markdown`. `espalier man "
      "COMMAND` prints a manual page; `espalier man --out DIR`\nwrites all of them. The keys of run files are in "
      "[run_file.md](run_file.md).\n";
  for (const CommandText& command : command_texts(root)) {
    if (command.path.size() == 2 && command.path[0] == "lab") continue;  // lab.md describes these
    text +=
        fmt::format("\n{} `{}`\n\n{}.\n", command.path.size() < 2 ? "##" : "###", command.joined(" "), command.help);
    std::string rows;
    for (const OptionText& option : command.options) {
      if (option.names.back() == "--help") continue;
      std::string names;
      for (const std::string& name : option.names) names += fmt::format("{}`{}`", names.empty() ? "" : ", ", name);
      rows += fmt::format("* {}{}: {}\n", names, option.value().empty() ? "" : " " + option.value(), option.help);
    }
    if (!rows.empty()) text += "\n" + rows;
    if (!command.footer.empty() && !command.path.empty()) text += "\n" + command.footer + "\n";
    if (command.joined(" ") == "espalier lab")
      text += "\n[lab.md](lab.md) lists the experiments; `espalier lab NAME --help` prints the options of one.\n";
  }
  text += "\n## Exit codes\n\n| code | meaning |\n|---|---|\n";
  for (const auto& [code, meaning] : kExitCodes) text += fmt::format("| {} | {} |\n", code, meaning);
  return text;
}

int run_man(const ManOptions& o, const Arguments& root, const std::vector<std::string>& command) {
  if (o.markdown) {
    if (!command.empty())
      throw UsageError(fmt::format("man --markdown: got the command \"{}\"; it prints all commands. Leave the name out",
                                   command.front()));
    fmt::print("{}", markdown(root));
    return static_cast<int>(ExitCode::done);
  }
  const std::map<std::string, std::string> pages = all_pages(root);
  if (!o.out.empty()) {
    std::error_code error;
    for (const auto& [name, text] : pages) {
      const std::string folder = fmt::format("{}/man{}", o.out, name.back());
      std::filesystem::create_directories(folder, error);
      if (error) throw IoError(fmt::format("cannot create the folder {}: {}", folder, error.message()));
      write_file(folder + "/" + name, text);
    }
    fmt::print("Wrote {} manual pages under {}\n", pages.size(), o.out);
    return static_cast<int>(ExitCode::done);
  }
  std::string name = "espalier";
  for (const std::string& word : command) name += "-" + word;
  auto found = pages.find(name + ".1");
  if (name == "espalier-run") found = pages.find("espalier-run.5");
  if (found == pages.end())
    throw UsageError(fmt::format("man: unknown command \"{}\"; espalier --help lists the commands", name.substr(9)));
  fmt::print("{}", found->second);
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void define_man(const Arguments& app, SelectedCommand& chosen) {
  auto o = std::make_shared<ManOptions>();
  app.add_option("--out", o->out, "write all pages, as DIR/man1/… and DIR/man5/…").type_name("DIR");
  app.add_flag("--markdown", o->markdown, "print the reference of all commands as Markdown");
  app.footer(
      "espalier man [COMMAND…] prints the manual page of a command, of the run file (`run`), or of espalier itself.\n"
      "To view a page: espalier man plan search | man -l -");
  app.callback([&chosen, o] { chosen.run = [&chosen, o] { return run_man(*o, chosen.root, chosen.trailing_words); }; });
}

}  // namespace esp::app
