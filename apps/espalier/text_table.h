// Text tables. The same cells can be printed as aligned text for a terminal or as Markdown.
#pragma once

#include <string>
#include <vector>

namespace esp::app {

using Cells = std::vector<std::string>;

// One line of right-aligned columns, each at least `width` characters wide (code points, so µ and × count once).
std::string text_line(const Cells& cells, size_t width);
// A table whose columns are as wide as their widest cell. The first column is left-aligned.
std::string text_table(const Cells& head, const std::vector<Cells>& rows);
std::string markdown_table(const Cells& head, const std::vector<Cells>& rows);

}  // namespace esp::app
