# esp_room(comm DEPENDS net kernel device obs base)
#
# A room is esp/<name>, namespace esp::<name>, library esp_<name>. Sources are found by pattern: a new file needs no
# edit. <something>_test.cpp files become one test binary per room, <name>_tests, registered test by test.
# A subfolder with a CMakeLists.txt of its own (a plug-in, CUDA) is added after the room and skipped by the pattern.
include(GoogleTest)
include(EspEmbed)

# What the sanitizer presets build and run (label `sanitized`) and fuzz.
add_custom_target(sanitized_tests)
add_custom_target(fuzzers)

# What is compiled once and runs for moments need not be optimised for long: half the time of a build is tests and options.
# Their precompiled header must be made alike. With sanitizers' checks a file takes twice as long to optimise.
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

function(esp_room name)
  cmake_parse_arguments(ROOM "" "" "DEPENDS" ${ARGN})
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

  if(ESP_UNITY AND name STREQUAL "kernel")
    # Ref bodies are what others are held to, and finish their last elements: nobody waits for them.
    set(plain ${sources})
    list(FILTER plain INCLUDE REGEX "/kernel/ref/")
    list(FILTER sources EXCLUDE REGEX "/kernel/ref/")
    add_library(esp_kernel_ref OBJECT ${plain})
    target_link_libraries(esp_kernel_ref PRIVATE esp_flags fmt::fmt esp_device)
    esp_use_precompiled(esp_kernel_ref esp_precompiled_quick)
    esp_unite(esp_kernel_ref ${dir})
    esp_compile_quickly(esp_kernel_ref esp_precompiled_quick)
    list(APPEND sources $<TARGET_OBJECTS:esp_kernel_ref>)
  endif()
  add_library(esp_${name} STATIC ${sources})
  if(ESP_SANITIZE STREQUAL "address" AND name STREQUAL "kernel")
    # Addresses only, and no coverage: more of it and vector code takes minutes a file. Parsers are fuzzed, not arithmetic.
    # In large functions checks are calls, not code in every place: a third of the time to compile.
    target_compile_options(esp_${name} PRIVATE -fno-sanitize=undefined,fuzzer-no-link
                           "SHELL:-mllvm -asan-instrumentation-with-call-threshold=1000")
  elseif(ESP_SANITIZE AND NOT ESP_SANITIZE_ALL AND name MATCHES "^(tensor|nn|optim|parallel|model|train|plan|launch|capi)$")
    # Here for others to stand on, and for their parsers to be fuzzed.
    esp_use_precompiled(esp_${name} esp_precompiled_quick)
    esp_compile_quickly(esp_${name} esp_precompiled_quick)
  elseif(ESP_UNITY AND NOT name MATCHES "^(kernel|tensor)$")
    # For who builds once, and soon: loops over elements are in kernels, and optimising the rest takes a third of the time.
    esp_use_precompiled(esp_${name} esp_precompiled_quick)
    esp_compile_quickly(esp_${name} esp_precompiled_quick)
  else()
    esp_use_precompiled(esp_${name} esp_precompiled)
  endif()
  target_link_libraries(esp_${name} PUBLIC esp_flags fmt::fmt Threads::Threads nlohmann_json::nlohmann_json)
  foreach(dep ${ROOM_DEPENDS})
    target_link_libraries(esp_${name} PUBLIC esp_${dep})
  endforeach()
  if(name STREQUAL "kernel")
    target_link_libraries(esp_${name} PRIVATE PkgConfig::HWY)
    if(ESP_SANITIZE OR ESP_NATIVE)  # one instruction set will do, for tests too: sanitized vector code compiles slowly
      target_compile_definitions(esp_${name} PUBLIC HWY_COMPILE_ONLY_STATIC)
    else()  # AVX-512, AVX2 and plain code; what lies between is in no machine that trains, and costs two fifths of the time
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
  # xxhash and toml++ are compiled in: the binary then runs where their libraries are not installed.
  if(name MATCHES "^(data|ckpt|sync)$")
    target_compile_definitions(esp_${name} PRIVATE XXH_INLINE_ALL)
    target_include_directories(esp_${name} SYSTEM PRIVATE ${XXHASH_INCLUDE_DIRS})
  elseif(name MATCHES "^(train|plan)$")
    target_compile_definitions(esp_${name} PRIVATE TOML_HEADER_ONLY=1)
    if(ESP_SANITIZE)  # toml++ calls some letters outside of strings impossible before it refuses them
      target_compile_options(esp_${name} PRIVATE -fno-sanitize=unreachable)
    endif()
    target_include_directories(esp_${name} SYSTEM PRIVATE ${TOML_INCLUDE_DIRS})
  endif()

  if(name STREQUAL "plan")  # the shipped descriptions travel in the binary
    esp_embed_texts(esp_${name} plan esp/plan/catalog_texts.h ${dir}/catalog/*.toml)
  elseif(name STREQUAL "dash")  # and the page
    set(web ${CMAKE_SOURCE_DIR}/web)
    esp_embed_texts(esp_${name} dash esp/dash/web_files.h ${web}/*.html ${web}/*.css ${web}/*.js)
  endif()

  esp_unite(esp_${name} ${dir})

  if(ESP_TESTS AND tests)
    # Addresses: the rooms that parse, or lay out memory by hand. Threads: those whose threads meet. ./check --long has all.
    set(rooms_address "^(base|obs|device|data|net|comm|ckpt|sync|dash)$")
    set(rooms_thread "^(device|net|comm)$")
    if(ESP_SANITIZE STREQUAL "thread" AND NOT ESP_SANITIZE_ALL)  # codes and problems are arithmetic of one thread
      list(FILTER tests EXCLUDE REGEX "/(compress|problems)/")
    endif()
    set(sanitized SANITIZED)
    if(ESP_SANITIZE AND NOT ESP_SANITIZE_ALL AND NOT name MATCHES "${rooms_${ESP_SANITIZE}}")
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

# esp_test(name [SANITIZED] SOURCES … DEPENDS rooms… [LIBRARIES …] [TIMEOUT s] [FILTER f] [LABEL l]): one GoogleTest binary; each test case is
# one ctest entry. SANITIZED ones also run under the sanitizer presets.
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
  if(NOT ESP_SANITIZE)  # with checks in them, tests that loop would run for minutes
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
    ENVIRONMENT "TSAN_OPTIONS=die_after_fork=0")  # some tests fork, and their children start threads
endfunction()
