// The contents of catalog/*.toml, embedded at build time.
#pragma once

#include <span>
#include <string_view>

namespace esp::plan {

struct CatalogText {
  std::string_view name, text;  // name: "processors.toml"; text: the file's content
};
std::span<const CatalogText> catalog_texts();

}  // namespace esp::plan
