// Tables of words: the same cells as aligned text for a terminal or as Markdown for a file.
#pragma once

#include <string>
#include <vector>

namespace esp::app {

using Cells = std::vector<std::string>;

// Right-aligned in columns of at least `width` characters (code points, so that µ and × count once).
std::string text_line(const Cells& cells, size_t width);
// Columns as wide as their widest cell; the first column to the left.
std::string text_table(const Cells& head, const std::vector<Cells>& rows);
std::string markdown_table(const Cells& head, const std::vector<Cells>& rows);

}  // namespace esp::app
