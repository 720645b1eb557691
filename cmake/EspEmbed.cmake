# esp_embed_texts(target folder): every .toml of the folder as a constant of the target. The made file holds a table of
# names and texts, esp::plan::embedded_texts() of catalog_texts.h, made anew whenever one of them changes.
#
# Run as a script (cmake -P) it writes that file: -DOUT=… -DFILES=a;b.
if(CMAKE_SCRIPT_MODE_FILE)
  set(rows "")
  foreach(path ${FILES})
    get_filename_component(name ${path} NAME)
    file(READ ${path} text)
    string(APPEND rows "    {\"${name}\", R\"~~~(${text})~~~\"},\n")
  endforeach()
  file(WRITE ${OUT} "// Made from the descriptions of esp/plan/catalog.
#include \"esp/plan/catalog_texts.h\"

namespace esp::plan {
namespace {

constexpr EmbeddedText kTexts[] = {
${rows}};

}  // namespace

std::span<const EmbeddedText> embedded_texts() {
  return kTexts;
}

}  // namespace esp::plan
")
  return()
endif()

set(ESP_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})

function(esp_embed_texts target folder)
  file(GLOB files CONFIGURE_DEPENDS ${folder}/*.toml)
  set(made ${CMAKE_CURRENT_BINARY_DIR}/${target}_texts.cpp)
  add_custom_command(OUTPUT ${made}
    COMMAND ${CMAKE_COMMAND} "-DOUT=${made}" "-DFILES=${files}" -P ${ESP_EMBED_SCRIPT}
    DEPENDS ${files} ${ESP_EMBED_SCRIPT} VERBATIM)
  target_sources(${target} PRIVATE ${made})
endfunction()
