# esp_module(comm DEPENDS net kernel device obs base)
#
# A module is esp/<name>, namespace esp::<name>, library esp_<name>. Sources are found by glob: a new file needs no
# edit. The <something>_test.cpp files of a module become one test binary, <name>_tests, with one ctest entry per test.
# A subfolder with its own CMakeLists.txt (a plug-in, CUDA) is added after the module; the glob skips it.
include(GoogleTest)
include(EspEmbed)

# Targets of the sanitizer presets: the tests with label `sanitized`, and the fuzzers.
add_custom_target(sanitized_tests)
add_custom_target(fuzzers)

# Compiles targets with -O1 (-O0 under sanitizers): code that runs only briefly, such as tests and option tables, takes
# half of the build time when it is fully optimised. The target's precompiled header must use the same flags.
# Sanitizer checks double the time that optimising a file takes.
function(esp_compile_quickly)
  foreach(target ${ARGN})
    if(TARGET ${target})
      get_target_property(quick ${target} ESP_QUICK)
      if(NOT quick)
        set_target_properties(${target} PROPERTIES ESP_QUICK ON)
        if(ESP_SANITIZE)
          target_compile_options(${target} PRIVATE -O0)
        else()
          target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1> ${ESP_UNITY_FLAGS})
        endif()
      endif()
    endif()
  endforeach()
endfunction()

