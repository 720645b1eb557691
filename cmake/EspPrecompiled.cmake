# Precompiled headers: one for all modules, one for all tests.
# Without -fno-pch-timestamp Clang stores times in precompiled headers, and the compiler cache never hits.
option(ESP_PRECOMPILED "Precompile the common headers" ON)

function(esp_add_precompiled name header)
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/cmake/precompiled/holder.cpp)
  target_link_libraries(${name} PRIVATE esp_flags fmt::fmt Threads::Threads nlohmann_json::nlohmann_json ${ARGN})
  target_precompile_headers(${name} PRIVATE ${CMAKE_SOURCE_DIR}/cmake/precompiled/${header})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    target_compile_options(${name} PRIVATE -Xclang -fno-pch-timestamp)
  endif()
endfunction()

if(ESP_PRECOMPILED)
  esp_add_precompiled(esp_precompiled common.h)
  if(ESP_SANITIZE)  # for esp_compile_quickly
    esp_add_precompiled(esp_precompiled_quick common.h)
  elseif(ESP_UNITY)
    esp_add_precompiled(esp_precompiled_quick quick.h)
  endif()
  if(ESP_TESTS)
    # Tests are executables (-fPIE, not -fPIC); targets that share a precompiled header need the same flags.
    esp_add_precompiled(esp_precompiled_tests tests.h GTest::gtest GTest::gmock)
    set_target_properties(esp_precompiled_tests PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(esp_precompiled_tests PRIVATE -fPIE)
  endif()
endif()

function(esp_use_precompiled target holder)
  if(TARGET ${holder})
    target_precompile_headers(${target} REUSE_FROM ${holder})
  endif()
endfunction()
