// espalier completion bash|zsh|fish: completion scripts generated from the option table, so they always match the
// parser. An option or argument whose type name reads a|b|c completes to those words.
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/espalier/command.h"
#include "apps/espalier/option_table.h"
#include "esp/base/table.h"

namespace esp::app {
namespace {

struct OptionCompletion {
  std::vector<std::string> longs, shorts;
  std::vector<std::string> values;  // values that the option accepts
  bool takes_value = false;
  std::string help;
};

struct CommandCompletion {
  std::string path;                                       // "espalier bench comm"
  std::vector<std::pair<std::string, std::string>> subs;  // name and help text of each subcommand
  std::vector<std::string> words;                         // words that positional arguments accept
  std::vector<OptionCompletion> flags;
};

std::vector<std::string> alternatives(const std::string& type) {
  std::vector<std::string> words;
  if (type.find('|') == type.npos) return words;
  for (size_t at = 0; at <= type.size();) {
    size_t bar = std::min(type.find('|', at), type.size());
    words.push_back(type.substr(at, bar - at));
    at = bar + 1;
  }
  return words;
}

CommandCompletion command_completion(const CommandText& command) {
  CommandCompletion completion{command.joined(" "), command.subs, {}, {}};
  for (const OptionText& option : command.options) {
    std::vector<std::string> values = alternatives(option.type);
    if (option.positional) {
      completion.words.insert(completion.words.end(), values.begin(), values.end());
      continue;
    }
    OptionCompletion flag{{}, {}, values, option.takes_value, option.help};
    for (const std::string& name : option.names)
      (name.starts_with("--") ? flag.longs : flag.shorts).push_back(name.substr(name.starts_with("--") ? 2 : 1));
    completion.flags.push_back(std::move(flag));
  }
  return completion;
}

std::vector<std::string> spellings(const OptionCompletion& flag) {
  std::vector<std::string> names;
  for (const std::string& name : flag.longs) names.push_back("--" + name);
  for (const std::string& name : flag.shorts) names.push_back("-" + name);
  return names;
}

std::vector<std::string> offers(const CommandCompletion& command) {
  std::vector<std::string> words;
  for (const auto& sub : command.subs) words.push_back(sub.first);
  words.insert(words.end(), command.words.begin(), command.words.end());
  for (const OptionCompletion& flag : command.flags)
    for (const std::string& name : spellings(flag)) words.push_back(name);
  return words;
}

// The common part of the bash and zsh scripts. They differ only in how they read words and return completions.
std::string bourne_body(const std::vector<CommandCompletion>& completions, std::string_view answer) {
  std::string text = "  local at=espalier word\n  for word in \"${before[@]}\"; do\n    case \"$at $word\" in\n";
  for (const CommandCompletion& command : completions)
    if (command.path != "espalier") text += fmt::format("      '{0}') at='{0}' ;;\n", command.path);
  text += "    esac\n  done\n  local offer=''\n  case \"$at:$previous\" in\n";
  for (const CommandCompletion& command : completions)
    for (const OptionCompletion& flag : command.flags) {
      if (!flag.takes_value) continue;
      for (const std::string& name : spellings(flag))
        text += fmt::format("    '{}:{}') offer='{}'{} ;;\n", command.path, name, fmt::join(flag.values, " "),
                            flag.values.empty() ? "; files=1" : "");
    }
  text += "    *) case \"$at\" in\n";
  for (const CommandCompletion& command : completions)
    text += fmt::format("      '{}') offer='{}' ;;\n", command.path, fmt::join(offers(command), " "));
  text += fmt::format("    esac ;;\n  esac\n{}", answer);
  return text;
}

std::string bash_script(const std::vector<CommandCompletion>& completions) {
  return "# bash completion of espalier; for this shell: source <(espalier completion bash)\n"
         "_espalier() {\n"
         "  local current=\"${COMP_WORDS[COMP_CWORD]}\" previous=\"${COMP_WORDS[COMP_CWORD-1]}\" files=''\n"
         "  local before=(\"${COMP_WORDS[@]:1:COMP_CWORD-1}\")\n" +
         bourne_body(completions,
                     "  COMPREPLY=()\n"
                     "  if [ -n \"$files\" ]; then return; fi\n"
                     "  COMPREPLY=($(compgen -W \"$offer\" -- \"$current\"))\n") +
         "}\ncomplete -o default -F _espalier espalier\n";
}

std::string zsh_script(const std::vector<CommandCompletion>& completions) {
  return "#compdef espalier\n"
         "# zsh completion of espalier; for this shell: source <(espalier completion zsh)\n"
         "_espalier() {\n"
         "  local previous=\"${words[CURRENT-1]}\" files=''\n"
         "  local -a before\n"
         "  before=(\"${(@)words[2,CURRENT-1]}\")\n" +
         bourne_body(completions,
                     "  if [ -n \"$files\" ]; then _files; return; fi\n"
                     "  compadd -- ${=offer}\n") +
         "}\nif [ \"$funcstack[1]\" = _espalier ]; then _espalier \"$@\"; else compdef _espalier espalier; fi\n";
}

std::string fish_quoted(std::string text) {
  for (size_t at = 0; (at = text.find('\'', at)) != text.npos; at += 2) text.insert(at, "\\");
  return "'" + text + "'";
}

std::string fish_script(const std::vector<CommandCompletion>& completions) {
  std::string text =
      "# fish completion of espalier; for this shell: espalier completion fish | source\n"
      "function __espalier_at\n  set -l at espalier\n  for word in (commandline -opc)[2..-1]\n    switch \"$at "
      "$word\"\n";
  for (const CommandCompletion& command : completions)
    if (command.path != "espalier") text += fmt::format("      case '{0}'\n        set at '{0}'\n", command.path);
  text += "    end\n  end\n  test \"$at\" = \"$argv[1]\"\nend\ncomplete -c espalier -f\n";
  for (const CommandCompletion& command : completions) {
    std::string when = fmt::format("complete -c espalier -n '__espalier_at \"{}\"'", command.path);
    for (const auto& [name, help] : command.subs)
      text += fmt::format("{} -a {} -d {}\n", when, name, fish_quoted(help));
    if (!command.words.empty()) text += fmt::format("{} -a '{}'\n", when, fmt::join(command.words, " "));
    for (const OptionCompletion& flag : command.flags) {
      text += when;
      for (const std::string& name : flag.longs) text += " -l " + name;
      for (const std::string& name : flag.shorts) text += " -s " + name;
      if (flag.takes_value)
        text += flag.values.empty() ? " -r -F" : fmt::format(" -x -a '{}'", fmt::join(flag.values, " "));
      text += " -d " + fish_quoted(flag.help) + "\n";
    }
  }
  return text;
}

struct Shell {
  std::string_view name;
  std::string (*script)(const std::vector<CommandCompletion>& completions);
};
constexpr Shell kShells[] = {{"bash", bash_script}, {"zsh", zsh_script}, {"fish", fish_script}};

}  // namespace

void define_completion(const Arguments& app, SelectedCommand& chosen) {
  auto shell = std::make_shared<std::string>();
  app.add_option("shell", *shell, "the shell that will run the script").type_name("bash|zsh|fish").required();
  app.footer("For this shell only: source <(espalier completion bash)");
  app.callback([&chosen, shell] {
    chosen.run = [&chosen, shell] {
      std::vector<CommandCompletion> completions;
      for (const CommandText& command : command_texts(chosen.root)) completions.push_back(command_completion(command));
      fmt::print("{}", find_row("shell", kShells, *shell).script(completions));
      return 0;
    };
  });
}

}  // namespace esp::app
