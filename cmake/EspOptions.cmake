# Language, warnings, hardening, sanitizers. Presets choose among these; see CMakePresets.json.
option(ESP_TESTS "Build the tests" ON)
option(ESP_WERROR "Treat warnings as errors" ON)
option(ESP_FUZZ "Build the fuzz targets too (needs clang)" OFF)
option(ESP_CUDA "Compile the CUDA parts" OFF)
option(ESP_UNITY "Unity build: compile several files as one, for a fast first build" OFF)
option(ESP_NATIVE "Compile only for the CPU of this machine: kernels once, not for each instruction set" OFF)
set(ESP_SANITIZE "" CACHE STRING "address (with undefined), undefined, thread, or empty")
option(ESP_SANITIZE_ALL "Sanitize the tests of all modules, not only of the most important ones" OFF)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths are relative to the source: a second clone hits the cache of the first. ccache requires this sloppiness setting
  # for precompiled headers.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

add_library(esp_flags INTERFACE)
target_include_directories(esp_flags INTERFACE
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}> $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>)
function(esp_cxx_flags)  # C++ compiler only; nvcc has other flags
  foreach(flag ${ARGN})
    target_compile_options(esp_flags INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:${flag}>)
  endforeach()
endfunction()
if(NOT ESP_UNITY)  # unity builds skip warnings: they cost build time
  esp_cxx_flags(-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wno-missing-field-initializers)
else()
  esp_cxx_flags(-w)  # unity files include other .cpp files, which triggers header-only warnings
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 reports false overruns in std::string when its header is precompiled and not a system header.
  target_compile_options(esp_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds -Wno-restrict
    -Wno-stringop-overflow -Wno-stringop-overread>)
endif()
if(ESP_WERROR)
  esp_cxx_flags(-Werror)
endif()
# No FMA contraction: an FMA fused in one build only would break bit-equality between ranks.
esp_cxx_flags(-ffp-contract=off)

if(ESP_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # fewer garbage collections of the compiler: a tenth of the time of large files
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:--param=ggc-min-heapsize=500000>)
endif()
if(ESP_UNITY)  # format strings are checked in the other builds
  add_compile_definitions($<$<COMPILE_LANGUAGE:CXX>:FMT_CONSTEVAL=>)
endif()
# Passes removed from -O1 for a fast build. Inlining stays, which gives most of the gain for code with many small
# functions. The removed passes take a quarter of the build time. Kernels keep full optimisation.
set(ESP_UNITY_FLAGS "")
if(ESP_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  foreach(pass tree-pta tree-dominator-opts tree-sra tree-dse tree-sink tree-fre tree-bit-ccp tree-copy-prop tree-ch tree-slsr
          tree-builtin-call-dce ssa-phiopt move-loop-invariants ipa-modref ipa-pure-const ipa-reference ipa-profile
          shrink-wrap combine-stack-adjustments if-conversion if-conversion2 cprop-registers forward-propagate dce dse
          split-wide-types branch-count-reg reorder-blocks)
    list(APPEND ESP_UNITY_FLAGS -fno-${pass})
  endforeach()
endif()
if(ESP_NATIVE)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-march=native>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # false warnings in its AVX-512 headers (_mm512_undefined)
    esp_cxx_flags(-Wno-uninitialized -Wno-maybe-uninitialized)
  endif()
endif()

if(ESP_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Instrumentation causes false maybe-uninitialized warnings.
  esp_cxx_flags(-Wno-maybe-uninitialized)
endif()
if(ESP_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
  if(ESP_FUZZ)  # coverage feedback from the code under test; the runner itself is linked into the fuzz targets only
    add_compile_options(-fsanitize=fuzzer-no-link)
  endif()
elseif(ESP_SANITIZE STREQUAL "undefined")
  # For long fuzzing: several times as fast as with the address sanitizer. Containers check their bounds.
  add_compile_options(-fsanitize=undefined -fsanitize-trap=undefined)
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
  if(ESP_FUZZ)
    add_compile_options(-fsanitize=fuzzer-no-link)
  endif()
elseif(ESP_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
else()
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fstack-protector-strong>)
  add_compile_definitions($<$<CONFIG:Release>:_FORTIFY_SOURCE=2>)
  add_link_options(-Wl,-z,relro,-z,now)
endif()