function(esp_module name)
  cmake_parse_arguments(MODULE "" "" "DEPENDS" ${ARGN})
  set(dir ${CMAKE_SOURCE_DIR}/esp/${name})
  file(GLOB_RECURSE all CONFIGURE_DEPENDS ${dir}/*.cpp)
  file(GLOB_RECURSE own_build CONFIGURE_DEPENDS ${dir}/*/CMakeLists.txt)
  foreach(list_file ${own_build})
    get_filename_component(sub ${list_file} DIRECTORY)
    list(FILTER all EXCLUDE REGEX "^${sub}/")
  endforeach()
  set(tests ${all})
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  set(fuzzers ${all})
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cpp$")
  set(sources ${all})
  list(FILTER sources EXCLUDE REGEX "_(test|fuzz)\\.cpp$")
  if(URING_FOUND)
    list(FILTER sources EXCLUDE REGEX "/no_uring_io\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "/uring_io\\.cpp$")
  endif()
  if(ESP_CUDA)
    list(FILTER sources EXCLUDE REGEX "/no_cuda\\.cpp$")
  endif()

  if(ESP_UNITY AND NOT ESP_SANITIZE AND name STREQUAL "kernel")
    # Reference kernels only check the others and process the last elements of a row: their speed does not matter.
    set(plain ${sources})
    list(FILTER plain INCLUDE REGEX "/kernel/ref/")
    list(FILTER sources EXCLUDE REGEX "/kernel/ref/")
    add_library(esp_kernel_ref OBJECT ${plain})
    target_link_libraries(esp_kernel_ref PRIVATE esp_flags fmt::fmt esp_device)
    esp_use_precompiled(esp_kernel_ref esp_precompiled_quick)
    esp_enable_unity(esp_kernel_ref ${dir})
    esp_compile_quickly(esp_kernel_ref esp_precompiled_quick)
    list(APPEND sources $<TARGET_OBJECTS:esp_kernel_ref>)
  endif()
  add_library(esp_${name} STATIC ${sources})
  if(ESP_SANITIZE STREQUAL "address" AND name STREQUAL "kernel")
    # Address checks only, no coverage: with more instrumentation, vector code takes minutes per file to compile. Parsers
    # are fuzzed, arithmetic is not. Large functions call the checks instead of inlining them: a third of the compile time.
    target_compile_options(esp_${name} PRIVATE -fno-sanitize=undefined,fuzzer-no-link
                           "SHELL:-mllvm -asan-instrumentation-with-call-threshold=1000")
  elseif(ESP_SANITIZE STREQUAL "undefined" AND name STREQUAL "kernel")
    target_compile_options(esp_${name} PRIVATE -fno-sanitize=undefined,fuzzer-no-link)
  elseif(ESP_SANITIZE AND NOT ESP_SANITIZE_ALL AND NOT ESP_SANITIZE STREQUAL "undefined" AND name MATCHES "^(tensor|nn|optim|parallel|model|train|plan|launch|capi)$")
    # These modules are built only as dependencies and for the fuzzers of their parsers; their own tests are not run.
    esp_use_precompiled(esp_${name} esp_precompiled_quick)
    esp_compile_quickly(esp_${name} esp_precompiled_quick)
  elseif(ESP_UNITY AND NOT ESP_SANITIZE AND NOT name MATCHES "^(kernel|tensor)$")
    # Unity builds are for a fast first build: loops over elements are in kernels, and optimising the rest takes a third of the build time.
    esp_use_precompiled(esp_${name} esp_precompiled_quick)
    esp_compile_quickly(esp_${name} esp_precompiled_quick)
  else()
    esp_use_precompiled(esp_${name} esp_precompiled)
  endif()
  if(ESP_SANITIZE STREQUAL "undefined")
    # Coverage of arithmetic and name comparisons does not help the fuzzers of parsers, and takes nine tenths of their time.
    set(arithmetic ${sources})
    list(FILTER arithmetic INCLUDE REGEX "/(base/table|plan/(activations|calibrated_rates|compressed_bytes|cost|data_traffic|espalier_[a-z]+|estimate|feasible|kernels|layers|memory|message_times|network|pi[a-z]+_time|shape|software|states|(search|simulate|dry_run)/[a-z_]+))\\.cpp$")
    set_source_files_properties(${arithmetic} PROPERTIES COMPILE_OPTIONS -fno-sanitize=fuzzer-no-link SKIP_PRECOMPILE_HEADERS ON)
  endif()
  target_link_libraries(esp_${name} PUBLIC esp_flags fmt::fmt Threads::Threads nlohmann_json::nlohmann_json)
  foreach(dep ${MODULE_DEPENDS})
    target_link_libraries(esp_${name} PUBLIC esp_${dep})
  endforeach()
  if(name STREQUAL "kernel")
    target_link_libraries(esp_${name} PRIVATE PkgConfig::HWY)
    if(ESP_SANITIZE OR ESP_NATIVE)  # one instruction set, also for tests: sanitized vector code compiles slowly
      target_compile_definitions(esp_${name} PUBLIC HWY_COMPILE_ONLY_STATIC)
    else()  # AVX-512, AVX2 and scalar code; training machines have no other sets, and these cost two fifths of the compile time
      target_compile_definitions(esp_${name} PUBLIC "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4)")
    endif()
  elseif(name STREQUAL "net")
    target_link_libraries(esp_${name} PRIVATE OpenSSL::SSL OpenSSL::Crypto ${CMAKE_DL_LIBS})
  elseif(name STREQUAL "data")
    target_link_libraries(esp_${name} PRIVATE ZLIB::ZLIB PkgConfig::ZSTD)
  elseif(name STREQUAL "sync" AND URING_FOUND)
    target_include_directories(esp_${name} SYSTEM PRIVATE ${URING_INCLUDE_DIRS})
    target_link_libraries(esp_${name} PRIVATE ${ESP_URING_LIBRARY})
  endif()
  # xxhash and toml++ are header-only here: the binary also runs where their libraries are not installed.
  if(name MATCHES "^(data|ckpt|sync)$")
    target_compile_definitions(esp_${name} PRIVATE XXH_INLINE_ALL)
    target_include_directories(esp_${name} SYSTEM PRIVATE ${XXHASH_INCLUDE_DIRS})
  elseif(name MATCHES "^(train|plan)$")
    target_compile_definitions(esp_${name} PRIVATE TOML_HEADER_ONLY=1)
    if(ESP_SANITIZE)  # toml++ marks some characters outside of strings as unreachable before it rejects them
      target_compile_options(esp_${name} PRIVATE -fno-sanitize=unreachable)
    endif()
    target_include_directories(esp_${name} SYSTEM PRIVATE ${TOML_INCLUDE_DIRS})
  endif()

  if(name STREQUAL "plan")  # embeds the shipped cluster and model descriptions
    esp_embed_texts(esp_${name} plan esp/plan/catalog_texts.h CatalogText catalog_texts ${dir}/catalog/*.toml)
  elseif(name STREQUAL "dash")  # embeds the web page
    set(web ${CMAKE_SOURCE_DIR}/web)
    esp_embed_texts(esp_${name} dash esp/dash/web_files.h EmbeddedText embedded_texts ${web}/*.html ${web}/*.css ${web}/*.js)
  endif()

  esp_enable_unity(esp_${name} ${dir})

  if(ESP_TESTS AND tests)
    # Address sanitizer: modules that parse input or lay out memory by hand. Thread sanitizer: modules whose threads share
    # data. ./check --long runs all modules.
    set(modules_address "^(base|obs|device|data|net|comm|ckpt|sync|dash)$")
    set(modules_thread "^(device|net|comm|dash)$")
    if(ESP_SANITIZE STREQUAL "thread" AND NOT ESP_SANITIZE_ALL)  # compressors and test problems are single-threaded arithmetic
      list(FILTER tests EXCLUDE REGEX "/(compress|problems)/")
    endif()
    set(sanitized SANITIZED)
    if(ESP_SANITIZE AND NOT ESP_SANITIZE_ALL AND NOT name MATCHES "${modules_${ESP_SANITIZE}}")
      set(sanitized "")
    endif()
    esp_test(${name}_tests ${sanitized} SOURCES ${tests} DEPENDS ${name})
  endif()
  if(ESP_FUZZ)
    foreach(source ${fuzzers})
      get_filename_component(fuzzer ${source} NAME_WE)
      add_executable(${fuzzer} ${source})
      target_link_libraries(${fuzzer} PRIVATE esp_${name})
      target_link_options(${fuzzer} PRIVATE -fsanitize=fuzzer)
      add_dependencies(fuzzers ${fuzzer})
    endforeach()
  endif()
  foreach(list_file ${own_build})
    get_filename_component(sub ${list_file} DIRECTORY)
    add_subdirectory(${sub})
  endforeach()
endfunction()

# esp_test(name [SANITIZED] SOURCES … DEPENDS modules… [LIBRARIES …] [TIMEOUT s] [FILTER f] [LABEL l]): one GoogleTest
# binary with one ctest entry per test case. SANITIZED tests also run under the sanitizer presets.
function(esp_test name)
  cmake_parse_arguments(TEST "SANITIZED" "TIMEOUT;FILTER;LABEL" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 120)
  endif()
  add_executable(${name} ${TEST_SOURCES})
  target_link_libraries(${name} PRIVATE esp_flags GTest::gtest GTest::gmock GTest::gtest_main ${TEST_LIBRARIES})
  foreach(dep ${TEST_DEPENDS})
    target_link_libraries(${name} PRIVATE esp_${dep})
  endforeach()
  esp_use_precompiled(${name} esp_precompiled_tests)
  if(NOT ESP_SANITIZE)  # unoptimised loops with sanitizer checks would run for minutes
    esp_compile_quickly(${name} esp_precompiled_tests)
  endif()
  set(label release_only)
  if(TEST_SANITIZED)
    set(label sanitized)
    add_dependencies(sanitized_tests ${name})
  endif()
  if(TEST_LABEL)
    set(label ${TEST_LABEL})
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 TEST_FILTER "${TEST_FILTER}" PROPERTIES
    TIMEOUT ${TEST_TIMEOUT} LABELS ${label}
    ENVIRONMENT "TSAN_OPTIONS=die_after_fork=0")  # some tests fork, and the child processes start threads
endfunction()
