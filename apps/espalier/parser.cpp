#include "apps/espalier/parser.h"

#include <algorithm>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

namespace esp::app {
namespace {

constexpr size_t kMany = 36;              // in a help text with more options than this, two short entries share a row
constexpr size_t kName = 20, kHelp = 36;  // maximum lengths of an entry that may share a row
constexpr size_t kColumn = 2 + kName + kHelp + 1;

size_t shown_width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string padded(const std::string& text, size_t width) {
  const size_t shown = shown_width(text);
  return text + std::string(width > shown ? width - shown : 0, ' ');
}

// Help formatter: commands with very many options show two short options per row.
class HelpText : public CLI::Formatter {
 public:
  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override {
    if (options.size() <= kMany) return CLI::Formatter::make_group(group, is_positional, options);
    std::string text = fmt::format("\n{}:\n", group), left;
    for (const CLI::Option* option : options) {
      const std::string name = make_option_name(option, is_positional) + make_option_opts(option);
      const std::string help = make_option_desc(option);
      if (shown_width(name) < kName && shown_width(help) <= kHelp) {
        const std::string entry = fmt::format("  {}{}", padded(name, kName), help);
        text += left.empty() ? "" : padded(left, kColumn) + entry + "\n";
        left = left.empty() ? entry : "";
        continue;
      }
      if (!left.empty()) text += left + "\n";
      left.clear();
      text += make_option(option, is_positional);
    }
    return left.empty() ? text : text + left + "\n";
  }

  // As CLI11 formats an option, but aligned by displayed width (UTF-8 characters instead of bytes).
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    const std::string name = "  " + make_option_name(option, is_positional) + make_option_opts(option);
    const std::string help = make_option_desc(option);
    if (help.empty()) return name + "\n";
    const std::string indent(column_width_, ' ');
    std::string text = shown_width(name) >= column_width_ ? name + "\n" + indent : padded(name, column_width_);
    for (const char c : help) text += c == '\n' ? "\n" + indent : std::string(1, c);
    return text + "\n";
  }
};

}  // namespace

Parser::Parser(const About& about) : app_(std::make_unique<CLI::App>(about.help, about.name)) {
  app_->set_version_flag("--version,-V", about.version, about.version_help);
  app_->formatter(std::make_shared<HelpText>());
  app_->get_formatter()->column_width(36);
  app_->footer(about.footer);
}

Parser::~Parser() = default;

Arguments Parser::root() const {
  return Arguments(app_.get());
}

Parser::ParseResult Parser::parse(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::Success& success) {  // thrown for --help and --version
    return {ParseResult::Kind::printed, app_->exit(success), "", false};
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string message = error.what(), name = message.substr(0, message.find(": "));
    return {ParseResult::Kind::rejected, 0,
            message.find("At Most 1") != message.npos  ? name + ": given more than once; expected once"
            : message.find(" missing") != message.npos ? name + ": got no value; expected one after it"
                                                       : message,
            false};
  } catch (const CLI::ParseError& error) {
    return {ParseResult::Kind::rejected, 0, error.what(), dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr};
  }
  return {};
}

std::string Parser::help() const {
  return app_->help();
}

}  // namespace esp::app
