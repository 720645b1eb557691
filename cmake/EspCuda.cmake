# The CUDA parts: esp/device/cuda, esp/kernel/cuda and esp/comm/nccl, each with a CMakeLists.txt that adds its files to its
# room. Without ESP_CUDA a no_cuda.cpp of the room stands in for them.
#
# One architecture, machine code only: nothing is compiled at start, and the build stays short. The runtime is linked
# in; cuBLASLt, cuDNN and NCCL are shared libraries.
set(ESP_CUDA_ARCHITECTURE 90a CACHE STRING "What nvcc compiles for")
option(ESP_CUDA_QUICK "Compile for a GPU without optimising: a quarter of the time, to see that it compiles" OFF)

# esp_cuda(room): adds this folder's .cu and .cpp to the room, and its _test.cpp and _test.cu to <room>_cuda_tests.
function(esp_cuda room)
  if(NOT ESP_CUDA)
    return()
  endif()
  file(GLOB_RECURSE all CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cu ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  set(tests ${all})
  list(FILTER tests INCLUDE REGEX "_test\\.(cpp|cu)$")
  list(FILTER all EXCLUDE REGEX "_test\\.(cpp|cu)$")
  target_sources(esp_${room} PRIVATE ${all})
  # For these files alone: the room's others are compiled as without CUDA, and the compiler cache has them.
  list(FILTER all INCLUDE REGEX "\\.cpp$")
  if(all)
    set_source_files_properties(${all} TARGET_DIRECTORY esp_${room} PROPERTIES
      COMPILE_OPTIONS "-isystem;${CUDAToolkit_INCLUDE_DIRS}" SKIP_PRECOMPILE_HEADERS ON)
    target_link_libraries(esp_${room} PRIVATE $<LINK_ONLY:CUDA::cudart_static>)
  endif()
  if(ESP_TESTS AND tests)
    esp_test(${room}_cuda_tests SOURCES ${tests} DEPENDS ${room} LIBRARIES CUDA::cudart_static LABEL gpu)
    target_include_directories(${room}_cuda_tests SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  endif()
endfunction()

if(NOT ESP_CUDA)
  message(STATUS "✗ CUDA not asked for: -DESP_CUDA=ON compiles the parts that run on a GPU")
  return()
endif()
if(NOT CMAKE_CUDA_COMPILER)
  find_program(ESP_NVCC nvcc HINTS /usr/local/cuda/bin REQUIRED)
  set(CMAKE_CUDA_COMPILER ${ESP_NVCC})
endif()
set(CMAKE_CUDA_ARCHITECTURES ${ESP_CUDA_ARCHITECTURE}-real)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
if(CMAKE_CXX_COMPILER_LAUNCHER AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 knows no C++20 of nvcc's
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
find_package(CUDAToolkit REQUIRED)
find_library(ESP_CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR} REQUIRED)
find_library(ESP_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
esp_report("CUDA ${CUDAToolkit_VERSION}, sm_${ESP_CUDA_ARCHITECTURE}, cuDNN" ON)
esp_report("NCCL" "${ESP_NCCL_LIBRARY}" "ranks on several GPUs are staged through the host")

# Nothing but this file's own flags differs from a build without CUDA: a compiler cache serves both.
# cudafe++ spells out consteval calls so that g++ takes them for ordinary ones, and refuses.
target_compile_options(esp_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-DFMT_CONSTEVAL= -DFMT_USE_CONSTEXPR=1>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers,-fstack-protector-strong>"
  "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcudafe --display_error_number --expt-relaxed-constexpr --extended-lambda>")
if(ESP_CUDA_QUICK)
  target_compile_options(esp_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xptxas=-O0 -Xcicc=-O0>")
endif()
if(ESP_WERROR)
  target_compile_options(esp_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>")
endif()
