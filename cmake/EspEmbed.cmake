# esp_embed_texts(target room header pattern…): the files of the patterns as constants of the target. The made file holds a
# table of names and texts, esp::<room>::embedded_texts() of the header, made anew whenever one of them changes.
#
# Run as a script (cmake -P) it writes that file: -DOUT=… -DROOM=… -DHEADER=… -DFILES=a;b.
if(CMAKE_SCRIPT_MODE_FILE)
  set(rows "")
  foreach(path ${FILES})
    get_filename_component(name ${path} NAME)
    file(READ ${path} text)
    string(APPEND rows "    {\"${name}\", R\"~~~(${text})~~~\"},\n")
  endforeach()
  file(WRITE ${OUT} "// Made from the files it holds.
#include \"${HEADER}\"

namespace esp::${ROOM} {
namespace {

constexpr EmbeddedText kTexts[] = {
${rows}};

}  // namespace

std::span<const EmbeddedText> embedded_texts() {
  return kTexts;
}

}  // namespace esp::${ROOM}
")
  return()
endif()

set(ESP_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})

function(esp_embed_texts target room header)
  file(GLOB files CONFIGURE_DEPENDS ${ARGN})
  set(made ${CMAKE_CURRENT_BINARY_DIR}/${target}_texts.cpp)
  add_custom_command(OUTPUT ${made}
    COMMAND ${CMAKE_COMMAND} "-DOUT=${made}" -DROOM=${room} -DHEADER=${header} "-DFILES=${files}" -P ${ESP_EMBED_SCRIPT}
    DEPENDS ${files} ${ESP_EMBED_SCRIPT} VERBATIM)
  target_sources(${target} PRIVATE ${made})
endfunction()
