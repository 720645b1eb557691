// Entry point of the command line: parsing, dispatch, exit codes. Each subcommand has its own file; the table of
// subcommands is in commands.cpp.
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
#include "apps/espalier/output_file.h"
#include "apps/espalier/parser.h"
#include "apps/espalier/process_setup.h"
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

std::vector<std::string_view> visible_commands(const Arguments& at, std::vector<std::string>& storage) {
  for (const Arguments& sub : at.subcommands())
    if (!sub.hidden()) storage.push_back(sub.name());
  return {storage.begin(), storage.end()};
}

std::vector<std::string_view> known_options(const Arguments& at, std::vector<std::string>& storage) {
  for (const OptionText& option : at.options())
    if (!option.hidden && !option.positional) storage.insert(storage.end(), option.names.begin(), option.names.end());
  return {storage.begin(), storage.end()};
}

// Finds the subcommand that the words select, its path, and the first unknown word.
Arguments find_command(const Arguments& root, int argc, char** argv, std::string& path, std::string& unknown_word) {
  Arguments at = root;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::vector<Arguments> subs = at.subcommands();
    if (subs.empty() || word.starts_with("-")) break;
    const auto found = std::find_if(subs.begin(), subs.end(), [&](const Arguments& sub) { return sub.name() == word; });
    if (found == subs.end()) {
      unknown_word = word;
      break;
    }
    at = *found;
    path += " " + word;
  }
  return at;
}

// True for section.key=value.
bool is_setting(const std::string& word) {
  const size_t dot = word.find('.'), equals = word.find('=');
  return dot != std::string::npos && equals != std::string::npos && 0 < dot && dot + 1 < equals;
}

// Throws the parser's error as UsageError, with a suggestion.
[[noreturn]] void throw_usage_error(const Arguments& root, int argc, char** argv, const Parser::ParseResult& result) {
  std::string unknown_word, path;
  const Arguments at = find_command(root, argc, argv, path, unknown_word);
  std::vector<std::string> storage;
  if (unknown_word.ends_with(".toml")) {
    const std::vector<std::string> words(argv + 1, argv + argc);
    throw UsageError(fmt::format("{}: got a run file; expected a command. Use `espalier train {}`", unknown_word,
                                 fmt::join(words, " ")));
  }
  if (!unknown_word.empty()) unknown_name("command", unknown_word, visible_commands(at, storage));
  if (result.unparsed_words) {
    for (const std::string& word : at.unparsed_words()) {
      const std::vector<std::string_view> options = known_options(at, storage);
      const bool sets_keys = std::find(options.begin(), options.end(), "--set") != options.end();
      if (sets_keys && !word.starts_with("-") && is_setting(word))
        throw UsageError(fmt::format("\"{0}\": unknown argument of espalier{1}. Use --set {0}", word, path));
      if (sets_keys && word.ends_with(".toml"))
        throw UsageError(fmt::format(
            "\"{}\": espalier{} takes one run file; --set section.key=value changes a key of it", word, path));
      if (!word.starts_with("-")) throw UsageError(fmt::format("\"{}\": unknown argument of espalier{}", word, path));
      std::string_view suggestion = nearest_name(word.substr(0, word.find('=')), options);
      throw UsageError(fmt::format("{}: unknown option of espalier{}; {}espalier{} --help", word, path,
                                   suggestion.empty() ? "see " : fmt::format("did you mean {}? See ", suggestion),
                                   path));
    }
  }
  throw UsageError(fmt::format("{}; see espalier{} --help", result.error, path));
}

// Whether the word is an option that takes the next word as its value.
bool takes_next_word(const Arguments& command, const std::string& word) {
  for (const OptionText& option : command.options())
    for (const std::string& name : option.names)
      if (name == word && !option.positional) return option.takes_value;
  return false;
}

