# esp_embed_texts(target module header type function pattern…): embeds the files that match the patterns into the target. The
# generated source defines esp::<module>::<function>() of the header, a table of <type> {name, text}. It is regenerated
# whenever one of the files changes.
#
# As a script (cmake -P) this file writes the generated source: -DOUT=… -DMODULE=… -DHEADER=… -DTYPE=… -DFUNCTION=… -DFILES=a;b.
if(CMAKE_SCRIPT_MODE_FILE)
  set(rows "")
  foreach(path ${FILES})
    get_filename_component(name ${path} NAME)
    file(READ ${path} text)
    string(APPEND rows "    {\"${name}\", R\"~~~(${text})~~~\"},\n")
  endforeach()
  file(WRITE ${OUT} "// Generated from the embedded files.
#include \"${HEADER}\"

namespace esp::${MODULE} {
namespace {

constexpr ${TYPE} kTexts[] = {
${rows}};

}  // namespace

std::span<const ${TYPE}> ${FUNCTION}() {
  return kTexts;
}

}  // namespace esp::${MODULE}
")
  return()
endif()

set(ESP_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})

function(esp_embed_texts target module header type function)
  file(GLOB files CONFIGURE_DEPENDS ${ARGN})
  set(made ${CMAKE_CURRENT_BINARY_DIR}/${target}_texts.cpp)
  add_custom_command(OUTPUT ${made}
    COMMAND ${CMAKE_COMMAND} "-DOUT=${made}" -DMODULE=${module} -DHEADER=${header} -DTYPE=${type}
      -DFUNCTION=${function} "-DFILES=${files}" -P ${ESP_EMBED_SCRIPT}
    DEPENDS ${files} ${ESP_EMBED_SCRIPT} VERBATIM)
  target_sources(${target} PRIVATE ${made})
endfunction()
