#include "apps/espalier/text_table.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace esp::app {
namespace {

size_t shown_width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string padded(const std::string& text, size_t width, bool left) {
  size_t shown = shown_width(text);
  std::string space(width > shown ? width - shown : 0, ' ');
  return left ? text + space : space + text;
}

}  // namespace

std::string text_line(const Cells& cells, size_t width) {
  std::string line;
  for (const std::string& cell : cells) line += padded(cell, std::max(width, shown_width(cell) + 2), false);
  return line + "\n";
}

std::string text_table(const Cells& head, const std::vector<Cells>& rows) {
  std::vector<size_t> widths;
  auto widen = [&](const Cells& row) {
    widths.resize(std::max(widths.size(), row.size()));  // a row may have an additional note after the last column
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], shown_width(row[i]));
  };
  widen(head);
  for (const Cells& row : rows) widen(row);
  std::string text;
  auto add = [&](const Cells& row) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += (i ? "  " : "") + padded(row[i], widths[i], i == 0);
    while (!line.empty() && line.back() == ' ') line.pop_back();
    text += line + "\n";
  };
  add(head);
  for (const Cells& row : rows) add(row);
  return text;
}

std::string markdown_table(const Cells& head, const std::vector<Cells>& rows) {
  std::string text = fmt::format("| {} |\n|{}\n", fmt::join(head, " | "), [&] {
    std::string rule;
    for (size_t i = 0; i < head.size(); ++i) rule += "---:|";
    return rule;
  }());
  for (const Cells& row : rows) text += fmt::format("| {} |\n", fmt::join(row, " | "));
  return text;
}

}  // namespace esp::app
