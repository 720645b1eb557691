// What the binary does with its arguments: wiring, exit codes. Each subcommand is a file of its own; the table is in
// commands.cpp.
#include "apps/espalier/program.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/espalier/command.h"
#include "apps/espalier/hygiene.h"
#include "apps/espalier/output_file.h"
#include "apps/espalier/parser.h"
#include "apps/espalier/terminal.h"
#include "apps/espalier/version.h"
#include "esp/base/error.h"
#include "esp/base/table.h"

namespace esp::app {
namespace {

constexpr std::string_view kFooter =
    "Exit codes: 0 done, 1 internal error, 2 usage or configuration, 3 communication, 4 files or data,\n"
    "5 training failed (loss not finite, or most steps skipped), 75 stopped after a checkpoint (requeue me),\n"
    "128+n killed by signal n.";

std::vector<std::string_view> visible_commands(const Arguments& at, std::vector<std::string>& keep) {
  for (const Arguments& sub : at.subcommands())
    if (!sub.hidden()) keep.push_back(sub.name());
  return {keep.begin(), keep.end()};
}

std::vector<std::string_view> known_options(const Arguments& at, std::vector<std::string>& keep) {
  for (const OptionText& option : at.options())
    if (!option.hidden && !option.positional) keep.insert(keep.end(), option.names.begin(), option.names.end());
  return {keep.begin(), keep.end()};
}

// The subcommand the words lead to, what it is called, and the first word that leads nowhere.
Arguments walk(const Arguments& root, int argc, char** argv, std::string& path, std::string& stray) {
  Arguments at = root;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::vector<Arguments> subs = at.subcommands();
    if (subs.empty() || word.starts_with("-")) break;
    const auto found = std::find_if(subs.begin(), subs.end(), [&](const Arguments& sub) { return sub.name() == word; });
    if (found == subs.end()) {
      stray = word;
      break;
    }
    at = *found;
    path += " " + word;
  }
  return at;
}

// The parser says what was wrong; we add what would have worked.
[[noreturn]] void explain(const Arguments& root, int argc, char** argv, const Parser::Outcome& outcome) {
  std::string stray, path;
  const Arguments at = walk(root, argc, argv, path, stray);
  std::vector<std::string> keep;
  if (stray.ends_with(".toml")) {
    const std::vector<std::string> words(argv + 1, argv + argc);
    throw UsageError(
        fmt::format("{}: got a run file; expected a command. Use `espalier train {}`", stray, fmt::join(words, " ")));
  }
  if (!stray.empty()) unknown_name("command", stray, visible_commands(at, keep));
  if (outcome.strays) {
    for (const std::string& word : at.strays()) {
      if (!word.starts_with("-"))
        throw UsageError(fmt::format("\"{}\": espalier{} takes no such argument", word, path));
      std::string_view near = nearest_name(word.substr(0, word.find('=')), known_options(at, keep));
      throw UsageError(fmt::format("{}: espalier{} has no such option; {}espalier{} --help", word, path,
                                   near.empty() ? "see " : fmt::format("did you mean {}? See ", near), path));
    }
  }
  throw UsageError(fmt::format("{}; see espalier{} --help", outcome.complaint, path));
}

// Whether the word names an option whose value is the next word.
bool wants_next(const Arguments& command, const std::string& word) {
  for (const OptionText& option : command.options())
    for (const std::string& name : option.names)
      if (name == word && !option.positional) return option.takes_value;
  return false;
}

// Where a command that runs another begins to speak of that one: behind `--`, or at the first word that is neither an
// option nor an option's value. What follows is taken off, unread.
int take_other(const Arguments& root, int argc, char** argv, std::vector<std::string>& behind) {
  auto runs_other = [&](const Command& row) { return argc > 1 && row.runs_other && row.name == argv[1]; };
  if (std::none_of(commands().begin(), commands().end(), runs_other)) return argc;
  std::string path, stray;
  const Arguments command = walk(root, 2, argv, path, stray);
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    const bool separator = word == "--";
    if (separator || !word.starts_with("-")) {
      behind.assign(argv + i + (separator ? 1 : 0), argv + argc);
      return i;
    }
    if (wants_next(command, word)) ++i;
  }
  return argc;
}

