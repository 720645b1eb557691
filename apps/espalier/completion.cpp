// espalier completion bash|zsh|fish: scripts made by walking the very option table that parses, so they cannot drift.
// An option or argument whose type name reads a|b|c offers those words.
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

struct Flag {
  std::vector<std::string> longs, shorts;
  std::vector<std::string> values;  // words its argument may be
  bool takes_value = false;
  std::string help;
};

struct Node {
  std::string path;                                       // "espalier bench comm"
  std::vector<std::pair<std::string, std::string>> subs;  // name, help
  std::vector<std::string> words;                         // positional choices
  std::vector<Flag> flags;
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

Node node_of(const CommandText& it) {
  Node node{it.joined(" "), it.subs, {}, {}};
  for (const OptionText& option : it.options) {
    std::vector<std::string> values = alternatives(option.type);
    if (option.positional) {
      node.words.insert(node.words.end(), values.begin(), values.end());
      continue;
    }
    Flag flag{{}, {}, values, option.takes_value, option.help};
    for (const std::string& name : option.names)
      (name.starts_with("--") ? flag.longs : flag.shorts).push_back(name.substr(name.starts_with("--") ? 2 : 1));
    node.flags.push_back(std::move(flag));
  }
  return node;
}

std::vector<std::string> spellings(const Flag& flag) {
  std::vector<std::string> names;
  for (const std::string& name : flag.longs) names.push_back("--" + name);
  for (const std::string& name : flag.shorts) names.push_back("-" + name);
  return names;
}

std::vector<std::string> offers(const Node& node) {
  std::vector<std::string> words;
  for (const auto& sub : node.subs) words.push_back(sub.first);
  words.insert(words.end(), node.words.begin(), node.words.end());
  for (const Flag& flag : node.flags)
    for (const std::string& name : spellings(flag)) words.push_back(name);
  return words;
}

// bash and zsh differ only in where the words come from and where the answers go.
std::string bourne_body(const std::vector<Node>& nodes, std::string_view answer) {
  std::string text = "  local at=espalier word\n  for word in \"${before[@]}\"; do\n    case \"$at $word\" in\n";
  for (const Node& node : nodes)
    if (node.path != "espalier") text += fmt::format("      '{0}') at='{0}' ;;\n", node.path);
  text += "    esac\n  done\n  local offer=''\n  case \"$at:$previous\" in\n";
  for (const Node& node : nodes)
    for (const Flag& flag : node.flags) {
      if (!flag.takes_value) continue;
      for (const std::string& name : spellings(flag))
        text += fmt::format("    '{}:{}') offer='{}'{} ;;\n", node.path, name, fmt::join(flag.values, " "),
                            flag.values.empty() ? "; files=1" : "");
    }
  text += "    *) case \"$at\" in\n";
  for (const Node& node : nodes)
    text += fmt::format("      '{}') offer='{}' ;;\n", node.path, fmt::join(offers(node), " "));
  text += fmt::format("    esac ;;\n  esac\n{}", answer);
  return text;
}

std::string bash_script(const std::vector<Node>& nodes) {
  return "# bash completion of espalier; for this shell: source <(espalier completion bash)\n"
         "_espalier() {\n"
         "  local current=\"${COMP_WORDS[COMP_CWORD]}\" previous=\"${COMP_WORDS[COMP_CWORD-1]}\" files=''\n"
         "  local before=(\"${COMP_WORDS[@]:1:COMP_CWORD-1}\")\n" +
         bourne_body(nodes,
                     "  COMPREPLY=()\n"
                     "  if [ -n \"$files\" ]; then return; fi\n"
                     "  COMPREPLY=($(compgen -W \"$offer\" -- \"$current\"))\n") +
         "}\ncomplete -o default -F _espalier espalier\n";
}

std::string zsh_script(const std::vector<Node>& nodes) {
  return "#compdef espalier\n"
         "# zsh completion of espalier; for this shell: source <(espalier completion zsh)\n"
         "_espalier() {\n"
         "  local previous=\"${words[CURRENT-1]}\" files=''\n"
         "  local -a before\n"
         "  before=(\"${(@)words[2,CURRENT-1]}\")\n" +
         bourne_body(nodes,
                     "  if [ -n \"$files\" ]; then _files; return; fi\n"
                     "  compadd -- ${=offer}\n") +
         "}\nif [ \"$funcstack[1]\" = _espalier ]; then _espalier \"$@\"; else compdef _espalier espalier; fi\n";
}

std::string fish_quoted(std::string text) {
  for (size_t at = 0; (at = text.find('\'', at)) != text.npos; at += 2) text.insert(at, "\\");
  return "'" + text + "'";
}

std::string fish_script(const std::vector<Node>& nodes) {
  std::string text =
      "# fish completion of espalier; for this shell: espalier completion fish | source\n"
      "function __espalier_at\n  set -l at espalier\n  for word in (commandline -opc)[2..-1]\n    switch \"$at "
      "$word\"\n";
  for (const Node& node : nodes)
    if (node.path != "espalier") text += fmt::format("      case '{0}'\n        set at '{0}'\n", node.path);
  text += "    end\n  end\n  test \"$at\" = \"$argv[1]\"\nend\ncomplete -c espalier -f\n";
  for (const Node& node : nodes) {
    std::string when = fmt::format("complete -c espalier -n '__espalier_at \"{}\"'", node.path);
    for (const auto& [name, help] : node.subs) text += fmt::format("{} -a {} -d {}\n", when, name, fish_quoted(help));
    if (!node.words.empty()) text += fmt::format("{} -a '{}'\n", when, fmt::join(node.words, " "));
    for (const Flag& flag : node.flags) {
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
  std::string (*script)(const std::vector<Node>& nodes);
};
constexpr Shell kShells[] = {{"bash", bash_script}, {"zsh", zsh_script}, {"fish", fish_script}};

}  // namespace

void define_completion(const Arguments& app, Chosen& chosen) {
  auto shell = std::make_shared<std::string>();
  app.add_option("shell", *shell, "the shell to complete in").type_name("bash|zsh|fish").required();
  app.footer("For this shell only: source <(espalier completion bash)");
  app.callback([&chosen, shell] {
    chosen.run = [&chosen, shell] {
      std::vector<Node> nodes;
      for (const CommandText& it : command_texts(chosen.root)) nodes.push_back(node_of(it));
      fmt::print("{}", find_row("shell", kShells, *shell).script(nodes));
      return 0;
    };
  });
}

}  // namespace esp::app
