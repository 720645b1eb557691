// What the binary does with its arguments: wiring, exit codes. Each subcommand is a file of its own; the table is in
// commands.cpp.
#include "apps/espalier/program.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>

#include <fmt/format.h>

#include "apps/espalier/command.h"
#include "apps/espalier/help_text.h"
#include "apps/espalier/hygiene.h"
#include "apps/espalier/terminal.h"
#include "apps/espalier/version.h"
#include "esp/base/error.h"
#include "esp/base/table.h"

namespace esp::app {
namespace {

constexpr std::string_view kFooter =
    "Exit codes: 0 done, 1 internal error, 2 usage or configuration, 3 communication, 4 files or data,\n"
    "75 stopped after a checkpoint (requeue me), 128+n killed by signal n.";

std::vector<std::string_view> visible_commands(const CLI::App& app, std::vector<std::string>& keep) {
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App* s) { return !s->get_group().empty(); }))
    keep.push_back(sub->get_name());
  return {keep.begin(), keep.end()};
}

std::vector<std::string_view> known_options(const CLI::App& app, std::vector<std::string>& keep) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) keep.push_back("--" + name);
    for (const std::string& name : option->get_snames()) keep.push_back("-" + name);
  }
  return {keep.begin(), keep.end()};
}

// The subcommand the words lead to, and the first word that leads nowhere.
CLI::App* walk(CLI::App& root, int argc, char** argv, std::string& stray) {
  CLI::App* at = &root;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    auto subs = at->get_subcommands([](CLI::App*) { return true; });
    if (subs.empty() || word.starts_with("-")) break;
    auto named = [&](CLI::App* sub) { return sub->get_name() == word; };
    auto found = std::find_if(subs.begin(), subs.end(), named);
    CLI::App* next = found == subs.end() ? nullptr : *found;
    if (!next) {
      stray = word;
      break;
    }
    at = next;
  }
  return at;
}

// CLI11 says what was wrong; we add what would have worked.
[[noreturn]] void explain(CLI::App& root, int argc, char** argv, const CLI::ParseError& error) {
  std::string stray;
  CLI::App* at = walk(root, argc, argv, stray);
  std::vector<std::string> keep;
  std::string path = at == &root ? "" : " " + at->get_name();
  if (at->get_parent() && at->get_parent() != &root) path = " " + at->get_parent()->get_name() + path;
  if (!stray.empty()) unknown_name("command", stray, visible_commands(*at, keep));
  if (dynamic_cast<const CLI::ExtrasError*>(&error)) {
    for (std::string word : at->remaining()) {
      if (!word.starts_with("-")) throw UsageError(fmt::format("espalier{} takes no argument \"{}\"", path, word));
      std::string_view near = nearest_name(word.substr(0, word.find('=')), known_options(*at, keep));
      throw UsageError(fmt::format("espalier{} has no option {}{}; see espalier{} --help", path, word,
                                   near.empty() ? "" : fmt::format("; did you mean {}?", near), path));
    }
  }
  throw UsageError(fmt::format("{}; see espalier{} --help", error.what(), path));
}

// Where a command that runs another begins to speak of that one: behind `--`, or at the first word that is neither an
// option nor an option's value. What follows is taken off, unread.
int take_other(const CLI::App& root, int argc, char** argv, std::vector<std::string>& behind) {
  auto runs_other = [&](const Command& row) { return argc > 1 && row.runs_other && row.name == argv[1]; };
  if (std::none_of(commands().begin(), commands().end(), runs_other)) return argc;
  const CLI::App& command = *root.get_subcommand(argv[1]);
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    const bool separator = word == "--";
    if (separator || !word.starts_with("-")) {
      behind.assign(argv + i + (separator ? 1 : 0), argv + argc);
      return i;
    }
    const CLI::Option* option = command.get_option_no_throw(word);
    if (option && option->get_type_size() > 0) ++i;  // its value
  }
  return argc;
}

int run(int argc, char** argv) {
  CLI::App root{"Espalier: distributed training of large models, and the collectives under it", "espalier"};
  root.set_version_flag(
      "--version,-V", [] { return version_text(); }, "version, compiler, and what was found");
  root.formatter(std::make_shared<HelpText>());
  root.get_formatter()->column_width(36);
  root.footer(std::string(kFooter));
  Chosen chosen;
  chosen.root = &root;
  define_commands(root, commands(), chosen);
  argc = take_other(root, argc, argv, chosen.behind);
  try {
    root.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return root.exit(asked);
  } catch (const CLI::ParseError& error) {
    explain(root, argc, argv, error);
  }
  if (!chosen.run) {
    fmt::print("{}", root.help());
    return 0;
  }
  return chosen.run();
}

}  // namespace

int run_program(int argc, char** argv) {
  auto complain = [](std::string_view message) {
    Style style(stderr);
    fmt::print(stderr, "{} {}\n", style.red("espalier:"), message);
  };
  begin_with_little(argc > 1 && std::string_view(argv[1]) == "launch");
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    complain(error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    complain(error.what());
    return static_cast<int>(ExitCode::internal);
  }
}

}  // namespace esp::app
