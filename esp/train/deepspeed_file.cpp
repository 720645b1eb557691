// Writes an imported DeepSpeed configuration as a run file.
#include <map>

#include <fmt/format.h>

#include "esp/train/deepspeed.h"
#include "esp/train/run_config.h"

namespace esp::train {

std::vector<std::string> DeepSpeedImport::overrides() const {
  std::vector<std::string> all;
  for (const ImportedKey& one : keys) all.push_back(one.key + "=" + one.value);
  return all;
}

std::string to_run_file(const DeepSpeedImport& imported, std::string_view name, std::string_view base) {
  // Replaces control characters, because keys in the file can contain any text, also line breaks.
  const auto in_a_comment = [](std::string text) {
    for (char& c : text)
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
    return text;
  };
  std::string text = fmt::format("# From the DeepSpeed configuration {}.\n", in_a_comment(std::string(name)));
  if (!imported.ignored.empty()) text += "#\n# Not imported:\n";
  for (const auto& one : imported.ignored) text += in_a_comment(fmt::format("#   {}: {}", one.from, one.why)) + "\n";
  if (base.empty() && !imported.missing.empty()) {
    text += "#\n# Still needed:\n";
    for (const std::string& one : imported.missing) text += in_a_comment("#   " + one) + "\n";
  }
  text += '\n';
  if (!base.empty()) return text + to_toml(parse_run_config(base, "the base", imported.overrides()));

  std::map<std::string, std::string> sections;
  for (const auto& one : imported.keys) {
    const size_t dot = one.key.find('.');
    std::string why = one.from.empty() ? "DeepSpeed's default" : one.from;
    if (!one.note.empty()) why += "; " + one.note;
    sections[one.key.substr(0, dot)] +=
        fmt::format("{:<28} # {}\n", fmt::format("{} = {}", one.key.substr(dot + 1), one.value), in_a_comment(why));
  }
  for (const auto& [section, lines] : sections) text += fmt::format("[{}]\n{}\n", section, lines);
  return text;
}

}  // namespace esp::train
