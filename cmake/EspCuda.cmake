# The CUDA parts: esp/device/cuda, esp/kernel/cuda and esp/comm/nccl. Each has a CMakeLists.txt that adds its files to the
# module. Without ESP_CUDA the module's no_cuda.cpp replaces them.
#
# One architecture, machine code only: no PTX is compiled at program start, and the build stays short. The CUDA runtime is
# linked statically; cuBLASLt, cuDNN and NCCL are shared libraries.
set(ESP_CUDA_ARCHITECTURE 90a CACHE STRING "GPU architecture that nvcc compiles for")
option(ESP_CUDA_QUICK "Compile CUDA code without optimisation, only to check that it compiles: takes a quarter of the time" OFF)

# esp_cuda(module): adds this folder's .cu and .cpp to the module, and its _test.cpp and _test.cu to <module>_cuda_tests.
function(esp_cuda module)
  if(NOT ESP_CUDA)
    return()
  endif()
  file(GLOB_RECURSE all CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cu ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  set(tests ${all})
  list(FILTER tests INCLUDE REGEX "_test\\.(cpp|cu)$")
  list(FILTER all EXCLUDE REGEX "_test\\.(cpp|cu)$")
  target_sources(esp_${module} PRIVATE ${all})
  # Only these files get CUDA flags: the module's others compile as without CUDA, so the compiler cache has them.
  list(FILTER all INCLUDE REGEX "\\.cpp$")
  if(all)
    set_source_files_properties(${all} TARGET_DIRECTORY esp_${module} PROPERTIES
      COMPILE_OPTIONS "-isystem;${CUDAToolkit_INCLUDE_DIRS}" SKIP_PRECOMPILE_HEADERS ON)
    target_link_libraries(esp_${module} PRIVATE $<LINK_ONLY:CUDA::cudart_static>)
  endif()
  if(ESP_TESTS AND tests)
    esp_test(${module}_cuda_tests SOURCES ${tests} DEPENDS ${module} LIBRARIES CUDA::cudart_static LABEL gpu)
    target_include_directories(${module}_cuda_tests SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  endif()
endfunction()

if(NOT ESP_CUDA)
  message(STATUS "✗ CUDA is off: -DESP_CUDA=ON compiles the parts that run on a GPU")
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
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 has no C++20 flag for nvcc
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
find_package(CUDAToolkit REQUIRED)
find_library(ESP_CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR} REQUIRED)
find_library(ESP_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
esp_report("CUDA ${CUDAToolkit_VERSION}, sm_${ESP_CUDA_ARCHITECTURE}, cuDNN" ON)
esp_report("NCCL" "${ESP_NCCL_LIBRARY}" "ranks on several GPUs exchange data through host memory")

# Only the flags of CUDA files differ from a build without CUDA: one compiler cache serves both builds.
# cudafe++ rewrites consteval calls into calls that g++ rejects.
target_compile_options(esp_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-DFMT_CONSTEVAL= -DFMT_USE_CONSTEXPR=1>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers,-fstack-protector-strong>"
  "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcudafe --display_error_number --expt-relaxed-constexpr --extended-lambda>")
if(ESP_CUDA_QUICK)
  target_compile_options(esp_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xptxas=-O0 -Xcicc=-O0>")
endif()
if(ESP_WERROR)
  target_compile_options(esp_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>")
endif()