// Index of the first word after the command's own words: `--`, or the first word that is neither an option nor an
// option's value. The words of the wrapped program go to `trailing_words` and are not parsed.
int split_wrapped_command(const Arguments& root, int argc, char** argv, std::vector<std::string>& trailing_words) {
  auto wraps_program = [&](const Command& row) { return argc > 1 && row.wraps_program && row.name == argv[1]; };
  if (std::none_of(commands().begin(), commands().end(), wraps_program)) return argc;
  std::string path, unknown_word;
  const Arguments command = find_command(root, 2, argv, path, unknown_word);
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    const bool separator = word == "--";
    if (separator || !word.starts_with("-")) {
      trailing_words.assign(argv + i + (separator ? 1 : 0), argv + argc);
      return i;
    }
    if (takes_next_word(command, word)) ++i;
  }
  return argc;
}

// In every command, the value of these options is an output path.
constexpr std::string_view kOutputs[] = {"--json", "--html", "--trace", "--out"};

// Checks that outputs can be written before the work begins. If JSON goes to stdout, all other output goes to stderr.
void prepare_outputs(const Arguments& root, int argc, char** argv) {
  std::string path, unknown_word;
  bool json_on_stdout = false;
  for (const OptionText& option : find_command(root, argc, argv, path, unknown_word).options()) {
    const auto output =
        std::find_first_of(option.names.begin(), option.names.end(), std::begin(kOutputs), std::end(kOutputs));
    if (output == option.names.end() || !option.takes_value) continue;
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      const bool joined = word.starts_with(*output + "=");
      if (!joined && (word != *output || i + 1 == argc)) continue;
      const std::string value = joined ? word.substr(output->size() + 1) : argv[i + 1];
      for (int other = 1; other < argc; ++other) {
        const std::string input = argv[other];
        std::error_code error;
        if (other != i && !(other == i + 1 && !joined) && std::filesystem::is_regular_file(input, error))
          check_not_an_input(*output, value, {&input, 1});
      }
      json_on_stdout = json_on_stdout || (*output == "--json" && value == "-");
      option.value() == "DIR" ? check_output_folder(*output, value) : check_output_file(*output, value);
    }
  }
  if (json_on_stdout) reserve_stdout_for_data();
}

int run(int argc, char** argv) {
  Parser parser({"espalier", "Espalier: distributed training of large models, and the collectives under it",
                 std::string(kFooter), version_text, "print version, compiler and detected libraries"});
  SelectedCommand chosen;
  chosen.root = parser.root();
  define_commands(chosen.root, commands(), chosen);
  argc = split_wrapped_command(chosen.root, argc, argv, chosen.trailing_words);
  if (argc > 2) chosen.leading_words.assign(argv + 2, argv + argc);
  const Parser::ParseResult result = parser.parse(argc, argv);
  if (result.kind == Parser::ParseResult::Kind::printed) return result.exit_code;
  if (result.kind == Parser::ParseResult::Kind::rejected) throw_usage_error(chosen.root, argc, argv, result);
  if (!chosen.run) {
    fmt::print("{}", parser.help());
    return 0;
  }
  prepare_outputs(chosen.root, argc, argv);
  return chosen.run();
}

}  // namespace

int run_command_line(std::vector<std::string> words) {
  words.insert(words.begin(), "espalier");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return run(static_cast<int>(words.size()), argv.data());
}

int run_program(int argc, char** argv) {
  auto complain = [](std::string_view message) {
    Style style(stderr);
    // A failed write is ignored: if stderr is closed, the exit code still reports the error.
    std::fputs(fmt::format("{} {}\n", style.red("espalier:"), message).c_str(), stderr);
  };
  set_up_process(argc > 1 && std::string_view(argv[1]) == "launch");
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
    // fmt::print throws system_error if it cannot write.
    const bool printing = std::ferror(stdout) != 0;
    complain(printing ? "cannot write to stdout: " + errno_text(error.code().value()) : error.what());
    return static_cast<int>(printing ? ExitCode::files : ExitCode::internal);
  } catch (const std::bad_alloc&) {
    complain(
        "out of memory: this machine has too little memory for the command. Use a smaller model, batch or "
        "input, or more ranks");
    return static_cast<int>(ExitCode::internal);
  } catch (const std::exception& error) {
    complain(error.what());
    return static_cast<int>(ExitCode::internal);
  }
}

}  // namespace esp::app
