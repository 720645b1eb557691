// espalier man: manual pages and the reference of commands, made from the table that parses arguments and from that of
// the run file's keys, so that neither can drift from what the program does.
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

struct ManFlags {
  std::string out;
  bool markdown = false;
};

constexpr std::pair<const char*, const char*> kExitCodes[] = {
    {"0", "done"},
    {"1", "internal error: a bug of ours"},
    {"2", "usage or configuration"},
    {"3", "communication, or a peer was lost; a restart makes sense"},
    {"4", "files or data"},
    {"5", "training failed: the loss is not finite, or most steps were skipped"},
    {"75", "stopped by a signal after a checkpoint; queue it again"},
    {"128+n", "killed by signal n"},
};

// What roff would take for its own: backslashes anywhere, a dot or an apostrophe at the beginning of a line, and
// hyphens of options, which must stay hyphens when copied.
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

std::string synopsis(const CommandText& it) {
  std::string text = fmt::format("\\fB{}\\fR", roff(it.joined(" ")));
  if (!it.subs.empty()) text += " \\fICOMMAND\\fR";
  text += " [\\fIOPTIONS\\fR]";
  for (const OptionText& option : it.options)
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
  return fmt::format(".TP\n{}\n{}\n", names, roff(option.help.empty() ? "as its name says" : option.help));
}

std::string page_of(const CommandText& it) {
  std::string page = head(it.joined("-"), 1);
  page += fmt::format(".SH NAME\n{} \\- {}\n.SH SYNOPSIS\n{}\n", roff(it.joined("-")), roff(it.help), synopsis(it));
  page += ".SH OPTIONS\n";
  for (const OptionText& option : it.options) page += option_entry(option);
  if (!it.subs.empty()) {
    page += ".SH COMMANDS\n";
    for (const auto& [name, help] : it.subs)
      page += fmt::format(".TP\n\\fB{}\\fR(1)\n{}\n", roff(it.joined("-") + "-" + name), roff(help));
  }
  if (!it.footer.empty() && !it.path.empty()) page += fmt::format(".SH NOTES\n{}\n", roff(it.footer));
  page += ".SH EXIT STATUS\n";
  for (const auto& [code, meaning] : kExitCodes) page += fmt::format(".TP\n\\fB{}\\fR\n{}\n", code, roff(meaning));
  page += ".SH SEE ALSO\n";
  if (!it.path.empty()) page += "\\fBespalier\\fR(1), ";
  return page + "\\fBespalier\\-run\\fR(5)\n";
}

// The run file's keys, section by section.
std::string run_page() {
  train::RunConfig config;
  std::string page = head("espalier-run", 5), section;
  page +=
      ".SH NAME\nespalier\\-run \\- the run file of espalier train\n.SH DESCRIPTION\nTOML. Every key may be left out "
      "and "
      "be given again on the command line with \\fB\\-\\-set\\fR \\fIsection.key=value\\fR. An unknown key is an error "
      "that names the nearest known one. The resolved file is written into the run folder.\n";
  for (const train::Field& field : train::fields(config)) {
    if (field.section != section) page += fmt::format(".SH [{}]\n", roff(section = std::string(field.section)));
    const std::string read_with = field.read_by.empty() ? "" : fmt::format("; read with {}", field.read_by);
    page += fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(field.key), roff(std::string(field.help) + read_with));
  }
  return page + ".SH SEE ALSO\n\\fBespalier\\-train\\fR(1)\n";
}

std::map<std::string, std::string> all_pages(const Arguments& root) {
  std::map<std::string, std::string> pages = {{"espalier-run.5", run_page()}};
  for (const CommandText& it : command_texts(root)) pages[it.joined("-") + ".1"] = page_of(it);
  return pages;
}

std::string markdown_cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != text.npos; at += 2) text.insert(at, "\\");
  return text;
}

std::string markdown(const Arguments& root) {
  std::string text =
      "# Commands\n\nEvery command and every option, from the table that parses them: `espalier man --markdown` writes "
      "this "
      "page,\n`espalier man COMMAND` the same as a manual page, `espalier man --out DIR` all of those. The keys of run "
      "files "
      "are in\n[run_file.md](run_file.md).\n";
  for (const CommandText& it : command_texts(root)) {
    text += fmt::format("\n{} `{}`\n\n{}.\n", it.path.size() < 2 ? "##" : "###", it.joined(" "), it.help);
    std::string rows;
    for (const OptionText& option : it.options) {
      if (option.names.back() == "--help") continue;
      std::string names;
      for (const std::string& name : option.names) names += fmt::format("{}`{}`", names.empty() ? "" : ", ", name);
      rows += fmt::format("| {}{} | {} |\n", names, option.value().empty() ? "" : " " + markdown_cell(option.value()),
                          markdown_cell(option.help));
    }
    if (!rows.empty()) text += "\n| option | what it does |\n|---|---|\n" + rows;
    if (!it.footer.empty() && !it.path.empty()) text += "\n" + it.footer + "\n";
  }
  text += "\n## Exit codes\n\n| code | meaning |\n|---|---|\n";
  for (const auto& [code, meaning] : kExitCodes) text += fmt::format("| {} | {} |\n", code, meaning);
  return text;
}

int run_man(const ManFlags& o, const Arguments& root, const std::vector<std::string>& command) {
  if (o.markdown) {
    if (!command.empty()) throw UsageError(fmt::format("\"{}\": man --markdown is of all commands", command.front()));
    fmt::print("{}", markdown(root));
    return static_cast<int>(ExitCode::done);
  }
  const std::map<std::string, std::string> pages = all_pages(root);
  if (!o.out.empty()) {
    std::error_code error;
    for (const auto& [name, text] : pages) {
      const std::string folder = fmt::format("{}/man{}", o.out, name.back());
      std::filesystem::create_directories(folder, error);
      if (error) throw IoError(fmt::format("cannot make {}: {}", folder, error.message()));
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
    throw UsageError(fmt::format("man: there is no command \"{}\"; espalier --help lists them", name.substr(9)));
  fmt::print("{}", found->second);
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void define_man(const Arguments& app, Chosen& chosen) {
  auto o = std::make_shared<ManFlags>();
  app.add_option("--out", o->out, "write all pages, as DIR/man1/… and DIR/man5/…").type_name("DIR");
  app.add_flag("--markdown", o->markdown, "the reference of all commands as Markdown");
  app.footer(
      "espalier man [COMMAND…] prints a page, of the program where none is named; `run` is the run file's.\n"
      "To read one: espalier man plan search | man -l -");
  app.callback([&chosen, o] { chosen.run = [&chosen, o] { return run_man(*o, chosen.root, chosen.behind); }; });
}

}  // namespace esp::app