// Options whose value is a path to write, in every command that has them with a value.
constexpr std::string_view kOutputs[] = {"--json", "--html", "--trace", "--out"};

// Results must have a place before the work that makes them begins; JSON on stdout moves everything else to stderr.
void prepare_outputs(const Arguments& root, int argc, char** argv) {
  std::string path, stray;
  bool json_on_stdout = false;
  for (const OptionText& option : walk(root, argc, argv, path, stray).options()) {
    const auto output =
        std::find_first_of(option.names.begin(), option.names.end(), std::begin(kOutputs), std::end(kOutputs));
    if (output == option.names.end() || !option.takes_value) continue;
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      const bool joined = word.starts_with(*output + "=");
      if (!joined && (word != *output || i + 1 == argc)) continue;
      const std::string value = joined ? word.substr(output->size() + 1) : argv[i + 1];
      for (int other = 1; other < argc; ++other) {
        const std::string read = argv[other];
        std::error_code error;
        if (other != i && !(other == i + 1 && !joined) && std::filesystem::is_regular_file(read, error))
          check_not_an_input(*output, value, {&read, 1});
      }
      json_on_stdout = json_on_stdout || (*output == "--json" && value == "-");
      option.value() == "DIR" ? check_output_folder(*output, value) : check_output_file(*output, value);
    }
  }
  if (json_on_stdout) keep_stdout_for_data();
}

int run(int argc, char** argv) {
  Parser parser({"espalier", "Espalier: distributed training of large models, and the collectives under it",
                 std::string(kFooter), version_text, "version, compiler, and what was found"});
  Chosen chosen;
  chosen.root = parser.root();
  define_commands(chosen.root, commands(), chosen);
  argc = take_other(chosen.root, argc, argv, chosen.behind);
  if (argc > 2) chosen.ahead.assign(argv + 2, argv + argc);
  const Parser::Outcome outcome = parser.parse(argc, argv);
  if (outcome.kind == Parser::Outcome::Kind::answered) return outcome.exit_code;
  if (outcome.kind == Parser::Outcome::Kind::refused) explain(chosen.root, argc, argv, outcome);
  if (!chosen.run) {
    fmt::print("{}", parser.help());
    return 0;
  }
  prepare_outputs(chosen.root, argc, argv);
  return chosen.run();
}

}  // namespace

int run_words(std::vector<std::string> words) {
  words.insert(words.begin(), "espalier");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return run(static_cast<int>(words.size()), argv.data());
}

int run_program(int argc, char** argv) {
  auto complain = [](std::string_view message) {
    Style style(stderr);
    // Where nobody listens any more (a closed terminal) the exit code still tells.
    std::fputs(fmt::format("{} {}\n", style.red("espalier:"), message).c_str(), stderr);
  };
  begin_with_little(argc > 1 && std::string_view(argv[1]) == "launch");
  try {
    const int code = run(argc, argv);
    check_stdout();
    return code;
  } catch (const Error& error) {
    complain(error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::filesystem::filesystem_error& error) {
    const std::string what = errno_text(error.code().value());
    complain(error.path1().empty() ? what : fmt::format("{}: {}", error.path1().string(), what));
    return static_cast<int>(ExitCode::files);
  } catch (const std::system_error& error) {
    // fmt::print throws it when it cannot print.
    const bool printing = std::ferror(stdout) != 0;
    complain(printing ? "cannot write to stdout: " + errno_text(error.code().value()) : error.what());
    return static_cast<int>(printing ? ExitCode::files : ExitCode::internal);
  } catch (const std::bad_alloc&) {
    complain(
        "out of memory: what was asked for needs more than this machine can give; a smaller model, batch or "
        "input, or more ranks, would fit");
    return static_cast<int>(ExitCode::internal);
  } catch (const std::exception& error) {
    complain(error.what());
    return static_cast<int>(ExitCode::internal);
  }
}

}  // namespace esp::app
